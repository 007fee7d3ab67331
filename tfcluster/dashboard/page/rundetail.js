// What is known of one run: its record, members and result; also in a report.
import { element, makeRow, makeTable } from "./dom.js";
import { ACTIVE, formatDuration, formatNumber, formatTime, programOf } from "./format.js";

const OBVIOUS = ["exit_code", "restarts"];  // if they are 0, as the state says it

export function runHead(record, state) {
  const facts = [["program", programOf(record)],
    ["began", formatTime(record.started)], ["took", formatDuration(record.seconds)],
    ["commit", record.origin?.commit ? `${record.origin.commit.slice(0, 12)}${record.origin.is_clean ? "" : " with changes"}` : ""],
    ["inputs", record.inputs]];
  return element("div", {},
    element("h2", {}, `${record.run} `, element("span", { class: "pill", "data-state": state }, state)),
    factsOf(facts));
}

function factsOf(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value !== "" && value !== null && value !== undefined) list.append(element("dt", {}, name), element("dd", {}, value));
  }
  return list;
}

export function members(list) {
  if (!list.length) return [];
  const columns = ["task", "host", "state", "exit code"], table = makeTable("processes", columns);
  table.body.append(...list.map((member) => makeRow(columns, {}, [member.task, member.host, member.state, member.exit_code])));
  return [element("h3", {}, "Processes"), table.node];
}

// The latest metrics of an active script, which are in its record too, are below its curves.
export function outcome(record, notes) {
  const parts = notes.map((note) => element("p", { class: "note" }, note));
  if (record.error) parts.push(element("p", { class: "problem" }, [record.error.message, record.error.hint].filter(Boolean).join("\n")));
  const result = (ACTIVE.includes(record.state) ? null : record.result) ?? {};
  const hasParts = (value) => value !== null && typeof value === "object";
  const plain = Object.entries(result).filter(([name, value]) => value !== null && !hasParts(value) && (value !== 0 || !OBVIOUS.includes(name)));
  const nested = Object.entries(result.metrics ?? {}).flatMap(([name, value]) =>
    hasParts(value) ? Object.entries(value).map(([metric, last]) => [`${name} ${metric}`, last]) : [[name, value]]);
  if (plain.length || nested.length) parts.push(element("h3", {}, "Result"), factsOf([...plain, ...nested].map(([name, value]) => [name, formatNumber(value)])));
  return parts;
}

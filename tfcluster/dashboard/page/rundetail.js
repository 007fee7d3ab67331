// What is known of one run: its record, progress, curves, members and result; also in a report.
import { element } from "./dom.js";
import { curve, COLORS } from "./chart.js";
import { formatDuration, formatNumber, formatTime } from "./format.js";

export function runHead(record, state, seconds) {
  const facts = [["program", record.program === "script" ? record.parameters.argument ?? "script" : record.program],
    ["began", formatTime(record.started)], ["took", formatDuration(seconds ?? record.seconds)],
    ["commit", record.origin?.commit ? `${record.origin.commit.slice(0, 12)}${record.origin.is_clean ? "" : " with changes"}` : ""],
    ["inputs", inputsOf(record)]];
  return element("div", {},
    element("h2", {}, `${record.run} `, element("span", { class: "pill", "data-state": state }, state)),
    factsOf(facts));
}

function inputsOf(record) {
  if (record.program === "script") return (record.parameters.args ?? []).join(" ");
  return Object.entries(record.parameters).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join("  ");
}

function factsOf(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value !== "" && value !== null && value !== undefined) list.append(element("dt", {}, name), element("dd", {}, value));
  }
  return list;
}

export function curves(series) {
  const names = [...new Set(series.map((each) => each.name))];
  return names.map((name) => {
    const own = series.filter((each) => each.name === name).sort((one, other) => one.reporter.localeCompare(other.reporter, "en", { numeric: true }));
    const last = own.map((each) => each.points.at(-1)?.[1]);
    const legend = own.length > 1 ? own.map((each, index) => element("span", { class: `key color-${index % COLORS}` }, `${each.reporter} ${formatNumber(last[index])}`)) : [];
    return element("figure", { "data-metric": name },
      element("figcaption", {}, element("strong", {}, name), " ", element("span", { class: "quiet" }, own.length > 1 ? "" : formatNumber(last[0]))),
      curve(name, own), element("div", { class: "legend" }, ...legend));
  });
}

export function members(list) {
  if (!list.length) return [];
  return [element("h3", {}, "Processes"), element("div", { class: "scroll" }, element("table", {}, ...list.map((member) => element("tr", {},
    element("td", {}, member.task), element("td", {}, member.host), element("td", {}, member.state),
    element("td", {}, member.exit_code === undefined ? "" : `exit code ${member.exit_code}`)))))];
}

export function outcome(record, notes) {
  const parts = notes.map((note) => element("p", { class: "note" }, note));
  if (record.error) parts.push(element("p", { class: "problem" }, [record.error.message, record.error.hint].filter(Boolean).join("\n")));
  const result = record.result ?? {};
  const plain = Object.entries(result).filter(([, value]) => value !== null && typeof value !== "object");
  const nested = Object.entries(result.metrics ?? {}).flatMap(([name, value]) => value === null || typeof value !== "object" ? [[name, value]]
    : Object.entries(value).map(([metric, last]) => [`${name} ${metric}`, last]));
  if (plain.length || nested.length) parts.push(element("h3", {}, "Result"), factsOf([...plain, ...nested].map(([name, value]) => [name, formatNumber(value)])));
  return parts;
}

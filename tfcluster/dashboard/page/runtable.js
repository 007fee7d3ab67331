// The table of runs, for which the columns are chosen: the parameters that differ and the metrics.
import { html } from "./dom.js";
import { durationOf, formatDuration, formatNumber, programOf } from "./format.js";
import { linkToRuns, Pill, Time } from "./parts.js";

const isKnown = (value) => value !== null && value !== undefined && value !== "";
const isoTime = (run) => new Date(1000 * run.started).toISOString();
const WAITED = {
  name: "waited", value: (run) => run.waited, cell: (run) => (run.waited > 1 ? formatDuration(run.waited) : ""), isNumber: true,
};

export function columnsOf(runs, age, marker = () => null) {
  const took = (run) => durationOf(run, age);
  const hasWaited = runs.some((run) => run.waited > 1);
  return [
    { name: "run", value: (run) => run.run, cell: (run) => html`${marker(run)}<${RunLink} run=${run.run} />` },
    { name: "state", value: (run) => run.state, cell: (run) => html`<${State} run=${run} />` },
    { name: "program", value: programOf },
    { name: "began", value: (run) => run.started, cell: (run) => html`<${Time} seconds=${run.started} />`, csv: isoTime },
    { name: "took", value: took, cell: (run) => formatDuration(took(run)), isNumber: true },
    ...(hasWaited ? [WAITED] : []),
    ...parameterColumns(runs), ...metricColumns(runs),
  ];
}

function RunLink({ run }) {
  return html`<a href=${linkToRuns([run])}>${run}</a>`;
}

function State({ run }) {
  return html`<${Pill} state=${run.state} title=${run.error?.message} />`;
}

// A column for each parameter that differs between runs of the same program.
function parameterColumns(runs) {
  const known = new Map(runs.map((run) => [run.run, parametersOf(run)]));
  const programs = [...Map.groupBy(runs, programOf).values()];
  const differs = (name) => programs.some((group) => new Set(group.map((run) => known.get(run.run)[name])).size > 1);
  const names = [...new Set([...known.values()].flatMap(Object.keys))].filter(differs);
  return names.map((name) => {
    const text = (run) => known.get(run.run)?.[name] ?? "";  // as it was given: 007 is not 7
    return { ...makeColumn("parameter", name, runs, (run) => sortable(text(run))), cell: text, csv: text };
  });
}

// A column for the last value of each metric.
function metricColumns(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics ?? {})))].sort();
  return names.map((name) => makeColumn("last value", name, runs, (run) => run.metrics?.[name]));
}

function makeColumn(title, name, runs, value) {
  const isNumber = runs.every((run) => typeof value(run) === "number" || !isKnown(value(run)));
  const cell = (run) => (isKnown(value(run)) ? formatNumber(value(run)) : "");
  return { name: `${title} ${name}`, label: name, title, value, cell, isNumber };
}

// The parameters by their names; those of a script are the options in its arguments.
export function parametersOf(run) {
  const parameters = run.program === "script" ? optionsIn(run.parameters.args ?? []) : run.parameters;
  return Object.fromEntries(Object.entries(parameters).map(([name, value]) => [name, plain(value)]));
}

const plain = (value) => (value === null || typeof value === "string" ? value : JSON.stringify(value));

// A text that is a number is sorted by its size.
const sortable = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text);

// `--rate 0.1`, `--rate=0.1` and `--verbose` are options; all that is not part of one is in `arguments`.
function optionsIn(words) {
  const found = {}, rest = [], isOption = (word) => /^--?[a-z]/i.test(word);
  for (let at = 0; at < words.length; at += 1) {
    const [, name, value] = /^--?([a-z][^=]*)(?:=(.*))?$/is.exec(words[at]) ?? [];
    if (name === undefined) rest.push(words[at]);
    else if (value !== undefined) found[name] = value;
    else if (at + 1 < words.length && !isOption(words[at + 1])) found[name] = words[at += 1];
    else found[name] = "yes";
  }
  return rest.length ? { ...found, arguments: rest.join(" ") } : found;
}

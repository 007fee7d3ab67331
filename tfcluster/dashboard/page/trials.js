// The trials of a sweep: their parameters and last metrics, in the order of its result.
import { html } from "./dom.js";
import { formatDuration, formatNumber } from "./format.js";
import { Pill } from "./parts.js";
import { DataTable } from "./table.js";

export function Trials({ trials }) {
  return trials.length > 0 && html`<${DataTable} name="trials" columns=${columnsOf(trials)} items=${trials}
    keyOf=${(trial) => trial.trial}><h3>Trials</h3><//>`;
}

function columnsOf(trials) {
  return [
    { name: "trial", value: (trial) => trial.trial, isNumber: true },
    ...namedColumns(trials, "parameters"),
    { name: "state", value: (trial) => trial.state, cell: (trial) => html`<${Pill} state=${trial.state} />` },
    ...namedColumns(trials, "metrics"),
    { name: "host", value: (trial) => trial.host ?? "" },
    { name: "took", value: (trial) => trial.seconds, cell: (trial) => formatDuration(trial.seconds), isNumber: true },
  ];
}

// A column for each parameter or metric.
function namedColumns(trials, kind) {
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial[kind])))];
  return names.map((name) => {
    const value = (trial) => trial[kind][name];
    const cell = (trial) => (value(trial) === undefined ? "" : formatNumber(value(trial)));
    const isNumber = trials.every((trial) => typeof (value(trial) ?? 0) === "number");
    return { name: `${kind} ${name}`, label: name, title: kind, value, cell, isNumber };
  });
}

// The list of runs in the overview: the active ones and the latest.
import { cancelRun } from "./actions.js";
import { html } from "./dom.js";
import { durationOf, formatBytes, formatDuration, isActive, programOf } from "./format.js";
import { isReader } from "./model.js";
import { limitOf, linkToRuns, Pill, shorten, Time } from "./parts.js";
import { Table } from "./table.js";

const LIMITS = [4, 8];  // runs that have ended: as cards in a narrow window, as rows

export function RunsSection({ model }) {
  const { runs, status } = model.view;
  const shown = shorten([...runs].reverse(), isActive, limitOf(LIMITS));
  const link = shown.length < runs.length ? `All ${runs.length} runs` : "Sort and compare";
  return html`<section>
    <div class="filters"><h2>Runs</h2></div>
    <${Table} name="runs" columns=${columnsOf(model, status)} items=${shown} keyOf=${(run) => run.run}
      attributesOf=${(run) => ({ "data-run": run.run })} />
    <p class="quiet">${runs.length ? "" : "No runs yet."}</p>
    ${runs.length > 0 && html`<a class="all" href="#runs">${link}</a>`}
  </section>`;
}

function columnsOf(model, status) {
  const memory = new Map(status.runs.map((run) => [run.run, run.gpu_memory_bytes]));
  const columns = [
    { name: "run", cell: (run) => html`<a href=${linkToRuns([run.run])}>${run.run}</a>` },
    { name: "state", cell: (run) => html`<${Pill} state=${run.state} />` },
    { name: "program", cell: programOf },
    { name: "result", cell: (run) => html`<${Result} run=${run} memory=${memory.get(run.run)} />` },
    { name: "began", cell: (run) => html`<${Time} seconds=${run.started} />` },
    { name: "took", cell: (run) => formatDuration(durationOf(run, model.age)) },
    { name: "actions", cell: (run) => isActive(run) && html`<button type="button" class="cancel"
      aria-label=${`cancel ${run.run}`} onClick=${() => cancelRun(status.cluster, run.run)}>Cancel</button>` },
  ];
  return columns.filter(({ name }) => name !== "actions" || !isReader());
}

// The progress of an active run, or what came out. An error is one line, which a click opens.
function Result({ run, memory }) {
  if (run.error) return html`<${Failure} run=${run} />`;
  const progress = isActive(run) ? run.progress : null, part = progress ? progress.done / (progress.total || 1) : 0;
  const texts = [progress ? `${Math.floor(100 * part)} %` : "", isActive(run) ? run.activity : run.outcome];
  if (memory !== null && memory !== undefined) texts.push(`GPU ${formatBytes(memory)}`);
  return html`${progress && html`<progress max="1" value=${part} aria-label=${`progress of ${run.run}`} />`}
    <span class="value">${texts.filter(Boolean).join(" · ")}</span>`;
}

function Failure({ run }) {
  return html`<details><summary>${run.outcome || run.error.message}</summary>
    <pre tabindex="0" role="group" aria-label=${`error of ${run.run}`}>${describeError(run.error)}</pre></details>`;
}

export const describeError = (error) => [error.message, error.hint].filter(Boolean).join("\n");

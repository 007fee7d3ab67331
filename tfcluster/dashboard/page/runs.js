// All runs: a table that sorts, with a filter and a choice of runs to compare.
import { html, useState } from "./dom.js";
import { programOf } from "./format.js";
import { linkToRuns } from "./parts.js";
import { columnsOf } from "./runtable.js";
import { DataTable } from "./table.js";

export function RunsView({ model }) {
  const [text, setText] = useState(""), [chosen, setChosen] = useState(new Set());
  const runs = [...(model.view?.runs ?? [])].reverse();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => words.every((word) => textOf(run).includes(word)));
  const compared = runs.filter((run) => chosen.has(run.run)).map((run) => run.run);
  const choose = (run) => (event) => {
    const { checked } = event.target;
    setChosen((before) => new Set(checked ? [...before, run] : [...before].filter((each) => each !== run)));
  };
  const select = ({ run }) => html`
    <input type="checkbox" aria-label=${`choose ${run}`} checked=${chosen.has(run)} onChange=${choose(run)} />`;
  const compare = () => { location.hash = linkToRuns(compared); };
  const columns = columnsOf(found, model.age);
  return html`<section>
    <${DataTable} name="all-runs" columns=${columns} items=${found} keyOf=${(run) => run.run} select=${select}>
      <h2>Runs</h2>
      <span class="quiet">${found.length < runs.length ? `${found.length} of ${runs.length}` : runs.length}</span>
      <input type="search" id="runs-filter" placeholder="run, program, state or parameter" aria-label="filter runs"
        onInput=${(event) => setText(event.target.value)} />
      <button type="button" id="compare-runs" disabled=${compared.length < 2} onClick=${compare}>
        ${compared.length < 2 ? "Choose runs to compare" : `Compare ${compared.length} runs`}</button>
    <//>
    <p class="quiet">${!model.view || found.length ? "" : runs.length ? "Nothing matches." : "No runs yet."}</p>
  </section>`;
}

function textOf(run) {
  return [run.run, programOf(run), run.state, run.inputs, JSON.stringify(run.parameters)].join(" ").toLowerCase();
}

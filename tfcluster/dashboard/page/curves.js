// Curves of metrics, with smoothing, a choice of the scale, downloads and the numbers as a table.
import { Chart } from "./chart.js";
import { html, useMemo, useState } from "./dom.js";

export const COLORS = 10;  // as in style.css
const DASHES = 4;  // as in chart.js

// `series`: [{name, run, reporter, points: [[step, value, seconds]]}], with the number of the run. If runs are compared
// the colour is that of the run, and the reporters of a run differ by their dashes. `children` are more controls.
export function Curves({ series, isCompared = false, children }) {
  const [smoothing, setSmoothing] = useState(0), [isLog, setIsLog] = useState(false);
  const charts = useMemo(() => chartsOf(series, isCompared), [series, isCompared]);
  const smooth = (event) => setSmoothing(Number(event.target.value));
  const scale = (event) => setIsLog(event.target.checked);
  return html`<div>
    <div class="filters" hidden=${!charts.length}>
      <label>smoothing <input type="range" id="smoothing" min="0" max="0.99" step="0.01" defaultValue="0" onInput=${smooth} />
      </label><output for="smoothing">${smoothing.toFixed(2)}</output>
      <label><input type="checkbox" id="logarithmic" onChange=${scale} /> logarithmic</label>
      <span class="quiet">Drag over a curve to zoom in; double-click to zoom out.</span>${children}</div>
    <div class="curves">${charts.map(({ name, lines }) => html`
      <${Chart} key=${name} name=${name} lines=${lines} smoothing=${smoothing} isLog=${isLog} />`)}</div>
  </div>`;
}

// The lines of each metric, in the order of runs and reporters; a line has the same look in all charts.
function chartsOf(series, isCompared) {
  const compare = (one, other) => one.localeCompare(other, "en", { numeric: true });
  const sorted = [...series].sort((one, other) => one.run - other.run || compare(one.reporter, other.reporter));
  const looks = new Map();
  for (const { run, reporter } of sorted) {
    if (looks.has(reporter)) continue;
    looks.set(reporter, isCompared ? lookOf(run, looks) : { run, color: looks.size % COLORS, dash: 0 });
  }
  const lines = sorted.map((each) => ({ ...each, ...looks.get(each.reporter) }));
  const names = [...new Set(series.map((each) => each.name))];
  return names.map((name) => ({ name, lines: lines.filter((each) => each.name === name) }));
}

function lookOf(run, looks) {
  const earlier = [...looks.values()].filter((look) => look.run === run).length;
  return { run, color: run % COLORS, dash: (Math.floor(run / COLORS) + earlier) % DASHES };
}

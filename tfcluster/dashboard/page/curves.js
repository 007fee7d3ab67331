// Curves of metrics, drawn by uPlot, with smoothing, a choice of the scale, downloads and the numbers as a table.
import { element, makeRow, makeTable, setText } from "./dom.js";
import { formatNumber, formatTick } from "./format.js";

export const COLORS = 8;
const HEIGHT = 210;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// All curves of some runs, and the controls for them.
export class Curves {
  constructor() {
    const redraw = () => this.show(this.series);
    this.smoothing = element("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: 0, oninput: redraw });
    this.amount = element("output", { for: "smoothing" }, "0.00");
    this.isLog = element("input", { type: "checkbox", id: "logarithmic", onchange: redraw });
    this.controls = element("div", { class: "filters", hidden: true },
      element("label", {}, "smoothing ", this.smoothing), this.amount, element("label", {}, this.isLog, " logarithmic"),
      element("span", { class: "quiet" }, "Drag over a curve to zoom in; double-click to zoom out."));
    this.grid = element("div", { class: "curves" });
    this.node = element("div", {}, this.controls, this.grid);
    this.curves = new Map();
    this.ended = new AbortController();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal: this.ended.signal });
  }

  close() {
    this.ended.abort();
    for (const curve of this.curves.values()) curve.close();
  }

  // series: [{name, reporter, points: [[step, value, seconds]]}], also with the number of the run if there are several
  show(series) {
    this.series = series;
    setText(this.amount, Number(this.smoothing.value).toFixed(2));
    const names = [...new Set(series.map((each) => each.name))];
    this.controls.hidden = names.length === 0;
    const sorted = [...series].sort((one, other) => (one.run ?? 0) - (other.run ?? 0) || one.reporter.localeCompare(other.reporter, "en", { numeric: true }));
    const reporters = [...new Set(sorted.map((each) => each.reporter))];  // each has the same color in all curves
    for (const name of names) {
      if (!this.curves.has(name)) this.curves.set(name, new Curve(name, this.grid));
      const own = sorted.filter((each) => each.name === name).map((each) => ({ ...each, color: reporters.indexOf(each.reporter) % COLORS }));
      this.curves.get(name).show(own, Number(this.smoothing.value), this.isLog.checked);
    }
  }
}

// The curve of one metric: a line for each reporter.
class Curve {
  constructor(name, parent) {
    this.name = name;
    this.legend = element("div", { class: "legend" });
    this.plot = element("div", { class: "plot", role: "img" });
    this.rows = element("div", { class: "numbers", tabindex: 0, role: "group", "aria-label": `numbers of ${name}` });
    this.table = element("details", { ontoggle: () => this.fillTable() }, element("summary", {}, "Numbers as a table"), this.rows);
    const button = (text, action) => element("button", { type: "button", "aria-label": `${name} as ${text}`, onclick: action }, text);
    parent.append(element("figure", { "data-metric": name },
      element("figcaption", {}, element("h3", {}, name), button("CSV", () => this.saveNumbers()), button("PNG", () => this.savePicture())),
      this.plot, this.legend, this.table));
    this.observer = new ResizeObserver(() => this.chart?.setSize({ width: this.plot.clientWidth, height: HEIGHT }));
    this.observer.observe(this.plot);
  }

  close() {
    this.observer.disconnect();
    this.chart?.destroy();
  }

  show(series, smoothing, isLog) {
    this.labels = series.map((each) => each.reporter || this.name);
    this.colors = series.map((each) => each.color);
    const points = series.map((each) => [...new Map(each.points.map(([step, value]) => [step, value]))].sort((one, other) => one[0] - other[0]));
    const aligned = (values) => uPlot.join(points.map((each, index) => [each.map((point) => point[0]), values(each, index)]));
    const drawable = (value) => (isLog && value <= 0 ? null : value);
    this.numbers = aligned((each) => each.map((point) => point[1]));
    const raw = aligned((each) => each.map((point) => drawable(point[1])));
    const lines = smoothing ? aligned((each) => smooth(each.map((point) => drawable(point[1])), smoothing)).slice(1) : [];
    const data = [...raw, ...lines];
    const look = JSON.stringify([this.labels, this.colors, lines.length > 0, isLog, color("text")]);
    if (look === this.look && this.chart) this.chart.setData(data, !this.isZoomed());
    else this.create(data, lines.length > 0, isLog);
    this.look = look;
    this.showValues();
    if (this.table.open) this.fillTable();
  }

  create(data, isSmoothed, isLog) {
    this.chart?.destroy();
    const line = (index, alpha) => ({ stroke: color(`c${this.colors[index]}`), width: alpha < 1 ? 1 : 1.7, alpha, points: { show: data[0].length < 2 } });
    const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const values = (_, ticks, axis, space, step) => ticks.map((tick) => (tick === null ? "" : isLog && axis ? formatNumber(tick) : formatTick(tick, step)));
    this.chart = new uPlot({
      width: this.plot.clientWidth || 400, height: HEIGHT, legend: { show: false }, padding: [8, null, null, null],
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [{ ...axis, values, size: 28 }, { ...axis, values, size: 62 }],
      cursor: { y: false, sync: { key: "step" } },
      series: [{}, ...this.labels.map((_, index) => line(index, isSmoothed ? 0.3 : 1)), ...(isSmoothed ? this.labels.map((_, index) => line(index, 1)) : [])],
      hooks: { setCursor: [() => this.showValues()] },
    }, data, this.plot);
  }

  isZoomed() {
    const { x } = this.chart.scales, steps = this.chart.data[0];
    return x.min > steps[0] || x.max < steps.at(-1);
  }

  // Show the values at the pointer, if they have begun and not ended there, or else the latest ones.
  showValues() {
    if (!this.chart) return;
    const steps = this.chart.data[0], drawn = this.chart.data.slice(-this.labels.length), { idx: at } = this.chart.cursor;
    const isKnown = (value) => value !== undefined, ends = drawn.map((values) => values.findLastIndex(isKnown));
    const values = drawn.map((each, index) => formatNumber(at > ends[index] ? null : each.slice(0, (at ?? ends[index]) + 1).findLast(isKnown)));
    const where = at === null && new Set(ends).size > 1 ? "latest" : `step ${formatNumber(steps[at ?? ends[0]])}`;
    this.legend.replaceChildren(element("span", { class: "quiet" }, where),
      ...values.map((value, index) => element("span", { class: `key color-${this.colors[index]}` }, element("span", {}, this.labels.length > 1 ? `${this.labels[index]} ` : "", element("b", {}, value)))));
    this.plot.setAttribute("aria-label", `${this.name} by step; ${where}: ${values.map((value, index) => `${this.labels[index]} ${value}`).join(", ")}`);
  }

  fillTable() {
    if (!this.table.open) return;
    const columns = ["step", ...this.labels], table = makeTable(`${this.name} by step`, columns);
    const [steps, ...values] = this.numbers;
    table.body.append(...steps.map((step, index) => makeRow(columns, {}, [step, ...values.map((each) => (each[index] === undefined ? "" : formatNumber(each[index])))])));
    this.rows.replaceChildren(table.node);
  }

  saveNumbers() {
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const [steps, ...values] = this.numbers;
    const lines = steps.map((step, index) => [step, ...values.map((each) => each[index] ?? "")].join(","));
    save(`${this.name}.csv`, new Blob([[["step", ...this.labels].map(quote).join(","), ...lines].join("\r\n"), "\r\n"], { type: "text/csv" }));
  }

  savePicture() {
    const drawn = this.chart.ctx.canvas, scale = devicePixelRatio, line = 20 * scale;
    const canvas = element("canvas", { width: drawn.width, height: drawn.height + (1 + this.labels.length) * line });
    const context = canvas.getContext("2d");
    const write = (text, row, fill) => { context.fillStyle = fill; context.fillText(text, 10 * scale, row); };
    context.fillStyle = color("card");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.font = `${13 * scale}px system-ui, sans-serif`;
    write(this.name, 0.75 * line, color("text"));
    context.drawImage(drawn, 0, line);
    this.labels.forEach((label, index) => write(`━ ${label}`, drawn.height + (1.7 + index) * line, color(`c${this.colors[index]}`)));
    canvas.toBlob((blob) => save(`${this.name}.png`, blob));
  }
}

// The exponential moving average of TensorBoard, without its bias towards 0.
function smooth(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

export function save(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

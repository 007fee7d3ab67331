// The chart of one metric, drawn by uPlot: a line for each reporter, with a legend, the numbers and downloads.
import { Component, html } from "./dom.js";
import { save, saveCsv } from "./download.js";
import { formatNumber, formatTick } from "./format.js";

const HEIGHT = 210;
const LONG = 4;  // lines; a longer legend scrolls, if it has no room
const FAINT = 0.3;  // the values themselves, if they are smoothed
const FONT = "system-ui, sans-serif";
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];  // pixels of a line and a gap
const themeColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const labelOf = (line, name) => line.reporter || name;

export class Chart extends Component {
  state = { at: null, isOpen: false };  // the index of the step under the pointer; whether the numbers are shown

  shouldComponentUpdate(next, state) {
    const { lines, smoothing, isLog } = this.props;
    return lines !== next.lines || smoothing !== next.smoothing || isLog !== next.isLog || state !== this.state;
  }

  componentDidMount() {
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT }));
    this.observer.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.scheme.addEventListener("change", this.redraw);
    this.draw();
  }

  componentDidUpdate(before) {
    const { lines, smoothing, isLog } = this.props;
    if (lines !== before.lines || smoothing !== before.smoothing || isLog !== before.isLog) this.draw();
  }

  componentWillUnmount() {
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }

  // Draw the values, and the smoothed ones over them. A zoom stays while the look of the chart does.
  draw() {
    const { lines, smoothing, isLog, name } = this.props;
    this.drawn = alignLines(lines, (value) => (isLog && value <= 0 ? null : value), smoothing);
    const looks = lines.map(({ reporter, color, dash }) => [reporter, color, dash]);
    const look = JSON.stringify([looks, smoothing > 0, isLog, themeColor("text")]);
    if (look === this.look && this.isZoomed()) {
      this.plot.setData(this.drawn, false);
      this.plot.redraw();  // with the same scale
    } else if (look === this.look) this.plot.setData(this.drawn);
    else {
      this.plot?.destroy();
      const options = makeOptions(lines, this.drawn, smoothing > 0, isLog, this.place.clientWidth);
      const hooks = { setCursor: [({ cursor }) => this.point(cursor.idx)] };
      this.plot = new uPlot({ ...options, hooks }, this.drawn, this.place);
    }
    this.look = look;
    this.setState({});  // the legend has the new values
  }

  isZoomed() {
    const { x } = this.plot.scales, steps = this.plot.data[0];
    return x.min > steps[0] || x.max < steps.at(-1);
  }

  point(at = null) {
    if (at !== this.state.at) this.setState({ at });
  }

  render({ name, lines }, { at, isOpen }) {
    const button = (kind, action) => html`
      <button type="button" aria-label=${`${name} as ${kind}`} onClick=${action}>${kind}</button>`;
    const { where, values } = this.drawn ? valuesAt(at, this.drawn, lines.length) : { where: "", values: [] };
    const texts = values.map((value, index) => `${labelOf(lines[index], name)} ${value}`);
    const label = `${name} by step; ${where}: ${texts.join(", ")}`;
    return html`<figure data-metric=${name}>
      <figcaption><h3>${name}</h3>
        ${button("CSV", () => this.saveNumbers())}${button("PNG", () => this.savePicture())}</figcaption>
      <div class="plot" role="img" aria-label=${label} ref=${(node) => { this.place = node; }}></div>
      <${Legend} name=${name} lines=${lines} where=${where} values=${values} />
      <details onToggle=${(event) => this.setState({ isOpen: event.target.open })}><summary>Numbers as a table</summary>
        <div class="numbers" tabindex="0" role="group" aria-label=${`numbers of ${name}`}>
          ${isOpen && html`<${Numbers} name=${name} lines=${lines} />`}</div></details>
    </figure>`;
  }

  saveNumbers() {
    const { name, lines } = this.props;
    const [steps, ...values] = alignLines(lines);
    const rows = steps.map((step, index) => [step, ...values.map((each) => each[index])]);
    saveCsv(name, [["step", ...lines.map((line) => labelOf(line, name))], ...rows]);
  }

  savePicture() {
    const { name, lines } = this.props;
    paintPicture(this.plot.ctx.canvas, name, lines).toBlob((blob) => save(`${name}.png`, blob));
  }
}

// The steps of all lines, and the values of each line at these steps; undefined where a line has none. With smoothing,
// the smoothed values of all lines follow.
function alignLines(lines, convert = (value) => value, smoothing = 0) {
  const points = lines.map((line) => [...new Map(line.points)].sort((one, other) => one[0] - other[0]));
  const tables = points.map((each) => [each.map(([step]) => step), each.map(([, value]) => convert(value))]);
  const raw = uPlot.join(tables);
  if (!smoothing) return raw;
  return [...raw, ...uPlot.join(tables.map(([steps, values]) => [steps, smooth(values, smoothing)])).slice(1)];
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

function makeOptions(lines, data, isSmoothed, isLog, width) {
  const stroke = (alpha) => (line) => ({
    stroke: themeColor(`c${line.color}`), width: alpha < 1 ? 1 : 1.7, alpha, dash: DASHES[line.dash],
    points: { show: data[0].length < 2 },
  });
  const grid = { stroke: themeColor("line"), width: 1 };
  const axis = { stroke: themeColor("quiet"), grid, ticks: { show: false }, font: `12px ${FONT}` };
  const text = (tick, isY, step) => (tick === null ? "" : isLog && isY ? formatNumber(tick) : formatTick(tick, step));
  const values = (_, ticks, axisNumber, space, step) => ticks.map((tick) => text(tick, axisNumber > 0, step));
  return {
    width: width || 400, height: HEIGHT, legend: { show: false }, padding: [8, null, null, null],
    scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
    axes: [{ ...axis, values, size: 28 }, { ...axis, values, size: 62 }],
    cursor: { y: false, sync: { key: "step" } },
    series: [{}, ...lines.map(stroke(isSmoothed ? FAINT : 1)), ...(isSmoothed ? lines.map(stroke(1)) : [])],
  };
}

// The values at the pointer, if a line has begun and not ended there, or else the latest ones.
function valuesAt(at, data, count) {
  const steps = data[0], drawn = data.slice(-count);
  const isKnown = (value) => value !== undefined, ends = drawn.map((values) => values.findLastIndex(isKnown));
  const lastOf = (values, end) => values.slice(0, (at ?? end) + 1).findLast(isKnown);
  const values = drawn.map((each, index) => formatNumber(at > ends[index] ? null : lastOf(each, ends[index])));
  const isSpread = at === null && new Set(ends).size > 1;
  return { where: isSpread ? "latest" : `step ${formatNumber(steps[at ?? ends[0]])}`, values };
}

function Legend({ name, lines, where, values }) {
  const isLong = lines.length > LONG;
  const label = `values of ${name}`;
  return html`<div class=${`legend ${isLong ? "long" : ""}`} role="group" aria-label=${label} tabindex=${isLong ? 0 : null}>
    <span class="quiet">${where}</span>
    ${lines.map((line, index) => html`<span key=${line.reporter} class=${`key color-${line.color} dash-${line.dash}`}>
      <span>${lines.length > 1 ? `${labelOf(line, name)} ` : ""}<b>${values[index]}</b></span></span>`)}
  </div>`;
}

function Numbers({ name, lines }) {
  const [steps, ...values] = alignLines(lines);
  const cell = (value) => (value === undefined ? "" : formatNumber(value));
  return html`<table aria-label=${`${name} by step`}>
    <thead><tr><th scope="col">step</th>
      ${lines.map((line) => html`<th scope="col">${labelOf(line, name)}</th>`)}</tr></thead>
    <tbody>${steps.map((step, index) => html`<tr key=${step}><th scope="row">${step}</th>
      ${values.map((each) => html`<td>${cell(each[index])}</td>`)}</tr>`)}</tbody>
  </table>`;
}

// The chart with its name above and its legend below.
function paintPicture(drawn, name, lines) {
  const scale = devicePixelRatio, height = 20 * scale, canvas = document.createElement("canvas");
  Object.assign(canvas, { width: drawn.width, height: drawn.height + (1 + lines.length) * height });
  const context = canvas.getContext("2d");
  const write = (text, y, fill) => { context.fillStyle = themeColor(fill); context.fillText(text, 10 * scale, y); };
  context.fillStyle = themeColor("card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.font = `${13 * scale}px ${FONT}`;
  write(name, 0.75 * height, "text");
  context.drawImage(drawn, 0, height);
  const rowOf = (index) => drawn.height + (1.7 + index) * height;
  lines.forEach((line, index) => write(`━ ${labelOf(line, name)}`, rowOf(index), `c${line.color}`));
  return canvas;
}

// Sparklines, and curves with axes, as SVG.
import { setText, shape } from "./dom.js";
import { formatNumber } from "./format.js";

export const COLORS = 8;
const WIDTH = 460, HEIGHT = 190, LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 24;

export function sparkline(values, top) {
  const width = 84, height = 20;
  const numbers = values.map((value) => value ?? null);
  const highest = Math.max(top ?? 0, ...numbers.filter((value) => value !== null), 1e-9);
  const step = numbers.length > 1 ? width / (numbers.length - 1) : width;
  const line = pathOf(numbers.map((value, index) => [index * step, value === null ? null : height - 2 - (value / highest) * (height - 4)]));
  return shape("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    shape("path", { d: line }));
}

function pathOf(points) {
  let path = "", isDown = false;
  for (const [x, y] of points) {
    if (y === null) { isDown = false; continue; }
    path += `${isDown ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
    isDown = true;
  }
  return path;
}

// series: [{reporter, points: [[step, value, seconds]]}], all of one metric
export function curve(name, series) {
  const values = series.flatMap((each) => each.points.map((point) => point[1]).filter((value) => value !== null));
  const steps = series.flatMap((each) => each.points.map((point) => point[0]));
  const isLog = values.length > 0 && !name.endsWith("_per_s") && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 50;
  const x = scale(steps.length ? Math.min(...steps) : 0, Math.max(...steps, 1), LEFT, WIDTH - RIGHT, false);
  const y = scale(...range(values, isLog), HEIGHT - BOTTOM, TOP, isLog);
  const svg = shape("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name} by step` });
  for (const tick of y.ticks) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(tick), y2: y.at(tick) }),
      shape("text", { class: "tick", x: LEFT - 6, y: y.at(tick) + 3, "text-anchor": "end" }, formatNumber(tick)));
  }
  for (const tick of x.ticks) {
    svg.append(shape("text", { class: "tick", x: x.at(tick), y: HEIGHT - 8, "text-anchor": x.at(tick) > WIDTH - 40 ? "end" : "middle" }, formatNumber(tick)));
  }
  series.forEach((each, index) => {
    const line = pathOf(each.points.map(([step, value]) => [x.at(step), value === null ? null : y.at(value)]));
    svg.append(shape("path", { class: `line color-${index % COLORS}`, d: line },
      shape("title", {}, each.reporter || name)));
    const last = each.points.findLast((point) => point[1] !== null);
    if (last) svg.append(shape("circle", { class: `dot color-${index % COLORS}`, cx: x.at(last[0]), cy: y.at(last[1]), r: 2.5 }));
  });
  addReadout(svg, series, x, y);
  return svg;
}

function range(values, isLog) {
  if (values.length === 0) return [0, 1];
  let low = Math.min(...values), high = Math.max(...values);
  if (isLog) return [low, high];
  if (low > 0 && low < 0.6 * high) low = 0;
  if (low === high) return [low - Math.abs(low) * 0.1 - 1e-9, high + Math.abs(high) * 0.1 + 1e-9];
  return [low, high + 0.04 * (high - low)];
}

function scale(low, high, from, to, isLog) {
  const transform = isLog ? Math.log10 : (value) => value;
  const begin = transform(low), span = transform(high) - begin || 1;
  return { at: (value) => from + ((transform(value) - begin) / span) * (to - from), ticks: isLog ? powers(low, high) : ticks(low, high) };
}

function ticks(low, high) {
  const raw = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

function powers(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += 1) found.push(10 ** power);
  return found.length > 1 ? found : [low, high];
}

// Show the values at the pointer.
function addReadout(svg, series, x, y) {
  const rule = shape("line", { class: "rule", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const text = shape("text", { class: "readout", y: TOP + 8, visibility: "hidden" });
  svg.append(rule, text);
  svg.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * WIDTH;
    const near = series.map((each) => [each, nearest(each.points, (point) => Math.abs(x.at(point[0]) - at))]).filter((pair) => pair[1]);
    if (near.length === 0) return;
    const place = x.at(near[0][1][0]);
    for (const node of [rule, text]) node.setAttribute("visibility", "visible");
    rule.setAttribute("x1", place);
    rule.setAttribute("x2", place);
    text.setAttribute("x", place > WIDTH / 2 ? place - 6 : place + 6);
    text.setAttribute("text-anchor", place > WIDTH / 2 ? "end" : "start");
    setText(text, `step ${formatNumber(near[0][1][0])}: ` + near.map(([, point]) => formatNumber(point[1])).join(" · "));
  });
  svg.addEventListener("pointerleave", () => [rule, text].forEach((node) => node.setAttribute("visibility", "hidden")));
}

function nearest(points, distance) {
  return points.reduce((best, point) => (best === null || distance(point) < distance(best) ? point : best), null);
}

// Events on an axis of time, a row for each task.
import { shape } from "./dom.js";
import { formatTime } from "./format.js";

const WIDTH = 960, LEFT = 110, ROW = 18, ROWS = 12;

// Draw the events of the last seconds (0: all), with the latest ones in sight.
export function showTimeline(parent, events, seconds) {
  parent.replaceChildren(timeline(events, seconds));
  parent.scrollLeft = parent.scrollWidth;
}

function timeline(events, seconds) {
  const now = Date.now() / 1000;
  const first = seconds ? now - seconds : events.length ? Math.min(...events.map((event) => event.time)) - 1 : now - 60;
  const shown = events.filter((event) => event.time >= first);
  const names = [...new Set(shown.map((event) => event.task ?? "cluster"))].sort().slice(0, ROWS);
  const height = ROW * (names.length || 1) + 22;
  const at = (time) => LEFT + ((time - first) / (now - first || 1)) * (WIDTH - LEFT - 8);
  const svg = shape("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "events by time" });
  names.forEach((name, index) => {
    const y = ROW * index + 12;
    svg.append(shape("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, name.length > 16 ? `${name.slice(0, 15)}…` : name),
      shape("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }));
  });
  for (const event of shown) {
    const row = names.indexOf(event.task ?? "cluster");
    if (row < 0) continue;
    svg.append(shape("circle", { class: "mark", "data-kind": kindOf(event.event), cx: at(event.time), cy: ROW * row + 12, r: 4 },
      shape("title", {}, `${formatTime(event.time)} ${event.task ?? ""} ${event.event}${event.detail ? `: ${event.detail}` : ""}`)));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const time = first + part * (now - first);
    svg.append(shape("text", { class: "tick", x: at(time), y: height - 4, "text-anchor": part === 1 ? "end" : "middle" }, formatTime(time)));
  }
  return svg;
}

export function kindOf(name) {
  if (/fail|died|exit|lost|unresponsive|oom|killed|gone|away/.test(name)) return "bad";
  if (/ready|adopt|up|back/.test(name)) return "good";
  return "plain";
}

// The placed graph of a run: a lane and a color for each device.
import { shape } from "./dom.js";
import { COLORS } from "./curves.js";

export function placedGraph(drawing) {
  const { width, height, box, lanes, boxes, edges } = drawing;
  const svg = shape("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "placed graph" },
    shape("defs", {}, shape("marker", { id: "tip", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      shape("path", { class: "tip", d: "M0,0 L8,4 L0,8 z" }))));
  lanes.forEach((lane, index) => {
    svg.append(shape("rect", { class: `lane color-${index % COLORS}`, x: lane.x - 8, y: 8, width: lane.width + 16, height: height - 16, rx: 6 }),
      shape("text", { class: "lane-name", x: lane.x, y: 28 }, lane.device));
  });
  for (const [source, target] of edges) {
    const x1 = boxes[source].x + box[0] / 2, y1 = boxes[source].y + box[1];
    const x2 = boxes[target].x + box[0] / 2, y2 = boxes[target].y;
    svg.append(shape("path", { class: "edge", d: `M${x1},${y1} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`, "marker-end": "url(#tip)" }));
  }
  for (const each of boxes) {
    const label = each.label.length > 24 ? `…${each.label.slice(-23)}` : each.label;
    svg.append(shape("g", {},
      shape("title", {}, `${each.label} (${each.detail}) on ${lanes[each.lane].device}`),
      shape("rect", { class: `box color-${each.lane % COLORS}`, x: each.x, y: each.y, width: box[0], height: box[1], rx: 5 }),
      shape("text", { class: "box-name", x: each.x + box[0] / 2, y: each.y + 16, "text-anchor": "middle" }, label),
      shape("text", { class: "box-detail", x: each.x + box[0] / 2, y: each.y + 30, "text-anchor": "middle" }, each.detail)));
  }
  return svg;
}

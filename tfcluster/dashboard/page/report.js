// A finished run in one file: what the page shows of it, from the data in the file.
import { element } from "./dom.js";
import { formatTime } from "./format.js";
import { placedGraph } from "./graph.js";
import { curves, members, outcome, runHead } from "./rundetail.js";

function showReport() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { record, history, graph, tasks, events, lines } = data;
  const scroll = (...children) => element("div", { class: "scroll" }, ...children);
  const parts = [runHead(record, record.state), element("div", { class: "curves" }, ...curves(history.series)),
    ...outcome(record, history.notes), ...members(history.members)];
  if (graph?.boxes.length) parts.push(element("h3", {}, "Placed graph"), scroll(placedGraph(graph)));
  if (tasks.length) parts.push(element("h3", {}, "Tasks"), scroll(element("table", {}, ...tasks.map((task) => element("tr", {},
    element("td", {}, `${task.job}:${task.index}`), element("td", {}, task.host), element("td", {}, task.address),
    element("td", {}, (task.devices ?? []).map((device) => device.split("/").at(-1)).join(" ")))))));
  if (events.length) parts.push(element("h3", {}, "Events at that time"), scroll(element("table", { class: "events" }, ...events.map((event) => element("tr", {},
    element("td", {}, formatTime(event.time)), element("td", {}, event.task ?? ""), element("td", {}, event.event), element("td", { class: "wrap" }, event.detail))))));
  if (lines.length) parts.push(element("h3", {}, "Output"), element("pre", { class: "log" }, ...lines.map((line) => element("div", {},
    element("span", { class: "time" }, `${formatTime(line.time)} `), element("span", {}, line.line)))));
  document.getElementById("view").append(element("section", { class: "run" }, ...parts,
    element("p", { class: "quiet" }, `cluster ${data.cluster} · tfcluster ${data.version} · written ${formatTime(data.time)}`)));
}

showReport();

// A finished run in one file: what the page shows of it, from the data in the file.
import { element, makeRow, makeTable } from "./dom.js";
import { formatTime, shortName } from "./format.js";
import { Curves } from "./curves.js";
import { eventsTable } from "./events.js";
import { LogPane } from "./logs.js";
import { members, outcome, runHead } from "./rundetail.js";

function showReport() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { record, history, tasks, events, lines } = data;
  const curves = new Curves();
  const parts = [runHead(record, record.state), curves.node, ...outcome(record, history.notes), ...members(history.members)];
  if (tasks.length) {
    const columns = ["task", "host", "address", "devices"], table = makeTable("tasks", columns);
    table.body.append(...tasks.map((task) => makeRow(columns, {}, [shortName(task), task.host, task.address, (task.devices ?? []).map((device) => device.split("/").at(-1)).join(" ")])));
    parts.push(element("h3", {}, "Tasks"), table.node);
  }
  if (events.length) parts.push(element("h3", {}, "Events at that time"), eventsTable(events.reverse()).node);
  const pane = new LogPane("info", false);
  if (lines.length) parts.push(element("div", { class: "filters" }, element("h3", {}, "Output"), ...pane.controls.slice(1)), pane.node);
  document.getElementById("view").append(element("h1", {}, data.cluster), element("section", { class: "run" }, ...parts,
    element("p", { class: "quiet" }, `cluster ${data.cluster} · tfcluster ${data.version} · written ${formatTime(data.time)}`)));
  curves.show(history.series);
  pane.add(lines);
}

showReport();

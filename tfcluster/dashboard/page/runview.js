// One run, live.
import { element } from "./dom.js";
import { formatDuration } from "./format.js";
import { get } from "./server.js";
import { cancelRun } from "./actions.js";
import { LogPane } from "./logs.js";
import { placedGraph } from "./graph.js";
import { curves, members, outcome, runHead } from "./rundetail.js";

const ACTIVE = ["queued", "running"];
const PAUSE = 500;  // milliseconds between two looks at a run that changes

export class RunView {
  constructor(parent, run, model) {
    this.run = run;
    this.parts = {};
    for (const name of ["head", "progress", "curves", "outcome", "graph"]) this.parts[name] = element("div", { class: name });
    this.cancel = element("button", { type: "button", class: "cancel", hidden: true, onclick: () => cancelRun(model.status.cluster, run) }, "Cancel");
    this.pane = new LogPane();
    parent.append(element("section", { class: "run" }, element("div", { class: "right" }, this.cancel), ...Object.values(this.parts),
      element("h3", {}, "Output"), this.pane.node));
    this.pane.show({ tasks: run });
    this.look();
  }

  update(model, kind) {
    if (kind === "runs" && model.changed.includes(this.run)) this.look();
    if (kind === "state") {
      const state = model.records.find((record) => record.run === this.run)?.state;
      if (state !== this.state) this.look();
    }
  }

  // Ask for the run, and once more if it has changed meanwhile.
  async look() {
    if (this.isLooking) { this.isStale = true; return; }
    this.isLooking = true;
    try {
      do {
        this.isStale = false;
        this.show(await get(`/api/runs/${encodeURIComponent(this.run)}`));
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      } while (this.isStale && !this.isClosed);
    } catch (error) {
      this.parts.outcome.replaceChildren(element("p", { class: "problem" }, error.message));
    } finally {
      this.isLooking = false;
    }
  }

  show(value) {
    const { record, progress, series } = value;
    this.state = record.state;
    const isActive = ACTIVE.includes(record.state);
    this.cancel.hidden = !isActive;
    this.parts.head.replaceChildren(runHead(record, record.state));
    this.parts.progress.replaceChildren(...(progress && isActive ? [
      element("progress", { max: progress.total || 1, value: progress.done }),
      element("span", {}, ` ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")} ${progress.unit} · ${left(progress)}`)] : []));
    this.parts.curves.replaceChildren(...curves(series));
    this.parts.outcome.replaceChildren(...outcome(record, value.notes), ...members(value.members));
    if (value.has_graph && !this.hasGraph) this.drawGraph();
  }

  async drawGraph() {
    this.hasGraph = true;
    try {
      const drawing = await get(`/api/runs/${encodeURIComponent(this.run)}/graph`);
      if (drawing.boxes.length) this.parts.graph.replaceChildren(element("h3", {}, "Placed graph"), element("div", { class: "scroll" }, placedGraph(drawing)));
      else this.hasGraph = ACTIVE.includes(this.state) ? false : true;
    } catch {
      this.hasGraph = false;  // the logs cannot be read now
    }
  }

  close() {
    this.isClosed = true;
    this.pane.close();
  }
}

function left({ done, total, seconds }) {
  const canEstimate = done >= 0.05 * total || seconds >= 10;  // as in settings.py
  if (!done || !seconds || done >= total || !canEstimate) return "";
  return `about ${formatDuration((seconds / done) * (total - done))} left`;
}

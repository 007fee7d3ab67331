// One run, live.
import { element } from "./dom.js";
import { ACTIVE, formatDuration } from "./format.js";
import { get } from "./server.js";
import { cancelRun } from "./actions.js";
import { LogPane } from "./logs.js";
import { members, outcome, runHead } from "./rundetail.js";
import { Curves, save } from "./curves.js";

const PAUSE = 500;  // milliseconds between two looks at a run that changes

export class RunView {
  // `rest` has the run and those that it is compared with.
  constructor(parent, rest, model) {
    [this.run, ...this.others] = rest.split(",").map(decodeURIComponent);
    this.parts = {};
    for (const name of ["head", "progress", "outcome"]) this.parts[name] = element("div", { class: name });
    const { head, progress, outcome: result } = this.parts;
    this.graph = element("button", { type: "button", class: "graph", hidden: true, onclick: () => this.saveGraph() }, "Placed graph (.dot)");
    this.graphProblem = element("span", { class: "problem", role: "status" });
    this.cancel = element("button", { type: "button", class: "cancel", hidden: true, onclick: () => cancelRun(model.status.cluster, this.run) }, "Cancel");
    this.curves = new Curves();
    this.compare = element("select", { id: "compare", "aria-label": "compare with another run", onchange: () => { location.hash = linkTo([this.run, ...this.others, this.compare.value]); } });
    const compared = this.others.map((other) => element("a", { class: "chip", href: linkTo([this.run, ...this.others.filter((each) => each !== other)]), "aria-label": `no longer compare with ${other}` }, `${other} ✕`));
    this.curves.controls.append(this.compare, ...compared);
    this.pane = new LogPane("info", false);
    parent.append(element("section", { class: "run" }, element("div", { class: "right" }, this.cancel), head, progress, this.curves.node, result, element("p", {}, this.graph, " ", this.graphProblem),
      element("div", { class: "filters" }, element("h3", {}, "Output"), ...this.pane.controls), this.pane.node));
    this.pane.show({ tasks: this.run });
    this.look();
  }

  update(model, kind) {
    const names = model.records.map((record) => record.run).filter((run) => run !== this.run && !this.others.includes(run)).reverse();
    if (names.join() !== this.names) {
      this.names = names.join();
      this.compare.replaceChildren(element("option", { value: "" }, "Compare with…"), ...names.map((name) => element("option", { value: name }, name)));
    }
    if (kind === "runs" && [this.run, ...this.others].some((run) => model.changed.includes(run))) this.look();
    if (kind === "state") {
      const state = model.records.find((record) => record.run === this.run)?.state;
      if (state && state !== this.state) this.look();
    }
  }

  // Ask for the runs, and once more if they have changed meanwhile.
  async look() {
    if (this.isLooking) { this.isStale = true; return; }
    this.isLooking = true;
    try {
      do {
        this.isStale = false;
        const runs = await Promise.all([this.run, ...this.others].map((run) => get(`/api/runs/${encodeURIComponent(run)}`)));
        if (this.isClosed) return;
        this.show(runs);
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      } while (this.isStale && !this.isClosed);
    } catch (error) {
      this.parts.outcome.replaceChildren(element("p", { class: "problem" }, error.message));
    } finally {
      this.isLooking = false;
    }
  }

  show(runs) {
    const { record, progress, notes, members: processes, has_graph: hasGraph } = runs[0];
    this.state = record.state;
    const isActive = ACTIVE.includes(record.state);
    this.cancel.hidden = !isActive;
    this.pane.whenEmpty = isActive ? "No output yet." : "No output.";
    this.pane.describe();
    this.parts.head.replaceChildren(runHead(record, record.state));
    this.parts.progress.replaceChildren(...(progress && isActive ? [
      element("progress", { max: progress.total || 1, value: progress.done, "aria-label": "progress" }),
      element("span", {}, ` ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")} ${progress.unit} · ${left(progress)}`)] : []));
    const reporter = (run, each) => (this.others.length ? `${run.record.run} ${each.reporter}`.trim() : each.reporter);
    this.curves.show(runs.flatMap((run, index) => run.series.map((each) => ({ ...each, run: index, reporter: reporter(run, each) }))));
    this.parts.outcome.replaceChildren(...outcome(record, notes), ...members(processes));
    this.graph.hidden = !hasGraph;
  }

  async saveGraph() {
    try {
      const { dot } = await get(`/api/runs/${encodeURIComponent(this.run)}/graph`);
      save(`${this.run}.dot`, new Blob([dot], { type: "text/vnd.graphviz" }));
      this.graphProblem.textContent = "";
    } catch (error) {
      this.graphProblem.textContent = error.message;
    }
  }

  close() {
    this.isClosed = true;
    this.pane.close();
    this.curves.close();
  }
}

const linkTo = (runs) => `#run/${runs.map(encodeURIComponent).join(",")}`;

function left({ done, total, seconds }) {
  const canEstimate = done >= 0.05 * total || seconds >= 10;  // as in settings.py
  if (!done || !seconds || done >= total || !canEstimate) return "";
  return `about ${formatDuration((seconds / done) * (total - done))} left`;
}

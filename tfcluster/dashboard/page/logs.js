// Logs of tasks and runs, with a filter by task, text and time.
import { element, setText } from "./dom.js";
import { COLORS } from "./chart.js";
import { formatTime, shortName } from "./format.js";
import { follow } from "./server.js";

const KEPT = 5000;

// The lines of some logs, and new ones as they are written.
export class LogPane {
  constructor() {
    this.lines = element("pre", { class: "log", tabindex: 0, "aria-label": "log" });
    this.problem = element("p", { class: "problem", hidden: true });
    this.node = element("div", {}, this.problem, this.lines);
    this.colors = new Map();
  }

  show(filter) {
    this.close();
    this.lines.replaceChildren();
    this.problem.hidden = true;
    this.controller = new AbortController();
    this.read(new URLSearchParams(Object.entries(filter).filter(([, value]) => value)), this.controller.signal);
  }

  async read(query, signal) {
    try {
      await follow(`/api/logs?${query}`, signal, (kind, value) => {
        if (signal.aborted) return;
        this.problem.hidden = kind !== "problem";
        if (kind === "problem") setText(this.problem, value);
        if (kind === "lines") this.add(value);
      });
    } catch (error) {
      if (signal.aborted) return;
      this.problem.hidden = false;
      setText(this.problem, error.message);
    }
  }

  add(lines) {
    const pane = this.lines;
    const isAtEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
    pane.append(...lines.map((line) => this.format(line)));
    while (pane.childElementCount > KEPT) pane.firstElementChild.remove();
    if (isAtEnd) pane.scrollTop = pane.scrollHeight;
  }

  format({ task, time, line }) {
    if (!this.colors.has(task)) this.colors.set(task, this.colors.size % COLORS);
    return element("div", {},
      element("span", { class: "time" }, `${formatTime(time)} `),
      element("span", { class: `source color-${this.colors.get(task)}` }, `${task} `),
      element("span", {}, line));
  }

  close() {
    this.controller?.abort();
  }
}

export class LogsView {
  constructor(parent, model, tasks) {
    this.pane = new LogPane();
    this.names = element("datalist", { id: "names" });
    this.fields = {
      tasks: element("input", { id: "log-tasks", list: "names", value: tasks, placeholder: "all tasks", "aria-label": "tasks, jobs or runs" }),
      grep: element("input", { id: "log-grep", type: "search", placeholder: "text or regular expression", "aria-label": "text" }),
      since: element("input", { type: "datetime-local", step: 1, "aria-label": "since" }),
      until: element("input", { type: "datetime-local", step: 1, "aria-label": "until" }),
    };
    const form = element("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); this.show(); } },
      element("h2", {}, "Logs"), this.fields.tasks, this.fields.grep,
      element("label", {}, "from ", this.fields.since), element("label", {}, "to ", this.fields.until),
      element("button", { type: "submit" }, "Show"), this.names);
    parent.append(element("section", { class: "fill" }, form, this.pane.node));
    this.show();
  }

  show() {
    const { tasks, grep, since, until } = this.fields;
    const seconds = (field) => (field.value ? new Date(field.value).getTime() / 1000 : "");
    this.pane.show({ tasks: tasks.value.split(/[\s,]+/).filter(Boolean).join(","), grep: grep.value, since: seconds(since), until: seconds(until) });
  }

  update(model) {
    const names = [...(model.status?.tasks ?? []).map(shortName), ...model.records.map((run) => run.run)];
    if (this.names.childElementCount !== names.length) this.names.replaceChildren(...names.map((name) => element("option", { value: name })));
  }

  close() {
    this.pane.close();
  }
}

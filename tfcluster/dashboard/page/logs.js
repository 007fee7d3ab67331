// Logs of tasks and runs, with a filter by task, text and time.
import { element, setText } from "./dom.js";
import { COLORS } from "./curves.js";
import { formatTime, shortName } from "./format.js";
import { follow } from "./server.js";

const KEPT = 5000;
const RETRY = 1000;  // milliseconds until lines are asked for again
const LEVELS = [["info", "all"], ["warning", "warning"], ["error", "error"]];

// The lines of some logs, and new ones as they are written; the command leaves out entries below a level.
export class LogPane {
  // With `namesLogs`, each line has the name of its log; without, only that of the process, of a group.
  constructor(level, namesLogs) {
    this.namesLogs = namesLogs;
    this.lines = element("div", { class: "log", tabindex: 0, role: "log", "aria-label": "lines of the log" });
    this.level = element("select", { class: "level", onchange: () => this.show(this.filter) }, ...LEVELS.map(([value, name]) => element("option", { value }, name)));
    this.level.value = level;
    this.follows = element("input", { type: "checkbox", class: "follow", checked: true, onchange: () => this.scroll() });
    const wraps = element("input", { type: "checkbox", class: "wrap", checked: true, onchange: () => this.lines.classList.toggle("long", !wraps.checked) });
    this.note = element("span", { class: "quiet left-out" });
    this.controls = [element("label", {}, "level ", this.level), element("label", {}, this.follows, " follow"), element("label", {}, wraps, " wrap"), this.note];
    this.problem = element("p", { class: "problem", hidden: true });
    this.node = element("div", { class: "logs" }, this.problem, this.lines);
    this.colors = new Map();
    this.none = element("p", { class: "quiet" });  // in place of the lines while there are none
    this.whenEmpty = "No lines.";
    // Who scrolls up reads; who is back at the end follows again.
    this.lines.addEventListener("wheel", () => requestAnimationFrame(() => { this.follows.checked = this.isAtEnd(); }), { passive: true });
  }

  isAtEnd() { return this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 40; }

  scroll() { if (this.follows.checked) this.lines.scrollTop = this.lines.scrollHeight; }

  show(filter) {
    this.close();
    this.filter = filter;
    this.isKnown = false;
    this.clear();
    this.problem.hidden = true;
    this.describe();
    this.controller = new AbortController();
    this.read(new URLSearchParams(Object.entries({ ...filter, level: this.level.value }).filter(([, value]) => value)), this.controller.signal);
  }

  // Read the lines, from the beginning again when the connection has broken; those that are shown stay until then.
  async read(query, signal) {
    for (let isOver = false; !isOver && !signal.aborted;) {
      let isFirst = true;
      try {
        await follow(`/api/logs?${query}`, signal, (kind, value) => {
          if (signal.aborted) return;
          isOver = kind === "end";
          if (isFirst) this.clear();
          isFirst = false;
          if (kind !== "end") this.problem.hidden = kind !== "problem";
          if (kind === "problem") setText(this.problem, value);
          if (kind === "lines") this.add(value);
          if (kind === "hidden") this.hidden += value;
          this.isKnown ||= kind === "lines";
          this.describe();
        });
      } catch (error) {
        if (signal.aborted) return;
        isOver = error.status !== undefined;  // an answer
        this.problem.hidden = false;
        setText(this.problem, error.message);
        this.describe();
      }
      if (!isOver) await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }

  clear() {
    this.hidden = 0;
    this.lines.replaceChildren(this.none);
  }

  // Say how many entries are hidden, or why there are no lines.
  describe() {
    const { grep, since, until } = this.filter, count = this.hidden.toLocaleString("en");
    const empty = this.hidden ? `No entries at this level (${count} hidden).` : grep || since || until ? "No lines match." : this.whenEmpty;
    setText(this.none, !this.problem.hidden ? "" : this.isKnown ? empty : "Reading…");
    setText(this.note, this.hidden && !this.none.isConnected ? `${count} entries below this level are hidden` : "");
  }

  add(lines) {
    if (lines.length) this.none.remove();
    this.lines.append(...lines.map((line) => this.format(line)));
    while (this.lines.childElementCount > KEPT) this.lines.firstElementChild.remove();
    this.scroll();
  }

  format({ task, member, time, line, level }) {
    const source = [this.namesLogs ? task : "", member ?? ""].join(" ").trim();
    if (!this.colors.has(source)) this.colors.set(source, this.colors.size % COLORS);
    return element("div", { "data-level": level },
      element("span", { class: "time" }, `${formatTime(time)} `),
      source ? element("span", { class: `source color-${this.colors.get(source)}` }, `${source} `) : null,
      element("span", {}, line));
  }

  close() {
    this.controller?.abort();
  }
}

export class LogsView {
  constructor(parent, model, tasks) {
    this.pane = new LogPane("warning", true);
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
    parent.append(element("section", { class: "fill" }, form, element("div", { class: "filters" }, ...this.pane.controls), this.pane.node));
    this.show();
  }

  show() {
    const { tasks, grep, since, until } = this.fields;
    const seconds = (field) => (field.value ? new Date(field.value).getTime() / 1000 : "");
    this.pane.show({ tasks: tasks.value.split(/[\s,]+/).filter(Boolean).join(","), grep: grep.value, since: seconds(since), until: seconds(until) });
  }

  update(model) {
    const names = [...(model.status?.tasks ?? []).map(shortName), ...model.records.map((run) => run.run)];
    if (names.join() === this.known) return;
    this.known = names.join();
    this.names.replaceChildren(...names.map((name) => element("option", { value: name })));
  }

  close() {
    this.pane.close();
  }
}

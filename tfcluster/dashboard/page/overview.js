// Hosts, tasks and runs.
import { element, makeRow, makeTable, setText, shape, synchronize } from "./dom.js";
import { ACTIVE, formatBytes, formatDuration, formatPercent, formatTime, programOf, shortName } from "./format.js";
import { cancelRun, restartTask } from "./actions.js";
import { Timeline } from "./timeline.js";

const TASKS = ["task", "state", "host", "up", "restarts", "CPU", "memory", "GPU", "last exit", "actions"];
const RUNS = ["run", "state", "program", "result", "began", "took", "actions"];
const GOOD_TASKS = [4, 16], ENDED_RUNS = [6, 12];  // that are shown until all are asked for: of cards in a narrow window, of rows

export class OverviewView {
  constructor(parent) {
    this.hosts = element("div", { class: "hosts", id: "hosts" });
    this.tasks = new Listing("Tasks", "tasks", TASKS, GOOD_TASKS, () => this.update(this.model));
    this.runs = new Listing("Runs", "runs", RUNS, ENDED_RUNS, () => this.update(this.model));
    this.axis = new Timeline();
    parent.append(element("h2", { class: "hidden" }, "Hosts"), this.hosts, this.tasks.node, this.runs.node,
      element("section", {}, element("div", { class: "filters" }, element("h2", {}, "Events"), ...this.axis.controls), this.axis.node));
  }

  update(model, kind) {
    this.model = model;
    if (!model.status) return;
    const { hosts, tasks } = model.status;
    if (kind !== "events") {
      const hasGpus = tasks.some((task) => task.gpu_memory_bytes != null) || hosts.some((host) => host.load?.gpus.length);
      this.tasks.table.classList.toggle("without-gpu", !hasGpus);
      this.tasks.table.classList.toggle("one-host", hosts.length < 2);
      synchronize(this.hosts, hosts, (host) => host.host, createHost, (card, host) => updateHost(card, host, model));
      this.tasks.show(tasks, (task) => task.task, (task) => [shortName(task), task.host, task.state], (task) => task.state !== "ready",
        (task) => createTask(task, model), (row, task) => updateTask(row, task, model), "No tasks.");
      this.runs.show([...model.records].reverse(), (run) => run.run, (run) => [run.run, run.state, programOf(run), run.outcome], (run) => ACTIVE.includes(run.state),
        (run) => createRun(run, model), (row, run) => updateRun(row, run, model), model.status.runs.length ? "" : "No runs yet.");
    }
    if (kind === "events" || kind === "all") this.axis.show(model.events);
  }

  close() { this.axis.close(); }
}

// A table with a filter, which shows what matters first until all rows are asked for.
class Listing {
  constructor(title, name, columns, limits, redraw) {
    const table = makeTable(name, columns);
    const limit = limits[matchMedia("(max-width: 760px)").matches ? 0 : 1];
    Object.assign(this, { limit, table: table.node, body: table.body, showsAll: false });
    this.count = element("span", { class: "quiet" });
    this.text = element("input", { type: "search", placeholder: "filter", "aria-label": `filter ${name}`, oninput: redraw });
    this.more = element("button", { type: "button", class: "more", onclick: () => { this.showsAll = !this.showsAll; redraw(); } });
    this.none = element("p", { class: "quiet" });
    this.node = element("section", {}, element("div", { class: "filters" }, element("h2", {}, title), this.count, this.text), this.table, this.none, this.more);
  }

  show(items, keyOf, textsOf, isUrgent, create, update, whenEmpty) {
    const wanted = this.text.value.toLowerCase();
    const found = items.filter((item) => textsOf(item).join(" ").toLowerCase().includes(wanted));
    let room = this.limit;
    const shown = this.showsAll ? found : found.filter((item) => isUrgent(item) || room-- > 0);
    synchronize(this.body, shown, keyOf, create, update);
    setText(this.count, items.length > this.limit ? String(items.length) : "");
    this.text.hidden = items.length <= this.limit;
    this.more.hidden = found.length === shown.length && !(this.showsAll && found.length > this.limit);
    setText(this.more, this.showsAll ? "Show fewer" : `Show all ${found.length}`);
    setText(this.none, items.length ? (found.length ? "" : "Nothing matches.") : whenEmpty);
    this.table.hidden = shown.length === 0;
  }
}

function createHost(host) {
  const card = element("article", { class: "card", "data-host": host.host });
  card.state = element("span", { class: "pill" });
  card.loads = element("div", { class: "loads" });
  card.detail = element("p", { class: "quiet" });
  card.append(element("h3", {}, host.host), card.state, card.loads, card.detail);
  return card;
}

function updateHost(card, host, model) {
  setText(card.state, host.state);
  card.state.dataset.state = host.state;
  const detail = host.tensorflow ? `TensorFlow ${host.tensorflow} · agent ${host.agent_pid}` : model.problems[host.host] ?? "";
  setText(card.detail, detail);
  card.detail.title = detail;
  synchronize(card.loads, loadsOf(host.load), ([name]) => name, createLoad, updateLoad);
}

// Name, text, and percents, each a bar; one that is not known is null.
function loadsOf(load) {
  if (!load) return [];
  const share = (used, total) => `${formatBytes(used)} of ${formatBytes(total)}`, part = (used, total) => (total ? (100 * used) / total : null);
  return [["load", `${formatPercent(load.cpu_percent) || "–"} of ${load.cpus} CPUs`, load.cpu_percent],
    ["memory", share(load.memory_used_bytes, load.memory_total_bytes), part(load.memory_used_bytes, load.memory_total_bytes)],
    ...load.gpus.map((gpu) => [`GPU ${gpu.gpu}`, `${formatPercent(gpu.utilization_percent) || "–"}, ${share(gpu.memory_used_bytes, gpu.memory_total_bytes)}`,
      gpu.utilization_percent, part(gpu.memory_used_bytes, gpu.memory_total_bytes)])];
}

function createLoad([name, , ...percents]) {
  return element("div", { class: "load" }, element("span", {}, name), element("span", { class: "amount" }), ...percents.map(() => element("div", { class: "bar" }, element("div"))));
}

function updateLoad(load, [name, text, ...percents]) {
  setText(load.children[1], text);
  percents.forEach((percent, index) => {
    const bar = load.children[2 + index].firstChild;
    bar.style.width = `${Math.min(100, percent ?? 0)}%`;
    const isMemory = name === "memory" || index === 1;  // nothing is wrong with a processor that is busy
    bar.dataset.level = isMemory && percent >= 90 ? "high" : "";
  });
}

function createTask(task, model) {
  const name = shortName(task);
  const row = makeRow(TASKS, { "data-task": name }, [element("a", { href: `#logs/${encodeURIComponent(name)}`, title: "its log" }, name)]);
  const restart = element("button", { type: "button", class: "restart", "aria-label": `restart ${name}`, onclick: () => restartTask(model.status.cluster, name) }, "Restart");
  row.by.actions.append(restart);
  row.by.state.append(row.pill = element("span", { class: "pill" }));
  for (const cell of [row.by.CPU, row.by.memory]) cell.append(cell.spark = sparkline(), cell.value = element("span", { class: "value" }));
  return row;
}

function updateTask(row, task, model) {
  const { by } = row, exit = task.last_exit;
  setText(row.pill, task.state);
  row.pill.dataset.state = task.state;
  setText(by.host, task.host);
  setText(by.up, formatDuration(task.uptime_s));
  setText(by.GPU, formatBytes(task.gpu_memory_bytes));
  setText(by.restarts, task.restarts ? String(task.restarts) : "");
  setText(by["last exit"], exit ? `${exit.reason} at ${formatTime(exit.time)}${exit.detail ? `: ${exit.detail}` : ""}` : "");
  [[by.CPU, formatPercent(task.cpu_percent), 0, 100], [by.memory, formatBytes(task.rss_bytes), 1, 0]].forEach(([cell, text, index, top]) => {
    setText(cell.value, text);
    cell.spark.firstChild.setAttribute("d", pathOf(model.samples.map((sample) => sample.tasks[task.task]?.[index] ?? null), top));
  });
}

const SPARK = [64, 18];  // pixels
const LINE = 60;  // characters of an error that need no folding

function sparkline() {
  const [width, height] = SPARK;
  return shape("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, shape("path"));
}

function pathOf(values, top) {
  const [width, height] = SPARK, highest = Math.max(top, ...values, 1e-9), step = width / Math.max(1, values.length - 1);
  return values.map((value, index) => (value === null ? "" : `${(values[index - 1] ?? null) === null ? "M" : "L"}${(index * step).toFixed(1)},${(height - 2 - (value / highest) * (height - 4)).toFixed(1)}`)).join("");
}

function createRun(run, model) {
  const row = makeRow(RUNS, { "data-run": run.run }, [element("a", { href: `#run/${encodeURIComponent(run.run)}` }, run.run)]);
  row.by.state.append(row.pill = element("span", { class: "pill" }));
  row.bar = element("progress", { max: 1, value: 0, "aria-label": `progress of ${run.run}` });
  row.text = element("span", { class: "value" });
  row.summary = element("summary");
  row.rest = element("pre", { tabindex: 0, role: "group", "aria-label": `error of ${run.run}` });
  row.error = element("details", {}, row.summary, row.rest);
  row.by.result.append(row.bar, row.text, row.error);
  row.cancel = element("button", { type: "button", class: "cancel", "aria-label": `cancel ${run.run}`, onclick: () => cancelRun(model.status.cluster, run.run) }, "Cancel");
  row.by.actions.append(row.cancel);
  return row;
}

function updateRun(row, run, model) {
  const live = model.status.runs.find((each) => each.run === run.run), state = live?.state ?? run.state;
  const { progress, text } = (ACTIVE.includes(state) && model.progress[run.run]) || {};  // the last one of a run may stay
  setText(row.pill, state);
  row.pill.dataset.state = state;
  setText(row.by.program, programOf(run));
  row.bar.hidden = !progress;
  const part = progress ? progress.done / (progress.total || 1) : 0;
  row.bar.value = part;
  const gpu = live?.gpu_memory_bytes == null ? "" : `GPU ${formatBytes(live.gpu_memory_bytes)}`;
  const rest = run.error ? [run.error.message, run.error.hint].filter(Boolean).join("\n") : "";
  const isLong = rest !== "" && (rest !== run.outcome || rest.length > LINE);
  setText(row.text, [progress ? `${Math.floor(100 * part)} %` : "", text ?? "", isLong ? "" : run.outcome, gpu].filter(Boolean).join(" · "));
  row.error.hidden = !isLong;
  row.text.dataset.state = run.error ? "failed" : "";
  setText(row.summary, run.outcome);
  setText(row.rest, rest);
  setText(row.by.began, formatTime(run.started));
  setText(row.by.took, formatDuration(live?.seconds ?? run.seconds));
  row.cancel.hidden = !ACTIVE.includes(state);
}

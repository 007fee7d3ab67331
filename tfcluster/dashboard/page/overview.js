// Hosts, tasks and runs.
import { element, setText, synchronize } from "./dom.js";
import { sparkline } from "./chart.js";
import { formatBytes, formatDuration, formatPercent, formatTime, shortName } from "./format.js";
import { cancelRun, restartTask } from "./actions.js";
import { showTimeline } from "./timeline.js";

const ACTIVE = ["queued", "running"];

export class OverviewView {
  constructor(parent) {
    this.hosts = element("div", { class: "hosts", id: "hosts" });
    this.tasks = element("tbody", { id: "tasks" });
    this.runs = element("tbody", { id: "runs" });
    this.axis = element("div", { class: "axis" });
    const head = (...names) => element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name))));
    parent.append(
      this.hosts,
      element("section", {}, element("h2", {}, "Tasks"),
        element("div", { class: "scroll" }, element("table", { class: "tasks" },
          head("task", "state", "host", "up", "restarts", "CPU", "memory", "network", "last exit", ""), this.tasks))),
      element("section", {}, element("h2", {}, "Runs"),
        element("div", { class: "scroll" }, element("table", { class: "runs" },
          head("run", "state", "program", "progress", "began", "took", ""), this.runs)),
        this.none = element("p", { class: "quiet" }, "No runs yet.")),
      element("section", {}, element("h2", {}, "Events of the last hour"), this.axis));
  }

  update(model, kind) {
    if (!model.status) return;
    if (kind !== "events") {
      synchronize(this.hosts, model.status.hosts, (host) => host.host, createHost, (card, host) => updateHost(card, host, model));
      synchronize(this.tasks, model.status.tasks, (task) => task.task, (task) => createTask(task, model), (row, task) => updateTask(row, task, model));
      const runs = [...model.records].reverse();
      synchronize(this.runs, runs, (run) => run.run, (run) => createRun(run, model), (row, run) => updateRun(row, run, model));
      this.none.hidden = runs.length > 0;
    }
    if (kind === "events" || kind === "all") showTimeline(this.axis, model.events, 3600);
  }
}

function cells(row, names) {
  for (const name of names) row.append(row[name] = element("td", { class: name }));
  return row;
}

function createHost(host) {
  const card = element("div", { class: "card", "data-host": host.host }, element("strong", {}, host.host));
  for (const name of ["state", "detail", "usage"]) card.append(card[name] = element("span", { class: name }));
  card.state.className = "pill";
  card.usage.className = "usage";
  return card;
}

function updateHost(card, host, model) {
  setText(card.state, host.state);
  card.state.dataset.state = host.state;
  const version = host.tensorflow ? `TensorFlow ${host.tensorflow} · agent ${host.agent_pid}` : model.problems[host.host] ?? "";
  setText(card.detail, version);
  const usage = usageOf(host);
  const samples = model.samples.map((sample) => sample.hosts[host.host]?.cpu_percent);
  const parts = usage.map((text) => element("span", {}, text));
  card.usage.replaceChildren(...(usage.length ? [sparkline(samples, 100), ...parts] : []));
}

function usageOf(host) {
  const usage = host.load;
  if (!usage) return [];
  const texts = [`CPU ${formatPercent(usage.cpu_percent)}`];
  if (usage.memory_total_bytes) texts.push(`memory ${formatBytes(usage.memory_used_bytes)} of ${formatBytes(usage.memory_total_bytes)}`);
  usage.gpus.forEach((gpu) => texts.push(`GPU ${gpu.gpu} ${formatPercent(gpu.utilization_percent)}, ${formatBytes(gpu.memory_used_bytes)} of ${formatBytes(gpu.memory_total_bytes)}`));
  return texts;
}

function createTask(task, model) {
  const name = shortName(task);
  const row = cells(element("tr", { "data-task": name }), ["task", "state", "host", "up", "restarts", "cpu", "memory", "network", "exit", "actions"]);
  row.task.append(element("a", { href: `#logs/${encodeURIComponent(name)}`, title: "its log" }, name));
  row.actions.append(element("button", { type: "button", class: "restart", onclick: () => restartTask(model.status.cluster, name) }, "Restart"));
  row.pill = element("span", { class: "pill" });
  row.state.append(row.pill);
  for (const cell of [row.cpu, row.memory]) cell.append(cell.value = element("span", { class: "value" }));
  return row;
}

function updateTask(row, task, model) {
  setText(row.pill, task.state);
  row.pill.dataset.state = task.state;
  setText(row.host, task.host);
  setText(row.up, formatDuration(task.uptime_s));
  setText(row.network, task.traffic ? `↓ ${formatBytes(task.traffic.received_bytes)}  ↑ ${formatBytes(task.traffic.sent_bytes)}` : "");
  setText(row.restarts, task.restarts ? String(task.restarts) : "");
  setText(row.exit, task.last_exit ? `${task.last_exit.reason} at ${formatTime(task.last_exit.time)}${task.last_exit.detail ? `: ${task.last_exit.detail}` : ""}` : "");
  [[row.cpu, formatPercent(task.cpu_percent), 0, 100], [row.memory, [formatBytes(task.rss_bytes), onGpus(task)].filter(Boolean).join(", "), 1, 0]].forEach(([cell, text, index, top]) => {
    setText(cell.value, text);
    const line = sparkline(model.samples.map((sample) => sample.tasks[task.task]?.[index]), top);
    cell.querySelector("svg")?.remove();
    cell.prepend(line);
  });
}

function onGpus(used) {
  const bytes = used?.gpu_memory_bytes ?? null;
  return bytes === null ? "" : `GPU ${formatBytes(bytes)}`;
}

function createRun(run, model) {
  const row = cells(element("tr", { "data-run": run.run }), ["run", "state", "program", "progress", "began", "took", "actions"]);
  row.run.append(element("a", { href: `#run/${encodeURIComponent(run.run)}` }, run.run));
  row.pill = element("span", { class: "pill" });
  row.state.append(row.pill);
  row.bar = element("progress", { max: 1, value: 0, "aria-label": "progress" });
  row.amount = element("span", { class: "value" });
  row.progress.append(row.bar, row.amount);
  row.cancel = element("button", { type: "button", class: "cancel", onclick: () => cancelRun(model.status.cluster, run.run) }, "Cancel");
  row.actions.append(row.cancel);
  return row;
}

function updateRun(row, run, model) {
  const live = model.status.runs.find((each) => each.run === run.run);
  const state = live?.state ?? run.state;
  setText(row.pill, state);
  row.pill.dataset.state = state;
  setText(row.program, run.program === "script" ? run.parameters.argument ?? "script" : run.program);
  const progress = model.progress[run.run];
  row.bar.hidden = !progress;
  if (progress) row.bar.value = progress.total ? progress.done / progress.total : 0;
  const amount = progress ? `${Math.floor((100 * progress.done) / (progress.total || 1))} %` : run.error?.message.split("\n")[0] ?? "";
  setText(row.amount, [amount, onGpus(live)].filter(Boolean).join(", "));
  setText(row.began, formatTime(run.started));
  setText(row.took, formatDuration(live?.seconds ?? run.seconds));
  row.cancel.hidden = !ACTIVE.includes(state);
}

// The table of tasks in the overview: those that are not ready are always shown, the others on demand.
import { restartTask } from "./actions.js";
import { html, useState } from "./dom.js";
import { formatBytes, formatDuration, formatPercent, shortName } from "./format.js";
import { isReader } from "./model.js";
import { limitOf, Pill, shorten, Time } from "./parts.js";
import { Sparkline } from "./sparkline.js";
import { Table } from "./table.js";

const LIMITS = [4, 16];  // ready tasks that are shown at first: as cards in a narrow window, as rows
const AWAY = { class: "away", title: "Last known: the host cannot be reached." };

export function TasksSection({ model }) {
  const [text, setText] = useState(""), [showsAll, setShowsAll] = useState(false);
  const { tasks, hosts, cluster } = model.view.status;
  const isAway = ({ host, state }) => state !== "up" || model.view.problems[host] !== undefined;
  const away = new Set(hosts.filter(isAway).map((host) => host.host));
  const wanted = text.toLowerCase();
  const textOf = (task) => [shortName(task), task.host, task.state].join(" ").toLowerCase();
  const found = tasks.filter((task) => textOf(task).includes(wanted));
  const isUrgent = (task) => task.state !== "ready" || away.has(task.host);
  const short = shorten(found, isUrgent, limitOf(LIMITS)), isLong = short.length < found.length;
  const usesGpu = (task) => task.gpu_memory_bytes !== null && task.gpu_memory_bytes !== undefined;
  const hasGpus = tasks.some(usesGpu) || hosts.some((host) => host.load?.gpus.length);
  const isFiltered = short.length < tasks.length || text !== "";
  const look = `${hasGpus ? "" : "without-gpu"} ${hosts.length < 2 ? "one-host" : ""}`;
  const attributesOf = (task) => ({ "data-task": shortName(task), ...(away.has(task.host) ? AWAY : {}) });
  return html`<section>
    <div class="filters"><h2>Tasks</h2><span class="quiet">${isFiltered ? tasks.length : ""}</span>
      <input type="search" placeholder="filter" aria-label="filter tasks" hidden=${!isFiltered}
        onInput=${(event) => setText(event.target.value)} /></div>
    <${Table} name="tasks" className=${look} columns=${columnsOf(model, cluster, away)}
      items=${showsAll ? found : short} keyOf=${(task) => task.task} attributesOf=${attributesOf} />
    <p class="quiet">${!tasks.length ? "No tasks." : found.length ? "" : "Nothing matches."}</p>
    <button type="button" class="more" hidden=${!isLong} onClick=${() => setShowsAll(!showsAll)}>
      ${showsAll ? "Show fewer" : `Show all ${found.length}`}</button>
  </section>`;
}

function columnsOf(model, cluster, away) {
  const spark = (task, index, top) => html`
    <${Sparkline} samples=${model.samples} task=${task.task} index=${index} top=${top} />`;
  const amount = (text) => html`<span class="value">${text}</span>`;
  const uptime = (task) => (task.uptime_s === null ? null : task.uptime_s + (away.has(task.host) ? 0 : model.age));
  const columns = [
    { name: "task", cell: (task) => html`<${LogLink} name=${shortName(task)} />` },
    { name: "state", cell: (task) => html`<${Pill} state=${task.state} title=${task.probe_error} />` },
    { name: "host", cell: (task) => task.host },
    { name: "up", cell: (task) => formatDuration(uptime(task)) },
    { name: "restarts", cell: (task) => task.restarts || "" },
    { name: "CPU", cell: (task) => [spark(task, 0, 100), amount(formatPercent(task.cpu_percent))] },
    { name: "memory", cell: (task) => [spark(task, 1), amount(formatBytes(task.rss_bytes))] },
    { name: "GPU", cell: (task) => formatBytes(task.gpu_memory_bytes) },
    { name: "last exit", cell: describeExit },
    { name: "actions", cell: (task) => html`<${RestartButton} cluster=${cluster} name=${shortName(task)} />` },
  ];
  return columns.filter(({ name }) => name !== "actions" || !isReader());
}

function LogLink({ name }) {
  return isReader() ? name : html`<a href=${`#logs/${encodeURIComponent(name)}`} title="its log">${name}</a>`;
}

function RestartButton({ cluster, name }) {
  return html`<button type="button" class="restart" aria-label=${`restart ${name}`}
    onClick=${() => restartTask(cluster, name)}>Restart</button>`;
}

function describeExit({ last_exit: exit }) {
  const detail = exit?.detail ? `: ${exit.detail}` : "";
  return exit && html`<span>${exit.reason} at <${Time} seconds=${exit.time} />${detail}</span>`;
}

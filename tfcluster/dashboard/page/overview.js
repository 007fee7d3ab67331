// Hosts, tasks, the runs that matter most, and the events of the last hour.
import { html } from "./dom.js";
import { formatBytes, formatPercent } from "./format.js";
import { RunsSection } from "./runlist.js";
import { TasksSection } from "./tasks.js";
import { Timeline, TimelineControls, useAxis } from "./timeline.js";
import { Pill } from "./parts.js";

const FULL = 90;  // percent of a memory that are shown as a problem

export function OverviewView({ model }) {
  const { view } = model;
  return html`<h2 class="hidden">Hosts</h2>
    <div class="hosts" id="hosts">${view?.status.hosts.map((host) => html`
      <${Host} key=${host.host} host=${host} problem=${view.problems[host.host] ?? ""} />`)}</div>
    ${view && html`<${TasksSection} model=${model} /><${RunsSection} model=${model} />`}
    <${EventsSection} events=${view?.events ?? []} />`;
}

function EventsSection({ events }) {
  const [axis, setAxis] = useAxis();
  return html`<section>
    <div class="filters"><h2>Events</h2><${TimelineControls} axis=${axis} setAxis=${setAxis} events=${events} /></div>
    <${Timeline} axis=${axis} setAxis=${setAxis} events=${events} />
  </section>`;
}

function Host({ host, problem }) {
  const isUp = host.state === "up" && !problem, isOld = !isUp && host.load !== null;
  const version = host.tensorflow ? `TensorFlow ${host.tensorflow}` : "";
  const agent = host.agent_pid === null ? "" : `agent ${host.agent_pid}`;
  const detail = isUp ? [version, agent].filter(Boolean).join(" · ") : problem || version;
  return html`<article class=${`card ${isUp ? "" : "away"}`} data-host=${host.host}>
    <h3>${host.host}</h3><${Pill} state=${host.state} />
    ${isOld && html`<p class="last-known">Last known:</p>`}
    <div class="loads">${loadsOf(host.load).map((load) => html`<${Load} key=${load.name} ...${load} />`)}</div>
    <p class="quiet" title=${detail}>${detail}</p>
  </article>`;
}

// Name, text, and bars: each [percent, whether it is of a memory]; a percent that is not known is null.
function loadsOf(load) {
  if (!load) return [];
  const memoryOf = (each) => `${formatBytes(each.memory_used_bytes)} of ${formatBytes(each.memory_total_bytes)}`;
  const memoryBar = ({ memory_used_bytes: used, memory_total_bytes: total }) => [total ? (100 * used) / total : null, true];
  const cpu = `${formatPercent(load.cpu_percent) || "–"} of ${load.cpus} CPUs`;
  return [
    { name: "load", text: cpu, bars: [[load.cpu_percent, false]] },
    { name: "memory", text: memoryOf(load), bars: [memoryBar(load)] },
    ...load.gpus.map((gpu) => ({
      name: `GPU ${gpu.gpu}`, title: gpu.name,
      text: `${formatPercent(gpu.utilization_percent) || "–"}, ${memoryOf(gpu)}`,
      bars: [[gpu.utilization_percent, false], memoryBar(gpu)],
    })),
  ];
}

// A full memory is shown as a problem; a busy processor is none.
function Load({ name, title, text, bars }) {
  return html`<div class="load"><span title=${title}>${name}</span><span class="amount">${text}</span>
    ${bars.map(([percent, isMemory]) => html`<div class="bar"><div data-level=${isMemory && percent >= FULL ? "high" : ""}
      style=${{ width: `${Math.min(100, percent ?? 0)}%` }}></div></div>`)}
  </div>`;
}

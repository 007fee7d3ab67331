// Events on an axis of time that moves, a row for each task; a part of the time can be chosen.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { formatClock, formatDay, formatFullTime, formatTime, today } from "./format.js";
import { timeNow } from "./model.js";

const ROWS = 12, NAMED = 12;  // at most: tasks on the axis, events that are named under the pointer
const AROUND = 5;  // seconds that are shown before and after events that were clicked
const APART = 22;  // pixels between two marks; events that are closer share one
const SPANS = [["10 minutes", 600], ["hour", 3600], ["day", 86400], ["all", 0]];
const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400];  // seconds between ticks
const TICK = 80;  // pixels that the text of a tick needs

export const nameOf = (event) => event.task ?? event.host ?? "cluster";

// What an axis shows: the last `span` seconds (0 for all), or the `range` [first, last] that was chosen.
export function useAxis() {
  const [axis, setAxis] = useState({ span: 3600, range: null });
  return [axis, (values) => setAxis((before) => ({ ...before, ...values }))];
}

function boundsOf({ span, range }, events) {
  const now = timeNow();
  if (range) return range;
  return [span ? now - span : Math.min(now - 60, ...events.map((event) => event.time - 1)), now];
}

export function TimelineControls({ axis, setAxis, events }) {
  const move = (part, zoom) => {
    const [first, last] = boundsOf(axis, events), width = (last - first) * zoom;
    const middle = (first + last) / 2 + part * (last - first);
    setAxis({ range: [middle - width / 2, middle + width / 2] });
  };
  const button = (text, label, part, zoom) => html`
    <button type="button" aria-label=${label} title=${label} onClick=${() => move(part, zoom)}>${text}</button>`;
  const choose = (event) => setAxis({ span: Number(event.target.value), range: null });
  return html`<label>last <select aria-label="time shown" value=${axis.span} onChange=${choose}>
      ${SPANS.map(([name, seconds]) => html`<option key=${name} value=${seconds}>${name}</option>`)}</select></label>
    <span class="group">${button("◀", "earlier", -0.5, 1)}${button("▶", "later", 0.5, 1)}
      ${button("+", "zoom in", 0, 0.5)}${button("−", "zoom out", 0, 2)}</span>
    <button type="button" class="now" hidden=${!axis.range} onClick=${() => setAxis({ range: null })}>Now</button>`;
}

export function Timeline({ axis, setAxis, events }) {
  const plot = useRef(), ticks = useRef(), drawn = useRef();
  const [width, setWidth] = useState(900);
  const [pointed, setPointed] = useState(null);  // the mark under the pointer
  const [brush, setBrush] = useState(null);  // [first, last], parts of the width, while it is drawn
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(ticks.current.clientWidth || 900));
    observer.observe(ticks.current);
    return () => observer.disconnect();
  }, []);
  const stands = (pointed || brush) && drawn.current?.axis === axis;  // while the pointer is in use
  if (!stands) drawn.current = { axis, bounds: boundsOf(axis, events) };
  const [first, last] = drawn.current.bounds;
  const at = (time) => (100 * (time - first)) / (last - first || 1);
  const shown = events.filter((event) => first <= event.time && event.time <= last);
  const lanes = [...Map.groupBy(shown, nameOf)];
  const rows = chooseRows(lanes);
  const times = ticksOf(first, last, width), isDated = times.some(([, text]) => text.includes("\n"));
  const choose = (range) => { setPointed(null); setAxis({ range }); };
  const hidden = lanes.length - rows.length;
  const rest = hidden ? `and ${hidden} more tasks with events` : shown.length ? "" : "No events in this time.";
  const label = `${shown.length} events of ${lanes.length} tasks from ${formatTime(first)} to ${formatTime(last)}`;
  return html`<div>
    <div class=${`timeline ${isDated ? "dated" : ""}`} role="img" aria-label=${label} ref=${plot}
      onPointerLeave=${() => setPointed(null)} onPointerOver=${(event) => setPointed(event.target.closest(".mark"))}
      onPointerDown=${(event) => drag(event, ticks.current, [first, last], setBrush, choose)}>
      <div class="lanes">${rows.map(([name, own]) => html`
        <${Lane} key=${name} name=${name} marks=${groupEvents(own, at, width)} at=${at} />`)}</div>
      <div class="ticks" ref=${ticks}>${times.map(([time, text]) => html`
        <${Tick} key=${time} time=${time} text=${text} at=${at(time)} />`)}</div>
      ${brush && html`<div class="brush" style=${placeBrush(brush)}></div>`}
      ${pointed && html`<${Tip} plot=${plot} mark=${pointed} />`}
    </div>
    <p class="quiet">${rest}</p>
  </div>`;
}

const isBad = (events) => events.some((event) => event.kind === "bad");

// At most ROWS tasks, those with failures first; in the order of their names.
function chooseRows(lanes) {
  const rows = [...lanes].sort((one, other) => isBad(other[1]) - isBad(one[1])).slice(0, ROWS);
  return rows.sort((one, other) => one[0].localeCompare(other[0], "en", { numeric: true }));
}

// Events that would overlap share a mark.
function groupEvents(events, at, width) {
  const groups = [];
  for (const event of [...events].sort((one, other) => one.time - other.time)) {
    const isNear = groups.length && ((at(event.time) - at(groups.at(-1)[0].time)) * width) / 100 < APART;
    if (isNear) groups.at(-1).push(event);
    else groups.push([event]);
  }
  return groups;
}

function Lane({ name, marks, at }) {
  return html`<div class="lane"><span class="lane-label" title=${name}>${name}</span>
    <div class="track">${marks.map((events) => html`
      <${Mark} key=${events[0].time} events=${events} left=${at(events[0].time)} />`)}</div></div>`;
}

// A mark has the number of its events, and looks bad if one of them is.
function Mark({ events, left }) {
  const node = useRef();
  useLayoutEffect(() => { node.current.events = events; });
  const kind = isBad(events) ? "bad" : events.at(-1).kind;
  const place = { left: `${left}%` };
  return html`<span class="mark" ref=${node} data-kind=${kind} style=${place}>${events.length > 1 ? events.length : null}</span>`;
}

// The events of a mark, below it.
function Tip({ plot, mark }) {
  const node = useRef();
  useLayoutEffect(() => {
    const outer = plot.current.getBoundingClientRect(), box = mark.getBoundingClientRect();
    const left = Math.max(0, Math.min(box.left - outer.left, outer.width - node.current.offsetWidth));
    Object.assign(node.current.style, { left: `${left}px`, top: `${box.bottom - outer.top + 4}px` });
  });
  return html`<div class="tip" ref=${node}>${describe(mark.events)}</div>`;
}

function describe(events) {
  const partsOf = ({ time, task, host, event, detail }) => [formatTime(time), task ?? host, event, detail];
  const lines = events.slice(0, NAMED).map((event) => partsOf(event).filter(Boolean).join(" · "));
  if (events.length > NAMED) lines.push(`and ${events.length - NAMED} more`);
  return lines.join("\n");
}

// Ticks [time, text]. If one is not of today, the first one of each day has the date in a second line.
function ticksOf(first, last, width) {
  const wanted = ((last - first) * TICK) / width;
  const step = STEPS.find((seconds) => seconds >= wanted) ?? 86400 * Math.ceil(wanted / 86400);
  const offset = new Date(1000 * last).getTimezoneOffset() * 60, times = [];
  for (let time = Math.ceil((first - offset) / step) * step + offset; time <= last; time += step) times.push(time);
  const isInside = (time) => ((last - time) / (last - first)) * width > TICK / 4;
  const shown = times.filter(isInside);
  const days = shown.map(formatDay), isDated = days.some((day) => day !== today());
  const clock = (time) => formatClock(time).slice(0, step < 60 ? undefined : -3);
  const date = (index) => (isDated && days[index] !== days[index - 1] ? `\n${days[index]}` : "");
  return shown.map((time, index) => [time, clock(time) + date(index)]);
}

function Tick({ time, text, at }) {
  return html`<span class="tick" title=${formatFullTime(time)} style=${{ left: `${at}%` }}>${text}</span>`;
}

// A brush lies over the tracks: right of the names, and 12 pixels from the right edge, as in style.css.
function placeBrush([first, last]) {
  const part = (share) => `(100% - var(--names) - 12px) * ${share}`;
  return { left: `calc(var(--names) + ${part(first)})`, width: `calc(${part(last - first)})` };
}

// Choose the time between where the pointer goes down and where it goes up, or that of the events which were clicked.
function drag(down, ticks, [first, last], setBrush, choose) {
  if (down.button !== 0 || !down.isPrimary) return;
  const box = ticks.getBoundingClientRect();
  const part = (event) => Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  const group = down.target.events ?? [], done = new AbortController(), { signal } = done;
  const partsTo = (event) => [part(down), part(event)].sort((one, other) => one - other);
  const isWide = ([begin, end]) => end - begin >= 0.005;
  const show = (event) => setBrush(isWide(partsTo(event)) ? partsTo(event) : null);
  const end = (event) => {
    done.abort();
    setBrush(null);
    const parts = partsTo(event);
    if (event.type === "pointerup" && isWide(parts)) choose(parts.map((each) => first + each * (last - first)));
    else if (group.length > 1) choose([group[0].time - AROUND, group.at(-1).time + AROUND]);
  };
  addEventListener("pointermove", show, { signal });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, end, { signal });
}

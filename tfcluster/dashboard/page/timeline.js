// Events on an axis of time that moves, a row for each task; a part of the time can be chosen.
import { element, setText, synchronize } from "./dom.js";
import { formatTime } from "./format.js";

const ROWS = 12, NAMED = 12;  // at most: tasks on the axis, events that are named under the pointer
const AROUND = 5;  // seconds that are shown before and after events that were clicked
const APART = 22;  // pixels between two marks; events that are closer share one
const SPANS = [["10 minutes", 600], ["hour", 3600], ["day", 86400], ["all", 0]];
const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400];  // seconds between ticks
export const nameOf = (event) => event.task ?? event.host ?? "cluster";

export class Timeline {
  // `changed` is called when another range is shown.
  constructor(changed = () => {}) {
    this.changed = changed;
    this.events = [];
    this.range = null;  // [first, last] if a part was chosen, else the axis ends now
    this.span = element("select", { "aria-label": "time shown", onchange: () => this.choose(null) }, ...SPANS.map(([name, seconds]) => element("option", { value: seconds }, name)));
    this.span.value = "3600";
    const move = (text, label, part, zoom) => element("button", { type: "button", "aria-label": label, title: label, onclick: () => this.move(part, zoom) }, text);
    this.now = element("button", { type: "button", class: "now", hidden: true, onclick: () => this.choose(null) }, "Now");
    this.controls = [element("label", {}, "last ", this.span), element("span", { class: "group" }, move("◀", "earlier", -0.5, 1), move("▶", "later", 0.5, 1), move("+", "zoom in", 0, 0.5), move("−", "zoom out", 0, 2)), this.now];
    this.lanes = element("div", { class: "lanes" });
    this.ticks = element("div", { class: "ticks" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.brush = element("div", { class: "brush", hidden: true });
    this.rest = element("p", { class: "quiet" });
    this.plot = element("div", { class: "timeline", role: "img" }, this.lanes, this.ticks, this.brush, this.tip);
    this.node = element("div", {}, this.plot, this.rest);
    this.plot.addEventListener("pointerover", (event) => this.point(event.target));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("pointerdown", (event) => this.drag(event));
    this.timer = setInterval(() => { if (!this.range && this.tip.hidden && this.brush.hidden) this.draw(); }, 1000);
  }

  close() { clearInterval(this.timer); }

  bounds() {
    const now = Date.now() / 1000, seconds = Number(this.span.value);
    if (this.range) return this.range;
    return [seconds ? now - seconds : Math.min(now - 60, ...this.events.map((event) => event.time - 1)), now];
  }

  choose(range) {
    this.range = range;
    this.now.hidden = range === null;
    this.draw();
    this.changed();
  }

  move(part, zoom) {
    const [first, last] = this.bounds(), width = (last - first) * zoom, middle = (first + last) / 2 + part * (last - first);
    this.choose([middle - width / 2, middle + width / 2]);
  }

  show(events) {
    this.events = events;
    this.draw();
  }

  draw() {
    const [first, last] = this.bounds(), at = (time) => (100 * (time - first)) / (last - first || 1);
    const shown = this.events.filter((event) => first <= event.time && event.time <= last);
    const all = [...Map.groupBy(shown, nameOf)];
    const isBad = (events) => events.some((event) => kindOf(event.event) === "bad");
    const rows = [...all].sort((one, other) => isBad(other[1]) - isBad(one[1])).slice(0, ROWS);
    rows.sort((one, other) => one[0].localeCompare(other[0], "en", { numeric: true }));
    synchronize(this.lanes, rows, (row) => row[0], ([name]) => element("div", { class: "lane" }, element("span", { class: "lane-label", title: name }, name), element("div", { class: "track" })),
      (lane, [, events]) => lane.lastChild.replaceChildren(...marks(events, at, this.ticks.clientWidth || 900)));
    setText(this.rest, all.length > rows.length ? `and ${all.length - rows.length} more tasks with events` : shown.length ? "" : "No events in this time.");
    const step = STEPS.find((seconds) => (last - first) / seconds <= (this.plot.clientWidth || 900) / 100) ?? (last - first) / 5;
    const offset = new Date(1000 * last).getTimezoneOffset() * 60, times = [];
    for (let time = Math.ceil((first - offset) / step) * step + offset; time <= last; time += step) times.push(time);
    this.ticks.replaceChildren(...times.filter((time) => at(time) > 4 && at(time) < 94).map((time) => place(element("span", { class: "tick" }, step < 60 ? formatTime(time) : formatTime(time).slice(0, -3)), at(time))));
    this.plot.setAttribute("aria-label", `${shown.length} events of ${all.length} tasks from ${formatTime(first)} to ${formatTime(last)}`);
  }

  point(mark) {
    this.tip.hidden = !mark?.classList.contains("mark");
    if (this.tip.hidden) return;
    setText(this.tip, describe(mark.events));
    const plot = this.plot.getBoundingClientRect(), box = mark.getBoundingClientRect();
    this.tip.style.left = `${Math.max(0, Math.min(box.left - plot.left, plot.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${box.bottom - plot.top + 4}px`;
  }

  // Choose the time between where the pointer goes down and where it goes up.
  drag(down) {
    const box = this.ticks.getBoundingClientRect(), [first, last] = this.bounds();
    const part = (event) => Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    const begin = part(down);
    const show = (event) => {
      this.brush.hidden = Math.abs(part(event) - begin) < 0.005;
      this.brush.style.left = `${box.left - this.plot.getBoundingClientRect().left + Math.min(begin, part(event)) * box.width}px`;
      this.brush.style.width = `${Math.abs(part(event) - begin) * box.width}px`;
    };
    const done = new AbortController();
    const { signal } = done;
    const end = (event) => {
      done.abort();
      const times = [begin, part(event)].sort((one, other) => one - other).map((each) => first + each * (last - first));
      const isChosen = !this.brush.hidden && event.type === "pointerup";
      this.brush.hidden = true;
      const group = down.target.events ?? [];
      if (isChosen) this.choose(times);
      else if (group.length > 1) this.choose([group[0].time - AROUND, group.at(-1).time + AROUND]);
    };
    addEventListener("pointermove", show, { signal });
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, end, { signal });
  }
}

// Events that would overlap share a mark, which has their number, and looks bad if one of them is.
function marks(events, at, width) {
  const groups = [];
  for (const event of [...events].sort((one, other) => one.time - other.time)) {
    const isNear = groups.length && ((at(event.time) - at(groups.at(-1)[0].time)) * width) / 100 < APART;
    if (isNear) groups.at(-1).push(event);
    else groups.push([event]);
  }
  return groups.map((group) => {
    const kinds = group.map((event) => kindOf(event.event)), count = group.length > 1 ? group.length : null;
    const kind = kinds.includes("bad") ? "bad" : kinds.at(-1);
    const mark = place(element("span", { class: "mark", "data-kind": kind }, count), at(group[0].time));
    mark.events = group;
    return mark;
  });
}

function describe(events) {
  const lines = events.slice(0, NAMED).map((event) => [formatTime(event.time), event.task ?? event.host, event.event, event.detail].filter(Boolean).join(" · "));
  return [...lines, events.length > NAMED ? `and ${events.length - NAMED} more` : ""].filter(Boolean).join("\n");
}

function place(node, percent) {
  node.style.left = `${percent}%`;
  return node;
}

export function kindOf(name) {
  if (/fail|died|exit|lost|unresponsive|oom|killed|gone|away/.test(name)) return "bad";
  if (/ready|adopt|up|back/.test(name)) return "good";
  return "plain";
}

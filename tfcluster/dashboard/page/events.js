// What happened, on an axis and as a list.
import { element, makeRow, makeTable, setText } from "./dom.js";
import { formatTime } from "./format.js";
import { kindOf, nameOf, Timeline } from "./timeline.js";

const LISTED = 200;
const COLUMNS = ["time", "where", "event", "detail"];

// A table of events, the latest first.
export function eventsTable(events) {
  const table = makeTable("events", COLUMNS);
  fillEvents(table.body, events);
  return table;
}

function fillEvents(body, events) {
  body.replaceChildren(...events.map((event) => {
    const row = makeRow(COLUMNS, {}, [formatTime(event.time), nameOf(event), event.event, event.detail]);
    row.by.event.dataset.kind = kindOf(event.event);
    return row;
  }));
}

export class EventsView {
  constructor(parent) {
    this.text = element("input", { type: "search", placeholder: "task or text", "aria-label": "filter events", oninput: () => this.update(this.model, "events") });
    this.axis = new Timeline(() => this.list());
    this.table = eventsTable([]);
    this.note = element("p", { class: "quiet" });
    parent.append(element("section", {},
      element("div", { class: "filters" }, element("h2", {}, "Events"), ...this.axis.controls, this.text), this.axis.node,
      this.table.node, this.note));
  }

  update(model, kind) {
    this.model = model;
    if (kind !== "events" && kind !== "all") return;
    const wanted = this.text.value.toLowerCase();
    const matches = (event) => `${event.task ?? ""} ${event.event} ${event.detail} ${event.host ?? ""}`.toLowerCase().includes(wanted);
    this.events = model.events.filter(matches).sort((one, other) => other.time - one.time);
    this.axis.show(this.events);
    this.list();
  }

  list() {
    const [first, last] = this.axis.range ?? [-Infinity, Infinity];
    const events = this.events.filter((event) => first <= event.time && event.time <= last);
    fillEvents(this.table.body, events.slice(0, LISTED));
    setText(this.note, events.length > LISTED ? `The latest ${LISTED} of ${events.length}; choose a part of the axis for others.` : "");
  }

  close() { this.axis.close(); }
}

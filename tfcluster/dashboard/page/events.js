// What happened, on an axis and as a list.
import { element } from "./dom.js";
import { formatTime } from "./format.js";
import { kindOf, showTimeline } from "./timeline.js";

const LISTED = 200;
const SPANS = [["10 minutes", 600], ["hour", 3600], ["day", 86400], ["all", 0]];

export class EventsView {
  constructor(parent) {
    this.span = element("select", { onchange: () => this.update(this.model, "events") }, ...SPANS.map(([name, seconds]) => element("option", { value: seconds }, name)));
    this.span.value = "3600";
    this.text = element("input", { type: "search", placeholder: "task or text", "aria-label": "filter", oninput: () => this.update(this.model, "events") });
    this.axis = element("div", { class: "axis" });
    this.list = element("tbody", { id: "events" });
    parent.append(element("section", {},
      element("div", { class: "filters" }, element("h2", {}, "Events"), element("label", {}, "last ", this.span), this.text),
      this.axis,
      element("div", { class: "scroll" }, element("table", { class: "events" }, this.list))));
  }

  update(model, kind) {
    this.model = model;
    if (kind !== "events" && kind !== "all") return;
    const wanted = this.text.value.toLowerCase();
    const matches = (event) => `${event.task ?? ""} ${event.event} ${event.detail} ${event.host ?? ""}`.toLowerCase().includes(wanted);
    const events = model.events.filter(matches).sort((one, other) => one.time - other.time);
    showTimeline(this.axis, events, Number(this.span.value));
    this.list.replaceChildren(...events.slice(-LISTED).reverse().map((event) => element("tr", {},
      element("td", { class: "time" }, formatTime(event.time)),
      element("td", {}, event.task ?? event.host ?? ""),
      element("td", { class: "kind", "data-kind": kindOf(event.event) }, event.event),
      element("td", { class: "wrap" }, event.detail))));
  }
}

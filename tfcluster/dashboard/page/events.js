// All events, on an axis and as a list.
import { html, useState } from "./dom.js";
import { Time } from "./parts.js";
import { Table } from "./table.js";
import { nameOf, Timeline, TimelineControls, useAxis } from "./timeline.js";

const LISTED = 200;
const COLUMNS = [
  { name: "time", cell: (event) => html`<${Time} seconds=${event.time} />` },
  { name: "where", cell: nameOf },
  { name: "event", cell: (event) => event.event, attributes: (event) => ({ "data-kind": event.kind }) },
  { name: "detail", cell: (event) => event.detail },
];

export function EventsView({ model }) {
  const [text, setText] = useState("");
  const [axis, setAxis] = useAxis();
  const wanted = text.toLowerCase();
  const textOf = ({ task, event, detail, host }) => [task, event, detail, host].join(" ").toLowerCase();
  const events = (model.view?.events ?? []).filter((event) => textOf(event).includes(wanted)).reverse();
  const [first, last] = axis.range ?? [-Infinity, Infinity];
  const chosen = events.filter((event) => first <= event.time && event.time <= last);
  const note = `The latest ${LISTED} of ${chosen.length}; choose a part of the axis for others.`;
  return html`<section>
    <div class="filters"><h2>Events</h2><${TimelineControls} axis=${axis} setAxis=${setAxis} events=${events} />
      <input type="search" placeholder="task or text" aria-label="filter events"
        onInput=${(event) => setText(event.target.value)} /></div>
    <${Timeline} axis=${axis} setAxis=${setAxis} events=${events} />
    <${Table} name="events" columns=${COLUMNS} items=${chosen.slice(0, LISTED)} keyOf=${keyOf} />
    <p class="quiet">${chosen.length > LISTED ? note : ""}</p>
  </section>`;
}

const keyOf = (event) => [event.time, event.task, event.host, event.event, event.detail].join(" ");

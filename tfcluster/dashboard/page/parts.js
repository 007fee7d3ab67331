// Small parts that several views have.
import { html } from "./dom.js";
import { formatFullTime, formatTime } from "./format.js";

const FEW = 3;  // items of a list that are not worth hiding

// A state with its colour.
export function Pill({ id, state, title }) {
  return html`<span id=${id} class="pill" title=${title} data-state=${state}>${state}</span>`;
}

// A time of day; the tooltip has the full date and the time zone.
export function Time({ seconds, className }) {
  if (seconds === null || seconds === undefined) return null;
  return html`<time class=${className} title=${formatFullTime(seconds)}>${formatTime(seconds)}</time>`;
}

// Pairs of a name and a value; those without a value are left out.
export function Facts({ pairs }) {
  const known = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return html`<dl class="facts">${known.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export const linkToRuns = (runs) => `#run/${runs.map(encodeURIComponent).join(",")}`;

// At most `limit` of the items, and all urgent ones; all of them if only a few would be hidden.
export function shorten(items, isUrgent, limit) {
  let room = limit;
  const shown = items.filter((item) => isUrgent(item) || room-- > 0);
  return items.length - shown.length <= FEW ? items : shown;
}

// `limits`: of cards in a narrow window, and of rows.
export const limitOf = (limits) => limits[matchMedia("(max-width: 760px)").matches ? 0 : 1];

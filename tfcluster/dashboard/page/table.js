// Tables: plain ones, whose rows become cards in a narrow window, and those of data, which sort and can be downloaded.
import { html, useState } from "./dom.js";
import { saveCsv } from "./download.js";

const className = (name) => name.replaceAll(" ", "-");

// `columns`: [{name, cell, attributes}], functions of an item; the first cell of a row is its heading.
export function Table({ name, className: more = "", columns, items, keyOf, attributesOf = () => ({}) }) {
  const head = ({ name: column }) => html`<th key=${column} scope="col" class=${className(column)}>${column}</th>`;
  const row = (item) => html`<tr key=${keyOf(item)} ...${attributesOf(item)}>
    ${columns.map((column, index) => makeCell(column, item, index))}</tr>`;
  return html`<table class=${`cards ${name} ${more}`} aria-label=${name} hidden=${items.length === 0}>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody id=${name}>${items.map(row)}</tbody>
  </table>`;
}

function makeCell({ name, cell, attributes }, item, index) {
  const shared = { class: className(name), "data-label": name, ...attributes?.(item) };
  if (index) return html`<td key=${name} ...${shared}>${cell(item)}</td>`;
  return html`<th key=${name} scope="row" ...${shared}>${cell(item)}</th>`;
}

// A table of data. `columns`: [{name, label, value, cell, csv, isNumber}]; `value` is what sorts, `cell` what is
// shown, and `csv` what a download has, if they differ from it. `children` are controls beside the button for it.
export function DataTable({ name, columns, items, keyOf, select, children }) {
  const [order, setOrder] = useState({ column: null, isDescending: false });
  const sortBy = columns.find((column) => column.name === order.column);
  const sorted = sortBy ? sortItems(items, sortBy.value, order.isDescending) : items;
  const choose = (column) => setOrder({ column, isDescending: order.column === column && !order.isDescending });
  const heading = (column) => html`<${Heading} key=${column.name} column=${column} order=${order} choose=${choose} />`;
  const row = (item) => html`<tr key=${keyOf(item)} data-run=${keyOf(item)}>
    ${select && html`<td class="choice">${select(item)}</td>`}
    ${columns.map((column, index) => makeDataCell(column, item, index))}</tr>`;
  const valuesOf = (item) => columns.map(({ value, csv = value }) => csv(item));
  const download = () => saveCsv(name, [columns.map((column) => column.label ?? column.name), ...sorted.map(valuesOf)]);
  return html`<div class="data">
    <div class="filters">${children}
      <button type="button" class="csv" aria-label=${`${name} as CSV`} disabled=${!items.length} onClick=${download}>
        CSV</button></div>
    <div class="scroll" tabindex="0" role="group" aria-label=${`table of ${name}`} hidden=${!items.length}>
      <table aria-label=${name}>
        <thead><tr>${select && html`<th class="choice"><span class="hidden">choose</span></th>`}
          ${columns.map(heading)}</tr></thead>
        <tbody id=${name}>${sorted.map(row)}</tbody>
      </table>
    </div>
  </div>`;
}

function Heading({ column: { name, label = name, title, isNumber }, order, choose }) {
  const isSorted = order.column === name;
  const direction = !isSorted ? null : order.isDescending ? "descending" : "ascending";
  return html`<th scope="col" class=${isNumber ? "number" : null} aria-sort=${direction}>
    <button type="button" class="sort" title=${title} onClick=${() => choose(name)}>${label}</button></th>`;
}

function makeDataCell({ name, value, cell = value, isNumber }, item, index) {
  if (!index) return html`<th key=${name} scope="row">${cell(item)}</th>`;
  return html`<td key=${name} class=${isNumber ? "number" : null}>${cell(item)}</td>`;
}

const isEmpty = (value) => value === null || value === undefined || value === "";

// Sort by a value: numbers by size, before texts; items without a value come last in both directions.
function sortItems(items, valueOf, isDescending) {
  const sign = isDescending ? -1 : 1;
  return [...items].sort((one, other) => {
    const [first, second] = [valueOf(one), valueOf(other)];
    if (isEmpty(first) || isEmpty(second)) return isEmpty(first) - isEmpty(second);
    return sign * compare(first, second);
  });
}

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  if (typeof first !== typeof second) return typeof first === "number" ? -1 : 1;
  return String(first).localeCompare(String(second), "en", { numeric: true });
}

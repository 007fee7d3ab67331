// Elements whose texts are set as text: nothing that comes from the cluster is ever parsed as HTML. Control characters,
// such as those that change the direction of what follows, are shown as on the terminal (control_characters.py).
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;

function escapeControlCharacters(text) {
  return String(text).replaceAll("\r\n", "\n").replace(/\r$/, "").replace(CONTROL, (character) => {
    const code = character.charCodeAt(0).toString(16);
    return character === "\r" ? "\\r" : code.length > 2 ? `\\u${code}` : `\\x${code.padStart(2, "0")}`;
  });
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : escapeControlCharacters(value));
    }
  }
  const shown = children.filter((child) => child !== null && child !== undefined);
  node.append(...shown.map((child) => (child instanceof Node ? child : escapeControlCharacters(child))));
  return node;
}

export function setText(node, text) {
  const shown = escapeControlCharacters(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// A table with headings; in a narrow window its rows become cards, in which each cell has the name of its column.
export function makeTable(name, columns) {
  const body = element("tbody", { id: name });
  const heads = columns.map((column) => element("th", { scope: "col", class: className(column) }, column));
  return { body, node: element("table", { class: name, "aria-label": name }, element("thead", {}, element("tr", {}, ...heads)), body) };
}

// A row, with its cells by the names of their columns; the first one is its heading.
export function makeRow(columns, attributes, values = []) {
  const row = element("tr", attributes);
  row.by = {};
  columns.forEach((column, index) => {
    const cell = element(index ? "td" : "th", { class: className(column), "data-label": column, scope: index ? null : "row" }, values[index]);
    row.append(row.by[column] = cell);
  });
  return row;
}

const className = (column) => column.replaceAll(" ", "-");

// Keep one child for each item, in the order of the items; children that stay keep their focus and selection.
export function synchronize(parent, items, keyOf, create, update) {
  parent.children_by_key ??= new Map();
  const known = parent.children_by_key;
  const keys = new Set(items.map(keyOf));
  for (const [key, child] of known) {
    if (!keys.has(key)) { child.remove(); known.delete(key); }
  }
  items.forEach((item, index) => {
    const key = keyOf(item);
    if (!known.has(key)) known.set(key, create(item));
    const child = known.get(key);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    update(child, item);
  });
}

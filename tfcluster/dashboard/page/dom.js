// Elements from templates. Every text of an element passes through here: it is set as text, never parsed as HTML, and
// control characters, such as those that change the direction of text, are shown as on the terminal
// (control_characters.py). An object from the cluster in the place of a text never becomes an element.
import { html as build } from "./preact.js";

export { Component, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const escaped = new WeakSet();  // elements whose texts have been escaped

export function html(strings, ...values) {
  return escapeTexts(build(strings, ...values));
}

function escapeTexts(node) {
  if (typeof node === "string") return escapeControlCharacters(node);
  if (Array.isArray(node)) return node.map(escapeTexts);
  if (node === null || typeof node !== "object" || escaped.has(node)) return node;
  if (node.constructor !== undefined) return escapeControlCharacters(JSON.stringify(node));  // an element has none
  escaped.add(node);
  const { props } = node;
  props.children = escapeTexts(props.children);
  if (typeof node.type === "string") {  // the properties of a component are data
    for (const name of Object.keys(props)) {
      if (typeof props[name] === "string") props[name] = escapeControlCharacters(props[name]);
    }
  }
  return node;
}

function escapeControlCharacters(text) {
  return text.replaceAll("\r\n", "\n").replace(/\r$/, "").replace(CONTROL, (character) => {
    const code = character.charCodeAt(0).toString(16);
    return character === "\r" ? "\\r" : code.length > 2 ? `\\u${code}` : `\\x${code.padStart(2, "0")}`;
  });
}

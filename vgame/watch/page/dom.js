"use strict";
// The only module that makes elements. Text is always a text node: no data of a chain or a file is parsed as markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "rect", "polygon", "polyline", "line", "circle", "text", "title", "g"]);

function h(tag, attributes, ...children) {
  const drawn = DRAWN.has(tag);
  const made = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false)
    .map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return made;
}

// A sentence in which values may be elements: phrase`It has ${ether(wei)}.`
function phrase(texts, ...values) {
  return texts.map((text, i) => [text, i < values.length ? values[i] : ""]);
}

// Update `old` to `made`, only where they differ: focus, selection and scroll positions stay.
function patch(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) return void old.replaceWith(made);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...made.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, [...made.childNodes]);
}

function patchChildren(parent, made) {
  const before = [...parent.childNodes];
  made.forEach((child, i) => (i < before.length ? patch(before[i], child) : parent.append(child)));
  before.slice(made.length).forEach((child) => child.remove());
}

// A term with its explanation, which opens in place.
const opened = new Set();

function term(word, label, place) {
  const key = `${word}@${place || ""}`, open = opened.has(key);
  return [
    h("button", { type: "button", class: "term", "data-term": key, "aria-expanded": open ? "true" : "false" }, label || word),
    open && h("span", { class: "gloss", role: "note" }, WORDS[word] || MOVES[word]),
  ];
}

// `columns`: [label, function from row to cell, class]; on narrow screens each cell shows its label.
function table(caption, columns, rows) {
  const cells = (row) => columns.map(([label, fill, kind]) => h("td", { role: "cell", class: kind, "data-label": label }, fill(row)));
  return h("table", { role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([label, , kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, label)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, cells(row)))));
}

function facts(...pairs) {
  return h("dl", {}, pairs.filter((p) => p && p[1] !== null && p[1] !== undefined && p[1] !== false)
    .map(([name, ...value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

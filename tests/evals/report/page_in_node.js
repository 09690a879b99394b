// Run the script of a report's page in Node, with just as much of a document as the script uses.
//
//   node page_in_node.js REPORT.HTML STATE [KEYS]
//
// STATE is the fragment of the page's address, KEYS are typed when the responses are shown. Prints JSON: the page's
// status, the filters, the open question and the list of questions as HTML, and the fragment in the end.
"use strict";
const fs = require("fs");
const [path, state, keys = ""] = process.argv.slice(2);
const html = fs.readFileSync(path, "utf8");
const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, nodes: [], listeners: {} });
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...nodes) { this.nodes.push(...nodes.map((node) => (node instanceof Element ? node : String(node)))); }
  replaceChildren(...nodes) { this.nodes = []; this.append(...nodes); }
  addEventListener(type, listener) { this.listeners[type] = listener; }
  remove() {}
  scrollIntoView() {}
  get children() { return this.nodes.filter((node) => node instanceof Element); }
  get dataset() { return { number: this.attributes["data-number"] }; }
  get textContent() { return this.nodes.map((node) => node.textContent ?? node).join(""); }
  set textContent(text) { this.nodes = [text]; }
  toString() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${escape(value)}"`);
    const nodes = this.nodes.map((node) => (node instanceof Element ? String(node) : escape(node)));
    return `<${this.tag}${attributes.join("")}>${nodes.join("")}</${this.tag}>`;
  }
}

class Select extends Element {
  get selectedIndex() { return this.children.findIndex((option) => option.attributes.value === this.value); }
}

const fields = [...html.matchAll(/<(select|input) name="(\w+)"(?: type="(\w+)")?/g)].map(([, tag, name, type]) =>
  Object.assign(tag === "select" ? new Select(tag) : new Element(tag), { name, type, value: "", checked: false }));
const elements = { data: new Element("script") };
elements.data.textContent = html.match(/id="data">([^<]*)</)[1];
elements.filters = new Element("form");
elements.filters.elements = Object.assign(fields, Object.fromEntries(fields.map((field) => [field.name, field])));
const listeners = {};

Object.assign(globalThis, {
  window: globalThis,
  location: { hash: `#${state}` },
  history: { replaceState: (_, __, hash) => { location.hash = hash; } },
  addEventListener: () => {},
  document: {
    getElementById: (id) => (elements[id] ??= new Element("div")),
    createElement: (tag) => new Element(tag),
    addEventListener: (type, listener) => { listeners[type] = listener; },
  },
  FormData: class {
    *[Symbol.iterator]() {
      for (const { name, type, value, checked } of fields) {
        if (type !== "checkbox") yield [name, value];
        else if (checked) yield [name, "on"];
      }
    }
  },
});

let typed = false;
process.on("beforeExit", () => { // the page has nothing left to do
  if (typed) return;
  typed = true;
  for (const key of keys) listeners.keydown({ key, target: { closest: () => null } });
  const shown = { status: elements.status.textContent, filters: fields.join(""), hash: location.hash };
  for (const id of ["question", "questions"]) shown[id] = String(elements[id]);
  process.stdout.write(JSON.stringify(shown));
});
(0, eval)(html.slice(html.lastIndexOf("<script>") + "<script>".length, html.lastIndexOf("</script>")));

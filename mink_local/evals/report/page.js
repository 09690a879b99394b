"use strict";
// The browser of responses. Everything that a model wrote reaches the page as a text node, never as HTML.

const VERDICTS = {
  "right": ["correct", (r) => r.right],
  "wrong": ["wrong", (r) => !r.right],
  "differ": ["strict and flexible scoring differ", (r) => r.strictRight !== r.right],
  "none": ["no answer found", (r) => r.answer === null],
  "cut-off": ["cut off at the token limit", (r) => r.finish === "length"],
  "won": ["correct where BASELINE is wrong", (r, t) => r.right && rivals(r, t).some((other) => !other.right)],
  "lost": ["wrong where BASELINE is correct", (r, t) => !r.right && rivals(r, t).some((other) => other.right)],
};
const UNJUDGED = ["cut-off"]; // also of responses to open-ended questions, which have no verdict
const PAGE = 200; // questions listed at once

const $ = (id) => document.getElementById(id);
const filters = $("filters");
let data;
let found = new Map(); // question number -> its responses that pass the filters
let listed = [];
let current = null;
let limit = PAGE;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function unpack() {
  const text = $("data").textContent;
  $("data").remove();
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function connect({ baseline: [kind, baseline], questions, cells, responses }) {
  const cellOf = cells.map(([model, task, sampler, t, method, arm]) => ({ model, task, sampler, t, method, arm }));
  const questionOf = questions.map(([task, id, prompt, gold]) => ({ task, id, prompt, gold, responses: [] }));
  const ofBaseline = new Map();
  for (const [cell, question, repeat, text, strict, s, answer, right, finish, tokens, steps, ones, largest] of responses) {
    const response = { cell: cellOf[cell], order: cell, question, repeat, text, strict, strictRight: !!s, answer,
      right: !!right, judged: right !== null, finish, tokens, steps, ones, largest, rivals: [] };
    questionOf[question].responses.push(response);
    if (response.cell[kind] !== baseline) continue;
    const key = pairKey(response, kind);
    ofBaseline.set(key, [...(ofBaseline.get(key) ?? []), response]);
  }
  for (const question of questionOf) {
    question.responses.sort((a, b) => a.order - b.order || a.repeat - b.repeat);
    for (const response of question.responses) {
      if (response.cell[kind] === baseline) continue;
      const others = ofBaseline.get(pairKey(response, kind)) ?? [];
      response.rivals = others.filter((other) => isPair(response, other, kind));
    }
  }
  return { kind, baseline, cells: cellOf, questions: questionOf };
}

// Two responses with the same key differ in this: "sampler", "arm" or "model", and perhaps in temperature and repeat.
function pairKey({ cell, question }, kind) {
  return JSON.stringify([kind === "model" ? cell.sampler : cell.model, question]);
}

// Greedy (T = 0) is answered once, and compared with every temperature and repeat of another sampler or arm.
function isPair(one, other, kind) {
  if (kind !== "model" && (one.cell.t === 0 || other.cell.t === 0)) return true;
  return (kind === "arm" || one.cell.t === other.cell.t) && one.repeat === other.repeat;
}

// The baseline's responses that one is compared with, at one temperature if it is chosen.
function rivals(response, t) {
  return response.rivals.filter((other) => !t || data.kind === "arm" || isAt(other.cell, t));
}

function isAt(cell, t) {
  return cell.t === 0 || String(cell.t) === t;
}

function fill(name, all, options) {
  const select = filters.elements[name];
  select.append(element("option", { value: "" }, all));
  for (const [value, label] of options) select.append(element("option", { value }, label));
}

function choices(read, label = read) {
  return [...new Map(data.cells.map((cell) => [String(read(cell)), label(cell)]))];
}

function passes() {
  const { task, model, method, t, verdict, text, asked } = Object.fromEntries(new FormData(filters));
  const wanted = text.toLowerCase();
  const judge = !verdict ? () => true : UNJUDGED.includes(verdict) ? VERDICTS[verdict][1]
    : (response) => response.judged && VERDICTS[verdict][1](response, t);
  const inCell = (cell) => (!task || cell.task === task) && (!model || cell.model === model) &&
    (!method || cell.sampler === method) && (!t || isAt(cell, t));
  const cells = new Set(data.cells.filter(inCell));
  return (response, question) => cells.has(response.cell) && judge(response) && (!wanted ||
    response.text.toLowerCase().includes(wanted) || (asked && question.prompt.toLowerCase().includes(wanted)));
}

function filter() {
  const pass = passes();
  found = new Map();
  let total = 0;
  data.questions.forEach((question, number) => {
    const passing = question.responses.filter((response) => pass(response, question));
    if (passing.length) found.set(number, passing);
    total += passing.length;
  });
  listed = [...found.keys()];
  limit = PAGE;
  if (!found.has(current)) current = listed.length ? listed[0] : null;
  $("status").textContent = total
    ? `${count(total, "response")} to ${count(listed.length, "question")}.`
    : "No response passes these filters.";
  list();
  show();
}

function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

function list() {
  limit = Math.max(limit, listed.indexOf(current) + 1);
  const buttons = listed.slice(0, limit).map((number) => {
    const question = data.questions[number];
    const passing = found.get(number);
    const right = passing.filter((response) => response.right).length;
    const button = element("button", { type: "button", "data-number": number, "aria-current": number === current },
      `${question.task} ${question.id}: ${[...question.prompt.slice(0, 160)].slice(0, 70).join("")}`,
      element("small", {}, passing[0].judged
        ? `${right} of ${passing.length} correct` : count(passing.length, "response")));
    button.addEventListener("click", () => choose(number));
    return button;
  });
  if (listed.length > limit) {
    const more = element("button", { type: "button" }, `Show more (${listed.length - limit} left)`);
    more.addEventListener("click", () => { limit += PAGE; list(); });
    buttons.push(more);
  }
  $("questions").replaceChildren(...buttons);
  const chosen = buttons[listed.indexOf(current)];
  if (chosen) $("questions").scrollTop = chosen.offsetTop;
}

function choose(number) {
  current = number;
  if (listed.indexOf(number) >= limit) list();
  for (const button of $("questions").children) {
    button.setAttribute("aria-current", button.dataset.number === String(number));
    if (button.dataset.number === String(number)) button.scrollIntoView({ block: "nearest" });
  }
  show();
  remember();
}

function show() {
  if (current === null) {
    $("question").replaceChildren();
    return;
  }
  const question = data.questions[current];
  const passing = new Set(found.get(current));
  const shown = filters.elements.others.checked ? question.responses : [...passing];
  const parts = [
    element("h3", {}, `${question.task}, question ${question.id}`),
    element("pre", { dir: "auto", id: "prompt" }, ...marked(question.prompt)),
  ];
  if (question.gold) parts.push(element("p", {}, "Gold answer: ", element("strong", {}, question.gold)));
  const groups = new Map();
  for (const response of shown) {
    const heading = `${response.cell.model}, T = ${response.cell.t}`;
    if (!groups.has(heading)) groups.set(heading, []);
    groups.get(heading).push(card(response, !passing.has(response)));
  }
  for (const [heading, cards] of groups) {
    parts.push(element("h3", {}, heading), element("div", { class: "cards" }, ...cards));
  }
  $("question").replaceChildren(...parts);
}

function card(response, other) {
  const k = response.steps
    ? `k = 1 in ${Math.round((100 * response.ones) / response.steps)}% of steps, at most ${response.largest.toLocaleString("en")}`
    : "no steps";
  const ends = { length: "cut off", repetition: "ended in a loop", overflow: "prompt did not fit", refused: "refused by the server" };
  const end = ends[response.finish] ? `, ${ends[response.finish]}` : "";
  return element("section", { class: other ? "card other" : "card" },
    element("h4", {}, `${response.cell.method}, repeat ${response.repeat + 1}`),
    element("p", {}, ...(response.judged
      ? [...verdict(response.answer, response.right),
        ...(response.strictRight === response.right ? [] : [" · strict: ", ...verdict(response.strict, response.strictRight)])]
      : ["open-ended: no verdict"])),
    element("p", {}, `${response.tokens?.toLocaleString("en") ?? "?"} tokens${end} · ${k}`),
    element("pre", { tabindex: "0" }, ...marked(response.text)));
}

function verdict(answer, right) {
  const mark = element("span", { class: right ? "right" : "wrong" }, right ? "✓ correct" : "✗ wrong");
  return [mark, answer === null ? " (no answer)" : ` (${answer})`];
}

function marked(text) {
  const wanted = filters.elements.text.value.toLowerCase();
  const low = text.toLowerCase();
  if (!wanted || low.length !== text.length) return [text]; // lower case may be longer, and positions differ then
  const parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

function remember() {
  const state = new URLSearchParams([...new FormData(filters)].filter(([, value]) => value));
  if (current !== null) {
    state.set("in", data.questions[current].task);
    state.set("question", data.questions[current].id);
  }
  history.replaceState(null, "", `#${state}`);
}

function recall() {
  const linked = location.hash.includes("="); // and not a section of the page
  if (!linked && listed.length) return;
  const state = new URLSearchParams(linked ? location.hash.slice(1) : "");
  for (const field of filters.elements) {
    if (field.type === "checkbox") field.checked = state.has(field.name);
    else field.value = state.get(field.name) ?? "";
    if (field.selectedIndex === -1) field.value = ""; // this run does not have the option
  }
  const at = data.questions.findIndex((q) => q.id === state.get("question") && q.task === state.get("in"));
  current = at >= 0 ? at : null;
  filter();
  if (linked) $("responses").scrollIntoView();
}

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select")) return;
  const step = { j: 1, k: -1 }[event.key];
  if (step) {
    const next = listed[listed.indexOf(current) + step];
    if (next !== undefined) choose(next);
  } else if (event.key === "/") {
    filters.elements.text.focus();
    event.preventDefault();
  }
}

async function main() {
  if (!("DecompressionStream" in window)) {
    $("status").textContent = "This browser cannot unpack the responses: Chrome 80, Firefox 113 and Safari 16.4 can, " +
      "and newer ones. They are also in the run's records, one per line.";
    return;
  }
  data = connect(await unpack());
  fill("task", "all", choices((cell) => cell.task));
  fill("model", "all", choices((cell) => cell.model));
  fill("method", "all", choices((cell) => cell.sampler, (cell) => cell.method));
  const sampled = choices((cell) => cell.t).sort((a, b) => a[0] - b[0]);
  fill("t", "all", sampled.length > 1 ? sampled.filter(([t]) => t !== "0") : sampled);
  fill("verdict", "any", Object.entries(VERDICTS)
    .filter(([, [label]]) => data.baseline !== null || !label.includes("BASELINE"))
    .map(([name, [label]]) => [name, label.replace("BASELINE", data.baseline)]));
  for (const id of ["filters", "keys", "browser"]) $(id).hidden = false;
  recall();
  addEventListener("hashchange", recall);
  let wait;
  filters.addEventListener("input", (event) => {
    clearTimeout(wait);
    wait = setTimeout(() => { filter(); remember(); }, event.target.type === "search" ? 250 : 0);
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", key);
}

main().catch((error) => { $("status").textContent = `The responses cannot be shown: ${error.message}`; });

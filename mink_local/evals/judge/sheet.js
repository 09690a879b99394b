"use strict";
// Shows pairs of responses and collects votes. Everything that a model wrote reaches the page as text.

const $ = (id) => document.getElementById(id);
const { sheet, pairs } = JSON.parse($("data").textContent);
const STORE = `mink-eval sheet ${sheet}`;
const KEYS = { ArrowLeft: "left", a: "left", ArrowRight: "right", b: "right", t: "tie" };
const rater = $("save").elements.rater;
const buttons = [...$("votes").children];
let state = { rater: "", votes: {} };
let kept = true; // by the browser, when the page is closed
let current = 0;

// Another tab may have added votes to the same sheet.
function load() {
  try {
    const { rater: name, votes } = JSON.parse(localStorage.getItem(STORE)) ?? state;
    state = { rater: name, votes: { ...votes } };
  } catch {
    kept = false;
  }
}

function store(change) {
  load();
  change(state);
  try {
    localStorage.setItem(STORE, JSON.stringify(state));
    kept = true;
  } catch {
    kept = false;
  }
}

function vote(side) {
  store(({ votes }) => { votes[pairs[current][0]] = side; });
  const next = open();
  if (next === -1) show();
  else go(next);
}

// The next pair without a vote, after the current one or from the beginning.
function open() {
  const order = [...pairs.keys()];
  return [...order.slice(current), ...order.slice(0, current)].find((at) => !(pairs[at][0] in state.votes)) ?? -1;
}

function go(at) {
  current = at;
  show();
  $("pair").scrollIntoView();
}

function show() {
  const [name, prompt, left, right] = pairs[current];
  $("prompt").textContent = prompt;
  $("left").textContent = left;
  $("right").textContent = right;
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.vote === state.votes[name]);
  const voted = Object.keys(state.votes).length;
  $("place").textContent = `Pair ${current + 1} of ${pairs.length}, ${voted} voted`;
  $("previous").disabled = current === 0;
  $("next").disabled = current === pairs.length - 1;
  $("open").disabled = open() === -1;
  const warning = "This browser does not store votes: save them before you close the page.";
  const done = "You have voted on all pairs: save the votes.";
  $("saved").textContent = !kept ? warning : voted === pairs.length ? done : "";
}

function save(event) {
  event.preventDefault();
  const name = rater.value.trim();
  if (!name) {
    $("saved").textContent = "Enter your name first, so that your votes can be told apart from others'.";
    rater.focus();
    return;
  }
  store((now) => { now.rater = name; });
  const content = { sheet, rater: name, saved: new Date().toISOString(), votes: state.votes };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
  link.download = `votes-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  $("saved").textContent = `Saved ${Object.keys(state.votes).length} of ${pairs.length} votes as ${link.download}.`;
}

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat || event.target.closest("input")) return;
  const step = { p: -1, n: 1 }[event.key];
  if (event.key in KEYS) vote(KEYS[event.key]);
  else if (step && pairs[current + step]) go(current + step);
  else return;
  event.preventDefault();
}

load();
rater.value = state.rater;
for (const button of buttons) button.addEventListener("click", () => vote(button.dataset.vote));
$("previous").addEventListener("click", () => go(current - 1));
$("next").addEventListener("click", () => go(current + 1));
$("open").addEventListener("click", () => go(open()));
$("save").addEventListener("submit", save);
rater.addEventListener("change", () => store((now) => { now.rater = rater.value.trim(); }));
document.addEventListener("keydown", key);
addEventListener("beforeunload", (event) => { if (!kept) event.preventDefault(); });
$("pair").hidden = $("save").hidden = false;
$("guide").open = !Object.keys(state.votes).length;
current = Math.max(0, open());
show();

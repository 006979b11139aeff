"use strict";
// Holds the state, listens for changes, shows the view of the address. A static copy does not listen.

const PATIENCE = 15000; // milliseconds without a sign of life until the connection counts as lost
let state = {}, index = null, received = Date.now(), lost = null, source = null, wanted = false;

function build(records) {
  const found = { game: records.game, story: records.story, problem: records.problem, jobs: new Map(), disputes: new Map(), moves: new Map(), flows: new Map(), runs: [], roles: [], alarms: [] };
  const groups = { dispute: found.disputes, move: found.moves, flow: found.flows }, lists = { run: found.runs, role: found.roles, alarm: found.alarms };
  for (const [key, record] of Object.entries(records)) {
    const [kind, id] = key.split("/", 2);
    if (kind === "job") found.jobs.set(id, record);
    else if (groups[kind]) (groups[kind].get(id) || groups[kind].set(id, []).get(id)).push([key, record]);
    else if (lists[kind]) lists[kind].push(record);
  }
  for (const kind of [found.moves, found.flows]) for (const [id, list] of kind) kind.set(id, list.sort((a, b) => (a[0] < b[0] ? -1 : 1)).map((pair) => pair[1]));
  for (const [id, list] of found.disputes) found.disputes.set(id, list.map((pair) => pair[1]).sort((a, b) => a.number - b.number));
  found.own = new Set(found.roles.map((r) => r.address).filter(Boolean));
  found.labels = labelsOf(found);
  found.movesOf = (id, number) => (found.moves.get(id) || []).filter((m) => m.disputes.includes(number));
  return found;
}

// The role of each account in this game, for accounts without a name.
function labelsOf(found) {
  const labels = new Map(), mark = (address, label) => address && labels.set(address, [...new Set([...(labels.get(address) || []), label])]);
  for (const job of found.jobs.values()) { mark(job.client, "client"); mark(job.trainer, "trainer"); }
  for (const list of found.disputes.values()) for (const d of list) mark(d.auditor, "auditor");
  return labels;
}

function chainNow(of) {
  return of.game.now + (of.game.live && source ? Math.floor((Date.now() - received) / 1000) : 0);
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (parts[0] === "job" && parts[2] === "dispute") return ["jobs", () => disputeView(index, parts[1], parts[3])];
  if (parts[0] === "job") return ["jobs", () => jobView(index, parts[1])];
  if (parts[0] === "roles") return ["roles", () => rolesView(index)];
  if (parts[0] === "words") return ["words", wordsViewOf];
  return ["jobs", () => jobsView(index)];
}

function render() {
  wanted = false;
  if (!index || !index.game) return;
  const begin = performance.now(), [name, view] = route(), main = document.getElementById("main");
  patch(main, h("main", { id: "main", tabindex: "-1" }, index.problem && h("p", { class: "card alarm", role: "alert" }, "The chain cannot be read now; this is what was seen last. ", h("span", { class: "text" }, index.problem.text)), view()));
  for (const link of document.querySelectorAll("nav a")) link.dataset.view === name ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  const title = main.querySelector("h1");
  document.title = `${title ? title.textContent : "Jobs"} · vgame`;
  document.documentElement.dataset.rendered = (performance.now() - begin).toFixed(1);
}

function soon() {
  if (!wanted) { wanted = true; setTimeout(render, 0); }
}

function take(change) {
  for (const key of change.gone) delete state[key];
  Object.assign(state, change.set);
  received = Date.now();
  index = build(state);
  tell(change.set);
  soon();
}

// Text for screen readers: the last move of the current view.
function tell(records) {
  const [, id, , number] = location.hash.replace(/^#\/?/, "").split("/");
  const heard = Object.entries(records).filter(([key, r]) => key.startsWith(`move/${id}/`) && (number === undefined || r.disputes.includes(Number(number))));
  if (heard.length) document.getElementById("heard").textContent = `New: ${heard[heard.length - 1][1].name}. ${MOVES[heard[heard.length - 1][1].name] || ""}`;
}

function say(text, bad) {
  const line = document.getElementById("line");
  if (line.textContent !== text) line.textContent = text;
  line.classList.toggle("lost", Boolean(bad));
}

let alive = 0;

function hear() {
  alive = Date.now();
  lost = null;
  say("live");
}

function connect() {
  if (source) source.close();
  source = new EventSource("/events");
  source.addEventListener("state", (event) => { state = {}; hear(); take({ set: JSON.parse(event.data), gone: [] }); });
  source.addEventListener("difference", (event) => { hear(); take(JSON.parse(event.data)); });
  source.addEventListener("alive", hear);
  source.onerror = () => { lost = lost || Date.now(); };
}

// Each second: the clocks go on, and a connection that is silent or closed is renewed.
function tick() {
  if (source && Date.now() - alive > PATIENCE) lost = lost || Date.now();
  if (source && lost) {
    say(`connection lost ${duration((Date.now() - lost) / 1000)} ago; trying again`, true);
    if (source.readyState === EventSource.CLOSED || Date.now() - alive > PATIENCE) { alive = Date.now(); connect(); }
  }
  if (!index || !index.game) return;
  for (const element of document.querySelectorAll("[data-deadline]")) {
    const text = duration(Number(element.dataset.deadline) - chainNow(index));
    if (element.textContent !== text) element.textContent = text;
  }
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = ago(chainNow(index) - Number(element.dataset.since));
    if (element.textContent !== text) element.textContent = text;
  }
}

document.addEventListener("click", (event) => {
  const control = event.target.closest("[data-term], [data-more]");
  if (!control) return;
  const key = control.dataset.term;
  if (key) opened.has(key) ? opened.delete(key) : opened.add(key);
  else shown.set(control.dataset.more, (shown.get(control.dataset.more) || PAGE) + PAGE);
  render();
});

window.addEventListener("hashchange", () => { render(); window.scrollTo(0, 0); document.getElementById("main").focus({ preventScroll: true }); });

const copy = document.getElementById("state");
if (copy) {
  say("a copy; nothing on it changes");
  take({ set: JSON.parse(copy.textContent), gone: [] });
} else {
  alive = Date.now();
  connect();
  setInterval(tick, 1000);
}

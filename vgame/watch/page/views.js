"use strict";
// The views, each a function from the index of the state to elements.

const shorten = (text) => (text && text.length > 18 ? `${text.slice(0, 8)}…${text.slice(-4)}` : text || "");

// An account by its name, else by its role in this game and the ends of its address.
function who(index, address) {
  if (!address) return h("span", { class: "soft" }, "none yet");
  const name = index.game.names[address], own = index.own.has(address), account = address.startsWith("0x");
  if (!account) return h("span", { class: "who" }, address);
  const labels = [own && !name && "own account", ...(name ? [] : index.labels.get(address) || [])].filter(Boolean).join(", ");
  return h("span", { class: "who", title: address }, name ? `${name}${own && name !== "own account" ? " (own)" : ""}` : [labels && `${labels} `, h("span", { class: "mono short" }, shorten(address))]);
}

function hash(text) {
  return text ? h("span", { class: "mono short", title: text }, shorten(text)) : h("span", { class: "soft" }, "none yet");
}

function titleOf(index, job) {
  return index.game.titles[job.id] || job.name || `Job ${shorten(job.id)}`;
}

function clock(index, deadline) {
  return h("span", { "data-deadline": deadline }, duration(deadline - chainNow(index)));
}

// ---- jobs ----

function jobsView(index) {
  const jobs = [...index.jobs.values()];
  return [
    h("h1", {}, index.story ? index.story.title : "Was the network trained as ordered?"),
    index.story ? storyView(index.story) : h("p", {}, "Each job below is an order for training. A trainer claims one hash for the whole run; anybody who computes another can dispute it, and a contract computes the first number that differs."),
    atWork(index),
    h("h2", {}, many(jobs.length, "job")),
    jobs.length ? h("ul", { class: "cards" }, jobs.map((job) => h("li", { class: "card" }, jobCard(index, job)))) : h("p", {}, "Nothing has been ordered yet. This page shows jobs as soon as they stand on the chain."),
    h("h2", {}, "The contract"),
    facts(["Chain", index.game.chain], ["Contract", h("span", { class: "mono" }, index.game.address)], [term("burnt", "Burnt so far"), ether(index.game.burnt)],
      ["Checked", index.game.agrees ? "balances agree with the events, to the wei." : h("b", { class: "bad" }, "The amounts below do not agree with what the contract owes. Do not rely on them.")]),
  ];
}

// Roles at work, cheats too: their training is not on chain yet.
function atWork(index) {
  const busy = index.roles.filter((r) => r.total && r.done < r.total);
  return busy.length > 0 && [h("h2", {}, "At work"), h("ul", { class: "cards" }, busy.map((r) => h("li", { class: "card" }, roleCard(index, r))))];
}

function storyView(story) {
  return [
    h("p", {}, story.text),
    h("ul", { class: "cards" }, story.cards.map((c) => h("li", { class: "card" }, h("span", { class: `big ${c.good === true ? "good" : c.good === false ? "bad" : ""}` }, c.value), c.label))),
    story.facts.length > 0 && facts(...story.facts),
  ];
}

function phase(job) {
  const [text, kind] = PHASES[job.phase] || [job.phase, "soft"];
  return h("b", { class: kind }, text);
}

function jobCard(index, job) {
  return [
    h("h3", {}, h("a", { href: `#/job/${job.id}` }, h("span", { class: "text" }, titleOf(index, job)))),
    h("p", {}, phase(job), job.verdict && `: ${causeOf(job.verdict.cause, true)}`),
    h("p", {}, h("b", {}, "Next: "), next(index, job)), yourMoney(index, job),
    job.deadline && h("p", { class: "soft" }, `Time left (${job.window_name.replace("_", " ")}): `, clock(index, job.deadline), windowBar(index, job)),
    h("p", { class: "soft" }, phrase`Ordered ${moment(index, job.created_at)}. ${many(job.spec.steps, "step")}. In the contract: ${ether(job.held)}. ${many(job.disputes, "dispute")}, ${job.open} open.`),
  ];
}

function windowBar(index, job) {
  return bar(job.deadline - chainNow(index), job.window, "time left of the window");
}

// ---- one job ----

function jobView(index, id) {
  const job = index.jobs.get(id);
  if (!job) return missing("job", id);
  const run = index.runs.find((r) => r.jobs.includes(id));
  return [
    h("p", {}, h("a", { href: "#/" }, "All jobs")),
    h("h1", {}, h("span", { class: "text" }, titleOf(index, job)), " ", phase(job)),
    h("p", {}, standing(index, job)),
    h("p", {}, h("b", {}, "Next: "), next(index, job)), yourMoney(index, job), getWeights(index, job, run),
    job.deadline && h("p", {}, `Time left (${job.window_name.replace("_", " ")}): `, clock(index, job.deadline), windowBar(index, job)),
    facts(["Identity", h("span", { class: "mono" }, job.id)], ["Ordered", moment(index, job.created_at)], job.claimed_at && ["Claimed", moment(index, job.claimed_at)],
      [term("client"), who(index, job.client)], [term("trainer"), who(index, job.trainer)],
      [term("run root", "Claimed run root"), h("span", { class: "mono" }, job.root || "nothing is claimed yet")],
      job.diverged_at && [term("diverged"), `before the end of step ${job.diverged_at}`],
      job.program && ["Model", named(job.program.state, job.program.tensors), `; ${many(job.program.numbers, "number")} in all, the optimizer's memory with them`],
      job.program && job.program.data.length > 0 && ["Data set", named(job.program.data, job.program.data.length)],
      ["Steps", `${job.spec.steps.toLocaleString("en")} ordered${run ? `, ${run.done.toLocaleString("en")} computed here` : ""}${job.program ? `; ${many(job.program.operators, "operator")} in each` : ""}`],
      run && run.root && ["Own run", run.jobs_agree[id] === true ? h("b", { class: "good" }, "the same root") : run.jobs_agree[id] === false ? h("b", { class: "bad" }, "another root") : "no claim to compare with"]),
    h("h2", {}, "Checkpoints"),
    h("p", { class: "soft" }, term("checkpoint", "Each cell is a checkpoint"), "; disputes narrow to one of them first."),
    strip(overlaid(job, run), job.checkpoints || Math.ceil(job.spec.steps / job.spec.interval), "checkpoint"),
    run && runView(run, "Own run"),
    h("h2", {}, "Disputes"), disputesTable(index, job),
    job.phase === "convicted" && conviction(index, job),
    h("h2", {}, "Money"), moneyView(index, job),
    h("h2", {}, "Terms"), termsTable(job),
    h("h2", {}, "Transactions"), movesTable(index, index.moves.get(id) || [], "Every transaction of this job, the newest first", id),
  ];
}

function named(names, count) {
  return h("span", { class: "text" }, names.join(", ") + (count > names.length ? ` and ${count - names.length} more` : ""));
}

function missing(what, id) {
  return [h("h1", {}, `There is no such ${what}`), h("p", {}, `${shorten(id)} is not on this chain, or is no more. `, h("a", { href: "#/" }, "All jobs"))];
}

function standing(index, job) {
  const left = job.deadline ? duration(job.deadline - chainNow(index)) : "";
  switch (job.phase) {
    case "created": return phrase`The client has put ${ether(job.spec.reward)} into the contract. A trainer can take the job for another ${left}.`;
    case "accepted": return phrase`The trainer has put down ${ether(job.spec.trainer_bond)} and computes. Its claim is due in ${left}.`;
    case "claimed": return job.open ? `Disputes are open: ${job.open}. The claim can become final only when all are decided.` : `Nobody disputes the claim. It becomes final in ${left}.`;
    case "delivering": return delivering(job, left);
    case "revealed": return `The trainer has shown the key, so the client can read the model. It may complain about a wrong piece for another ${left}; then the trainer is paid.`;
    case "undelivered": return "The claim is right, but its model was not delivered. The client has its money back, the trainer has lost its bond.";
    case "declined": return "The claim is right. The client declined the model: client and trainer have a quarter of the reward each, the rest is burnt, and the trainer has its bond.";
    case "final": return `Nobody has shown the claim to be wrong in time. ${delivers(job) && !job.diverged_at ? "The key of the model is shown. " : ""}The trainer has its reward and its bond.`;
    case "convicted": return `Dispute ${job.verdict ? job.verdict.dispute : ""} showed that the claim is wrong: ${job.verdict ? causeOf(job.verdict.cause, true) : ""}. The client has its money back, the trainer has lost its bond.`;
    case "expired": return "Nobody took or claimed the job in time. The client has its money back.";
  }
  return "";
}

// The next duty in the delivery of the encrypted model.
function delivering(job, left) {
  const d = job.delivery || {};
  const requests = d.open ? phrase` It has requested ${many(d.open, "piece")} on chain that ${d.open === 1 ? "is" : "are"} not answered yet; ${ether(d.deposits)} pay for the answers.` : "";
  if (job.window_name === "confirm_window") return phrase`The claim is final, and its model is offered, encrypted. The client fetches and checks it for another ${left}: it confirms, requests pieces, or declines.${requests}`;
  return phrase`${d.confirmed_at ? "The client has confirmed that it has the encrypted model." : "The client was silent, which counts as a yes."} The trainer has to show the key within ${left}, or it loses its bond.${requests}`;
}

// Checkpoints computed here are shown as such, if nothing else is known of them.
function overlaid(job, run) {
  const count = Math.ceil(job.spec.steps / job.spec.interval);
  if (!run || !run.checkpoints) return job.strip;
  if (run.jobs_agree[job.id] === true) return [[0, job.checkpoints, "audited"]];
  if (job.strip.length) return job.strip;
  return [[0, run.checkpoints, "audited"], [run.checkpoints, count, "ordered"]].filter(([low, high]) => high > low);
}

function runView(run, title) {
  return [
    h("h2", {}, h("span", { class: "text" }, title)),
    h("p", {}, `${many(run.done, "step")} of ${run.steps.toLocaleString("en")} are computed, ${many(run.checkpoints, "checkpoint")} committed.`),
    bar(run.done, run.steps, "steps computed"), lossCurve(run.losses, run.steps),
  ];
}

function disputesTable(index, job) {
  const found = index.disputes.get(job.id) || [];
  if (!found.length) return h("p", {}, "None so far. ", term("dispute", "What is a dispute?"));
  const place = `${job.id}/disputes`, count = shown.get(place) || PAGE, first = [...found.filter((d) => d.status === "open"), ...found.filter((d) => d.status !== "open")];
  return [table("Open ones first; the bar tells how far each has narrowed, from the whole run to one number", [
    ["Dispute", (d) => h("a", { href: `#/job/${job.id}/dispute/${d.number}` }, `Dispute ${d.number}`)],
    ["By", (d) => who(index, d.auditor)],
    ["State", (d) => outcome(d)],
    ["Stands at", (d) => placeOf(d)],
    ["Narrowed", (d) => bar(d.narrowed, depthOf(job, d), `halved ${d.narrowed} times`)],
    ["To move", (d) => (d.turn ? [d.turn.replace("_", ", "), " ", clock(index, d.deadline)] : "")],
    ["Gas", (d) => d.gas.toLocaleString("en"), "n"],
  ], first.slice(0, count)), moreButton(place, count, found.length)];
}

function moreButton(place, count, all) {
  return all > count && h("p", {}, h("button", { type: "button", class: "more", "data-more": place }, `Show ${Math.min(PAGE, all - count)} more of ${all.toLocaleString("en")}`));
}

function depthOf(job, d) {
  return Math.max(d.narrowed, Math.ceil(Math.log2(Math.max(job.spec.steps * Math.max(job.operators, 1), 2)) + 14));
}

function outcome(d) {
  const texts = { open: ["open", "busy"], dismissed: ["the claim was right here", "good"], lapsed: ["the auditor's clock ran out", "soft"], won: ["the auditor was right", "bad"], void: ["closed: another dispute decided", "soft"] };
  const [text, kind] = texts[d.status] || [d.status, "soft"];
  return h("b", { class: kind }, text);
}

function placeOf(d) {
  const parts = [];
  if (d.step !== null) parts.push(`step ${d.step}`);
  if (d.about) parts.push(`${d.about.kind} ${d.about.module}`.trim());
  else if (d.operator !== null) parts.push(`operator ${d.operator}`);
  if (d.element !== null) parts.push(`element ${d.element}`);
  return h("span", { class: "text" }, parts.join(", ") || `the ${TREES[d.level] ? TREES[d.level][0].toLowerCase() : d.level}`);
}

function moneyView(index, job) {
  const flows = index.flows.get(job.id) || [], totals = new Map();
  for (const f of flows) {
    totals.set(f.payee, (totals.get(f.payee) || 0n) + BigInt(f.wei));
    totals.set(f.payer, (totals.get(f.payer) || 0n) - BigInt(f.wei));
  }
  return [
    table("Who paid whom; each amount shows itself to the wei where it is pointed at", [
      ["From", (f) => who(index, f.payer)], ["To", (f) => who(index, f.payee)], ["Amount", (f) => ether(f.wei), "n"],
      ["Why", (f) => f.why + (f.dispute === null ? "" : ` (dispute ${f.dispute})`)],
    ], flows),
    h("h3", {}, "In the end"),
    table("What each party has more or less than before; together nothing is made or lost", [
      ["Party", ([name]) => (name === "contract" ? "in the contract still" : name === "burnt" ? term("burnt") : who(index, name))],
      ["Amount", ([, wei]) => ether(wei), "n"],
    ], [...totals]),
  ];
}

function termsTable(job) {
  const isZero = (address) => /^0x0*$/.test(address);
  const shownAs = { wei: ether, time: (s) => (Number(s) ? duration(s) : "none"), count: (n) => Number(n).toLocaleString("en"), account: (a) => (isZero(a) ? "none" : shorten(a)) };
  return table("What was agreed", [
    ["Term", ([name]) => name.replaceAll("_", " ")], ["Value", ([name, , kind]) => shownAs[kind](job.spec[name]), "n"], ["What it means", ([, sentence]) => sentence],
  ], TERMS.filter(([name]) => job.spec[name] !== undefined));
}

const shown = new Map();
const PAGE = 50;

function movesTable(index, moves, caption, place) {
  const count = shown.get(place) || PAGE;
  return [
    table(caption, [
      ["When", (m) => (m.time ? moment(index, m.time) : ""), "when"], ["Block", (m) => (m.block === undefined ? "…" : m.block.toLocaleString("en")), "n"], ["By", (m) => (m.sender ? who(index, m.sender) : "")],
      ["Move", (m) => (MOVES[m.name] ? term(m.name, m.name, m.transaction) : m.name)],
      ["Serves", (m) => (m.disputes.length ? `dispute ${m.disputes.slice(0, 5).join(", ")}${m.disputes.length > 5 ? ` and ${m.disputes.length - 5} more` : ""}` : "the job")],
      ["Gas", (m) => (m.gas === undefined ? "…" : m.gas.toLocaleString("en")), "n"], ["Bytes", (m) => (m.bytes === undefined ? "…" : m.bytes.toLocaleString("en")), "n"],
      ["Transaction", (m) => hash(m.transaction)],
    ], moves.slice(-count).reverse()),
    moreButton(place, count, moves.length),
  ];
}

// ---- own roles, words ----

function rolesView(index) {
  return [
    h("h1", {}, "Own roles"),
    h("p", {}, "What your trainers and auditors are doing, and what you should look at."),
    h("h2", {}, term("alarm", "Alarms")),
    index.alarms.length ? index.alarms.map((a) => h("p", { class: "card alarm" }, h("b", { class: "bad" }, a.kind), " ", h("span", { class: "text" }, a.text))) : h("p", { class: "good" }, "Nothing is alarming."),
    h("h2", {}, "Roles"),
    index.roles.length ? h("ul", { class: "cards" }, index.roles.map((r) => h("li", { class: "card" }, roleCard(index, r)))) : h("p", {}, "None was named. `--account ADDRESS` and `--store FOLDER` name one."),
    index.runs.map((run) => runView(run, `Run ${run.name}`)),
  ];
}

function roleCard(index, r) {
  return [
    h("h3", {}, h("span", { class: "text" }, r.name)), h("p", { class: "text" }, r.doing || "no health endpoint given"),
    r.total && bar(r.done, r.total, "progress"),
    facts(r.address && ["Account", who(index, r.address)], r.balance && ["Balance", ether(r.balance)], r.credits && [term("credit", "To withdraw"), ether(r.credits)],
      r.reserve && ["Gas reserve", phrase`enough for ${many(r.reserve.disputes, "dispute")} at today's price (${ether(r.reserve.each)} each)`], r.disk && ["Disk", `${(r.disk / 1e9).toFixed(1)} GB are free`]),
  ];
}

function wordsViewOf() {
  return [
    h("h1", {}, "Words"), facts(...Object.entries(WORDS)),
    h("h2", {}, "Moves"), facts(...Object.entries(MOVES)),
  ];
}

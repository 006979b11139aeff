"use strict";
// For an account with money in a job: the next move, the time of repayment or payment, the way to the weights.

const delivers = (job) => Number(job.spec.confirm_window) > 0;
const command = (text) => h("code", { class: "text" }, text);

// A time of day in this browser's zone, and its age; in UTC in its tooltip.
function moment(index, seconds) {
  return h("span", { title: clockTime(seconds) }, localTime(seconds), ", ", h("span", { "data-since": seconds }, ago(chainNow(index) - seconds)));
}

function at(seconds) {
  return h("span", { title: clockTime(seconds) }, localTime(seconds));
}

// The next duty, its party, its deadline.
function next(index, job) {
  const until = job.deadline && at(job.deadline), open = (index.disputes.get(job.id) || []).filter((d) => d.status === "open" && d.turn);
  switch (job.phase) {
    case "created": return phrase`a trainer accepts by ${until} (${command("vgame trainer")}); later the client takes its money back.`;
    case "accepted": return phrase`the trainer claims by ${until}.`;
    case "claimed":
      if (open.length) return open.slice(0, 3).map((d) => phrase`${d.turn.startsWith("trainer") ? "the trainer" : "the auditor"} moves in dispute ${d.number} by ${at(d.deadline)}. `);
      return phrase`it becomes final at ${until}, unless an auditor disputes it before (${command("vgame auditor")}).`;
    case "delivering":
      return job.window_name === "confirm_window" ? phrase`the client confirms by ${until} (${command("vgame receive")}).` : phrase`the trainer shows the key by ${until}.`;
    case "revealed": return phrase`the trainer is paid at ${until}, unless the client shows a wrong piece before.`;
    case "final": return "nothing. The claim is final and paid.";
    case "convicted": return job.open ? `${many(job.open, "dispute")} that another one decided ${job.open === 1 ? "is" : "are"} closed, with bond and fee by the rules.` : "nothing. The money is with its owners, who withdraw it.";
    default: return phrase`nothing. The client may order again, and takes what it is owed with ${command(`vgame job close ${shorten(job.id)}`)}.`;
  }
}

// An own account's money in this job, and the time of its repayment or payment.
function yourMoney(index, job) {
  const locked = new Map();
  for (const f of index.flows.get(job.id) || []) {
    if (f.payee === "contract" && index.own.has(f.payer)) locked.set(f.payer, (locked.get(f.payer) || 0n) + BigInt(f.wei));
    if (f.payer === "contract" && index.own.has(f.payee)) locked.set(f.payee, (locked.get(f.payee) || 0n) - BigInt(f.wei));
  }
  return [...locked].map(([account, wei]) => h("p", {}, h("b", {}, "Your money: "), wei > 0n && OPEN.has(job.phase) ? [phrase`${ether(wei)} locked; `, backBy(index, job)]
    : wei > 0n ? phrase`${ether(wei)} ${account === job.client ? "paid" : "lost"}.` : wei < 0n ? phrase`${ether(-wei)} earned.` : "all of it is back.", locked.size > 1 && [" (", who(index, account), ")"]));
}

const OPEN = new Set(["created", "accepted", "claimed", "delivering", "revealed"]);

function backBy(index, job) {
  const end = job.deadline, spec = job.spec, later = (...windows) => end + windows.reduce((sum, name) => sum + Number(spec[name] || 0), 0);
  switch (job.phase) {
    case "created": return phrase`back by ${at(end)}, unless a trainer accepts.`;
    case "accepted": return phrase`back by ${at(end)} if nothing is claimed, else back or paid by ${at(later("challenge_window", "confirm_window", "key_window", "complaint_window"))}, later if it is disputed.`;
    case "claimed":
      if (job.open) return `back or paid when ${many(job.open, "open dispute")} ${job.open === 1 ? "is" : "are"} decided.`;
      return phrase`back or paid by ${at(later("confirm_window", "key_window", "complaint_window"))}, later if it is disputed.`;
    case "delivering": return phrase`back or paid by ${at(job.window_name === "confirm_window" ? later("key_window", "complaint_window") : later("complaint_window"))}, later if pieces are requested.`;
    default: return phrase`back or paid by ${at(end)}.`;
  }
}

function getWeights(index, job, run) {
  const chain = `--rpc URL --game ${index.game.address}`, ready = job.phase === "final" || job.phase === "revealed" || job.phase === "delivering";
  if (!ready || job.diverged_at) return null;
  const check = command(`vgame check model.safetensors ${chain} --job ${job.id} --bundle BUNDLE`);
  if (delivers(job)) return h("p", {}, h("b", {}, "Get the weights: "), command(`vgame receive ${job.id} ${chain} --bundle BUNDLE --from URL-OF-THE-TRAINER --out model.safetensors`));
  if (run && run.jobs_agree[job.id]) return h("p", {}, h("b", {}, "Get the weights: "), command(`vgame export ${run.folder} --out model.safetensors`));
  return h("p", {}, h("b", {}, "Get the weights: "), "the order has no delivery, so ask the trainer for its file; then ", check, " says whether it is what was certified.");
}

// ---- a conviction ----

// All payments into the job, and their receivers.
function conviction(index, job) {
  const flows = index.flows.get(job.id) || [], rows = new Map(), total = (list) => list.reduce((sum, f) => sum + BigInt(f.wei), 0n);
  for (const f of flows.filter((f) => f.payer === "contract")) {
    const key = `${f.payee} ${f.why}`, before = rows.get(key);
    rows.set(key, { payee: f.payee, why: f.why, wei: (before ? before.wei : 0n) + BigInt(f.wei) });
  }
  const listed = [...rows.values()], held = BigInt(job.held);
  if (held) listed.push({ payee: "contract", why: `waits until ${many(job.open, "dispute")} that another one decided ${job.open === 1 ? "is" : "are"} closed`, wei: held });
  return [
    h("h2", {}, "What becomes of every wei"),
    table([`Paid into this job: `, ether(total(flows.filter((f) => f.payee === "contract"))), "; it is the sum of these"], [
      ["To", (r) => (r.payee === "contract" ? "still in the contract" : r.payee === "burnt" ? term("burnt", "burnt", "conviction") : who(index, r.payee))],
      ["Amount", (r) => ether(r.wei), "n"], ["What it is", (r) => r.why],
    ], listed),
  ];
}

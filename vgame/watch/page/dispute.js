"use strict";
// One dispute: its position, its end, and the contested number recomputed.

function disputeView(index, id, number) {
  const job = index.jobs.get(id), d = (index.disputes.get(id) || []).find((x) => x.number === Number(number));
  if (!job || !d) return missing("dispute", id);
  const moves = index.movesOf(id, d.number);
  return [
    h("p", {}, h("a", { href: `#/job/${id}` }, "Its job: ", h("span", { class: "text" }, titleOf(index, job)))),
    h("h1", {}, `Dispute ${d.number}: `, outcome(d)),
    h("p", {}, story(index, job, d)),
    h("h2", {}, "How it narrows"),
    h("p", { class: "soft" }, "Each triangle is a tree of hashes. The trainer shows, the auditor names the first that differs; a leaf of one tree holds the ", term("root", "root", "how"), " of the next, until one number is left."),
    h("ol", { class: "trees" }, d.trees.map((tree) => h("li", {}, treePicture(tree), h("p", {}, h("b", {}, TREES[tree.kind][0]), ": ", h("span", { class: "text" }, caption(tree)))))),
    d.status === "open" ? openView(index, job, d) : endView(index, job, d),
    h("h2", {}, many(moves.length, "move")), movesTable(index, moves, `The newest first; together ${d.gas.toLocaleString("en")} gas`, `${id}/${d.number}`),
  ];
}

function caption(tree) {
  const what = TREES[tree.kind][1], low = tree.low + tree.first;
  if (tree.high - tree.low > 1) return `${what}s ${low} to ${low + tree.high - tree.low - 1} of ${tree.leaves.toLocaleString("en")}`;
  return `${what} ${low}${tree.name ? `, ${tree.name}` : ""}${tree.leaves > 1 ? `, one of ${tree.leaves.toLocaleString("en")}` : ""}`;
}

function story(index, job, d) {
  const at = d.step === null ? "" : ` at step ${d.step}`;
  if (d.status === "won") return `The auditor was right${at}: ${causeOf(d.cause, true)}. The trainer's claim is wrong.`;
  if (d.status === "lapsed") return `The auditor's clock ran out${at}. It has lost its bond.`;
  if (d.status === "dismissed") return `The auditor was wrong${at}: ${causeOf(d.cause, false)}. It has lost its bond.`;
  if (d.status === "void") return "Another dispute convicted the trainer, so this one was closed and its bond went back.";
  return `The auditor says that the claim is wrong. ${d.turn && d.turn.startsWith("trainer") ? "The trainer has to show what lies below the contested node." : "The auditor has to name what differs."}`;
}

function openView(index, job, d) {
  const of = d.turn && d.turn.startsWith("trainer") ? "trainer" : "auditor", left = d.deadline - chainNow(index);
  return [
    h("h2", {}, "Now"),
    h("div", { class: "sides" },
      h("section", { class: "card" }, h("h3", {}, "The trainer says"), h("p", {}, "here stands ", term("node", "the node", "now"), " ", h("span", { class: "mono" }, d.word === null ? d.node : `${hex(d.word)} = ${decimal(d.word)}`)), h("p", { class: "soft" }, `Its clock: ${duration(d.trainer_left)} when the auditor last moved.`), bar(d.trainer_left, job.spec.trainer_budget, "trainer's clock")),
      h("section", { class: "card" }, h("h3", {}, "The auditor says"), h("p", {}, "here stands something else. What, it need not say."), h("p", { class: "soft" }, `Its clock: ${duration(d.auditor_left)}.`), bar(d.auditor_left, job.spec.auditor_budget, "auditor's clock"))),
    d.turn && h("p", {}, h("b", {}, `It is the ${of}'s turn`), d.turn.endsWith("expired") ? ", and its clock has run out: any account may end the dispute (vgame job close)." : [", ", clock(index, d.deadline), left > 0 ? " left." : "."]),
  ];
}

function endView(index, job, d) {
  return [
    h("h2", {}, "The verdict"),
    d.about && facts([term("operator"), h("span", { class: "text" }, `${d.operator}: ${d.about.kind}`)], d.about.module && ["Module", h("span", { class: "text" }, d.about.module)],
      [term("element"), d.element === null ? null : `${d.element.toLocaleString("en")} of ${d.about.elements.toLocaleString("en")}`], ["Formula", d.about.formula], d.about.integer ? null : ["Rounding", term("correctly rounded")]),
    !d.about && d.operator !== null && h("p", {}, `Operator ${d.operator}${d.element === null ? "" : `, element ${d.element}`}. Its name and formula are shown where the job's bundle is given to this page.`),
    d.word !== null && wordsView(d),
    d.terms && termsOf(d),
    (d.exact !== undefined || d.part !== undefined) && againView(d),
    d.paid.length > 0 && [h("h2", {}, "Who got what"), table("What this dispute moved", [["From", (f) => who(index, f.payer)], ["To", (f) => who(index, f.payee)], ["Amount", (f) => ether(f.wei), "n"], ["Why", (f) => f.why]], d.paid)],
    h("p", {}, losing(job, d)),
  ];
}

function losing(job, d) {
  if (d.status === "won") return phrase`The trainer loses its bond of ${ether(job.spec.trainer_bond)}, and the client gets its reward of ${ether(job.spec.reward)} back.`;
  if (d.status === "dismissed" || d.status === "lapsed") return phrase`The auditor loses its bond of ${ether(job.spec.auditor_bond)}: half goes to the trainer, half is burnt.`;
  return phrase`The auditor's bond of ${ether(job.spec.auditor_bond)} went back.`;
}

function wordsView(d) {
  const integer = d.about && d.about.integer, sides = [["Claimed", "claimed", d.word]];
  if (d.exact !== undefined) sides.push(["Exact", "exact", d.exact]);
  return [
    h("div", { class: "sides" }, sides.map(([name, word, bits]) => h("section", { class: "card" },
      h("h3", {}, term(word, name)), h("p", { class: "big mono" }, integer ? String(bits | 0) : decimal(bits)), h("p", { class: "mono" }, hex(bits)), integer ? null : bitsView(bits, d.exact === undefined ? bits : d.word ^ d.exact ^ bits)))),
    d.exact !== undefined && d.exact !== d.word && h("p", {}, `${many(ones(d.word ^ d.exact), "bit")} of 32 ${ones(d.word ^ d.exact) === 1 ? "differs" : "differ"}: marked above.`),
    d.part !== undefined && h("p", {}, term("partial sum", `Decided by partial sum ${d.part}`), d.right ? ": it is what was claimed." : ": it is not what was claimed."),
  ];
}

function ones(word) {
  return (word >>> 0).toString(2).replaceAll("0", "").length;
}

// Bits in which `other` differs are marked.
function bitsView(bits, other) {
  const a = anatomy(bits), b = anatomy(other);
  const marked = (mine, its) => [...mine].map((bit, i) => (bit === its[i] ? bit : h("mark", {}, bit)));
  return [
    h("p", { class: "bits" }, h("span", { class: "sign" }, "sign ", marked(a.sign, b.sign)), h("span", { class: "power" }, "exponent ", marked(a.exponent, b.exponent)), h("span", { class: "digits" }, "significand ", marked(a.significand, b.significand))),
    h("p", { class: "soft mono" }, `= ${a.value}`),
  ];
}

function termsOf(d) {
  const pairs = d.terms.rows.some((r) => r.length > 2), wordText = (bits) => (d.about && d.about.kind.startsWith("shuffle") ? String(bits) : `${hex(bits)} = ${decimal(bits)}`);
  return [
    h("h2", {}, "Its terms"),
    table(`${many(d.terms.count, "term")}, as the proof showed them${d.terms.count > d.terms.rows.length ? `; the first ${d.terms.rows.length}` : ""}`, [
      ["Term", (r) => h("span", { class: "text" }, r[0])], [pairs ? "a" : "Word", (r) => h("span", { class: "mono" }, wordText(r[1]))], ...(pairs ? [["b", (r) => h("span", { class: "mono" }, wordText(r[2]))]] : []),
    ], d.terms.rows),
  ];
}

// ---- recomputed ----

// {state: "equal", "other" or "not", text}: this browser's result for the number that the contract computed.
function again(d) {
  const found = recompute(d.terms && d.terms.recipe);
  if (found.not) return { state: "not", text: found.not };
  if (found.word !== undefined) {
    const word = Number(found.word), equal = word === d.exact;
    return { state: equal ? "equal" : "other", text: `${hex(word)}, ${equal ? "as the contract found" : `but the contract found ${hex(d.exact)}`}` };
  }
  if (!d.posted) return { state: "not", text: "the partial sum that the trainer posted is not known" };
  const right = found.partial === d.posted, equal = right === d.right;
  return { state: equal ? "equal" : "other", text: `partial sum ${d.part} is ${right ? "what" : "not what"} the trainer posted${equal ? ", as the contract found" : ", but the contract found the opposite"}` };
}

function againView(d) {
  const { state, text } = again(d);
  return [
    h("h2", {}, "Computed once more, in this browser"),
    state === "not" ? h("p", { "data-again": state }, h("b", {}, "Not computed here: "), `${text}.`)
      : h("p", { "data-again": state }, h("b", { class: state === "equal" ? "good" : "bad" }, state === "equal" ? "The same: " : "ANOTHER NUMBER: "), `${text}. In integers, from the ${many(d.terms.recipe.words.flat().length, "word")} that the proof showed.`),
  ];
}

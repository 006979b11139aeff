"use strict";
// The meaning of every term, and the effect of every move: one plain sentence each.

const WORDS = {
  "job": "An order: the training steps to compute, their data and initial state, and the payment.",
  "client": "The account that orders the training and pays for it.",
  "trainer": "The account that computes the training, with a bond for being right.",
  "auditor": "An account that computes the same again. If its result differs it can dispute the claim, with a bond of its own.",
  "accuser": "An auditor that disputes a claim that is right; it loses its bond.",
  "contract": "A program on the chain. It holds the money, keeps the clocks, and computes the contested number itself.",
  "claim": "The trainer's statement that the whole training gave this one hash. Any account can dispute it.",
  "run root": "One hash over all checkpoints. No number of the training can be changed without changing it.",
  "root": "One hash that commits to everything in a tree: no part can be changed without changing it.",
  "checkpoint": "The state (weights and the optimizer's memory) after every so many steps.",
  "state": "The weights and the optimizer's memory, between two steps.",
  "trace": "Everything that one training step computes, operator by operator.",
  "operator": "One elementary array computation of a step: a sum of products, a pointwise function, a copy.",
  "element": "One number of an operator's output: what the contract computes itself.",
  "leaf": "The lowest piece of a tree; of a tensor 128 numbers.",
  "step": "One update of the weights with one batch of data.",
  "dispute": "One auditor against one claim: a search for the first number that differs, which the contract then computes.",
  "node": "One hash inside a tree. The auditor contests it, so one of the nodes below it must be wrong.",
  "bond": "Money that the wrong side loses: half goes to the other side, half is burnt.",
  "burnt": "Money that no account gets, so that losing to a friend does not pay.",
  "gas": "What the chain charges for a transaction: for storing, reading and computing.",
  "clock": "The time that a side may use for all its moves in a dispute. The side whose clock runs out loses.",
  "window": "The time in which something may still be done, such as disputing a claim.",
  "credit": "Money in the contract that its owner has not withdrawn yet.",
  "claimed": "The number that the trainer committed to.",
  "exact": "The number that the contract computed itself from operands that were proved.",
  "partial sum": "A long sum is decided by one of its parts: the contract adds that part exactly.",
  "binary32": "A number in 32 bits: a sign, a power of two (the exponent) and 24 significant binary digits, the first of them not stored.",
  "correctly rounded": "The exact result, rounded once to the nearest binary32 number: so there is only one right answer.",
  "diverged": "Training ended early, because a number was no longer finite.",
  "alarm": "A condition that a player should check now.",
};

const MOVES = {
  createJob: "The client orders and pays the reward into the contract.",
  acceptJob: "The trainer takes the job and puts down its bond.",
  postClaim: "The trainer posts the hash of its training.",
  postDiverged: "The trainer posts the step at which the training stopped being finite.",
  challenge: "The auditor puts down a bond and disputes the claim.",
  reveal: "The hashes some levels below the contested node are shown.",
  select: "The auditor names the first of the revealed nodes that differs from its own.",
  postSegment: "The state hashes after every step of the contested interval are committed.",
  postTrace: "The hashes of everything that the contested step computed are committed.",
  tie: "Proves that a state tensor is the operator's output given by the program.",
  tieUnchanged: "The same for a tensor that the program leaves unchanged.",
  selectState: "The auditor agrees with the trace, and contests that the state follows from it.",
  selectOperator: "The auditor names the operator, with its record from the program.",
  openLeaf: "The words of the contested leaf are shown.",
  selectElement: "The auditor names one word of the leaf.",
  postPartials: "The exact partial sums of a long sum are committed.",
  selectPartial: "The auditor names the partial sum that differs.",
  prove: "The operands are handed in with Merkle proofs; the contract computes the element itself and decides.",
  timeout: "The clock of the side that is to move has run out: it loses.",
  timeoutMany: "The same for many disputes at once.",
  finalize: "The time for disputes is over: the claim is final; the trainer is paid, or delivery begins.",
  postClaimAndOffer: "The trainer posts its claim, and a commitment to the ciphertext.",
  confirm: "The client has the ciphertext.",
  decline: "The client does not want the state: a quarter of the reward each, the rest is burnt.",
  request: "The client has the trainer open a part of the ciphertext on chain.",
  answer: "A requested part of the ciphertext is opened.",
  defer: "The base fee is above the price of a request: its time begins again.",
  refused: "A request was not answered in time: the trainer loses its bond.",
  revealKey: "The trainer shows the key.",
  badNode: "A false true hash is shown: the trainer loses its bond.",
  badLeaf: "A leaf that does not decipher to its hash is shown: the trainer loses its bond.",
  closeDelivery: "The deadline has passed: the reward is paid, or the key is missing.",
  expire: "The time is over in which the job could be taken or claimed: the client gets its money back.",
  refund: "A dispute that another one decided is closed; its bond goes back.",
  raise: "The client pays more for a piece that it has requested.",
  withdraw: "An account takes its money out of the contract.",
  setDelegate: "The trainer names an account that may answer for it.",
};

const PHASES = {
  created: ["waits for a trainer", "busy"], accepted: ["is being computed", "busy"], claimed: ["is claimed; it can be disputed", "busy"],
  final: ["is final", "good"], convicted: ["convicted", "bad"], expired: ["has expired", "soft"],
  delivering: ["is final; its state is being delivered", "busy"], revealed: ["is final; the key is shown", "busy"],
  undelivered: ["is final, but its state was not delivered", "bad"], declined: ["is final; the client declined its state", "soft"],
};

// The reason why a side lost: the trainer if convicted, else the auditor.
const CAUSES = {
  element: ["the contract computed the number and got another", "the contract computed the number and got the same"],
  opening: ["what the trainer showed is not what the format fixes", "what the auditor showed is not what the format fixes"],
  timeout: ["the trainer's clock ran out", "the auditor's clock ran out"],
};

function causeOf(cause, convicted) {
  return CAUSES[cause] ? CAUSES[cause][convicted ? 0 : 1] : "decided";
}

const TREES = {
  run: ["Run", "checkpoint"], segment: ["Interval", "state after step"], state: ["State", "tensor"], trace: ["Step", "operator"],
  tensor: ["Tensor", "leaf"], leaf: ["Leaf", "element"], blocks: ["Long sum", "partial sum"],
};

const TERMS = [
  ["steps", "Steps of training that are ordered.", "count"],
  ["interval", "Steps between two checkpoints.", "count"],
  ["reward", "What the trainer gets when its claim is final.", "wei"],
  ["diverged_pay", "What it gets instead if training does not stay finite.", "wei"],
  ["trainer_bond", "What the trainer loses if it is convicted.", "wei"],
  ["auditor_bond", "What an auditor loses if its dispute is dismissed.", "wei"],
  ["fee", "What a challenge costs beside the bond. It is burnt, unless the trainer is convicted where the challenge looked.", "wei"],
  ["guardian", "An auditor of the client's choice: it is paid from the bond of a convicted trainer if it has a dispute open.", "account"],
  ["trainer", "The only account that may accept, if the order names one.", "account"],
  ["accept_window", "How long a trainer may take to accept.", "time"],
  ["claim_window", "How long the accepted job may take to be claimed.", "time"],
  ["challenge_window", "How long a claim can be disputed before it is final.", "time"],
  ["trainer_budget", "The trainer's clock in each dispute.", "time"],
  ["auditor_budget", "An auditor's clock in its dispute.", "time"],
  ["slot", "Time added to the trainer's clock for each other duty in front of it.", "time"],
  ["confirm_window", "How long the client may take to say that it has the encrypted model.", "time"],
  ["key_window", "How long the trainer may take to show the key of the model.", "time"],
  ["complaint_window", "How long the client may complain about what it decrypted.", "time"],
];

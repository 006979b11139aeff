"""The smallest safe terms of a job: clocks that suffice for an honest player, bonds that make griefing and cheating
unprofitable.

In: a bundle, the pace of a device, prices. Out: counted moves, gas of either side, terms.
Derivation: docs/economics.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vgame.commit.merkle import tree_height
from vgame.commit.words import LEAF_BYTES, leaf_count
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
from vgame.program.modes import MODES
from vgame.program.operators import LEAF_TERMS, Contract
from vgame.program.validate import longest_run

GWEI = 10**9
INCLUSION = 15  # seconds until a transaction is included
KEPT_OUT = 600  # seconds: the least expected total delay of a player's transactions
WORST_MARGIN = 1.25  # of the slowest step; the client's data can approach this bound, not exceed it
#: The highest fee of a challenge as a part of the trainer's bond; the longest slots of a dispute as a part of the
#: challenge window.
FEE_SHARE = 8
LONGEST_WINDOW = 90 * 86_400  # seconds: the longest lock of a bond by one window or by the other side's clock

FINAL = 900  # seconds until a confirmation is final, for a node without finality (vgame/chain/connection.py)
REQUESTS = 64  # requests of a client, each deferred or answered by one transaction
LINE = 2**20  # bytes a second, the least bandwidth of the client

#: Upper bound on the gas of each call, mode `correct`, sums of one block. A test compares it with the measurements in
#: docs/gas.json; `prove` is bounded by the most expensive leaf with rows of at most LEAF_TERMS words.
GAS = {
    "acceptJob": 65_000,
    "challenge": 139_000,
    "finalize": 70_000,
    "openLeaf": 65_000,
    "postClaim": 144_000,
    "postPartials": 120_000,
    "postSegment": 120_000,
    "postTrace": 111_000,
    "prove": 450_000,
    "reveal": 89_000,
    "select": 62_000,
    "selectPartial": 57_000,
    "selectElement": 61_000,
    "selectOperator": 81_000,
    "withdraw": 35_000,
}
#: Additional gas of a move beside other disputes: the awaited duty is marked, once per claim (a challenge may mark it
#: for the first dispute too).
MARK_GAS = dict.fromkeys(("select", "selectOperator", "selectElement", "selectPartial", "prove"), 25_000) | {
    "challenge": 50_000
}
#: Additional gas for each child of a call beyond the 32 of depth 5: its bytes (EIP-7623).
CHILD_GAS = 32 * 40


def gas_of(bundle: Bundle) -> dict[str, int]:
    """Upper bound on the gas of each call in a dispute about this job."""
    operators, mode = bundle.program.operators, MODES[bundle.mode]
    blocks = max((op.blocks for op in operators if isinstance(op, Contract)), default=1)
    terms = max(map(longest_run, operators))
    gas = GAS | mode.gas
    gas |= {name: gas[name] + more for name, more in MARK_GAS.items()}
    children = CHILD_GAS * max(0, 2**bundle.depth - 32)
    return gas | {
        **{name: gas[name] + children for name in ("reveal", "postSegment", "postTrace")},
        "postPartials": gas["postPartials"] + mode.block_gas * max(0, blocks - 3),
        "prove": gas["prove"] + mode.term_gas * max(0, terms - LEAF_TERMS),
    }


@dataclass(frozen=True)
class Prices:
    """Prices and times outside vgame. Amounts in wei, times in seconds."""

    gas: int = 20 * GWEI
    compute_hour: int = 10**15  # an hour of the training device
    audited: float = 0.5  # probability that a claim is audited
    inclusion: int = 60  # until a transaction is in a block, usually
    censorship: int = 86_400  # longest censorship of a player


@dataclass(frozen=True)
class Pace:
    """Seconds of a device for a step, for a step with all outputs hashed, for the slowest step on any data, for hashing
    a state, and for a whole checkpoint, if that was measured: hash, write, read back, hash."""

    step: float
    trace: float
    worst: float = 0.0
    state: float = 0.0
    checkpoint: float = 0.0

    def take(self, steps: int, margin: float) -> float:
        """Seconds for so many steps: the larger of `margin` times the measured time and the time of the slowest
        steps."""
        return steps * max(margin * self.step, WORST_MARGIN * self.worst)

    def run(self, bundle: Bundle, margin: float) -> float:
        """Seconds for a whole run: `take` for its steps, and `margin` times the time of its checkpoints, each of which
        hashes the state twice at least."""
        return self.take(bundle.steps, margin) + margin * bundle.checkpoints * max(self.checkpoint, 2 * self.state)


@dataclass(frozen=True)
class Moves:
    """Moves of a whole dispute on both sides, and their gas."""

    trainer: int
    auditor: int
    trainer_gas: int
    auditor_gas: int


def count_moves(bundle: Bundle) -> Moves:
    """The moves of the longest possible dispute about the program."""
    program, depth, gas = bundle.program, bundle.depth, gas_of(bundle)
    largest = max(op.elements for op in program.operators)
    checkpoints = ceil(bundle.steps / bundle.interval)
    run = _turns(tree_height(checkpoints), depth)
    segment = max(1, _turns(tree_height(min(bundle.interval, bundle.steps) + 1), depth))
    state = _turns(tree_height(len(program.sources)), depth)
    trace = max(1, _turns(tree_height(len(program.operators)), depth))
    tensor = _turns(tree_height(leaf_count(largest)), depth)
    below = max(trace - 1 + tensor, state)  # the trace is contested, or the state that follows from it
    reveals = run + (segment - 1) + below
    once = ("postSegment", "postTrace", "openLeaf", "postPartials", "prove")  # a false accuser does not prove
    selects = run + segment + 1 + below
    named = ("challenge", "selectOperator", "selectElement", "selectPartial", "prove", "withdraw")
    return Moves(
        reveals + len(once), selects + 4,
        reveals * gas["reveal"] + sum(gas[name] for name in once),
        (selects - 1) * gas["select"] + sum(gas[name] for name in named),
    )  # fmt: skip


def _turns(height: int, depth: int) -> int:
    return ceil(height / depth)


def needed_slot(bundle: Bundle, pace: Pace, inclusion: int) -> int:
    """Seconds for one duty without stored results: re-execute a segment, hash its states (for `postSegment`) and one
    step's trace, and have the transaction included. Three times the usual time, or the time of the slowest steps."""
    hashing = 3 * (bundle.interval * pace.state + max(0.0, pace.trace - pace.step))
    return ceil(pace.take(bundle.interval + 1, 3) + hashing) + inclusion


def needed_budgets(moves: Moves, slot: int, inclusion: int) -> tuple[int, int]:
    """Clocks of trainer and auditor, without the bound on censorship. A duty is charged two slots at most: its own, and
    that of a duty which another account opens meanwhile (docs/promises.md, T1). A transaction of another duty may be
    pending when a turn begins, so each duty of the trainer and each move of the auditor counts one more inclusion
    (docs/protocol.md section 3)."""
    work = moves.trainer * slot
    return 2 * work + moves.trainer * inclusion, work + 2 * moves.auditor * inclusion


def needed_fee(moves: Moves, slot: int, terms: Terms) -> int:
    """The fee of a challenge: delaying a conviction by one challenge window burns as much as the trainer's bond
    (docs/promises.md, T5)."""
    return ceil(terms.trainer_bond * moves.trainer * slot / terms.challenge_window)


def needed_key_window(inclusion: int, censorship: int) -> int:
    """Seconds until the confirmation is final and the key is sent. Half of the window also suffices, because nothing is
    deferred in the other half, for two transactions for each request (one fails if the base fee moves meanwhile), for
    one that is pending, and for the block that shows that the half is over (docs/delivery.md section 3)."""
    return max(FINAL + inclusion + censorship, 2 * ((2 * REQUESTS + 2) * inclusion + censorship))


def needed_delivery(bundle: Bundle, pace: Pace, inclusion: int, censorship: int) -> dict[str, int]:
    """The windows of delivery. Key: `needed_key_window`. Confirm: the time to fetch twice; a refused request is known
    before the last fifth, which remains for `decline` (docs/delivery.md section 3).
    Complaint: the time to decipher twice. Both are counted in measured hashings of the state: fetching hashes
    ciphertext and true leaves, deciphering hashes keystream and leaves."""
    size = sum(leaf_count(source.elements) for source in bundle.program.sources) * (LEAF_BYTES + 32)
    key = needed_key_window(inclusion, censorship)
    fetch = ceil(size / LINE + 4 * pace.state)
    return {
        "confirm_window": ceil(1.25 * (key + 2 * fetch + censorship)),
        "key_window": key,
        "complaint_window": 2 * ceil(4 * pace.state) + inclusion + censorship,
    }


def safe_terms(bundle: Bundle, pace: Pace, prices: Prices) -> Terms:
    """The smallest terms under which no honest player runs out of time and griefing costs more than it gains; the
    reward stays the bundle's. An auditor's bond is at most the trainer's."""
    moves, terms, censorship = count_moves(bundle), bundle.terms, max(prices.censorship, KEPT_OUT)
    slot = needed_slot(bundle, pace, prices.inclusion)
    trainer_budget, auditor_budget = needed_budgets(moves, slot, prices.inclusion)
    segment = int(pace.take(bundle.interval, 3) / 3600 * prices.compute_hour)
    audit = int(pace.run(bundle, 1) / 3600 * prices.compute_hour)
    deterrence = int(2 * terms.reward * (1 - prices.audited) / prices.audited)
    window = ceil(pace.run(bundle, 2)) + censorship
    challenge_window = max(window, FEE_SHARE * moves.trainer * slot)
    # half of it pays the trainer for a dismissed dispute, or the auditor for the trainer's timeout
    accuser = 2 * max(moves.trainer_gas * prices.gas + segment, moves.auditor_gas * prices.gas)
    delivery = needed_delivery(bundle, pace, prices.inclusion, censorship) if terms.confirm_window else {}
    safe = terms.model_copy(
        update=delivery
        | {
            "slot": slot,
            "trainer_budget": trainer_budget + censorship,
            "auditor_budget": auditor_budget + censorship,
            "claim_window": window,
            "challenge_window": challenge_window,
            "diverged_pay": max(terms.diverged_pay, terms.reward // 10),
            "auditor_bond": accuser,
            "trainer_bond": max(2 * (moves.auditor_gas * prices.gas + audit), deterrence, terms.reward, accuser),
        }
    )
    return safe.model_copy(update={"fee": needed_fee(moves, slot, safe)})


def trainer_shortcomings(bundle: Bundle, pace: Pace, gas_price: int) -> list[str]:
    """Reasons why an honest trainer of that pace should not accept; empty if there are none."""
    moves, terms = count_moves(bundle), bundle.terms
    slot = needed_slot(bundle, pace, INCLUSION)
    found = _below(
        terms,
        slot=slot,
        trainer_budget=needed_budgets(moves, slot, INCLUSION)[0] + KEPT_OUT,
        claim_window=ceil(pace.run(bundle, 2)) + KEPT_OUT,
        auditor_bond=2 * moves.trainer_gas * gas_price,
        diverged_pay=terms.reward // 10,
    )
    if terms.confirm_window:
        found += _below(terms, key_window=needed_key_window(INCLUSION, KEPT_OUT))
    longest = ("challenge_window", "auditor_budget", "confirm_window", "key_window", "complaint_window")
    return found + _above(terms, **dict.fromkeys(longest, LONGEST_WINDOW))


def refused_by_all(bundle: Bundle, gas_price: int = 0) -> str:
    """A warning if `vgame trainer` refuses the order on every machine, however fast; else ""."""
    if not (short := trainer_shortcomings(bundle, Pace(0, 0), gas_price)):
        return ""
    return (
        f"`vgame trainer` refuses such an order on any machine, unless it has --any-terms: {'; '.join(short)}. "
        "`vgame terms BUNDLE` proposes terms"
    )


def auditor_shortcomings(bundle: Bundle, pace: Pace, others: int = 0) -> list[str]:
    """Reasons why an honest auditor could lose by time, or have its bond locked for long; empty if there are none.
    `others`: its open disputes about other claims, played one move at a time."""
    moves, terms = count_moves(bundle), bundle.terms
    needed = (1 + others) * needed_budgets(moves, needed_slot(bundle, pace, 0), INCLUSION)[1] + KEPT_OUT
    slot = LONGEST_WINDOW // moves.trainer  # one active dispute of an accomplice adds as many duties
    found = _below(terms, auditor_budget=needed) + _above(terms, trainer_budget=LONGEST_WINDOW, slot=slot)
    if terms.fee > (most := terms.trainer_bond // FEE_SHARE):
        found.append(
            f"fee is {terms.fee} wei, {most} is the most, an eighth of the trainer's bond: an honest auditor loses it "
            "where the claim is convicted elsewhere"
        )
    return found


def _below(terms: Terms, **needed: int) -> list[str]:
    return [
        f"{name} is {getattr(terms, name)}, {least} is needed"
        for name, least in needed.items()
        if getattr(terms, name) < least
    ]


def _above(terms: Terms, **most: int) -> list[str]:
    return [
        f"{name} is {getattr(terms, name)} s, which could lock the bond for very long; {limit} s are the most"
        for name, limit in most.items()
        if getattr(terms, name) > limit
    ]

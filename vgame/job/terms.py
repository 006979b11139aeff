"""The smallest safe terms of a job: clocks that an honest player can keep, bonds that make griefing and cheating a
loss.

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
from vgame.program.operators import LEAF_TERMS, Contract
from vgame.program.validate import longest_run

GWEI = 10**9
INCLUSION = 15  # seconds that a transaction takes to be included
KEPT_OUT = 600  # seconds that a player's transactions are late in all, at the very least to be expected
WORST_MARGIN = 1.25  # of the slowest step, which data of a client's choice approach, but do not exceed
#: Of the trainer's bond, what a challenge's fee may be at most; of the challenge window, what a dispute's slots may be.
FEE_SHARE = 8
LONGEST_WINDOW = 90 * 86_400  # seconds that a bond is locked by one window, or by the other side's clock

FINAL = 900  # seconds until a confirmation is final, where a node does not say so (vgame/chain/connection.py)
REQUESTS = 64  # that a client may send, each answered by a transaction
LINE = 2**20  # bytes a second that the client's line carries at the least

#: Gas of each call at most, mode `correct`, sums of one block. docs/gas.json has what was measured (a test compares);
#: `prove` is as dear as the dearest leaf of rows of LEAF_TERMS words at most.
GAS = {
    "acceptJob": 65_000,
    "challenge": 116_000,
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
#: What differs in mode `logged`: more roots to store, three accumulators instead of one, the log's entry.
LOGGED_GAS = {"postPartials": 175_000, "postSegment": 145_000, "prove": 950_000}
#: More of a move beside other disputes: what it waits for is marked, once in the claim (a challenge may mark for the
#: first one too).
MARK_GAS = dict.fromkeys(("select", "selectOperator", "selectElement", "selectPartial", "prove"), 25_000) | {
    "challenge": 50_000
}
#: More of `postPartials` for each block behind the third.
BLOCK_GAS = {"correct": 6_000, "logged": 10_000}
#: More for each child that a call shows behind the 32 of depth 5: its bytes (EIP-7623).
CHILD_GAS = 32 * 40
#: More of `prove` for each term behind LEAF_TERMS: of products, the dearest.
TERM_GAS = {"correct": 330, "logged": 765}


def gas_of(bundle: Bundle) -> dict[str, int]:
    """Gas of each call at most in a dispute about this job."""
    operators, mode = bundle.program.operators, bundle.mode
    blocks = max((op.blocks for op in operators if isinstance(op, Contract)), default=1)
    terms = max(map(longest_run, operators))
    gas = GAS | (LOGGED_GAS if mode == "logged" else {})
    gas |= {name: gas[name] + more for name, more in MARK_GAS.items()}
    children = CHILD_GAS * max(0, 2**bundle.depth - 32)
    return gas | {
        **{name: gas[name] + children for name in ("reveal", "postSegment", "postTrace")},
        "postPartials": gas["postPartials"] + BLOCK_GAS[mode] * max(0, blocks - 3),
        "prove": gas["prove"] + TERM_GAS[mode] * max(0, terms - LEAF_TERMS),
    }


@dataclass(frozen=True)
class Prices:
    """What the world costs. Money in wei, times in seconds."""

    gas: int = 20 * GWEI
    compute_hour: int = 10**15  # an hour of the device that trains
    audited: float = 0.5  # how likely a claim is audited
    inclusion: int = 60  # until a transaction is in a block, as a rule
    censorship: int = 86_400  # for how long a player can be kept out, at most


@dataclass(frozen=True)
class Pace:
    """Seconds that a device needs for a step, for one whose every output is hashed, for the slowest that any data could
    make of it, and for hashing a state."""

    step: float
    trace: float
    worst: float = 0.0
    state: float = 0.0

    def take(self, steps: int, margin: float) -> float:
        """Seconds for so many steps: what was seen, `margin` times; or all of them as slow as can be, where that is
        more."""
        return steps * max(margin * self.step, WORST_MARGIN * self.worst)


@dataclass(frozen=True)
class Moves:
    """Moves of a whole dispute on either side, and their gas."""

    trainer: int
    auditor: int
    trainer_gas: int
    auditor_gas: int


def count_moves(bundle: Bundle) -> Moves:
    """The longest dispute that the program allows."""
    program, depth, gas = bundle.program, bundle.depth, gas_of(bundle)
    largest = max(op.elements for op in program.operators)
    checkpoints = ceil(bundle.steps / bundle.interval)
    run = _turns(tree_height(checkpoints), depth)
    segment = max(1, _turns(tree_height(min(bundle.interval, bundle.steps) + 1), depth))
    state = _turns(tree_height(len(program.sources)), depth)
    trace = max(1, _turns(tree_height(len(program.operators)), depth))
    tensor = _turns(tree_height(leaf_count(largest)), depth)
    below = max(trace - 1 + tensor, state)  # the trace is contested, or the state that is to follow from it
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
    """One duty from cold: re-execute a segment, hash its states (`postSegment` shows them) and one step's trace, be
    included. Three times what it takes when all goes well, or the time of the slowest steps."""
    hashing = 3 * (bundle.interval * pace.state + max(0.0, pace.trace - pace.step))
    return ceil(pace.take(bundle.interval + 1, 3) + hashing) + inclusion


def needed_budgets(moves: Moves, slot: int, inclusion: int) -> tuple[int, int]:
    """Of trainer and auditor, beside the bound on censorship. A duty is charged two slots at most: its own, and one of
    work whose thing a stranger opens meanwhile (docs/promises.md, T1). A transaction for others may be under way when
    an own turn begins, so each of the trainer's duties and of the auditor's moves counts one inclusion more
    (docs/protocol.md section 3)."""
    work = moves.trainer * slot
    return 2 * work + moves.trainer * inclusion, work + 2 * moves.auditor * inclusion


def needed_fee(moves: Moves, slot: int, terms: Terms) -> int:
    """Of a challenge: a crowd that delays a conviction by a challenge window burns as much as the trainer's bond
    (docs/promises.md, T5)."""
    return ceil(terms.trainer_bond * moves.trainer * slot / terms.challenge_window)


def needed_delivery(bundle: Bundle, pace: Pace, inclusion: int, censorship: int) -> dict[str, int]:
    """The windows of delivery. Key: the confirmation is final, all requests are answered. Confirm: fetched twice, then
    a request is known as refused in time for the last fifth (docs/delivery.md section 3). Complaint: deciphered twice.
    Hashing of the state is what was measured: fetching takes it for ciphertext and true hashes, deciphering for
    keystream and hashes."""
    size = sum(leaf_count(source.elements) for source in bundle.program.sources) * (LEAF_BYTES + 32)
    key = FINAL + REQUESTS * inclusion + censorship
    fetch = ceil(size / LINE + 4 * pace.state)
    return {
        "confirm_window": ceil(1.25 * (key + 2 * fetch + censorship)),
        "key_window": key,
        "complaint_window": 2 * ceil(4 * pace.state) + inclusion + censorship,
    }


def safe_terms(bundle: Bundle, pace: Pace, prices: Prices) -> Terms:
    """The smallest terms under which no honest player runs out of time or is griefed at a profit; the reward stays the
    bundle's. An auditor stakes at most what the trainer does."""
    moves, terms, censorship = count_moves(bundle), bundle.terms, max(prices.censorship, KEPT_OUT)
    slot = needed_slot(bundle, pace, prices.inclusion)
    trainer_budget, auditor_budget = needed_budgets(moves, slot, prices.inclusion)
    segment = int(pace.take(bundle.interval, 3) / 3600 * prices.compute_hour)
    audit = int(pace.take(bundle.steps, 1) / 3600 * prices.compute_hour)
    deterrence = int(2 * terms.reward * (1 - prices.audited) / prices.audited)
    window = ceil(pace.take(bundle.steps, 2)) + censorship
    challenge_window = max(window, FEE_SHARE * moves.trainer * slot)
    # half of it pays the trainer for a dispute that was dismissed, or the auditor for a trainer that fell silent
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
    """Why an honest trainer of that pace should not accept; empty if nothing speaks against it."""
    moves, terms = count_moves(bundle), bundle.terms
    slot = needed_slot(bundle, pace, INCLUSION)
    found = _below(
        terms,
        slot=slot,
        trainer_budget=needed_budgets(moves, slot, INCLUSION)[0] + KEPT_OUT,
        claim_window=ceil(pace.take(bundle.steps, 2)) + KEPT_OUT,
        auditor_bond=2 * moves.trainer_gas * gas_price,
        diverged_pay=terms.reward // 10,
    )
    if terms.confirm_window:
        found += _below(terms, key_window=needed_delivery(bundle, pace, INCLUSION, KEPT_OUT)["key_window"])
    longest = ("challenge_window", "auditor_budget", "confirm_window", "key_window", "complaint_window")
    return found + _above(terms, **dict.fromkeys(longest, LONGEST_WINDOW))


def refused_by_all(bundle: Bundle, gas_price: int = 0) -> str:
    """A warning if `vgame trainer` refuses the order on any machine, however fast; else nothing."""
    if not (short := trainer_shortcomings(bundle, Pace(0, 0), gas_price)):
        return ""
    return (
        f"`vgame trainer` refuses such an order on any machine, unless it has --any-terms: {'; '.join(short)}. "
        "`vgame terms BUNDLE` proposes terms"
    )


def auditor_shortcomings(bundle: Bundle, pace: Pace, others: int = 0) -> list[str]:
    """Why an honest auditor would lose by time, or not see its bond again for long; empty if nothing speaks against a
    dispute. `others`: disputes of other claims that it plays already, one move after the other."""
    moves, terms = count_moves(bundle), bundle.terms
    needed = (1 + others) * needed_budgets(moves, needed_slot(bundle, pace, 0), INCLUSION)[1] + KEPT_OUT
    slot = LONGEST_WINDOW // moves.trainer  # one active dispute of an accomplice adds as many
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
        f"{name} is {getattr(terms, name)} s, that can lock the bond for very long; {limit} s are the most"
        for name, limit in most.items()
        if getattr(terms, name) > limit
    ]

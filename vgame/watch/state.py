"""From the chain's data to the page's records: pure functions, one record per job, dispute, transaction and payment.

Amounts are decimal strings of wei, since JavaScript numbers are exact only up to 2^53; times are seconds, roots and
hashes hex without 0x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from vgame.chain.records import CAUSES, LOST, Dispute, Event, Exchange, Job, Level, Phase, Standing, Status, Verdict
from vgame.commit.merkle import Kind, leaf_hash
from vgame.execute.reference import Position
from vgame.watch.descent import Tree, descent, place
from vgame.watch.differences import State
from vgame.watch.money import Flow, balances, flows
from vgame.watch.programs import Programs
from vgame.watch.recipes import LOGGED
from vgame.watch.transactions import Move, Transaction, moves

WINDOWS = {
    Phase.CREATED: "accept_window", Phase.ACCEPTED: "claim_window", Phase.CLAIMED: "challenge_window",
}  # fmt: skip
AMOUNTS = ("reward", "diverged_pay", "trainer_bond", "auditor_bond", "fee")


@dataclass(frozen=True)
class JobFacts:
    """The chain's data of one job."""

    id: str
    job: Job
    standings: Sequence[Standing]
    events: Sequence[Event]
    verdict: Verdict | None = None
    proofs: Mapping[str, bytes] = field(default_factory=dict)  # transaction -> proof of `prove`
    delivery: tuple[str, int] | None = None  # current window of the delivery, and its end
    exchange: Exchange | None = None  # of a running delivery


def job_records(facts: JobFacts, transactions: Mapping[str, Transaction], programs: Programs) -> State:
    """All records of a job."""
    found = moves(facts.job, facts.events, transactions)
    paid = flows(facts.job, facts.events)
    state: State = {f"job/{facts.id}": _job(facts, paid, programs)}
    gas, spent = _gas(found), _payments(paid)
    for number, record in _disputes(facts, programs).items():
        ends = {"gas": gas.get(number, 0), "paid": spent.get(number, [])}
        state[f"dispute/{facts.id}/{number}"] = record | ends
    state |= {f"move/{facts.id}/{i:06}": _move(move) for i, move in enumerate(found)}
    return state | {f"flow/{facts.id}/{i:06}": _flow(f) for i, f in enumerate(paid)}


def _flow(flow: Flow) -> dict[str, Any]:
    return asdict(flow) | {"wei": str(flow.wei)}


def _payments(paid: Sequence[Flow]) -> dict[int, list[dict[str, Any]]]:
    """The payments caused by each dispute."""
    found: dict[int, list[dict[str, Any]]] = {}
    for flow in paid:
        if flow.dispute is not None:
            found.setdefault(flow.dispute, []).append(_flow(flow))
    return found


def _gas(found: Sequence[Move]) -> dict[int, int]:
    """Gas of the transactions of each dispute."""
    gas: dict[int, int] = {}
    for move in found:
        for number in move.disputes:
            gas[number] = gas.get(number, 0) + (move.known.gas if move.known else 0)
    return gas


def _move(move: Move) -> dict[str, Any]:
    known = move.known
    facts = {"sender": known.sender, "gas": known.gas, "bytes": known.size} if known else {}
    facts |= {"time": known.time, "block": known.block} if known else {}
    return {"name": move.name, "disputes": move.disputes, "transaction": move.digest, **facts}


def _delivery(exchange: Exchange) -> dict[str, Any]:
    times = {"confirmed_at": exchange.confirmed_at, "key_at": exchange.key_at}
    return times | {"open": exchange.open, "deposits": str(exchange.deposits)}


def _job(facts: JobFacts, paid: Sequence[Flow], programs: Programs) -> dict[str, Any]:
    job, window = facts.job, WINDOWS.get(facts.job.phase)
    end = job.since + getattr(job.spec, window) if window else None
    if facts.delivery:
        window, end = facts.delivery
    spec = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(job.spec).items()}
    spec |= {k: str(spec[k]) for k in AMOUNTS if k in spec}
    claimed = job.phase >= Phase.CLAIMED and any(job.run_root)
    return {
        "id": facts.id,
        "name": job.name,
        "phase": job.phase.name.lower(),
        "client": job.client,
        "trainer": job.trainer if int(job.trainer, 16) else None,
        "root": job.run_root.hex() if claimed else None,
        "diverged_at": job.diverged_at or None,
        "since": job.since,
        "created_at": job.created_at,
        "claimed_at": job.claimed_at or None,
        "deadline": end,
        "window": getattr(job.spec, window) if window else None,
        "window_name": window,
        "delivery": _delivery(facts.exchange) if facts.exchange else None,
        "seed": str(job.spec.seed),
        "spec": spec | {"seed": str(job.spec.seed)},
        "checkpoints": job.checkpoints,
        "states": job.states,
        "operators": job.operators,
        "disputes": job.disputes,
        "open": job.open,
        "held": str(balances(paid)["contract"]),
        "verdict": _verdict(facts.verdict),
        "strip": strip(facts),
        "program": programs.model(job.spec.program_root.hex()),
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {"dispute": verdict.dispute, "cause": verdict.cause, "step": verdict.step, "winner": verdict.winner}


# ---- the checkpoints ----


def strip(facts: JobFacts) -> list[list[Any]]:
    """[first, end, status] of ranges of checkpoints, from 0. Status: `agreed` (equal for an auditor in an open or won
    dispute), `contested`, `convicted`, or `claimed`."""
    job, found = facts.job, []
    for standing in facts.standings:
        d = standing.dispute
        if d.status in (*LOST, Status.VOID) or not job.checkpoints:
            continue
        tree = descent(job, d, ())
        low, high = (tree[0].low, tree[0].high) if tree and tree[0].kind == "run" else (0, 0)
        if high > low:
            found.append((low, high, "convicted" if d.status is Status.WON else "contested"))
    return _ranges(job.checkpoints, found)


def _ranges(count: int, contested: Sequence[tuple[int, int, str]]) -> list[list[Any]]:
    """Non-overlapping ranges over 0..count. `convicted` has priority over `contested`, and this over `agreed`."""
    edges = sorted({0, count, *(edge for low, high, _ in contested for edge in (low, high))})
    agreed = max((low for low, _, _ in contested), default=0)
    ranges: list[list[Any]] = []
    for low, high in pairwise(edges):
        over = {status for a, b, status in contested if a <= low < b}
        status = (
            "convicted" if "convicted" in over else "contested" if over else "agreed" if high <= agreed else "claimed"
        )
        if ranges and ranges[-1][2] == status:
            ranges[-1][1] = high
        else:
            ranges.append([low, high, status])
    return ranges


# ---- the disputes ----


def _disputes(facts: JobFacts, programs: Programs) -> dict[int, dict[str, Any]]:
    selected: dict[int, list[int]] = {}
    ends: dict[int, list[Event]] = {}
    for event in facts.events:
        number = event.args.get("dispute")
        if event.name == "Selected":
            selected.setdefault(number, []).append(event.args["place"])
        elif event.name in ("Adjudicated", "PartialAdjudicated", "Dismissed", "Convicted"):
            ends.setdefault(number, []).append(event)
    return {
        s.number: _dispute(facts, s, selected.get(s.number, []), ends.get(s.number, []), programs)
        for s in facts.standings
    }


def _dispute(
    facts: JobFacts, standing: Standing, selected: list[int], ends: list[Event], programs: Programs
) -> dict[str, Any]:
    job, d, root = facts.job, standing.dispute, facts.job.spec.program_root.hex()
    step, operator, element = place(job, d)
    trees = descent(job, d, selected)
    return {
        "job": facts.id,
        "number": standing.number,
        "auditor": d.auditor,
        "status": d.status.name.lower(),
        "entry": d.entry.name.lower(),
        "level": d.level.name.lower(),
        "height": d.height,
        "node": d.node.hex(),
        "turn": standing.turn.name.lower() if standing.turn is not None else None,
        "deadline": standing.deadline or None,
        "trainer_left": d.trainer_left,
        "auditor_left": d.auditor_left,
        "opened_at": standing.opened_at or None,
        "step": step,
        "operator": operator,
        "element": element,
        "trees": [_tree(t, programs, root) for t in trees],
        "about": programs.operator(root, operator) if operator is not None else None,
        "narrowed": narrowed(trees),
        **_end(facts, d, ends, (step, operator, element), programs),
    }


def narrowed(trees: Sequence[Tree]) -> int:
    """Progress of a dispute from the whole run to one word, in bits: the number of halvings of the contested part."""
    return sum(max(t.leaves - 1, 0).bit_length() - max(t.high - t.low - 1, 0).bit_length() for t in trees)


def _tree(tree: Tree, programs: Programs, root: str) -> dict[str, Any]:
    record, one = asdict(tree), tree.high - tree.low == 1
    if one and tree.kind == "trace":
        found = programs.operator(root, tree.low)
        record["name"] = " ".join(filter(None, (found["kind"], found["module"]))) if found else ""
    elif one and tree.kind == "state":
        record["name"] = programs.tensor(root, tree.low) or ""
    return record


def _end(facts: JobFacts, d: Dispute, ends: list[Event], at: tuple, programs: Programs) -> dict[str, Any]:
    """The end of the dispute: the words, the terms, and the cause."""
    found: dict[str, Any] = {"word": d.word if d.level >= Level.ELEMENT else None}
    for event in ends:
        args = event.args
        if event.name == "Adjudicated":
            found |= {"word": args["claimed"], "exact": args["exact"]}
        elif event.name == "PartialAdjudicated":
            found |= {"part": args["part"], "right": args["right"]}
            found["posted"] = _posted(facts.events, d.node)
        else:
            found |= {"verdict": event.name.lower(), "cause": CAUSES[args["cause"]]}
        proof = facts.proofs.get(event.transaction)
        if event.name.endswith("Adjudicated") and proof is not None and None not in at:
            where = Position(facts.job.spec.seed, *at)
            found["terms"] = programs.terms(facts.job.spec.program_root.hex(), where, found.get("part"), proof)
            if facts.job.spec.mode and found["terms"]:
                found["terms"] |= {"recipe": {"not": LOGGED}}
    return found


def _posted(events: Sequence[Event], node: bytes) -> str | None:
    """The partial sum of a contested node, posted in any dispute."""
    sums = (bytes(p) for e in events if e.name == "PartialsPosted" for p in e.args["partials"])
    return next((p.hex() for p in sums if leaf_hash(Kind.PARTIAL, p) == node), None)

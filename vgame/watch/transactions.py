"""The transactions of a job, in order, each with the disputes that it serves.

Reveals and openings name no dispute: they serve every open dispute that has reached their node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vgame.chain.records import Event, Job, Level, Position

#: Name of a transaction until it has been read.
GUESSES = {
    "Challenged": "challenge", "Revealed": "reveal", "LeafOpened": "openLeaf", "SegmentPosted": "postSegment",
    "TracePosted": "postTrace", "PartialsPosted": "postPartials", "Selected": "select", "JobCreated": "createJob",
    "JobAccepted": "acceptJob", "ClaimPosted": "postClaim", "Adjudicated": "prove", "PartialAdjudicated": "prove",
    "Finalized": "finalize", "JobExpired": "expire", "Raised": "raise", "Dropped": "defer",
    "Refunded": "refund", "DelegateSet": "setDelegate", "Confirmed": "confirm", "Declined": "decline",
    "Requested": "request", "Answered": "answer", "Deferred": "defer", "KeyRevealed": "revealKey",
    "Delivered": "closeDelivery",
}  # fmt: skip
ENDS = ("Dismissed", "Convicted", "Refunded")


@dataclass(frozen=True, slots=True)
class Transaction:
    """Chain data of one transaction; `time` of its block."""

    name: str
    dispute: int | None  # number of the dispute named in the call
    sender: str
    gas: int
    size: int
    time: int
    block: int


@dataclass(slots=True)
class Move:
    """A transaction of a job, read or not yet read."""

    digest: str
    name: str
    known: Transaction | None
    disputes: list[int]


class _Places:
    """The disputes at each node."""

    def __init__(self, job: Job) -> None:
        self.job, self.open = job, set[int]()
        self.visitors: dict[object, list[int]] = defaultdict(list)
        self.roots: dict[bytes, object] = {}

    def see(self, event: Event) -> None:
        args = event.args
        match event.name:
            case "Challenged":
                self.open.add(args["dispute"])
                self._enter(args["dispute"], Level(args["entry"]), args["where"])
            case "Selected":
                self._go(args["dispute"], Position.of(args["place"]), args["node"])
            case "SegmentPosted":
                self.roots[args["root"]] = ("segment", args["checkpoint"])
            case "TracePosted":
                self.roots[args["root"]] = ("trace", args["step"])
            case name if name in ENDS:
                self.open.discard(args["dispute"])

    def _enter(self, number: int, entry: Level, where: int) -> None:
        if entry is Level.RUN:
            self.visitors[self.job.run_root].append(number)
        elif entry is Level.SEGMENT:
            self.visitors["segment", where].append(number)
        else:
            self.visitors["trace", where].append(number)

    def _go(self, number: int, place: Position, node: bytes) -> None:
        self.visitors[node].append(number)
        if place.height == 0 and place.level is Level.RUN:
            self.visitors["segment", place.index + 1].append(number)
        elif place.height == 0 and place.level is Level.SEGMENT:
            self.visitors["trace", place.step + place.index].append(number)

    def serving(self, node: bytes) -> list[int]:
        """Open disputes served by an opening of the node."""
        return [n for n in self.visitors.get(self.roots.get(node, node), ()) if n in self.open]


def moves(job: Job, events: Iterable[Event], transactions: Mapping[str, Transaction]) -> list[Move]:
    """All transactions of a job."""
    places, found = _Places(job), dict[str, Move]()
    for event in events:
        served = places.serving(event.args["node"]) if event.name in ("Revealed", "LeafOpened") else []
        places.see(event)
        known = transactions.get(event.transaction)
        if event.transaction not in found:
            name = known.name if known else GUESSES.get(event.name, event.name)
            found[event.transaction] = Move(event.transaction, name, known, [])
        named = event.args.get("dispute", known.dispute if known else None)
        move = found[event.transaction]
        move.disputes += [n for n in (served if named is None else [named]) if n not in move.disputes]
    return list(found.values())

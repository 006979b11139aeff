"""The chain's record of a job: verdict, place, bits, moves, gas, money. Read from events, receipts and views only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vgame.chain.abi import called
from vgame.chain.game import Game
from vgame.chain.records import CAUSES, Event, Level, Phase
from vgame.program.program import Program

Names = Mapping[str, str]  # address -> role

LEAF_MOVES = frozenset({"prove"})
AFTERWARDS = frozenset({"refund", "withdraw", "finalize"})
PAYING = frozenset({"JobCreated", "JobAccepted", "Challenged", "Requested"})  # events of calls that pay in
BEFORE = frozenset({"createJob", "acceptJob", "postClaim", "postDiverged"})


@dataclass(frozen=True)
class Move:
    """One transaction of a dispute."""

    name: str
    sender: str
    gas: int
    transaction: str
    bytes: int


@dataclass
class Dossier:
    """The facts of one dispute."""

    name: str
    verdict: str  # final, convicted, dismissed
    decided_by: str | None = None  # element, opening, timeout
    step: int | None = None
    operator: str | None = None
    element: int | None = None
    claimed_bits: str | None = None
    exact_bits: str | None = None
    moves: list[Move] = field(default_factory=list)
    money: dict[str, int] = field(default_factory=dict)
    integer: bool = False  # the contested word is int32
    job: str = ""
    contract: str = ""
    chain: int = 0
    part: int | None = None  # the deciding partial sum, if the contract did not compute the word's bits

    @property
    def gas_leaf(self) -> int:
        return sum(m.gas for m in self.moves if m.name in LEAF_MOVES)

    @property
    def gas_descent(self) -> int:
        return sum(m.gas for m in self.moves if m.name not in LEAF_MOVES)

    @property
    def claimed(self) -> str:
        """Bits and value."""
        return with_value(self.claimed_bits, self.integer)

    @property
    def exact(self) -> str:
        """Bits and value, or the partial sum that decided."""
        return with_value(self.exact_bits, self.integer) if self.part is None else f"by partial sum {self.part}"

    def facts(self) -> dict[str, Any]:
        """The keys that `vgame demo --json` prints for an attack."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "decided_by": self.decided_by,
            "step": self.step,
            "operator": self.operator,
            "element": self.element,
            "claimed_bits": self.claimed_bits,
            "exact_bits": self.exact_bits,
            "part": self.part,
            "moves": len(self.moves),
            "gas_descent": self.gas_descent,
            "gas_leaf": self.gas_leaf,
            "money": self.money,
        }


def with_value(bits: str | None, integer: bool) -> str:
    """`0x3f800000 = 1.0`: a word, and its shortest decimal that reads back exactly."""
    if bits is None:
        return ""
    words = np.array([int(bits, 16)], dtype="<u4")
    return f"{bits} = {words.view('<i4' if integer else '<f4')[0]!s}"


def moves_of(game: Game, events: list[Event], dispute: int, names: Names) -> list[Move]:
    """The transactions of a dispute, in order; senders by name if known.

    Reveals and openings name no dispute and serve all of them. Those made after this dispute began, at a node that it
    reached, are counted.
    """
    web3, moves = game.chain.web3, []
    visited = {e.args["runRoot"] for e in events if e.name == "ClaimPosted"}
    visited |= {e.args["root"] for e in events if e.name in ("SegmentPosted", "TracePosted")}
    visited |= {e.args["node"] for e in events if e.name == "Selected" and e.args["dispute"] == dispute}
    begin = next(i for i, e in enumerate(events) if e.name == "Challenged" and e.args["dispute"] == dispute)
    seen: set[str] = set()
    for event in events[begin:]:
        if event.transaction in seen:
            continue
        tx = web3.eth.get_transaction(bytes.fromhex(event.transaction))
        name, named = called(game.contract, bytes(tx["input"]))
        if name in BEFORE or name in AFTERWARDS:
            continue
        named = event.args.get("dispute", named)
        if named != dispute and (named is not None or event.args.get("node") not in visited):
            continue
        seen.add(event.transaction)  # not before: `timeoutMany` has an event for each of many disputes
        receipt = web3.eth.get_transaction_receipt(bytes.fromhex(event.transaction))
        size = len(bytes(tx["input"]))
        sender = names.get(receipt["from"], receipt["from"])
        moves.append(Move(name, sender, int(receipt["gasUsed"]), event.transaction, size))
    return moves


def investigate(
    game: Game, job: bytes, name: str, program: Program, names: Names, dispute: int | None = None
) -> Dossier:
    """The dossier of a job's decisive dispute, or of a given one."""
    place = {"job": job.hex(), "contract": game.address, "chain": game.chain.chain_id}
    events = game.events(job=job)
    ends = [e for e in events if e.name in ("Convicted", "Dismissed") and dispute in (None, e.args["dispute"])]
    if not ends:
        phase = game.job(job).phase
        return Dossier(name, "final" if phase is Phase.FINAL else phase.name.lower(), **place)
    end = next((e for e in ends if e.name == "Convicted"), ends[-1])
    number = end.args["dispute"]
    dossier = Dossier(name, end.name.lower(), CAUSES[end.args["cause"]], **place)
    dossier.moves = moves_of(game, events, number, names)
    _place(dossier, game, job, number, program)
    for event in events:
        if event.name == "Adjudicated" and event.args["dispute"] == number:
            dossier.claimed_bits = f"0x{event.args['claimed']:08x}"
            dossier.exact_bits = f"0x{event.args['exact']:08x}"
        if event.name == "PartialAdjudicated" and event.args["dispute"] == number:
            dossier.part = event.args["part"]
    return dossier


def _place(dossier: Dossier, game: Game, job: bytes, number: int, program: Program) -> None:
    """Step, operator and element, as far as the dispute reached them."""
    d = game.dispute(job, number)
    if d.level >= Level.STATE:
        dossier.step = d.step
    elif d.level is Level.SEGMENT and d.height == 0:
        dossier.step = d.step + d.index
    if d.level is Level.STATE and d.height == 0:
        source = program.sources[d.index]
        dossier.operator = f"state {program.labels.state[d.index].name} from {program.operator_name(source.ref.index)}"
    if d.level >= Level.TENSOR:
        dossier.operator = program.operator_name(d.operator)
        dossier.integer = program.operators[d.operator].integer
    if d.level >= Level.ELEMENT:
        dossier.element = d.index
        dossier.claimed_bits = f"0x{d.word:08x}"


def paid_in(game: Game, events: Iterable[Event]) -> dict[str, int]:
    """By address, the sum of payments into the contract."""
    paid: dict[str, int] = {}
    for digest in {e.transaction for e in events if e.name in PAYING}:
        tx = game.chain.web3.eth.get_transaction(bytes.fromhex(digest))
        paid[tx["from"]] = paid.get(tx["from"], 0) + int(tx["value"])
    return paid

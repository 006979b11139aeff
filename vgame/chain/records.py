"""Typed results of the contract's views and events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from eth_utils.address import is_address, to_checksum_address

from vgame.errors import ChainError

#: An account's address with checksum (EIP-55); the last 4,096 are cached.
checksummed = lru_cache(4096)(to_checksum_address)
#: The zero address, for an order without a trainer or guardian.
ZERO_ADDRESS = "0x" + 40 * "0"
MOST_REQUESTS = 64  # of one delivery: Delivery.MAX_REQUESTS


def sized(values: list[Any], least: int, most: int) -> list[Any]:
    """A list in a reply; ValueError if the contract returns no list of that length."""
    if not least <= len(values) <= most:
        raise ValueError(f"{len(values)} entries, {least} to {most} are possible")
    return values


def checksum_address(text: str) -> str:
    """The address, with checksum, in a text from the user; ChainError if it is no address."""
    if not is_address(text):
        raise ChainError(f"{text!r} is not an address; 0x and 40 hex digits are expected")
    return checksummed(text)


class Phase(IntEnum):
    NONE = 0
    CREATED = 1
    ACCEPTED = 2
    CLAIMED = 3
    FINAL = 4
    CONVICTED = 5
    EXPIRED = 6
    DELIVERING = 7
    REVEALED = 8
    UNDELIVERED = 9
    DECLINED = 10


#: The claim is final, for any outcome of its delivery.
STANDING = frozenset({Phase.FINAL, Phase.DELIVERING, Phase.REVEALED, Phase.UNDELIVERED, Phase.DECLINED})


#: The state is being delivered.
IN_DELIVERY = frozenset({Phase.DELIVERING, Phase.REVEALED})


#: Only withdrawals follow.
ENDED = frozenset({Phase.FINAL, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED})


class Status(IntEnum):
    NONE = 0
    OPEN = 1
    DISMISSED = 2
    LAPSED = 3
    WON = 4
    VOID = 5


#: The auditor has lost its bond.
LOST = frozenset({Status.DISMISSED, Status.LAPSED})


class Level(IntEnum):
    NONE = 0
    RUN = 1
    SEGMENT = 2
    STATE = 3
    TRACE = 4
    TENSOR = 5
    ELEMENT = 6
    PARTIAL = 7


class Turn(IntEnum):
    TRAINER = 0
    AUDITOR = 1
    TRAINER_EXPIRED = 2
    AUDITOR_EXPIRED = 3


CAUSES = ("element", "opening", "timeout")


#: IGameTypes.Field: the refused field of an order.
FIELDS = (
    "program", "steps", "interval", "depth", "mode", "budget", "slot", "divergedPay", "trainerBond", "auditorBond",
    "window", "step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobSpec:
    """IGameTypes.JobSpec, in the contract's order."""

    program_root: bytes
    data_root: bytes
    initial_root: bytes
    scalar_root: bytes
    seed: int
    steps: int
    interval: int
    depth: int
    mode: int
    trainer_budget: int
    auditor_budget: int
    slot: int
    reward: int
    diverged_pay: int
    trainer_bond: int
    auditor_bond: int
    accept_window: int
    claim_window: int
    challenge_window: int
    confirm_window: int = 0
    key_window: int = 0
    complaint_window: int = 0
    fee: int = 0
    guardian: str = ZERO_ADDRESS
    trainer: str = ZERO_ADDRESS

    def __post_init__(self) -> None:
        for named in ("guardian", "trainer"):
            object.__setattr__(self, named, checksummed(getattr(self, named)))

    @property
    def stake(self) -> int:
        """The value of a challenge, wei: the auditor's bond and the fee."""
        return self.auditor_bond + self.fee


@dataclass(frozen=True, slots=True)
class Job:
    """IGameTypes.Job."""

    phase: Phase
    states: int
    operators: int
    checkpoints: int
    diverged_at: int
    disputes: int
    open: int
    queue: int
    depth: int
    slot: int
    guarded: bool
    client: str
    created_at: int
    nonce: int
    trainer: str
    accepted_at: int
    claimed_at: int
    guardian_dispute: int
    run_root: bytes
    name_bytes: bytes
    spec: JobSpec

    @property
    def since(self) -> int:
        """Time of the last of: order, acceptance, claim."""
        return self.claimed_at or self.accepted_at or self.created_at

    def could_be(self, now: int, verdict: Verdict | None = None) -> bool:
        """Could the contract have set this phase, these times and this verdict by the second `now`? A reply with one
        altered field rarely passes. `verdict`: for a convicted job only."""
        match self.phase:
            case Phase.NONE | Phase.CREATED:
                fits = not self.accepted_at and not self.claimed_at
            case Phase.ACCEPTED:
                fits = self.accepted_at > 0 and not self.claimed_at
            case Phase.CLAIMED:
                fits = self.claimed_at > 0
            case Phase.CONVICTED:
                fits = verdict is not None and 0 < self.claimed_at <= verdict.time <= now
            case Phase.EXPIRED:
                window = self.spec.claim_window if self.accepted_at else self.spec.accept_window
                fits = not self.claimed_at and 0 < self.since < now - window
            case _:
                fits = not self.open and 0 < self.claimed_at < now - self.spec.challenge_window
        return fits and self.since <= now

    @property
    def name(self) -> str:
        """The client's name for the order, for display: not unique and untrusted."""
        text = self.name_bytes.rstrip(b"\0").decode("utf-8", "replace")
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@dataclass(frozen=True, slots=True)
class Dispute:
    """IGameTypes.Dispute."""

    node: bytes
    level: Level
    height: int
    part: int
    operator: int
    step: int
    index: int
    turn_at: int
    trainer_left: int
    auditor_left: int
    others: int
    auditor: str
    status: Status
    entry: Level
    finite: bool
    blocks: int
    elements: int
    word: int

    @property
    def position(self) -> int:
        """The contested position, encoded as in moves. Twin: Position.sol."""
        return Position(self.level, self.height, self.part, self.operator, self.step, self.index).word

    @property
    def block(self) -> int | None:
        """Number of the contested partial sum; None if none is contested."""
        return self.part if self.level is Level.PARTIAL else None


class Position(NamedTuple):
    """A position in the trees of a claim. Twin: Position.sol."""

    level: Level
    height: int
    part: int
    operator: int
    step: int
    index: int

    @property
    def word(self) -> int:
        """The encoding in moves, 120 bits."""
        low = self.level | self.height << 8 | self.part << 16
        return low | self.operator << 24 | self.step << 48 | self.index << 80

    @classmethod
    def of(cls, word: int) -> Position:
        """The position that a word encodes."""
        low = (Level(word & 0xFF), word >> 8 & 0xFF, word >> 16 & 0xFF)
        return cls(*low, word >> 24 & 0xFFFFFF, word >> 48 & 0xFFFFFFFF, word >> 80)


@dataclass(frozen=True, slots=True)
class Standing:
    """IGameTypes.Standing and the dispute's number; if the dispute is closed, turn is None, and deadline and opening
    time are 0."""

    number: int
    dispute: Dispute
    turn: Turn | None
    deadline: int
    opened_at: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """IGameTypes.Verdict."""

    level: Level
    height: int
    part: int
    operator: int
    step: int
    index: int
    dispute: int
    cause: str
    time: int
    winner: str


@dataclass(frozen=True, slots=True)
class Post:
    """IGameTypes.Post: the post for an interval, a step or an element; `at` is 0 if there is none."""

    root: bytes
    log: bytes
    at: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """IDelivery.Exchange."""

    offer: bytes
    until: int
    confirmed_at: int
    answered_at: int
    key_at: int
    open: int
    deposits: int

    @property
    def key_from(self) -> int:
        """Start of the key window."""
        return max(self.confirmed_at or self.until, self.answered_at)


@dataclass(frozen=True, slots=True)
class Request:
    """IDelivery.Request and its number."""

    index: int
    tensor: int
    chunk: int
    elements: int
    price: int
    since: int
    answered_at: int
    deferred_at: int
    dropped: bool

    @property
    def open(self) -> bool:
        return not self.answered_at


def delivery_window(job: Job, exchange: Exchange, now: int) -> tuple[str, int]:
    """The window of a job in delivery that runs at a time, and its end. The end of the confirm window counts as a
    confirmation; an open request delays the key."""
    if job.phase is Phase.REVEALED:
        return "complaint_window", exchange.key_at + job.spec.complaint_window
    if not exchange.confirmed_at and now <= exchange.until:
        return "confirm_window", exchange.until
    return "key_window", exchange.key_from + job.spec.key_window


@dataclass(frozen=True, slots=True)
class Event:
    """A log of the game, decoded."""

    name: str
    args: dict[str, Any]
    block: int
    transaction: str


@lru_cache(1024)
def _job(answer: tuple[Any, ...]) -> Job:
    return Job(Phase(answer[0]), *answer[1:-1], JobSpec(*answer[-1]))


@lru_cache(4096)
def _dispute(answer: tuple[Any, ...]) -> Dispute:
    """Cached, because most results are the same as in the last look."""
    node, level, *clocks, status, entry, finite, blocks, elements, word = answer
    return Dispute(node, Level(level), *clocks, Status(status), Level(entry), finite, blocks, elements, word)


def standing(number: int, answer: Any) -> Standing:
    dispute, turn, deadline, opened_at = answer
    return Standing(number, _dispute(dispute), Turn(turn) if deadline else None, deadline, opened_at)

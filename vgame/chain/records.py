"""What the contract's views and events return, typed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from eth_utils.address import to_checksum_address


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


#: The claim stands for ever, whatever becomes of its delivery.
STANDING = frozenset({Phase.FINAL, Phase.DELIVERING, Phase.REVEALED, Phase.UNDELIVERED, Phase.DECLINED})


#: The state is being delivered.
IN_DELIVERY = frozenset({Phase.DELIVERING, Phase.REVEALED})


#: Nothing but withdrawals follows.
ENDED = frozenset({Phase.FINAL, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED})


class Status(IntEnum):
    NONE = 0
    OPEN = 1
    DISMISSED = 2
    WON = 3
    VOID = 4


class Level(IntEnum):
    NONE = 0
    RUN = 1
    SEGMENT = 2
    STATE = 3
    TRACE = 4
    TENSOR = 5
    ELEMENT = 6
    BLOCK = 7


class Turn(IntEnum):
    TRAINER = 0
    AUDITOR = 1
    TRAINER_EXPIRED = 2
    AUDITOR_EXPIRED = 3


CAUSES = ("element", "opening", "timeout")


#: IGame.Field: what of an order is refused.
FIELDS = (
    "program", "steps", "interval", "depth", "mode", "budget", "slot", "divergedPay", "trainerBond", "auditorBond",
    "window", "step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobSpec:
    """IGame.JobSpec, in the contract's order."""

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
    reward_window: int
    confirm_window: int = 0
    key_window: int = 0
    complaint_window: int = 0
    fee: int = 0
    guardian: str = "0x" + 40 * "0"

    def __post_init__(self) -> None:
        object.__setattr__(self, "guardian", to_checksum_address(self.guardian))

    @property
    def stake(self) -> int:
        """What a challenge costs, wei: the auditor's bond and the fee."""
        return self.auditor_bond + self.fee


@dataclass(frozen=True, slots=True)
class Job:
    """IGame.Job."""

    phase: Phase
    states: int
    operators: int
    checkpoints: int
    diverged_at: int
    since: int
    disputes: int
    open: int
    queue: int
    depth: int
    slot: int
    client: str
    trainer: str
    run_root: bytes
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Dispute:
    """IGame.Dispute."""

    node: bytes
    level: Level
    height: int
    index: int
    step: int
    operator: int
    turn_at: int
    trainer_left: int
    auditor_left: int
    others: int
    moves: int
    price: int
    auditor: str
    status: Status
    entry: Level
    finite: bool
    blocks: int
    elements: int
    word: int
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """IGame.Standing and the dispute's number; of a closed dispute turn is None and deadline 0."""

    number: int
    dispute: Dispute
    turn: Turn | None
    deadline: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """IGame.Verdict."""

    level: Level
    height: int
    index: int
    step: int
    operator: int
    dispute: int
    best: int
    paid: bool
    guarded: bool
    cause: str
    pool: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """IDelivery.Exchange."""

    offer: bytes
    until: int
    requests: int
    open: int
    confirmed: bool
    deposits: int


def delivery_window(job: Job, exchange: Exchange, now: int) -> tuple[str, int]:
    """Which window of a job in delivery runs at a time, and when it ends. Silence confirms; an open request keeps the
    key back."""
    if job.phase is Phase.REVEALED:
        return "complaint_window", job.since + job.spec.complaint_window
    if not exchange.confirmed and now <= exchange.until:
        return "confirm_window", exchange.until
    return "key_window", exchange.until + job.spec.key_window


@dataclass(frozen=True, slots=True)
class Event:
    """A log of the game, decoded."""

    name: str
    args: dict[str, Any]
    block: int
    transaction: str


DISPUTE = [f.name for f in fields(Dispute)]


def _dispute(answer: Any) -> Dispute:
    values = dict(zip(DISPUTE, answer, strict=True))
    enums = {"level": Level(values["level"]), "entry": Level(values["entry"]), "status": Status(values["status"])}
    return Dispute(**(values | enums))


def standing(number: int, answer: Any) -> Standing:
    dispute, turn, deadline = answer
    return Standing(number, _dispute(dispute), Turn(turn) if deadline else None, deadline)

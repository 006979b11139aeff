"""The duties of each role of a job after one block, with reasons, from the contract's state alone.

In: a job on chain, a role, an account. Out: duties with their deadlines. The results and the fetched data of a role are
not known here; a duty that depends on them mentions it in its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vgame.agents.news import ether
from vgame.agents.times import countdown, local_time
from vgame.chain.game import Game
from vgame.chain.records import IN_DELIVERY, ZERO_ADDRESS, Job, Level, Phase, Standing, Status, Turn
from vgame.delivery.rules import Duty, Snapshot, confirming, declining, overdue, raising, selling
from vgame.delivery.rules import read as read_delivery
from vgame.errors import ChainError
from vgame.job.terms import INCLUSION
from vgame.system.progress import Reporter

#: The trainer's next call, by level of the contested node, and whether the node is a leaf (height 0).
TRAINERS = {
    (Level.RUN, False): "reveal",
    (Level.RUN, True): "postSegment",
    (Level.SEGMENT, True): "postTrace",
    (Level.STATE, True): "tie",
    (Level.TENSOR, True): "openLeaf",
    (Level.ELEMENT, True): "prove",
    (Level.PARTIAL, True): "prove",
}
#: The same for an auditor; in all other cases `select`, which here includes `selectState` and `selectOperator`.
AUDITORS = {(Level.TENSOR, True): "selectElement", (Level.ELEMENT, True): "selectPartial"}


@dataclass(frozen=True, slots=True)
class Record:
    """A job with its disputes and its delivery after one block."""

    id: bytes
    s: Snapshot
    standings: tuple[Standing, ...]
    convicted_at: int = 0

    @property
    def job(self) -> Job:
        return self.s.job

    @property
    def since(self) -> int:
        """Time of the last of: order, acceptance, claim, conviction."""
        return self.convicted_at or self.job.since

    def over(self, window: int) -> bool:
        return self.s.now > self.job.since + window


def read(game: Game, job: bytes) -> Record:
    """The job with its disputes and its delivery; ChainError if there is no such job."""
    with game.chain.pinned():
        s = read_delivery(game, job)
        if s.job.phase is Phase.NONE:
            raise ChainError(f"there is no job {job.hex()} at {game.address}; check the job and the chain")
        convicted_at = game.verdict(job).time if s.job.phase is Phase.CONVICTED else 0
        return Record(job, s, tuple(game.all_disputes(job, s.job.disputes)), convicted_at)


def trainer(r: Record, account: str | None) -> list[Duty]:
    """Duties of the account that can accept the job, or has accepted it."""
    job, spec = r.job, r.job.spec
    named = spec.trainer if job.phase is Phase.CREATED else job.trainer
    if account is not None and named not in (ZERO_ADDRESS, account):
        return []
    match job.phase:
        case Phase.CREATED:
            end = job.since + spec.accept_window
            return [Duty("acceptJob", not r.over(spec.accept_window), f"a bond of {ether(spec.trainer_bond)}", end)]
        case Phase.ACCEPTED:
            end, due = job.since + spec.claim_window, not r.over(spec.claim_window)
            return [Duty("postClaim", due, "when the run is computed", end, job.since)]
        case Phase.CLAIMED:
            return [*(_answer(s) for s in r.standings if s.turn is Turn.TRAINER), *_finish(r)]
    return selling(r.s)


def _answer(standing: Standing) -> Duty:
    d = standing.dispute
    step = f", step {d.step}" if d.step else ""
    why = f"dispute {standing.number} waits at a node of level {d.level.name.lower()}{step}"
    return Duty(_move(standing), True, why, standing.deadline, standing.opened_at)


def _move(standing: Standing) -> str:
    """The call of the side whose turn it is."""
    d = standing.dispute
    place = (d.level, d.height == 0)
    if standing.turn is Turn.AUDITOR:
        return AUDITORS.get(place, "select")
    if d.level is Level.ELEMENT and d.blocks > 1:
        return "postPartials"
    return TRAINERS.get(place, "reveal")


def _finish(r: Record) -> list[Duty]:
    end = r.job.since + r.job.spec.challenge_window
    idle = [s.number for s in r.standings if s.turn is Turn.AUDITOR_EXPIRED]
    why = f"{r.job.open} disputes are open" if r.job.open else f"the challenge window ends {local_time(end)}"
    found = [Duty("timeoutMany", True, f"the auditors of disputes {idle} are out of time")] if idle else []
    return [*found, Duty("finalize", not r.job.open and r.s.now > end, why)]


def auditor(r: Record, account: str | None) -> list[Duty]:
    """Duties of an account that compares the claim with its own run."""
    job, window = r.job, r.job.spec.challenge_window
    own = [s for s in r.standings if account in (None, s.dispute.auditor)]
    found: list[Duty] = []
    if job.phase is Phase.CLAIMED:
        why = f"only if the own run has another root than {job.run_root.hex()[:16]}"
        if account is None or not own:  # an auditor disputes a claim once
            found.append(Duty("challenge", not r.over(window), why, job.since + window, job.since))
        for s in own:
            at = f"dispute {s.number}, level {s.dispute.level.name.lower()}"
            if s.turn is Turn.AUDITOR:
                found.append(Duty(_move(s), True, at, s.deadline, s.opened_at))
            if s.turn is Turn.TRAINER and _move(s) == "prove":
                found.append(Duty("prove", True, f"{at}: either side can show the operands", s.deadline))
            if s.turn is Turn.TRAINER_EXPIRED:
                found.append(Duty("timeout", True, f"{at}: the trainer is out of time"))
    if job.phase is Phase.CONVICTED:
        found += [Duty("refund", True, f"dispute {s.number}") for s in own if s.dispute.status is Status.OPEN]
    return found


def client(r: Record, account: str | None) -> list[Duty]:
    """Duties of the account that has ordered the job."""
    job, spec = r.job, r.job.spec
    if account is not None and account != job.client:
        return []
    windows = {Phase.CREATED: spec.accept_window, Phase.ACCEPTED: spec.claim_window}
    if job.phase in windows:
        end = job.since + windows[job.phase]
        return [
            Duty(
                "expire",
                r.over(windows[job.phase]),
                f"if the job is still {job.phase.name.lower()} after {local_time(end)}",
            )
        ]
    if job.phase not in IN_DELIVERY:
        return []
    late = overdue(r.s)
    decline = declining(r.s, True)
    return [
        *([late] if late else []),
        *raising(r.s),
        confirming(r.s, r.s.exchange.offer),
        decline if decline.due else Duty("decline", False, "in the last tenth of the window", decline.by),
    ]


ROLES: dict[str, Callable[[Record, str | None], list[Duty]]] = {
    "trainer": trainer,
    "auditor": auditor,
    "client": client,
}


def explain(game: Game, job: bytes, roles: list[str], account: str | None, reporter: Reporter) -> None:
    """Report the calls that the roles of a job would send now, and the reasons."""
    r = read(game, job)
    job_now = {"job": job.hex(), "block": r.s.number, "now": r.s.now, "phase": r.job.phase.name.lower()}
    at, since = local_time(r.s.now), local_time(r.since)
    text = f"block {r.s.number}, {at}: job {job.hex()[:16]} is {job_now['phase']} since {since}"
    reporter.emit("snapshot", text, **job_now)
    for role in roles:
        duties = ROLES[role](r, account)
        for duty in duties:
            by = "" if duty.by is None else f" by {local_time(duty.by)}, left: {countdown(duty.by - r.s.now)}"
            text = f"{role}: {'sends' if duty.due else 'does not send yet:'} {duty.call}{by} ({duty.why})"
            fields = {"role": role, "call": duty.call, "due": duty.due, "by": duty.by, "why": duty.why}
            reporter.emit("duty", text, **fields)
        if not duties:
            reporter.emit("duty", f"{role}: no duty", role=role, call=None, due=False, by=None, why="")


def tell_deadline(game: Game, job: bytes, role: str, account: str, reporter: Reporter) -> None:
    """Report to the listeners the seconds left for the most urgent duty, and its worst duration: one inclusion plus
    the order's slot for a move."""
    if not reporter.listeners:
        return
    r = read(game, job)
    worst = INCLUSION + r.job.spec.slot
    ends = [duty.by - r.s.now for duty in ROLES[role](r, account) if duty.due and duty.by is not None]
    reporter.deadline(min(ends, default=None), worst)

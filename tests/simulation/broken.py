"""Players with one rule broken, each by one method: the simulator has to find every one of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from story import Cast

from vgame.chain.records import Dispute, Job, Level, Phase, Standing, Turn
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import Entry
from vgame.dispute.player import one_of
from vgame.dispute.trainer import Trainer
from vgame.errors import Over


def is_broken(cls: type, side: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, side) and cls is not side


class FirstDisputeFirst(Trainer):
    """It serves disputes in order of arrival, regardless of their clocks."""

    def defend(self, job: Job) -> bool:
        standings = self.standings(job)
        waiting = [s for s in standings if s.turn is Turn.TRAINER]
        first = [partial(self.serve, job, s.number, s.dispute) for s in waiting[:1]]
        return one_of([*first, partial(self.sweep, job, standings)])


class LatestDisputeFirst(Trainer):
    """It serves the dispute that was opened last."""

    def defend(self, job: Job) -> bool:
        standings = self.standings(job)
        waiting = [s for s in reversed(standings) if s.turn is Turn.TRAINER]
        return one_of([*(partial(self.serve, job, s.number, s.dispute) for s in waiting[:1]),
                       partial(self.sweep, job, standings)])  # fmt: skip


class NeverWithdraws(Trainer):
    """Its money stays in the contract."""

    def withdraw(self) -> bool:
        return False


class FinalizesLate(Trainer):
    """It finalizes only after two challenge windows."""

    def finish(self, job: Job) -> bool:
        late = self.game.chain.now() > job.since + 2 * job.spec.challenge_window
        return late and super().finish(job)


class AcceptsWithoutMoney(Trainer):
    """It checks no money besides the bond."""

    def check_funds(self, job: Job) -> None:
        pass


class KeepsNoReserve(Trainer):
    """It reserves no gas for disputes."""

    def reserve(self) -> int:
        base, tip = self.game.chain.fees()
        return 450_000 * (2 * base + tip)


class PostsAnotherSegment(Trainer):
    """It posts the segment before the requested one."""

    def segment_post(self, job: Job, c: int) -> tuple[object, ...]:
        return super().segment_post(job, max(1, c - 1))


class PostsAnotherTrace(Trainer):
    """It posts the trace of the agreed step."""

    def trace_tree(self, step: int) -> Any:
        return super().trace_tree(max(1, step - 1))


class NeverSweeps(Trainer):
    """It leaves idle disputes open."""

    def sweep(self, job: Job, standings: Any) -> bool:
        return False


class NeverProves(Trainer):
    """It leaves the proof to the accuser."""

    def prove(self, number: int, d: Dispute) -> bool:
        return False


class ClaimsOnce(Trainer):
    """It claims once, though a reorganisation may undo the claim."""

    claims = 0

    def claim(self) -> bool:
        self.claims += 1
        return self.claims == 1 and super().claim()


class AcceptsOnce(Trainer):
    """It accepts once, though a reorganisation may undo the acceptance."""

    def step(self) -> bool:
        if self.look().phase is Phase.CREATED:
            raise Over("the acceptance is gone")
        return super().step()


class BelievesAnAbsence(Trainer):
    """It ends if a node does not show the job."""

    def check(self, job: Job) -> None:
        if job.phase is Phase.NONE:
            raise Over("there is no such job")
        super().check(job)


class BelievesTheNewestBlock(Trainer):
    """It ends by the newest block: another trainer's acceptance, or the end of a window, may still be undone."""

    def check(self, job: Job) -> None:
        if why := self.over(job, self.game.chain.now()):
            raise Over(why)


class EndsWithTheNewestBlock(Trainer):
    """It ends as soon as the newest block shows the job's end."""

    def has_ended(self, shown: bool) -> bool:
        return shown


class RemembersTheClosed(Trainer):
    """It ignores a dispute that has ended once, even if a reorganisation reopens it."""

    def standings(self, job: Job) -> list[Standing]:
        found = self._read(job, [])
        ended = self.__dict__.setdefault("over", set())
        ended |= {s.number for s in found if s.turn is None}
        return [s for s in found if s.number not in ended]


class AnswersOnce(Trainer):
    """It answers each position once, though a reorganisation may undo the answer."""

    def answer(self, job: Job, number: int, d: Dispute) -> bool:
        sent = self.__dict__.setdefault("sent", set())
        if (number, d.position) in sent:
            return False
        sent.add((number, d.position))
        return super().answer(job, number, d)


class SkipsPartials(Trainer):
    """It has no answer to a long sum."""

    def answer(self, job: Job, number: int, d: Dispute) -> bool:
        return not (d.level is Level.ELEMENT and d.blocks > 1) and super().answer(job, number, d)


class OneAnswerAJob(Trainer):
    """It waits while the clock of any auditor runs."""

    def defend(self, job: Job) -> bool:
        if any(s.turn is Turn.AUDITOR for s in self.standings(job)):
            return False
        return super().defend(job)


class AccusesAll(Auditor):
    """It finds the run root of every claim false."""

    def difference(self, view: Any) -> Entry | None:
        return Entry(Level.RUN)


class MovesOnce(Auditor):
    """It makes each move once, though a reorganisation may undo it."""

    def name(self, move: str, number: int, d: Dispute, *args: object) -> bool:
        sent = self.__dict__.setdefault("sent", set())
        if (number, d.position) in sent:
            return False
        sent.add((number, d.position))
        return super().name(move, number, d, *args)


class NamesTheNext(Auditor):
    """It selects the child after the first one that differs from its own."""

    def select(self, number: int, d: Dispute, node: Any, index: int) -> bool:
        return super().select(number, d, node, (index + 1) % len(node.children))


class LeavesTheFirst(Auditor):
    """It never moves in a dispute while another one is open."""

    def moves(self, view: Any) -> Any:
        return [] if view.job.open > 1 else super().moves(view)


def silent(*moves: str) -> type[Auditor]:
    """An auditor that never makes some moves."""

    def attempt(self: Auditor, name: str, *args: object, value: int = 0) -> bool:
        return name not in moves and Auditor.attempt(self, name, *args, value=value)

    return type(f"Never{'Or'.join(moves).title()}", (Auditor,), {"attempt": attempt})


SILENT = (
    ("challenge",), ("refund",), ("timeout",), ("select",), ("selectState",), ("selectElement",), ("selectPartial",),
    ("withdraw",), ("prove", "timeout"),
)  # fmt: skip
KINDS = {"trainer": Trainer, "auditor": Auditor}
CASTS = {
    name: Cast(**{role: cls})
    for name, cls in list(vars().items())
    for role, side in KINDS.items()
    if is_broken(cls, side)
}
CASTS |= {f"never {'/'.join(moves)}": Cast(auditor=silent(*moves)) for moves in SILENT}

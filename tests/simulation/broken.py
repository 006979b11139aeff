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
    """In order of arrival, whatever the clocks say."""

    def defend(self, job: Job) -> bool:
        standings = self.standings(job)
        waiting = [s for s in standings if s.turn is Turn.TRAINER]
        first = [partial(self.serve, job, s.number, s.dispute) for s in waiting[:1]]
        return one_of([*first, partial(self.sweep, job, standings)])


class LatestDisputeFirst(Trainer):
    """The one that was opened last."""

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
    """After two windows."""

    def finish(self, job: Job) -> bool:
        late = self.game.chain.now() > job.since + 2 * job.spec.challenge_window
        return late and super().finish(job)


class AcceptsWithoutMoney(Trainer):
    """The bond is all that it looks at."""

    def check_funds(self, job: Job) -> None:
        pass


class KeepsNoReserve(Trainer):
    """For disputes."""

    def reserve(self) -> int:
        base, tip = self.game.chain.fees()
        return 450_000 * (2 * base + tip)


class PostsAnotherSegment(Trainer):
    """The one before."""

    def segment_post(self, job: Job, c: int) -> tuple[object, ...]:
        return super().segment_post(job, max(1, c - 1))


class PostsAnotherTrace(Trainer):
    """Of the step that is agreed on."""

    def trace_tree(self, step: int) -> Any:
        return super().trace_tree(max(1, step - 1))


class NeverSweeps(Trainer):
    """Idle disputes stay open."""

    def sweep(self, job: Job, standings: Any) -> bool:
        return False


class NeverProves(Trainer):
    """The accuser has to, it thinks."""

    def prove(self, number: int, d: Dispute) -> bool:
        return False


class ClaimsOnce(Trainer):
    """A claim that was sent stands, it thinks: a reorganisation undoes it."""

    claims = 0

    def claim(self) -> bool:
        self.claims += 1
        return self.claims == 1 and super().claim()


class AcceptsOnce(Trainer):
    """The same of the acceptance."""

    def step(self) -> bool:
        if self.look().phase is Phase.CREATED:
            raise Over("the acceptance is gone")
        return super().step()


class BelievesAnAbsence(Trainer):
    """A job that is not shown is none."""

    def check(self, job: Job) -> None:
        if job.phase is Phase.NONE:
            raise Over("there is no such job")
        super().check(job)


class BelievesTheNewestBlock(Trainer):
    """What it shows is for ever: another's acceptance, a window that is over."""

    def check(self, job: Job) -> None:
        if why := self.over(job, self.game.chain.now()):
            raise Over(why)


class EndsWithTheNewestBlock(Trainer):
    """A job that has ended there has ended."""

    def has_ended(self, shown: bool) -> bool:
        return shown


class RemembersTheClosed(Trainer):
    """A dispute that has ended has ended, on every branch."""

    def standings(self, job: Job) -> list[Standing]:
        found = self._read(job, [])
        ended = self.__dict__.setdefault("over", set())
        ended |= {s.number for s in found if s.turn is None}
        return [s for s in found if s.number not in ended]


class AnswersOnce(Trainer):
    """What was sent needs not be sent again."""

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
    """While a clock runs that is not its own, it waits."""

    def defend(self, job: Job) -> bool:
        if any(s.turn is Turn.AUDITOR for s in self.standings(job)):
            return False
        return super().defend(job)


class AccusesAll(Auditor):
    """Whatever the claim is, it finds its run root false."""

    def difference(self, view: Any) -> Entry | None:
        return Entry(Level.RUN)


class MovesOnce(Auditor):
    """What was sent needs not be sent again."""

    def name(self, move: str, number: int, d: Dispute, *args: object) -> bool:
        sent = self.__dict__.setdefault("sent", set())
        if (number, d.position) in sent:
            return False
        sent.add((number, d.position))
        return super().name(move, number, d, *args)


class NamesTheNext(Auditor):
    """The child beside the first that is not its own."""

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

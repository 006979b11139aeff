"""Lies, and players that claim or believe them, for several tests of the game."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scene import WIDE, Call, Setup
from toy import Lies, ToyMachine

from vgame.attacks.adversaries import CheatingTrainer, FalseAccuser
from vgame.chain.game import Game
from vgame.chain.records import Dispute, Level
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView, Entry
from vgame.errors import VgameError

JUNK = b"\x5a" * 32
SETUP = Setup(WIDE, steps=8)
HONEST = SETUP.honest
SPEC = SETUP.spec
SUM = 3

Place = tuple[Level, int, int, int, int]  # level, step, operator, index, part
Case = tuple[Lies, Place]


# ---- players ----


class Bluffer(CheatingTrainer):
    """It makes all possible moves except the `silent` ones."""

    def __init__(self, game: Game, job: bytes, machine: ToyMachine, silent: Iterable[str] = ()) -> None:
        super().__init__(game, job, machine, frozenset(silent))

    def step(self) -> bool:
        try:
            return super().step()
        except VgameError:
            return False


class Mistaken(Auditor):
    """An honest auditor with a wrong computation; if it has nothing to select, it loses by its clock."""

    def step(self) -> bool:
        try:
            return super().step()
        except VgameError:
            return False


class Forcer(FalseAccuser):
    """It makes the trainer post the segment and the trace of a step, and is silent from then on."""

    def __init__(self, game: Game, job: bytes, machine: ToyMachine, step: int) -> None:
        super().__init__(game, job, machine, step_wanted=step)

    def move(self, view: ClaimView, number: int, d: Dispute) -> bool:
        return not (d.level is Level.SEGMENT and d.height == 0) and super().move(view, number, d)


class Curious(Auditor):
    """It disputes all roots that the trainer has posted for others, although the claim is right."""

    def difference(self, view: ClaimView) -> Entry | None:
        if (own := super().difference(view)) is not None:
            return own
        steps = self.machine.steps
        for level, posted, compare, count in (
            (Level.SEGMENT, view.segments, view.contradicts_segment, -(-steps // self.machine.interval)),
            (Level.TRACE, view.traces, view.contradicts_trace, steps),
        ):
            for where in range(1, count + 1):
                if posted.post(where).at and compare(where, posted[where]):
                    return Entry(level, where)
        return None


class Arbitrary(Auditor):
    """It may select any opened node."""

    def options(self, number: int, d: Dispute) -> Iterator[Call]:
        view, game = ClaimView(self, self.game.job(self.id)), self.game
        calls: list[Call] = []
        game.send = lambda name, *args, value=0: calls.append(Call(name, args, value))
        if d.level is Level.TENSOR and d.height == 0:
            for element in range(d.elements):
                self.name("selectElement", number, d, element, view.leaf(d.node))
        elif d.level is Level.ELEMENT:
            partials = view.partials(d)
            for index in range(len(partials)):
                self.select_partial(number, d, partials, index)
        else:
            if d.level is Level.SEGMENT and d.height == 0:
                self.name("selectState", number, d, view.traces[view.step_of(d)])
            node = view.base(d)
            for index in range(len(node.children)):
                self.select(number, d, node, index)
        del game.send
        yield from calls


# ---- lies ----


def wrong_word(step: int, operator: int, element: int) -> int:
    """One bit away from the right one, and finite."""
    return int(HONEST.output_words(step, operator)[element]) ^ 1


def place_of(step: int, operator: int, element: int, block: int = 0) -> Place:
    """Where a wrong word is decided: long sums in a block."""
    decided = Level.PARTIAL if operator == SUM else Level.ELEMENT
    return decided, step, operator, element, block if operator == SUM else 0


def word_lie(step: int, operator: int, element: int, block: int = 0) -> Case:
    """A word is computed wrong, and later words follow from it."""
    lies = Lies(words={(step, operator, element): wrong_word(step, operator, element)}, block=block)
    return lies, place_of(step, operator, element, block)


#: A default lie: a term of a long sum.
LIE = word_lie(6, SUM, 4, 1)[0]


def state_lie(step: int, tensor: int, element: int) -> Case:
    """A state tensor differs from the output in its own trace."""
    word = int(HONEST.state_words(step)[tensor][element]) ^ 1
    return Lies(state={(step, tensor, element): word}), (Level.STATE, step, 0, tensor, 0)


def name(case: Case) -> str:
    level, step, operator, index, part = case[1]
    return f"{level.name.lower()}-step{step}-operator{operator}-{part}-{index}"

"""A share of every rank's work, computed twice: who computes other bits is named by rank, step, operator, element.

In: a step that has just been executed, and what every rank then gave to the others. Out: nothing, or RankError, the
same on every rank. Every rank plays the next one's part of the step again. Where both differ, the exact reference says
who is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vgame.commit.tensor import to_words
from vgame.execute.reference import Position, evaluate
from vgame.program.operators import RefClass, operand_refs
from vgame.ranks.exchange import Group
from vgame.ranks.health import RankError
from vgame.ranks.part import Drawn, Exchange

if TYPE_CHECKING:
    from vgame.ranks.executor import RankExecutor

DIGEST = 8  # words
SAME = -1  # an index that says: nothing differs


@dataclass(frozen=True)
class Shifted:
    """The same processes, each in the part of the next one."""

    group: Group

    @property
    def rank(self) -> int:
        return (self.group.rank + 1) % self.world

    @property
    def world(self) -> int:
        return self.group.world

    def note(self, step: int, doing: str) -> None:
        self.group.note(step, doing)

    def swap(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        return self.begin(pieces, sizes)()

    def begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        """Part q is played by process q - 1."""
        arrive = self.group.begin([*pieces[1:], pieces[0]], [*sizes[1:], sizes[0]])

        def turned() -> list[torch.Tensor]:
            got = arrive()
            return [got[-1], *got[:-1]]

        return turned


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """SHA-256 of a tensor's words, as int32 words."""
    return torch.frombuffer(bytearray(hashlib.sha256(to_words(tensor).tobytes()).digest()), dtype=torch.int32)


@dataclass
class Traced:
    """What a step's operators gave: digests, and the outputs that are to be kept."""

    keep: frozenset[int] = frozenset()
    digests: list[torch.Tensor] = field(default_factory=list)
    kept: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, index: int, output: torch.Tensor) -> torch.Tensor:
        self.digests.append(digest(output))
        if index in self.keep:
            self.kept[index] = output.clone()
        return output


def check(
    own: RankExecutor, twice: RankExecutor, step: int, state: Sequence[torch.Tensor], given: list[torch.Tensor]
) -> None:
    """`state`: before the step; `given`: digests of what this rank gave in it, and of its new state. `twice` plays the
    next rank."""
    theirs = _from_next(own.group, state, [s.elements for s in twice.program.sources])
    there = [t.view(torch.float32) if not s.integer else t for t, s in zip(theirs, twice.program.sources, strict=True)]
    _, again = twice.recorded_step(step, there)
    if max(_told(own.group, _first(own.group, given, again))) == SAME:
        return
    mine, other = Traced(), Traced()
    own.traced(step, state, mine)
    twice.traced(step, there, other)
    index = _first(own.group, mine.digests, other.digests)
    found = _told(own.group, index)
    if max(found) == SAME:
        raise _error(
            own.group, f"at step {step} a rank computed other bits once, and not again: a fault that comes and goes"
        )
    _, player = min((at, rank) for rank, at in enumerate(found) if at != SAME)  # a wrong word makes others wrong later
    raise _error(own.group, _name(own, twice, step, (state, there), player, found[player]))


def _from_next(group: Group, parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Each tensor of the next rank; this rank's go to the one before it."""
    before, after, got = (group.rank - 1) % group.world, (group.rank + 1) % group.world, []
    for part, size in zip(parts, sizes, strict=True):
        words, nothing = part.cpu().view(torch.int32), torch.empty(0, dtype=torch.int32)
        pieces = [words if q == before else nothing for q in range(group.world)]
        got.append(group.swap(pieces, [size if q == after else 0 for q in range(group.world)])[after].clone())
    return got


def _first(group: Group, mine: list[torch.Tensor], again: list[torch.Tensor]) -> int:
    """The first of the next rank's digests that is not what this rank finds in its part."""
    theirs = _from_next(group, [torch.cat(mine)], [DIGEST * len(again)])[0].view(-1, DIGEST)
    differs = (theirs != torch.stack(again)).any(1).nonzero()
    return int(differs[0]) if len(differs) else SAME


def _told(group: Group, number: int) -> list[int]:
    """Every rank's number."""
    told = torch.tensor([number], dtype=torch.int32)
    return [int(t[0]) for t in group.swap([told] * group.world, [1] * group.world)]


def _error(group: Group, sentence: str) -> RankError:
    return RankError(
        f"{sentence}; nothing of this step is kept; see to that device and start again", said=group.rank != 0
    )


def _name(
    own: RankExecutor,
    twice: RankExecutor,
    step: int,
    states: tuple[Sequence[torch.Tensor], ...],
    player: int,
    index: int,
) -> str:
    """Who is wrong at an operator of the part of the rank after `player`, who noticed it; all ranks take part."""
    group, operator = own.group, own.program.operators[index]
    keep = frozenset({index, *(ref.index for ref, _, _ in operand_refs(operator) if ref.cls is RefClass.OPERATOR)})
    mine, other = Traced(keep), Traced(keep)
    own.traced(step, states[0], mine)
    twice.traced(step, states[1], other)
    theirs = _from_next(group, [mine.kept[index]], [other.kept[index].numel()])[0]
    here = other.kept[index].view(torch.int32)
    differs = (theirs != here).nonzero()
    element = int(differs[0]) if len(differs) else 0
    words = (int(here[element]) & 0xFFFFFFFF, int(theirs[element]) & 0xFFFFFFFF)
    exact = _exact(twice, step, states[1], other, index, element)
    wrong = SAME if exact is None else 1 if exact == words[0] else 0
    verdicts, elements = _told(group, wrong), _told(group, element)
    what = (
        f"step {step}, operator {own.operator_name(index)}, element {elements[player]} of rank "
        f"{(player + 1) % group.world}'s part"
    )
    if verdicts[player] == SAME:
        return f"ranks {player} and {(player + 1) % group.world} differ at {what}: one of them computes other bits"
    return f"rank {(player + verdicts[player]) % group.world} computes other bits: {what}"


def _exact(
    executor: RankExecutor, step: int, state: Sequence[torch.Tensor], traced: Traced, index: int, element: int
) -> int | None:
    """The word, by the reference; None where it is nothing that is computed."""
    operator, origin = executor.program.operators[index], executor.program.origins[index]
    if isinstance(operator, Exchange):
        return None
    where = {
        RefClass.OPERATOR: traced.kept,
        RefClass.STATE: state,
        RefClass.CONSTANT: executor.constants,
        RefClass.DATA: executor.data,
    }

    def read(ref, first: int, count: int) -> list[int]:
        if ref.cls is RefClass.SCALAR:
            return [int(to_words(executor.scalars[step - 1])[ref.index])]
        return [int(w) for w in to_words(where[ref.cls][ref.index].reshape(-1)[first : first + count])]

    drawn = operator.operator if isinstance(operator, Drawn) else operator
    return evaluate(drawn, Position(executor.seed, step, origin, element), read)

"""Compute a share of every rank's work twice; name the first difference by rank, step, operator and element.

In: an executed step, and the words that every rank gave to the others. Out: nothing, or RankError, the same on every
rank. Every rank executes the next one's part of the step again. The exact reference decides a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vgame.arithmetic.torch.partial import Approximate, contradiction
from vgame.commit.tensor import to_words
from vgame.execute.executor import StepResult
from vgame.execute.reference import Position, evaluate
from vgame.program.operators import RefClass, operand_refs
from vgame.ranks.exchange import Group
from vgame.ranks.executor import RankExecutor
from vgame.ranks.given import DIGEST, Given, digest
from vgame.ranks.health import RankError
from vgame.ranks.part import Drawn, Exchange, Looked, Summed

SAME = -1  # index if nothing differs


@dataclass
class Traced:
    """A tap on the operators of a step: digests of all outputs, and the outputs to keep."""

    keep: frozenset[int] = frozenset()
    digests: list[torch.Tensor] = field(default_factory=list)
    kept: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, index: int, output: torch.Tensor) -> torch.Tensor:
        self.digests.append(digest(output))
        if index in self.keep:
            self.kept[index] = output.clone()
        return output


def checked_step(executor: RankExecutor, step: int, state: Sequence[torch.Tensor]) -> StepResult:
    """A step with each part computed by two ranks. RankError if they differ."""
    result, given = executor.recorded_step(step, state)
    check(executor, executor.twice, step, state, given)
    return result


def check(own: RankExecutor, twice: RankExecutor, step: int, state: Sequence[torch.Tensor], given: Given) -> None:
    """`state`: before the step; `given`: the words that this rank gave in it; `twice` executes the next rank's part.

    Words must be equal. Sums are compared with the next rank's one by one: an error that one rank makes in every part
    it executes would be the same in both totals.
    """
    theirs = _from_next(own.group, state, [s.elements for s in twice.program.sources])
    there = [t.view(torch.float32) if not s.integer else t for t, s in zip(theirs, twice.program.sources, strict=True)]
    _, again = twice.recorded_step(step, there)
    words = _first(own.group, given.words, again.words)
    sums, _ = _first_sum(own.group, given.sums, again.sums)
    if max(_every_number(own.group, max(words, sums))) == SAME:
        return
    mine, other = Traced(), Traced()
    own.traced(step, state, mine)
    twice.traced(step, there, other)
    word = _first(own.group, mine.digests, other.digests)
    sums, position = _first_sum(own.group, *([s.mine for s in x.traced_sums.values()] for x in (own, twice)))
    sum_at = list(own.traced_sums)[sums] if sums != SAME else SAME
    index = min((at for at in (word, sum_at) if at != SAME), default=SAME)
    found = _every_number(own.group, index)
    if max(found) == SAME:
        raise _error(
            own.group,
            f"at step {step} a rank computed other bits once, and not when it was repeated: an intermittent fault",
        )
    _, player = min((at, rank) for rank, at in enumerate(found) if at != SAME)  # a wrong word changes later ones
    if found[player] in own.traced_sums:
        giver = _wrong_giver(own, twice, found[player], _every_number(own.group, position)[player])
        if giver != SAME:
            name = own.operator_name(found[player])
            sentence = f"rank {giver} computes other bits: step {step}, operator {name}, whose terms it adds up wrongly"
            raise _error(own.group, sentence)
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
    """Index of the first of the next rank's digests that differs from this rank's; SAME if none does."""
    theirs = _from_next(group, [torch.cat(mine)], [DIGEST * len(again)])[0].view(-1, DIGEST)
    differs = (theirs != torch.stack(again)).any(1).nonzero()
    return int(differs[0]) if len(differs) else SAME


def _every_number(group: Group, number: int) -> list[int]:
    """Every rank's number."""
    own = torch.tensor([number], dtype=torch.int32)
    return [int(t[0]) for t in group.swap([own] * group.world, [1] * group.world)]


def _error(group: Group, sentence: str) -> RankError:
    return RankError(
        f"{sentence}; nothing of this step is kept; check that device and start again", reported=group.rank != 0
    )


def _name(
    own: RankExecutor,
    twice: RankExecutor,
    step: int,
    states: tuple[Sequence[torch.Tensor], ...],
    player: int,
    index: int,
) -> str:
    """The error message for a difference in the part of the rank after `player`. `player` has found the difference;
    all ranks call this."""
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
    verdicts, elements = _every_number(group, wrong), _every_number(group, element)
    what = (
        f"step {step}, operator {own.operator_name(index)}, element {elements[player]} of rank "
        f"{(player + 1) % group.world}'s part"
    )
    if verdicts[player] == SAME:
        return f"ranks {player} and {(player + 1) % group.world} differ at {what}: one of them computes other bits"
    return f"rank {(player + verdicts[player]) % group.world} computes other bits: {what}"


def _first_sum(group: Group, mine: list[Approximate], again: list[Approximate]) -> tuple[int, int]:
    """(first of the next rank's sums that contradicts this rank's execution, or SAME; a position in it)."""
    found, position = SAME, 0
    for n, (own, played) in enumerate(zip(mine, again, strict=True)):
        depth = torch.tensor([own.depth], dtype=torch.float64)
        given = [x.reshape(-1).view(torch.int32) for x in (own.sums, *own.sizes, depth)]
        like = (played.sums, *played.sizes, depth)
        came = _from_next(group, given, [2 * x.numel() for x in like])
        sums, *sizes, depth = (c.view(torch.float64).view(x.shape) for c, x in zip(came, like, strict=True))
        differs = contradiction(Approximate(sums, tuple(sizes), int(depth)), played)
        if differs is not None and found == SAME:
            found, position = n, differs
    return found, position


def _wrong_giver(own: RankExecutor, twice: RankExecutor, index: int, position: int) -> int:
    """The first rank with a wrong sum of its own terms, at one position; SAME if there is none."""
    wrong = not all(x.traced_sums[index].is_right(position) for x in (own, twice))
    return next((rank for rank, is_wrong in enumerate(_every_number(own.group, wrong)) if is_wrong), SAME)


def _exact(
    executor: RankExecutor, step: int, state: Sequence[torch.Tensor], traced: Traced, index: int, element: int
) -> int | None:
    """The word by the reference; None for a word that no operator computes."""
    operator, origin = executor.program.operators[index], executor.program.origins[index]
    if isinstance(operator, Exchange | Summed | Looked):
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

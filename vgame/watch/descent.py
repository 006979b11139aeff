"""The trees of a dispute so far, and the contested leaves of each: `low` to `high` - 1.

In: a job, a dispute, the selected positions. Out: the nested trees, from the run to one word. Twin:
VerificationGame._descend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vgame.chain.records import Dispute, Job, Level, Position
from vgame.commit.words import LEAF_WORDS, leaf_count


@dataclass(frozen=True, slots=True)
class Tree:
    """One of the nested trees. `first`: the number of its leaf 0, in the unit of the caption."""

    kind: str  # run, segment, state, trace, tensor, leaf, blocks
    leaves: int
    low: int
    high: int
    first: int = 0


def step_of(d: Dispute) -> int:
    """The step of a dispute, once it is in a segment."""
    return d.step + (d.index if d.level is Level.SEGMENT and d.height == 0 else 0)


def place(job: Job, d: Dispute) -> tuple[int | None, int | None, int | None]:
    """Step, operator and element, as far as they are known."""
    reached = d.level >= Level.STATE or (d.level is Level.SEGMENT and d.height == 0)
    step = step_of(d) if reached else None
    operator = d.operator if d.level >= Level.TENSOR else d.index if (d.level, d.height) == (Level.TRACE, 0) else None
    return step, operator, d.index if d.level >= Level.ELEMENT else None


def descent(job: Job, d: Dispute, selected: Iterable[int]) -> list[Tree]:
    """The trees from the first contested root to the current node."""
    return [tree for tree in _trees(job, d, selected) if tree.leaves > 0]


def _trees(job: Job, d: Dispute, selected: Iterable[int]) -> Iterator[Tree]:
    if d.level is Level.RUN:
        yield _standing("run", job.checkpoints, d, 1)
        return
    checkpoint = _checkpoint(d, job.spec.interval)
    first, end = checkpoint * job.spec.interval, job.diverged_at - 1 if job.diverged_at else job.spec.steps
    if d.entry is Level.RUN:
        yield Tree("run", job.checkpoints, checkpoint, checkpoint + 1, 1)
    if d.entry <= Level.SEGMENT:
        count = min(job.spec.interval, max(end - first, 0)) + 1
        if d.level is Level.SEGMENT:
            yield _standing("segment", count, d, first)
            return
        yield Tree("segment", count, d.step - first, d.step - first + 1, first)
    yield from _inside(job, d, selected)


def _checkpoint(d: Dispute, interval: int) -> int:
    """Index of the contested leaf of the run tree."""
    return (d.step if d.level is Level.SEGMENT else max(d.step - 1, 0)) // interval


def _inside(job: Job, d: Dispute, selected: Iterable[int]) -> Iterator[Tree]:
    """The trees inside one step."""
    if d.level is Level.STATE:
        yield _standing("state", job.states, d, 0)
        return
    if tied := [p.index for p in map(Position.of, selected) if (p.level, p.height) == (Level.STATE, 0)]:
        yield Tree("state", job.states, tied[0], tied[0] + 1)
    if d.level is Level.TRACE:
        yield _standing("trace", job.operators, d, 0)
        return
    yield Tree("trace", job.operators, d.operator, d.operator + 1)
    if d.level is Level.TENSOR:
        yield _standing("tensor", leaf_count(d.elements), d, 0)
        return
    element = d.index
    leaf = element // LEAF_WORDS
    yield Tree("tensor", leaf_count(d.elements), leaf, leaf + 1)
    yield Tree("leaf", LEAF_WORDS, element % LEAF_WORDS, element % LEAF_WORDS + 1, leaf * LEAF_WORDS)
    if d.level is Level.PARTIAL:
        yield Tree("blocks", d.blocks, d.part, d.part + 1)


def _standing(kind: str, leaves: int, d: Dispute, first: int) -> Tree:
    """The current tree: all leaves under the contested node are contested."""
    low = d.index << d.height
    return Tree(kind, leaves, min(low, leaves), min((d.index + 1) << d.height, leaves), first)

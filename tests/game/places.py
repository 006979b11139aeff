"""Containment of places of a claim, independent of Places.sol: each place is a chain of leaf ranges, one for each tree
from the run down to its own."""

from __future__ import annotations

from typing import Any

from vgame.chain.records import Dispute, Job, Level
from vgame.commit.words import LEAF_WORDS

Link = tuple[Any, ...]  # the tree
Range = tuple[int, int]  # first leaf, leaf behind the last


def chain(d: Any, interval: int) -> dict[Link, Range]:
    """The trees above a place, with the range of leaves over it; its own tree is the last. A partial sum is its
    element."""
    leaves = d.index << d.height, (d.index + 1) << d.height
    if d.level is Level.RUN:
        return {("run",): leaves}
    before = d.step if d.level is Level.SEGMENT else d.step - 1  # the last state that is agreed on
    c = before // interval
    above: dict[Link, Range] = {("run",): (c, c + 1)}
    if d.level is Level.SEGMENT:
        return above | {("segment", c): leaves}
    above |= {("segment", c): (before % interval + 1, before % interval + 2)}
    if d.level in (Level.STATE, Level.TRACE):
        return above | {(d.level, d.step): leaves}
    above |= {(Level.TRACE, d.step): (d.operator, d.operator + 1)}
    if d.level is Level.TENSOR:
        return above | {("tensor", d.step, d.operator): leaves}
    leaf = d.index // LEAF_WORDS
    above |= {("tensor", d.step, d.operator): (leaf, leaf + 1)}
    return above | {("words", d.step, d.operator): (d.index, d.index + 1)}


def contains(outer: Dispute, inner: Any, job: Job, moved: bool) -> bool:
    """Whether a dispute's node contains the place of a verdict, or is it; a dispute that has not moved has its whole
    tree, and the posts of a claim "diverged" after its last leaf."""
    interval, end = job.spec.interval, job.diverged_at - 1 if job.diverged_at else job.spec.steps
    tree, (first, behind) = list(chain(outer, interval).items())[-1]
    below = chain(inner, interval)
    if tree not in below or not moved:
        return tree in below
    if inner.level > outer.level and tree[0] in ("run", "segment"):
        behind = min(behind, job.checkpoints if tree[0] == "run" else end - tree[1] * interval + 1)
    return first <= below[tree][0] and below[tree][1] <= behind

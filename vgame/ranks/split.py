"""Parts of tensors, and the operand parts that they need, as digits of the linear position (docs/ranks.md).

In: an access of a program, and how output and operand are split. Out: the same access on the parts of one rank, or None
if a rank does not hold all words that its part reads. Independent of the rank's number, so the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vgame.execute.layout import row_major
from vgame.program.operators import BROADCAST, Access, Dim


@dataclass(frozen=True, slots=True)
class Split:
    """position = (outer * digit + d) * inner + i; a rank holds the words with d between its cuts."""

    digit: int
    inner: int

    def shape(self, elements: int, digits: int) -> tuple[int, int, int]:
        """The tensor, or a part with so many values of d, as (outer, d, inner)."""
        return elements // (self.digit * self.inner), digits, self.inner


@dataclass(frozen=True, slots=True)
class Share:
    """A rank of `world`."""

    rank: int
    world: int

    def cut(self, digit: int) -> tuple[int, int]:
        """[low, high): this rank's values of a digit. All cuts together are 0..digit - 1, in order; shares differ by
        one at most."""
        return digit * self.rank // self.world, digit * (self.rank + 1) // self.world

    def width(self, digit: int) -> int:
        low, high = self.cut(digit)
        return high - low

    def elements(self, split: Split | Slice | None, elements: int) -> int:
        """Number of words of a part; without a split, of the whole tensor."""
        if isinstance(split, Slice):
            low, high = split.range(self)
            return high - low
        return elements if split is None else elements // split.digit * self.width(split.digit)


@dataclass(frozen=True, slots=True)
class Slice:
    """Words start..stop-1 of a tensor with consecutive parts, split by `base`: a rank holds those in its part, perhaps
    none."""

    base: Split
    start: int
    stop: int

    def range(self, share: Share) -> tuple[int, int]:
        """[low, high): a rank's words, counted in the tensor."""
        low, high = (d * self.base.inner for d in share.cut(self.base.digit))
        first = max(self.start, low)
        return first, max(first, min(self.stop, high))


def same_part(first: Split, second: Split, world: int) -> bool:
    """Whether every rank holds the same words in both splits."""
    if first.digit * first.inner != second.digit * second.inner:
        return False
    cuts = ([Share(rank, world).cut(s.digit)[0] * s.inner for rank in range(world)] for s in (first, second))
    return next(cuts) == next(cuts)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a digit: dimension `axis` is (high, digit, low)."""

    axis: int
    high: int
    low: int


def place(sizes: Sequence[int], split: Split) -> Place | None:
    """The one dimension with the digit; None if it spans several."""
    for axis, (size, stride) in enumerate(zip(sizes, row_major(tuple(sizes)), strict=True)):
        low, rest = divmod(split.inner, stride)
        if not rest and 0 < low < size and size % (low * split.digit) == 0:
            return Place(axis, size // (low * split.digit), low)
    return None


def part_sizes(sizes: tuple[int, ...], split: Split, width: int) -> tuple[int, ...] | None:
    """The index space of a part, its split dimension as (high, width, low)."""
    at = place(sizes, split)
    return None if at is None else (*sizes[: at.axis], at.high, width, at.low, *sizes[at.axis + 1 :])


def from_whole(access: Access, sizes: tuple[int, ...], split: Split, low: int) -> Access:
    """The access of a part with the first digit value `low` on a whole operand."""
    at = _placed(sizes, split)
    target, c = access.targets[at.axis]
    steps = ((target, c * split.digit * at.low), (target, c * at.low), (target, c)) if target != BROADCAST else (
        (BROADCAST, 0),) * 3  # fmt: skip
    dims = tuple(
        replace(dim, offset=dim.offset + c * at.low * low) if j == target else dim for j, dim in enumerate(access.dims)
    )
    return replace(access, dims=dims, targets=(*access.targets[: at.axis], *steps, *access.targets[at.axis + 1 :]))


def from_part(access: Access, sizes: tuple[int, ...], split: Split, operand: Split, width: int) -> Access | None:
    """The access of a part on the part of its operand; None unless every word is read, or out of bounds, exactly as in
    the whole.

    The coordinate along the operand's split dimension is (H * digit + d) * low + L: d must be the output's digit, and
    L, which every other index may move, stay in 0..low - 1. Then the part's coordinate is (H * width + d - cut) * low +
    L.
    """
    at = place([d.size for d in access.dims], operand)
    if at is None or operand.digit != split.digit or access.dims[at.axis].divisor != 1:
        return None
    refined, spaces = from_whole(access, sizes, split, 0), part_sizes(sizes, split, split.digit)
    dim, period = access.dims[at.axis], split.digit * at.low
    high, lowest = divmod(dim.offset, period)
    highest, moved = lowest, False
    targets = list(refined.targets)
    for index, ((target, c), size) in enumerate(zip(refined.targets, spaces, strict=True)):
        if target != at.axis or c == 0 or size == 1:
            continue
        if index == _placed(sizes, split).axis + 1:
            moved = c == at.low
        elif c % period == 0:
            targets[index] = (target, c // split.digit * width)
        else:
            lowest, highest = lowest + min(0, c * (size - 1)), highest + max(0, c * (size - 1))
    if not moved or lowest < 0 or highest >= at.low:
        return None
    part = Dim(at.high * width * at.low, high * width * at.low + dim.offset % period)
    dims = (*access.dims[: at.axis], part, *access.dims[at.axis + 1 :])
    return replace(refined, dims=dims, targets=tuple(targets))


def follow(access: Access, sizes: tuple[int, ...], operand: Split) -> list[Split]:
    """Splits of the output that may follow its operand's: by the same digit, or by the rest of it after a slice."""
    at = place([d.size for d in access.dims], operand)
    found = []
    for (target, c), size, stride in zip(access.targets, sizes, row_major(sizes), strict=True):
        if at is None or target != at.axis or c <= 0 or at.low % c or size % (low := at.low // c):
            continue
        digit = operand.digit if size % (low * operand.digit) == 0 else size // low
        if digit > 1:
            found.append(Split(digit, stride * low))
    return found


def nested(outside: Split, inside: Split) -> bool:
    """Whether each value of the first digit contains whole runs of the second."""
    return outside.inner % (inside.digit * inside.inner) == 0


def _placed(sizes: tuple[int, ...], split: Split) -> Place:
    at = place(sizes, split)
    assert at is not None, f"{split} lies in no one dimension of {sizes}"
    return at


def cells(elements: int, first: Split, second: Split) -> tuple[int, int, int, int, int]:
    """A tensor as (outer, a digit, between, the other digit, inner), for nested splits; the outer one's digit comes
    first."""
    a, b = (first, second) if nested(first, second) else (second, first)
    between = a.inner // (b.digit * b.inner)
    return elements // math.prod((a.digit, between, b.digit, b.inner)), a.digit, between, b.digit, b.inner

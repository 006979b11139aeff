"""Sorting: every element is compared with every other of its line, and its rank is a sum of truth values; equal
elements keep their order."""

from __future__ import annotations

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.indexing import elementwise_positions
from vgame.program.lowering.pointwise import both
from vgame.program.lowering.table import lowers

LONGEST = 8192  # elements of a line
MOST = 1 << 28  # comparisons


def _places(b: Builder, x: Value, descending: bool) -> Value:
    """[rows, n]: the rank of each value of x [rows, n] in its line."""
    rows, n = x.shape
    if n > LONGEST or rows * n * n > MOST:
        raise ProgramError(
            f"sorting {rows} lines of {n} elements is not supported; at most {LONGEST} elements per line and {MOST} "
            "comparisons in all are"
        )
    mine, other = x.like(x.layout.unsqueeze(2)), x.like(x.layout.unsqueeze(1))
    first, second = (mine, other) if descending else (other, mine)
    before = both(b, Function.LT, first, second)
    earlier = b.constant(torch.ones(n, n, dtype=torch.bool).tril(-1))
    tie = b.map(Function.IAND, both(b, Function.EQ, other, mine), earlier.like(earlier.layout.expand(rows, n, n)))
    return b.map(Function.FTOI, b.sum_rows(b.to_float(b.map(Function.IOR, before, tie))))


def _order(b: Builder, x: Value, count: int, dim: int, descending: bool) -> tuple[Value, Value]:
    """The first `count` (values, indices) along the dimension."""
    if not x.shape:
        return x, b.full((), 0, True)
    moved = x.like(x.layout.movedim(dim, -1))
    n = moved.shape[-1]
    lines = b.reshape(moved, [moved.elements // n, n])
    numbers = b.to_float(b.iota(n))
    numbers = numbers.like(numbers.layout.expand(1, 1, n))
    index = b.map(Function.FTOI, b.one_hot_sum(_places(b, lines, descending), numbers, count))
    index = b.reshape(index, [*moved.shape[:-1], count])
    index = index.like(index.layout.movedim(-1, dim))
    positions = elementwise_positions(b, x.shape, dim % len(x.shape), index)
    return b.gather_rows(b.reshape(x, [x.elements]), positions), index


@lowers("sort.default")
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _order(b, x, x.shape[dim] if x.shape else 1, dim, descending)


@lowers("sort.stable")
def stable_sort(
    b: Builder, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return sort(b, x, dim, descending)


@lowers("topk.default")
def topk(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    return _order(b, x, k, dim, largest)


@lowers("kthvalue.default")
def kthvalue(b: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    results = _order(b, x, k, dim, False)
    last = [v.like(v.layout.narrow(dim, k - 1, 1)) for v in results]
    return tuple(v if keepdim else v.like(v.layout.squeeze(dim)) for v in last)


@lowers("median.dim")
def median(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower of two middle elements, as in torch."""
    return kthvalue(b, x, (x.shape[dim] + 1) // 2, dim, keepdim)


@lowers("median.default")
def median_of_all(b: Builder, x: Value) -> Value:
    return median(b, b.reshape(x, [x.elements]), 0)[0]


@lowers("randperm.default")
def randperm(b: Builder, count: int, **_: object) -> Value:
    """The sorting order of `count` random words."""
    return _order(b, b.random_words([count]), count, 0, False)[1]


@lowers("histc.default")
def histogram(b: Builder, x: Value, bins: int = 100, low: Number = 0, high: Number = 0) -> Value:
    """Counts of bins of equal width from low to high; values outside are not counted."""
    if low >= high:
        raise ProgramError("a histogram over the range of its data is not supported; give min and max")
    flat = b.reshape(b.to_float(x), [1, x.elements])
    share = b.map(Function.DIV, b.map(Function.SUB, flat, float(low)), float(high - low))
    place = b.map(Function.FTOI, b.map(Function.FLOOR, b.map(Function.MUL, share, float(bins))))
    place = b.select(b.map(Function.EQ, flat, float(high)), bins - 1, place)
    counts = b.one_hot_sum(place, b.full([1, 1, x.elements], 1.0, False), bins)
    counts = b.reshape(counts, [bins])
    return b.map(Function.FTOI, counts) if x.integer else counts


@lowers("bucketize.Tensor")
def bucketize(
    b: Builder, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False, **_: object
) -> Value:
    """The number of boundaries [n] below x (with `right`: at most x)."""
    function = Function.LE if right else Function.LT
    return b.map(Function.FTOI, b.sum_rows(b.to_float(both(b, function, boundaries, x.like(x.layout.unsqueeze(-1))))))


@lowers("searchsorted.Tensor")
def searchsorted(
    b: Builder, boundaries: Value, x: Value, *, side: str | None = None, right: bool = False, **_: object
) -> Value:
    """`bucketize` in each line of boundaries [..., n]."""
    if len(boundaries.shape) > 1:
        boundaries = boundaries.like(boundaries.layout.unsqueeze(-2))
    return bucketize(b, x, boundaries, right=right or side == "right")

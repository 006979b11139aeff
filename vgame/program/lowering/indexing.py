"""Indexing: reading is a gather of rows; adding back is a one-hot sum, exact however often an index occurs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import both
from vgame.program.lowering.reduction import cumsum, integer_sums, reversed_order
from vgame.program.lowering.table import lowers
from vgame.program.lowering.views import constant_pad
from vgame.program.operators import RefClass


def wrapped(b: Builder, index: Value, size: int) -> Value:
    """Negative indices count from the end."""
    if index.ref.cls is RefClass.CONSTANT and bool((b.constants[index.ref.index] >= 0).all()):
        return index
    return b.select(b.map(Function.ILT, index, 0), b.map(Function.IADD, index, size), index)


def axis(b: Builder, size: int, dim: int, rank: int, stride: int) -> Value:
    """stride * i along dimension `dim` of `rank`."""
    return b.constant((torch.arange(size) * stride).reshape([-1 if d == dim else 1 for d in range(rank)]))


def elementwise_positions(b: Builder, shape: Sequence[int], dim: int, index: Value) -> Value:
    """Flat positions in a tensor of `shape` that torch.gather / scatter(dim, index) address."""
    rank, strides = len(shape), torch.empty(tuple(shape), device="meta").stride()
    position = b.map(Function.IMUL, index, strides[dim]) if strides[dim] != 1 else index
    for d in range(rank):
        if d != dim and index.shape[d] > 1:
            position = b.map(Function.IADD, position, axis(b, index.shape[d], d, rank, strides[d]))
    return position


@lowers("gather.default")
def gather(b: Builder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    dim %= max(len(x.shape), 1)
    positions = elementwise_positions(b, x.shape, dim, index)
    return b.gather_rows(b.reshape(x, [x.elements]), positions)


@lowers("index_select.default")
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    moved = x.like(x.layout.movedim(dim, 0))
    result = b.gather_rows(moved, index)
    return result.like(result.layout.movedim(0, dim))


def scatter_rows(b: Builder, index: Value, rows: Value, count: int) -> Value:
    """[count, width]: exact sums of the rows [K, width] by their index [K]."""
    if rows.integer:
        return integer_sums(b, rows, rows.shape[0], lambda part: scatter_rows(b, index, part, count))
    columns = rows.like(rows.layout.t().unsqueeze(0))
    result = b.one_hot_sum(index.like(index.layout.unsqueeze(0)), columns, count)
    return result.like(result.layout.squeeze(0))


# ---- index / index_put ----


def _positions(b: Builder, shape: Sequence[int], indices: Sequence[Value | None]) -> tuple[Value, int, list[int]]:
    """(flat row positions, first indexed dimension, indexed dimensions): rows over the dimensions not indexed."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    if any(indices[d].boolean for d in dims):
        raise ProgramError("indexing with a mask is not supported: the size of the result depends on the data")
    position = None
    for d in dims:
        stride = math.prod(shape[e] for e in dims if e > d)
        index = wrapped(b, indices[d], shape[d])
        step = b.map(Function.IMUL, index, stride) if stride != 1 else index
        position = step if position is None else b.map(Function.IADD, position, step)
    return position, dims[0], dims


def _is_block(dims: list[int]) -> bool:
    return dims == list(range(dims[0], dims[0] + len(dims)))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    position, first, dims = _positions(b, x.shape, indices)
    rest = [d for d in range(len(x.shape)) if d not in dims]
    table = x.like(x.layout.permute(*dims, *rest))
    table = b.reshape(table, [math.prod(x.shape[d] for d in dims), *(x.shape[d] for d in rest)])
    result = b.gather_rows(table, position)
    if not _is_block(dims) or first == 0:
        return result
    rank = len(position.shape)
    order = [rank + i for i in range(first)] + list(range(rank)) + [rank + i for i in range(first, len(rest))]
    return result.like(result.layout.permute(*order))


@lowers("index_put.default", "_unsafe_index_put.default")
def index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """x with the exact sums of the values added (accumulate), or overwritten: the last of several writers to one place
    wins."""
    if values.elements == 1 and not accumulate and indices[0] is not None and indices[0].boolean:
        return _fill_where(b, x, indices, values)
    position, first, dims = _positions(b, x.shape, indices)
    rest = [d for d in range(len(x.shape)) if d not in dims]
    flat = b.reshape(position, [position.elements])
    count = math.prod(x.shape[d] for d in dims)
    if not accumulate and _is_uniform(values):
        hits = scatter_rows(b, flat, b.full([flat.elements, 1], 1.0, False), count)
        value = values.like(values.layout.as_strided((), (), values.layout.storage_offset()))
        return _restore(b, x, dims, rest, lambda table: b.select(b.map(Function.LT, 0.0, hits), value, table))
    rows = _value_rows(b, x, values, position, first, dims, rest)
    if accumulate:
        added = scatter_rows(b, flat, rows, count)
        return _restore(b, x, dims, rest, lambda table: both(b, Function.ADD, table, added))
    owner = _owners(
        b, [flat.elements, 1], 0, lambda v: scatter_rows(b, flat, v, count), lambda v: b.gather_rows(v, flat)
    )
    written = b.gather_rows(rows, owner.like(owner.layout.squeeze(1)))
    return _restore(b, x, dims, rest, lambda table: b.select(b.map(Function.ILE, 0, owner), written, table))


def _is_uniform(x: Value) -> bool:
    """Whether all elements are the same word in memory."""
    return all(size == 1 or step == 0 for size, step in zip(x.shape, x.layout.stride(), strict=True))


def _fill_where(b: Builder, x: Value, masks: Sequence[Value | None], value: Value) -> Value:
    """x[mask] = one value."""
    if len(masks) != 1:
        raise ProgramError("indexing with a mask and other indices is not supported")
    mask = masks[0]
    value = value.like(value.layout.reshape(()))
    return b.select(mask.like(mask.layout.reshape(*mask.shape, *(1,) * (len(x.shape) - len(mask.shape)))), value, x)


Change = Callable[[Value], Value]


def _owners(b: Builder, shape: Sequence[int], dim: int, to_places: Change, from_places: Change) -> Value:
    """The number of the last writer to each place; -1 for a place without a writer.

    Writers have this shape and are numbered along a dimension. to_places: the sum over the writers of each place;
    from_places: for each writer the value at its place.
    """
    if shape[dim] >= 1 << 24:
        raise ProgramError(f"writing {shape[dim]} rows by index is not supported; at most 2^24 - 1 rows are")
    numbers = torch.arange(1, shape[dim] + 1)
    last = _along(b, numbers.float(), shape, dim)
    if not b.checked:
        last = b.map(Function.MUL, last, _last(b, shape, dim, numbers, to_places, from_places))
    return b.map(Function.ISUB, b.map(Function.FTOI, to_places(last)), 1)


def _last(
    b: Builder, shape: Sequence[int], dim: int, numbers: torch.Tensor, to_places: Change, from_places: Change
) -> Value:
    """1 for the last writer to each place, 0 for the others. Bit by bit from the highest, a writer without the bit
    loses if another writer to its place has it."""
    left = b.full(shape, 1.0, False)
    for bit in reversed(range(int(numbers[-1]).bit_length())):
        having = b.map(Function.MUL, left, _along(b, (numbers >> bit & 1).float(), shape, dim))
        met = from_places(to_places(having))
        left = b.select(b.map(Function.LT, 0.0, met), having, left)
    return left


def _along(b: Builder, line: torch.Tensor, shape: Sequence[int], dim: int) -> Value:
    """A constant line along a dimension of this shape."""
    value = b.constant(line.reshape([-1 if d == dim else 1 for d in range(len(shape))]))
    return value.like(value.layout.expand(tuple(shape)))


def _value_rows(
    b: Builder, x: Value, values: Value, position: Value, first: int, dims: list[int], rest: list[int]
) -> Value:
    """The values as rows [indexed positions, the dimensions that are not indexed]."""
    inside = first if _is_block(dims) else 0
    front, back = [x.shape[d] for d in rest[:inside]], [x.shape[d] for d in rest[inside:]]
    wide = values.layout.expand(*front, *position.shape, *back)
    rank = len(position.shape)
    order = [*range(inside, inside + rank), *range(inside), *range(inside + rank, wide.dim())]
    width = math.prod(x.shape[d] for d in rest)
    return b.reshape(values.like(wide.permute(*order)), [position.elements, width])


def _restore(b: Builder, x: Value, dims: list[int], rest: list[int], change) -> Value:
    """Apply a change to x viewed as [indexed, rest], and restore x's shape."""
    order = [*dims, *rest]
    count = math.prod(x.shape[d] for d in dims)
    table = b.reshape(x.like(x.layout.permute(*order)), [count, x.elements // count])
    result = b.reshape(change(table), [x.shape[d] for d in order])
    inverse = [order.index(d) for d in range(len(order))]
    return result.like(result.layout.permute(*inverse))


# ---- scatter ----


def _scatter_sum(b: Builder, shape: Sequence[int], dim: int, index: Value, source: Value) -> Value:
    """Zeros of `shape` plus the exact sums of source at (index along dim)."""
    if source.integer:
        return integer_sums(b, source, index.shape[dim], lambda part: _scatter_sum(b, shape, dim, index, part))
    moved_index = index.like(index.layout.movedim(dim, -1))
    moved = source.like(source.layout[tuple(slice(n) for n in index.shape)].movedim(dim, -1))
    rows = moved_index.elements // index.shape[dim]
    flat = b.reshape(moved_index, [rows, index.shape[dim]])
    sums = b.one_hot_sum(flat, b.reshape(moved, [rows, 1, index.shape[dim]]), shape[dim])
    result = b.reshape(sums, [*moved_index.shape[:-1], shape[dim]])
    result = result.like(result.layout.movedim(-1, dim))
    missing = [n - m for n, m in zip(shape, result.shape, strict=True)]
    return constant_pad(b, result, [p for n in reversed(missing) for p in (0, n)]) if any(missing) else result


@lowers("scatter_add.default")
def scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim %= max(len(x.shape), 1)
    return both(b, Function.ADD, x, _scatter_sum(b, x.shape, dim, index, source))


@lowers("scatter.value")
def scatter_value(b: Builder, x: Value, dim: int, index: Value, value: Number | Value) -> Value:
    dim %= max(len(x.shape), 1)
    if [1 if d == dim else n for d, n in enumerate(x.shape)] == list(index.shape):
        hit = b.map(Function.IEQ, axis(b, x.shape[dim], dim, len(x.shape), 1), index)
    else:
        hit = b.map(Function.LT, 0.0, _scatter_sum(b, x.shape, dim, index, b.full(index.shape, 1.0, False)))
    return b.select(hit, value if isinstance(value, Value) else b.number(value, x.integer), x)


@lowers("scatter.src")
def scatter_source(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    """The last of several writers to one place wins."""
    if _is_uniform(source):
        return scatter_value(
            b, x, dim, index, source.like(source.layout.as_strided((), (), source.layout.storage_offset()))
        )
    dim %= max(len(x.shape), 1)
    owner = _owners(
        b,
        index.shape,
        dim,
        lambda v: _scatter_sum(b, x.shape, dim, index, v),
        lambda v: gather(b, v, dim, index),
    )
    written = b.gather_rows(b.reshape(source, [source.elements]), elementwise_positions(b, source.shape, dim, owner))
    return b.select(b.map(Function.ILE, 0, owner), written, x)


@lowers("scatter_reduce.two")
def scatter_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    """Sum, mean, amax or amin of all elements written to a position, and of the old one (include_self)."""
    dim %= max(len(x.shape), 1)
    count = _scatter_sum(b, x.shape, dim, index, b.full(index.shape, 1.0, False))
    hit = b.map(Function.LT, 0.0, count)
    if reduce in ("sum", "mean") and not (x.integer and reduce == "mean"):
        own = x if include_self else b.select(hit, 0, x)
        result = both(b, Function.ADD, own, _scatter_sum(b, x.shape, dim, index, source))
        if reduce == "sum":
            return result
        terms = b.map(Function.ADD, count, 1.0) if include_self else b.map(Function.MAX, count, 1.0)
        return b.map(Function.DIV, result, terms)
    if reduce not in ("amax", "amin"):
        raise ProgramError(
            f"scatter_reduce with {reduce!r} of {x.layout.dtype} is not supported; use sum, amax or amin"
        )
    if reduce == "amin":
        turned = scatter_reduce(b, reversed_order(b, x), dim, index, reversed_order(b, source), "amax", include_self)
        return b.select(hit, reversed_order(b, turned), x)
    largest = _scatter_max(b, x.shape, dim, index, source)
    own = both(b, Function.MAX, x, largest) if include_self else largest
    return b.select(hit, own, x)


def _scatter_max(b: Builder, shape: Sequence[int], dim: int, index: Value, source: Value) -> Value:
    """The largest element written to each position, or the lowest value without a writer: compares every pair."""
    lowest = -(2**31) if source.integer else -math.inf
    last = lambda v: v.like(v.layout.movedim(dim, -1).unsqueeze(-2))  # noqa: E731
    moved = last(source.like(source.layout[tuple(slice(n) for n in index.shape)]))
    places = b.iota(shape[dim])
    here = b.map(Function.IEQ, last(index), places.like(places.layout.unsqueeze(-1)))
    result = b.max_rows(b.select(here, moved, lowest))
    result = result.like(result.layout.movedim(-1, dim))
    missing = [n - m for n, m in zip(shape, result.shape, strict=True)]
    return constant_pad(b, result, [p for n in reversed(missing) for p in (0, n)], lowest) if any(missing) else result


@lowers("masked_scatter.default")
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """The source's elements in order at the true elements of the mask: a running count gives the index."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask, x = (v.like(v.layout.expand(shape)) for v in (mask, x))
    taken = b.gather_rows(b.reshape(source, [source.elements]), _ranks(b, mask))
    return b.select(mask, b.reshape(taken, shape), x)


def _ranks(b: Builder, mask: Value) -> Value:
    """[elements]: for each true element the number of true elements before it."""
    return b.map(Function.ISUB, cumsum(b, b.reshape(mask, [mask.elements]), 0), 1)


@lowers("masked_scatter_backward.default")
def masked_scatter_backward(b: Builder, gradient: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """The gradients at the true elements in order, then zeros."""
    mask = mask.like(mask.layout.expand(gradient.shape))
    index = b.select(b.reshape(mask, [mask.elements]), _ranks(b, mask), -1)
    return b.reshape(scatter_rows(b, index, b.reshape(gradient, [gradient.elements, 1]), math.prod(sizes)), sizes)


@lowers("put.default")
def put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """Indices address the flattened tensor."""
    flat = b.reshape(x, [x.elements])
    return b.reshape(index_put(b, flat, [index], source, accumulate), x.shape)


# ---- padding with the edge: its gradient ----


@lowers(
    "replication_pad1d_backward.default", "replication_pad2d_backward.default", "replication_pad3d_backward.default"
)
def replication_pad_backward(b: Builder, gradient: Value, x: Value, padding: Sequence[int]) -> Value:
    """Each element takes the exact sum of the gradients of its copies."""
    count = len(padding) // 2
    planes, pixels = math.prod(x.shape[:-count]), math.prod(x.shape[-count:])
    grid = torch.arange(float(pixels), dtype=torch.float64).view(1, 1, *x.shape[-count:])
    origin = torch.nn.functional.pad(grid, list(padding), mode="replicate").to(torch.int32).view(1, -1)
    sums = b.one_hot_sum(b.constant(origin), b.reshape(gradient, [1, planes, origin.shape[1]]), pixels)
    return b.reshape(sums.like(sums.layout.transpose(1, 2)), x.shape)

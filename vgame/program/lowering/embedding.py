"""Embeddings and bags of them: rows by index; their gradients are exact sums by index."""

from __future__ import annotations

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.indexing import scatter_rows
from vgame.program.lowering.table import lowers

SUM, MEAN, MAX = 0, 1, 2


@lowers("embedding.default")
def embedding(
    b: Builder,
    weight: Value,
    index: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return b.gather_rows(weight, index)


@lowers("embedding_dense_backward.default")
def embedding_backward(
    b: Builder, gradient: Value, index: Value, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        raise ProgramError("embeddings with scale_grad_by_freq are not supported")
    flat = without(b, b.reshape(index, [index.elements]), b.reshape(index, [index.elements]), padding_idx)
    return scatter_rows(b, flat, b.reshape(gradient, [flat.elements, gradient.shape[-1]]), count)


def without(b: Builder, target: Value, index: Value, padding_idx: int) -> Value:
    """The targets, -1 (none) for the padding index."""
    return target if padding_idx < 0 else b.select(b.map(Function.IEQ, index, padding_idx), -1, target)


# ---- bags: consecutive parts of index [K] that start at offsets [B] ----


def _bags(b: Builder, count: int, offsets: Value) -> Value:
    """[K]: the bag of each position: the number of offsets up to it, minus one."""
    starts = offsets.like(offsets.layout.unsqueeze(0))
    places = b.iota(count)
    begun = b.map(Function.ILE, starts, places.like(places.layout.unsqueeze(1)))
    return b.map(Function.ISUB, b.map(Function.FTOI, b.sum_rows(b.to_float(begun))), 1)


def _sizes(b: Builder, bags: Value, count: int) -> Value:
    """[B]: positions of each bag."""
    ones = b.full([bags.elements, 1], 1.0, False)
    sizes = scatter_rows(b, bags, ones, count)
    return sizes.like(sizes.layout.squeeze(1))


@lowers("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    b: Builder,
    weight: Value,
    index: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """(sum, mean or maximum of each bag's rows, 0 for an empty bag; bag of each position; sizes; rows of the
    maxima)."""
    if include_last_offset:
        offsets = offsets.like(offsets.layout[:-1])
    count, bags = offsets.elements, without(b, _bags(b, index.elements, offsets), index, padding_idx)
    sizes, rows = _sizes(b, bags, count), b.gather_rows(weight, index)
    if mode == MAX:
        largest, owners = _largest(b, rows, index, bags, count)
        return largest, bags, sizes, owners
    if weights is not None:
        rows = b.map(Function.MUL, rows, weights.like(weights.layout.unsqueeze(1)))
    total = scatter_rows(b, bags, rows, count)
    if mode == MEAN:
        total = b.map(Function.DIV, total, _column(b, sizes))
    return total, bags, sizes, sizes


def _column(b: Builder, sizes: Value) -> Value:
    """[B, 1], at least 1."""
    sizes = b.map(Function.MAX, sizes, 1.0)
    return sizes.like(sizes.layout.unsqueeze(1))


def _largest(b: Builder, rows: Value, index: Value, bags: Value, count: int) -> tuple[Value, Value]:
    """([B, W] maxima, their indices, -1 for an empty bag): every position is compared with every bag."""
    places = b.iota(count)
    mine = b.map(Function.IEQ, places.like(places.layout.view(-1, 1, 1)), bags)
    candidates = b.select(mine, rows.like(rows.layout.t().unsqueeze(0)), float("-inf"))
    filled = b.map(Function.LT, float("-inf"), largest := b.max_rows(candidates))
    owners = b.gather_rows(index, b.argmax_rows(candidates))
    return b.select(filled, largest, 0.0), b.select(filled, owners, -1)


@lowers("_embedding_bag_backward.default")
def embedding_bag_backward(
    b: Builder,
    gradient: Value,
    index: Value,
    offsets: Value,
    bags: Value,
    sizes: Value,
    owners: Value,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """[count, W]: the weight's gradient."""
    if scale_grad_by_freq or sparse:
        raise ProgramError("embedding bags with scale_grad_by_freq or sparse are not supported")
    if mode == MAX:
        columns = owners.like(owners.layout.t())
        sums = b.one_hot_sum(columns, gradient.like(gradient.layout.t().unsqueeze(1)), count)
        return sums.like(sums.layout.squeeze(2).t())
    if mode == MEAN:
        gradient = b.map(Function.DIV, gradient, _column(b, sizes))
    rows = b.gather_rows(gradient, bags)
    if weights is not None:
        rows = b.map(Function.MUL, rows, weights.like(weights.layout.unsqueeze(1)))
    return scatter_rows(b, without(b, index, index, padding_idx), rows, count)


@lowers("_embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(
    b: Builder,
    gradient: Value,
    weight: Value,
    index: Value,
    offsets: Value,
    bags: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    """[K]: each position's row times the gradient of its bag."""
    product = b.map(Function.MUL, b.gather_rows(gradient, bags), b.gather_rows(weight, index))
    return b.sum_rows(product)

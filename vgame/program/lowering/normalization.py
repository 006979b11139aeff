"""Normalisations, decomposed: mean, two-pass variance, 1 / sqrt, scale; and their gradients.

All of them are one rule over rows: x [rows..., reduced...] with statistics over some dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgame.arithmetic.functions import Function
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.pointwise import rsqrt
from vgame.program.lowering.reduction import moments, total
from vgame.program.lowering.table import lowers


def normalized(b: Builder, x: Value, center: Value, scale: Value) -> Value:
    """(x - mean) * rstd."""
    return b.map(Function.MUL, b.map(Function.SUB, x, center), scale)


def affine(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = b.map(Function.MUL, x, weight)
    return x if bias is None else b.map(Function.ADD, x, bias)


def statistics(b: Builder, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """(mean, 1 / sqrt(variance + eps)), keepdim."""
    variance, center = moments(b, x, dims)
    return center, rsqrt(b, b.map(Function.ADD, variance, eps))


def input_gradient(b: Builder, gradient: Value, hat: Value, scale: Value, dims: Sequence[int], count: int) -> Value:
    """rstd * (g - mean(g) - hat * mean(g * hat)) over `dims`."""
    mean_g = b.map(Function.DIV, total(b, gradient, dims, True), float(count))
    product = total(b, b.map(Function.MUL, gradient, hat), dims, True)
    pull = b.map(Function.MUL, hat, b.map(Function.DIV, product, float(count)))
    inner = b.map(Function.SUB, b.map(Function.SUB, gradient, mean_g), pull)
    return b.map(Function.MUL, inner, scale)


# ---- layer norm ----


def _split(x: Value, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    front = len(x.shape) - len(shape)
    return list(range(front)), list(range(front, len(x.shape)))


@lowers("native_layer_norm.default")
def layer_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    _, dims = _split(x, shape)
    center, scale = statistics(b, x, dims, eps)
    return affine(b, normalized(b, x, center, scale), weight, bias), center, scale


@lowers("native_layer_norm_backward.default")
def layer_norm_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    shape: Sequence[int],
    center: Value,
    scale: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    front, dims = _split(x, shape)
    hat = normalized(b, x, center, scale)
    to_x = to_weight = to_bias = None
    if mask[0]:
        inner = gradient if weight is None else b.map(Function.MUL, gradient, weight)
        to_x = input_gradient(b, inner, hat, scale, dims, math.prod(shape))
    if mask[1]:
        to_weight = total(b, b.map(Function.MUL, gradient, hat), front) if front else b.map(Function.MUL, gradient, hat)
    if mask[2]:
        to_bias = total(b, gradient, front) if front else gradient
    return to_x, to_weight, to_bias


# ---- group norm ----


def _channels(value: Value, rank: int) -> Value:
    return value.like(value.layout.reshape(-1, *(1,) * (rank - 2)))


@lowers("native_group_norm.default")
def group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, pixels: int, groups: int, eps: float
) -> tuple[Value, Value, Value]:
    rows = b.reshape(x, (n, groups, c // groups * pixels))
    center, scale = statistics(b, rows, [2], eps)
    hat = b.reshape(normalized(b, rows, center, scale), x.shape)
    rank = len(x.shape)
    weight, bias = (v if v is None else _channels(v, rank) for v in (weight, bias))
    return affine(b, hat, weight, bias), b.reshape(center, (n, groups)), b.reshape(scale, (n, groups))


@lowers("native_group_norm_backward.default")
def group_norm_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    center: Value,
    scale: Value,
    weight: Value | None,
    n: int,
    c: int,
    pixels: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    rows_shape, rank = (n, groups, c // groups * pixels), len(x.shape)
    center, scale = b.reshape(center, (n, groups, 1)), b.reshape(scale, (n, groups, 1))
    hat = normalized(b, b.reshape(x, rows_shape), center, scale)
    others = [d for d in range(rank) if d != 1]
    to_x = to_weight = to_bias = None
    if mask[0]:
        inner = gradient if weight is None else b.map(Function.MUL, gradient, _channels(weight, rank))
        rows = input_gradient(b, b.reshape(inner, rows_shape), hat, scale, [2], rows_shape[2])
        to_x = b.reshape(rows, x.shape)
    if mask[1]:
        to_weight = total(b, b.map(Function.MUL, gradient, b.reshape(hat, x.shape)), others)
    if mask[2]:
        to_bias = total(b, gradient, others)
    return to_x, to_weight, to_bias


# ---- batch norm (the capture decomposes the forward pass, with the update of running statistics) ----


@lowers("native_batch_norm_backward.default")
def batch_norm_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_rstd: Value | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    rank, others = len(x.shape), [d for d in range(len(x.shape)) if d != 1]
    if train:
        center, scale = save_mean, save_rstd
    else:
        center, scale = running_mean, rsqrt(b, b.map(Function.ADD, running_var, eps))
    center, scale = _channels(center, rank), _channels(scale, rank)
    hat = normalized(b, x, center, scale)
    to_x = to_weight = to_bias = None
    if mask[0]:
        inner = gradient if weight is None else b.map(Function.MUL, gradient, _channels(weight, rank))
        count = math.prod(x.shape[d] for d in others)
        to_x = input_gradient(b, inner, hat, scale, others, count) if train else b.map(Function.MUL, inner, scale)
    if mask[1]:
        to_weight = total(b, b.map(Function.MUL, gradient, hat), others)
    if mask[2]:
        to_bias = total(b, gradient, others)
    return to_x, to_weight, to_bias


# ---- weight norm: v g / |v|, the norm over all dimensions but one ----


@lowers("_weight_norm_interface_backward.default")
def weight_norm_backward(
    b: Builder, gradient: Value, v: Value, g: Value, norms: Value, dim: int
) -> tuple[Value, Value]:
    """To v: (g / |v|) (gradient - v s / |v|^2) with s = sum(gradient v); to g: s / |v|."""
    others = [d for d in range(len(v.shape)) if d != dim % len(v.shape)]
    share = b.map(Function.DIV, total(b, b.map(Function.MUL, gradient, v), others, True), norms)
    pull = b.map(Function.MUL, v, b.map(Function.DIV, share, norms))
    to_v = b.map(Function.MUL, b.map(Function.SUB, gradient, pull), b.map(Function.DIV, g, norms))
    return to_v, share

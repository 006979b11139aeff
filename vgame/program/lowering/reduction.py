"""Reductions: a sum is one exact sum rounded once; a mean is RN(RN(sum) / n); a variance takes two passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import both, to_copy, truth
from vgame.program.lowering.table import lowers
from vgame.program.lowering.views import constant_pad, stack

Dims = Sequence[int] | int | None


def normalized(x: Value, dims: Dims) -> list[int]:
    """The reduced dimensions, counted from the front; all of them if `dims` is empty."""
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    return sorted({d % len(x.shape) for d in dims}) if dims and x.shape else list(range(len(x.shape)))


def rows(x: Value, dims: list[int]) -> Value:
    """[kept..., reduced]: the reduced dimensions flattened into the last one."""
    kept = [d for d in range(len(x.shape)) if d not in dims]
    return x.like(x.layout.permute(*kept, *dims)) if x.shape else x


def reduced(b: Builder, x: Value, dims: Dims, keepdim: bool, rule: str) -> Value:
    """Apply the builder's row reduction over any dimensions."""
    over = normalized(x, dims)
    length = math.prod(x.shape[d] for d in over)
    kept = [n for d, n in enumerate(x.shape) if d not in over]
    result = getattr(b, rule)(b.reshape(rows(x, over), [*kept, length]))
    shape = [1 if d in over else n for d, n in enumerate(x.shape)] if keepdim else kept
    return b.reshape(result, shape)


EXACT_BYTES = (1 << 24) // 255  # sums of at most this many bytes are exact in binary32
EXACT_TRUTHS = 1 << 24


def integer_sums(b: Builder, x: Value, terms: int, sums: Callable[[Value], Value]) -> Value:
    """Sums of int32 modulo 2^32: the sums of each of the four bytes are exact in binary32; they are shifted and
    added."""
    if terms > (EXACT_TRUTHS if x.boolean else EXACT_BYTES):
        raise ProgramError(f"a sum of {terms} integers is not supported; convert them to float first")
    if x.boolean:
        return b.map(Function.FTOI, sums(b.to_float(x)))
    result = None
    for shift in (0, 8, 16, 24):
        byte = b.map(Function.IAND, b.map(Function.ISHR, x, shift) if shift else x, 255)
        part = b.map(Function.FTOI, sums(b.to_float(byte)))
        part = b.map(Function.ISHL, part, shift) if shift else part
        result = part if result is None else b.map(Function.IADD, result, part)
    return result


def _summands(b: Builder, x: Value, dtype: torch.dtype | None) -> Value:
    """x in the type of its sum; truth values, whose sums are cheap, are not converted to integers."""
    return x if x.boolean and not (dtype and dtype.is_floating_point) else to_copy(b, x, dtype)


@lowers("sum.dim_IntList", "sum.default")
def total(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    """One rounding per sum; integers modulo 2^32."""
    x = _summands(b, x, dtype)
    if not x.integer:
        return reduced(b, x, dims, keepdim, "sum_rows")
    terms = math.prod(x.shape[d] for d in normalized(x, dims))
    return integer_sums(b, x, terms, lambda y: reduced(b, y, dims, keepdim, "sum_rows"))


@lowers("mean.dim", "mean.default")
def mean(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    """RN(RN(sum) / n)."""
    count = math.prod(x.shape[d] for d in normalized(x, dims))
    return b.map(Function.DIV, reduced(b, b.to_float(x), dims, keepdim, "sum_rows"), float(count))


def moments(b: Builder, x: Value, dims: Dims, correction: Number = 0) -> tuple[Value, Value]:
    """(variance, mean), keepdim; two passes: mean first, then the mean of squared deviations."""
    center = mean(b, x, dims, True)
    deviation = b.map(Function.SUB, x, center)
    squares = reduced(b, b.map(Function.MUL, deviation, deviation), dims, True, "sum_rows")
    count = math.prod(x.shape[d] for d in normalized(x, dims)) - correction
    return b.map(Function.DIV, squares, float(max(count, 0))), center


def _dropped(b: Builder, x: Value, dims: Dims, value: Value, keepdim: bool) -> Value:
    over = normalized(x, dims)
    return value if keepdim else b.reshape(value, [n for d, n in enumerate(x.shape) if d not in over])


@lowers("var_mean.correction")
def var_mean(
    b: Builder, x: Value, dims: Dims = None, correction: Number | None = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, center = moments(b, x, dims, 1 if correction is None else correction)
    return _dropped(b, x, dims, variance, keepdim), _dropped(b, x, dims, center, keepdim)


@lowers("var.correction")
def var(b: Builder, x: Value, dims: Dims = None, correction: Number | None = 1, keepdim: bool = False) -> Value:
    return var_mean(b, x, dims, correction, keepdim)[0]


@lowers("std.correction")
def std(b: Builder, x: Value, dims: Dims = None, correction: Number | None = 1, keepdim: bool = False) -> Value:
    return b.map(Function.SQRT, var(b, x, dims, correction, keepdim))


@lowers("amax.default")
def amax(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    return reduced(b, x, dims, keepdim, "max_rows")


@lowers("amin.default")
def amin(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    """-max(-x), for integers not(max(not x)); NaN wins as in the maximum, and 0 - m makes a zero result +0."""
    if x.integer:
        return b.map(Function.IXOR, reduced(b, reversed_order(b, x), dims, keepdim, "max_rows"), -1)
    return b.map(Function.SUB, 0.0, reduced(b, reversed_order(b, x), dims, keepdim, "max_rows"))


def reversed_order(b: Builder, x: Value) -> Value:
    """The smallest becomes the largest: -x, for integers -1 - x."""
    return b.map(Function.IXOR, x, -1) if x.integer else b.map(Function.NEG, x)


@lowers("argmax.default")
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """For integers: the first position whose element equals the maximum."""
    if x.integer:
        x = b.to_float(b.map(Function.IEQ, x, reduced(b, x, dim, True, "max_rows")))
    return reduced(b, x, dim, keepdim, "argmax_rows")


@lowers("argmin.default")
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return argmax(b, reversed_order(b, x), dim, keepdim)


@lowers("max.dim")
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return amax(b, x, [dim], keepdim), argmax(b, x, dim, keepdim)


@lowers("max.default")
def max_all(b: Builder, x: Value) -> Value:
    return amax(b, x)


@lowers("min.default")
def min_all(b: Builder, x: Value) -> Value:
    return amin(b, x)


@lowers("min.dim")
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return amin(b, x, [dim], keepdim), argmin(b, x, dim, keepdim)


@lowers("any.dim", "any.default", "any.dims")
def any_of(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    return reduced(b, truth(b, x), dims, keepdim, "max_rows").retyped(torch.bool)


@lowers("all.default", "all.dim", "all.dims")
def all_of(b: Builder, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    return both(b, Function.EQ, any_of(b, both(b, Function.EQ, x, 0), dims, keepdim), 0)


@lowers("prod.dim_int")
def prod(b: Builder, x: Value, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    """One product after the other, first to last."""
    x = to_copy(b, x, dtype)
    parts = [x.like(x.layout.select(dim, i)) for i in range(x.shape[dim])]
    result = parts[0]
    for part in parts[1:]:
        result = both(b, Function.MUL, result, part)
    return result.like(result.layout.unsqueeze(dim)) if keepdim else result


@lowers("prod.default")
def prod_of_all(b: Builder, x: Value, dtype: torch.dtype | None = None) -> Value:
    return prod(b, b.reshape(x, [x.elements]), 0, dtype=dtype)


@lowers("logcumsumexp.default")
def logcumsumexp(b: Builder, x: Value, dim: int) -> Value:
    """For runs of 2, 4, 8, ... elements that end at each position: log(exp x + exp y) of their two halves."""
    result, reach = b.to_float(x), 1
    while x.shape and reach < x.shape[dim]:
        pad = [0] * (2 * (len(x.shape) - 1 - dim % len(x.shape))) + [reach, -reach]
        result = _log_of_sum(b, result, constant_pad(b, result, pad, -math.inf))
        reach *= 2
    return result


def _log_of_sum(b: Builder, x: Value, y: Value) -> Value:
    """m + log1p(exp(n - m)) of the larger m and the smaller n; m if m is +inf or n is -inf."""
    top, low = b.map(Function.MAX, x, y), b.map(Function.MIN, x, y)
    total = b.map(Function.ADD, top, b.map(Function.LOG1P, b.map(Function.EXP, b.map(Function.SUB, low, top))))
    alone = b.map(Function.IOR, b.map(Function.EQ, low, -math.inf), b.map(Function.EQ, top, math.inf))
    return b.select(alone, top, total)


@lowers("cumprod.default")
def cumprod(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """The products of the first 1, 2, ... elements, one after the other."""
    x = to_copy(b, x, dtype)
    if not x.shape:
        return x
    results: list[Value] = []
    for i in range(x.shape[dim]):
        part = x.like(x.layout.select(dim, i))
        results.append(both(b, Function.MUL, results[-1], part) if results else part)
    return stack(b, results, dim)


@lowers("cumsum.default")
def cumsum(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """out[i] = the exact sum of x[0..i], rounded once (beyond LONGEST_RUN once more): a product with a triangle of
    ones."""
    x = _summands(b, x, dtype)
    if not x.shape:
        return x
    if not x.integer:
        return _running_sums(b, x, dim)
    return integer_sums(b, x, x.shape[dim], lambda y: _running_sums(b, y, dim))


LONGEST_RUN = 2048  # elements of a line whose running sums are one product; longer lines are split


def _running_sums(b: Builder, x: Value, dim: int) -> Value:
    moved = x.like(x.layout.movedim(dim, -1))
    count = moved.shape[-1]
    result = b.reshape(_of_rows(b, b.reshape(moved, [x.elements // count, count])), moved.shape)
    return result.like(result.layout.movedim(-1, dim))


def _of_rows(b: Builder, x: Value) -> Value:
    """Running sums of the rows [R, n]. Long rows: the running sums in each piece, plus the sum of the pieces before
    it."""
    rows, count = x.shape
    if count <= LONGEST_RUN:
        triangle = b.constant(torch.ones(count, count).tril())
        sums = b.dot(x.like(x.layout.unsqueeze(0)), triangle.like(triangle.layout.unsqueeze(0)))
        return sums.like(sums.layout.squeeze(0))
    pieces = -(-count // LONGEST_RUN)
    padded = b.reshape(constant_pad(b, x, [0, pieces * LONGEST_RUN - count]), [rows * pieces, LONGEST_RUN])
    totals = b.reshape(b.sum_rows(padded), [rows, pieces])
    before = b.reshape(constant_pad(b, _of_rows(b, totals), [1, -1]), [rows * pieces, 1])
    sums = b.reshape(b.map(Function.ADD, _of_rows(b, padded), before), [rows, pieces * LONGEST_RUN])
    return sums.like(sums.layout[:, :count])


@lowers("linalg_vector_norm.default")
def vector_norm(
    b: Builder, x: Value, order: Number = 2, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Value:
    if order == 2:
        return b.map(Function.SQRT, reduced(b, b.map(Function.MUL, x, x), dims, keepdim, "sum_rows"))
    if order == 1:
        return reduced(b, b.map(Function.ABS, x), dims, keepdim, "sum_rows")
    if order == math.inf:
        return reduced(b, b.map(Function.ABS, x), dims, keepdim, "max_rows")
    raise ProgramError(f"the vector norm of order {order} is not supported; 1, 2 and infinity are")


def shifted_exponentials(b: Builder, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """(x - max, exp of it, sum of that): the common part of softmax and log-softmax."""
    shifted = b.map(Function.SUB, x, amax(b, x, [dim], True))
    exponentials = b.map(Function.EXP, shifted)
    return shifted, exponentials, total(b, exponentials, [dim], True)


@lowers("_softmax.default")
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
    _, exponentials, normalizer = shifted_exponentials(b, x, dim)
    return b.map(Function.DIV, exponentials, normalizer)


@lowers("_safe_softmax.default")
def safe_softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax, or 0 if a whole row is masked with -inf."""
    masked = b.map(Function.EQ, amax(b, x, [dim], True), -math.inf)
    return b.select(masked, 0.0, softmax(b, x, dim))


@lowers("_log_softmax.default")
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
    shifted, _, normalizer = shifted_exponentials(b, x, dim)
    return b.map(Function.SUB, shifted, b.map(Function.LOG, normalizer))


@lowers("_softmax_backward_data.default")
def softmax_backward(b: Builder, gradient: Value, output: Value, dim: int, dtype: torch.dtype) -> Value:
    """(g - sum(g y)) y, with the product g y rounded."""
    weighted = b.map(Function.MUL, gradient, output)
    return b.map(Function.SUB, weighted, b.map(Function.MUL, output, total(b, weighted, [dim], True)))


@lowers("_log_softmax_backward_data.default")
def log_softmax_backward(b: Builder, gradient: Value, output: Value, dim: int, dtype: torch.dtype) -> Value:
    """g - exp(y) sum(g)."""
    scale = b.map(Function.MUL, b.map(Function.EXP, output), total(b, gradient, [dim], True))
    return b.map(Function.SUB, gradient, scale)

"""Layout: views cost nothing, the rest is a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.table import lowers
from vgame.program.operators import BROADCAST, Access, Dim
from vgame.program.validate import MAX_ACCESSES


def _view(name: str) -> None:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)

    @lowers(name)
    def handler(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Any:
        layout = operator(x.layout, *args, **kwargs)
        return x.like(layout) if isinstance(layout, torch.Tensor) else [x.like(item) for item in layout]


for _name in (
    "alias.default",
    "permute.default",
    "expand.default",
    "squeeze.dims",
    "unsqueeze.default",
    "select.int",
    "slice.Tensor",
    "split_with_sizes.default",
    "diagonal.default",
    "unfold.default",
):
    _view(_name)


@lowers("view.default")
def view(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return b.reshape(x, shape)


@lowers("clone.default", "lift_fresh_copy.default")
def clone(b: Builder, x: Value, **_: Any) -> Value:
    """Values never change, so a clone is the value itself."""
    return x


@lowers("copy.default")
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    if not x.integer:
        source = b.to_float(source)
    elif not source.integer and not x.boolean:
        source = b.map(Function.FTOI, source)
    return source.like(source.layout.expand(x.shape))


def whole(b: Builder, x: Value) -> Value:
    """The value in a form for an access with bounds: a plain tensor, or an immediate."""
    return x if x.is_immediate else b.plain(x)


def along(x: Value, dims: Sequence[Dim], coefficients: Sequence[int] | None = None, fill: int = 0) -> Access:
    """Access whose output dimension i moves along operand dimension i."""
    if x.is_immediate:
        raise ProgramError("an immediate has no dimensions to move along")
    coefficients = coefficients or [1] * len(dims)
    return Access(x.ref, tuple(dims), tuple(enumerate(coefficients)), fill)


@lowers("constant_pad_nd.default")
def constant_pad(b: Builder, x: Value, pad: Sequence[int], value: Number = 0) -> Value:
    """pad lists (before, after) from the last dimension backwards."""
    before = [0] * len(x.shape)
    after = [0] * len(x.shape)
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    shape = [p + n + q for p, n, q in zip(before, x.shape, after, strict=True)]
    x = b.plain(x)
    dims = [Dim(n, -p) for n, p in zip(x.shape, before, strict=True)]
    return b.copy(shape, [along(x, dims, fill=b.number(value, x.integer).word)], x.layout.dtype)


@lowers("cat.default")
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """One access per tensor; the one in bounds wins."""
    tensors = [t for t in tensors if t.elements]
    if any(not t.integer for t in tensors):
        tensors = [b.to_float(t) for t in tensors]
    if len(tensors) == 1:
        return tensors[0]
    if len(tensors) > MAX_ACCESSES:
        pieces = (tensors[i : i + MAX_ACCESSES] for i in range(0, len(tensors), MAX_ACCESSES))
        return cat(b, [cat(b, piece, dim) for piece in pieces], dim)
    dim %= len(tensors[0].shape)
    shape, accesses, start = list(tensors[0].shape), [], 0
    for tensor in (b.plain(t) for t in tensors):
        dims = [Dim(n, -start if i == dim else 0) for i, n in enumerate(tensor.shape)]
        accesses.append(along(tensor, dims))
        start += tensor.shape[dim]
    shape[dim] = start
    return b.copy(shape, accesses, tensors[0].layout.dtype)


@lowers("stack.default")
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    return cat(b, [t.like(t.layout.unsqueeze(dim)) for t in tensors], dim)


@lowers("triu_indices.default")
def triu_indices(b: Builder, rows: int, columns: int, offset: int = 0, **_: Any) -> Value:
    return b.constant(torch.triu_indices(rows, columns, offset))


@lowers("tril_indices.default")
def tril_indices(b: Builder, rows: int, columns: int, offset: int = 0, **_: Any) -> Value:
    return b.constant(torch.tril_indices(rows, columns, offset))


@lowers("flip.default")
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    x = b.plain(x)
    flipped = {d % len(x.shape) for d in dims}
    sizes = [Dim(n, n - 1 if i in flipped else 0) for i, n in enumerate(x.shape)]
    signs = [-1 if i in flipped else 1 for i in range(len(x.shape))]
    return b.copy(x.shape, [along(x, sizes, signs)], x.layout.dtype)


@lowers("repeat.default")
def repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    """Each repetition is a broadcast dimension in front of the dimension it repeats."""
    layout = x.layout.reshape((1,) * (len(repeats) - len(x.shape)) + tuple(x.shape))
    shape = [r * n for r, n in zip(repeats, layout.shape, strict=True)]
    for i, r in reversed(list(enumerate(repeats))):
        layout = layout.unsqueeze(i)
        layout = layout.expand(*(r if j == i else -1 for j in range(layout.dim())))
    return b.reshape(x.like(layout), shape)


@lowers("roll.default")
def roll(b: Builder, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = b.reshape(x, [x.elements])
        return b.reshape(roll(b, flat, shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        shift %= x.shape[dim]
        if shift:
            cut = x.shape[dim] - shift
            x = cat(b, [x.like(x.layout.narrow(dim, cut, shift)), x.like(x.layout.narrow(dim, 0, cut))], dim)
    return x


def write_window(b: Builder, base: Value, window: Value, dim: int, start: int, step: int = 1) -> Value:
    """base with positions start, start + step, ... along dim replaced by the window."""
    if not window.elements:
        return base
    window, base = b.plain(window), whole(b, base)
    dims = [Dim(n, -start if i == dim else 0, step if i == dim else 1) for i, n in enumerate(window.shape)]
    if base.is_immediate:
        behind = Access(base.ref, (), ((BROADCAST, 0),) * len(base.shape), base.word)
    else:
        behind = along(base, [Dim(n) for n in base.shape])
    return b.copy(base.shape, [along(window, dims), behind], window.layout.dtype)


@lowers("slice_scatter.default")
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    first, _, _ = slice(start, end, step).indices(x.shape[dim])
    return write_window(b, x, source, dim % len(x.shape), first, step)


@lowers("select_scatter.default")
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    window = source.like(source.layout.unsqueeze(dim))
    return write_window(b, x, window, dim % len(x.shape), index % x.shape[dim])


def _scattered(name: str) -> None:
    """A view written into: a constant table gives the source element of each element."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)

    @lowers(name)
    def handler(b: Builder, x: Value, source: Value, *args: Any, **kwargs: Any) -> Value:
        positions = torch.arange(source.elements).view(source.shape)
        owner = operator(torch.full(x.shape, -1), positions, *args, **kwargs)
        written = b.gather_rows(b.reshape(source, [source.elements]), b.constant(owner))
        return b.select(b.constant(owner >= 0), written, x)


for _name in ("as_strided_scatter.default", "diagonal_scatter.default"):
    _scattered(_name)


@lowers("slice_backward.default")
def slice_backward(
    b: Builder, gradient: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    return slice_scatter(b, b.full(sizes, 0, gradient.integer), gradient, dim, start, end, step)


@lowers("select_backward.default")
def select_backward(b: Builder, gradient: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    return select_scatter(b, b.full(sizes, 0, gradient.integer), gradient, dim, index)


@lowers("as_strided.default")
def as_strided(
    b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """as_strided of a row-major tensor: the capture permutes any other order of memory first."""
    x = b.plain(x)
    return x.like(x.layout.as_strided(tuple(size), tuple(stride), storage_offset or 0))


# ---- values without operands ----


def _integer_type(dtype: torch.dtype | None, number: Number) -> bool:
    if dtype is None:
        return not isinstance(number, float)
    return not dtype.is_floating_point


@lowers("full.default")
def full(b: Builder, size: Sequence[int], number: Number, dtype: torch.dtype | None = None, **_: Any) -> Value:
    value = b.full(size, bool(number) if dtype == torch.bool else number, _integer_type(dtype, number))
    return value.retyped(torch.bool) if dtype == torch.bool else value


@lowers("full_like.default")
def full_like(b: Builder, x: Value, number: Number, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return full(b, x.shape, number, dtype or x.layout.dtype)


@lowers("scalar_tensor.default")
def scalar_tensor(b: Builder, number: Number, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return full(b, (), number, dtype or torch.float32)


@lowers("new_zeros.default", "empty.memory_format")
def zeros(b: Builder, x: Value | Sequence[int], *size: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    if isinstance(x, Value):
        return full(b, size[0] if size else x.shape, 0, dtype or x.layout.dtype)
    return full(b, x, 0, dtype or torch.float32)


@lowers("empty_permuted.default", "empty_strided.default")
def empty(b: Builder, size: Sequence[int], _layout: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return full(b, size, 0, dtype or torch.float32)


@lowers("new_empty_strided.default")
def new_empty_strided(b: Builder, x: Value, size: Sequence[int], _stride: Any, **_: Any) -> Value:
    return full(b, size, 0, x.layout.dtype)


@lowers("arange.start_step")
def arange(
    b: Builder, start: Number, end: Number, step: Number = 1, dtype: torch.dtype | None = None, **_: Any
) -> Value:
    return b.constant(torch.arange(start, end, step, dtype=dtype))


@lowers("eye.default")
def eye(b: Builder, n: int, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return b.constant(torch.eye(n, dtype=dtype))

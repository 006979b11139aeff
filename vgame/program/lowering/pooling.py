"""Pooling: windows as a copy, then a maximum or a sum over each row; backward through the same windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vgame.arithmetic.functions import Function
from vgame.program.lowering.builder import Builder, Value, float_word
from vgame.program.lowering.table import lowers
from vgame.program.operators import Access, Dim, Map, RefClass

Ints = Sequence[int]


@dataclass(frozen=True, slots=True)
class Windows:
    """Pooling windows over the last len(kernel) dimensions of x [planes, *inputs]."""

    planes: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def columns(self, b: Builder, x: Value, fill: float) -> Value:
        """[planes, *outputs, window]."""
        x = b.plain(x)
        dims = (Dim(self.planes), *(Dim(n, -p) for n, p in zip(self.inputs, self.padding, strict=True)))
        pixel = [(n, (1 + i, self.stride[i])) for i, n in enumerate(self.outputs)]
        taps = [(n, (1 + i, self.dilation[i])) for i, n in enumerate(self.kernel)]
        space = [(self.planes, (0, 1)), *pixel, *taps]
        access = Access(x.ref, dims, tuple(t for _, t in space), float_word(fill))
        copied = b.copy([n for n, _ in space], [access], torch.float32)
        return b.reshape(copied, (self.planes, *self.outputs, math.prod(self.kernel)))

    def gradient_columns(self, b: Builder, y: Value) -> Value:
        """[planes, *inputs, window]: the outputs whose window contains the input, 0 for none."""
        y = b.plain(y)
        spatial = (Dim(n, p, s) for n, p, s in zip(self.outputs, self.padding, self.stride, strict=True))
        pixel = [(n, (1 + i, 1)) for i, n in enumerate(self.inputs)]
        taps = [(n, (1 + i, -self.dilation[i])) for i, n in enumerate(self.kernel)]
        space = [(self.planes, (0, 1)), *pixel, *taps]
        access = Access(y.ref, (Dim(self.planes), *spatial), tuple(t for _, t in space))
        copied = b.copy([n for n, _ in space], [access], torch.float32)
        return b.reshape(copied, (self.planes, *self.inputs, math.prod(self.kernel)))

    def positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(flat input position of each window's first tap [*outputs], of each tap relative to it [window])."""
        return self._grid(self.outputs, self.stride, self.padding), self._grid(
            self.kernel, self.dilation, (0,) * len(self.kernel)
        ).reshape(-1)

    def first_inside(self) -> torch.Tensor:
        """Flat input position of each window's first tap outside the padding [*outputs]."""
        starts = (torch.arange(n) * self.stride[i] - self.padding[i] for i, n in enumerate(self.outputs))
        return self._flat([torch.where(s < 0, s % self.dilation[i], s) for i, s in enumerate(starts)])

    def _grid(self, sizes: Ints, steps: Ints, back: Ints) -> torch.Tensor:
        return self._flat([torch.arange(n) * steps[i] - back[i] for i, n in enumerate(sizes)])

    def _flat(self, axes: Sequence[torch.Tensor]) -> torch.Tensor:
        position = torch.zeros(tuple(len(axis) for axis in axes), dtype=torch.int64)
        for i, axis in enumerate(axes):
            position = position + axis.reshape(-1, *(1,) * (len(axes) - 1 - i)) * math.prod(self.inputs[i + 1 :])
        return position


def _wide(values: Ints | int, count: int) -> tuple[int, ...]:
    values = [values] if isinstance(values, int) else list(values)
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _output(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    span = n + 2 * padding - dilation * (kernel - 1) - 1
    count = -(-span // stride) + 1 if ceil else span // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= n + padding else count


def windows(x: torch.Size, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool) -> Windows:
    """Windows over the last len(kernel) dimensions; the stride defaults to the kernel."""
    count = len(kernel)
    kernel, stride = _wide(kernel, count), _wide(stride or kernel, count)
    padding, dilation = _wide(padding, count), _wide(dilation, count)
    inputs = tuple(x[len(x) - count :])
    outputs = tuple(_output(n, kernel[i], stride[i], padding[i], dilation[i], ceil) for i, n in enumerate(inputs))
    return Windows(math.prod(x[: len(x) - count]), inputs, outputs, kernel, stride, padding, dilation)


@lowers("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(
    b: Builder,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """(maximum, flat position in the plane of the first maximum)."""
    shape = windows(x.shape, kernel, stride, padding, dilation, ceil_mode)
    columns = shape.columns(b, x, -math.inf)
    result = (*x.shape[: -len(kernel)], *shape.outputs)
    position = _winners(b, shape, b.argmax_rows(columns), not any(shape.padding) or _has_floor(b, x))
    return b.reshape(b.max_rows(columns), result), b.reshape(position, result)


def _winners(b: Builder, shape: Windows, taps: Value, inside: bool) -> Value:
    """Flat positions in the plane of the winning taps [planes, *outputs]; `inside`: whether padding cannot win (it wins
    if all inputs are -inf)."""
    first, offsets = shape.positions()
    if inside:
        return b.map(Function.IADD, b.gather_rows(b.constant(offsets), taps), b.constant(first))
    table = first.reshape(-1, 1) + offsets
    table[:, 0] = shape.first_inside().reshape(-1)  # torch returns the first tap outside the padding
    starts = (torch.arange(table.shape[0]) * table.shape[1]).view(shape.outputs)
    return b.gather_rows(b.constant(table.reshape(-1)), b.map(Function.IADD, taps, b.constant(starts)))


def _has_floor(b: Builder, x: Value) -> bool:
    """Whether x is a maximum with a number above -inf, such as a ReLU."""
    operator = b.operators[x.ref.index] if x.ref.cls is RefClass.OPERATOR else None
    if not isinstance(operator, Map) or operator.function is not Function.MAX:
        return False
    return any(a.ref.cls is RefClass.IMMEDIATE and a.fill != float_word(-math.inf) for a in operator.accesses)


@lowers("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def max_pool_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Value,
) -> Value:
    return _to_winners(b, gradient, x, indices, len(kernel))


def _to_winners(b: Builder, gradient: Value, x: Value, indices: Value, count: int) -> Value:
    """Each input gets the exact sum of the gradients of the windows that it won."""
    planes, pixels = math.prod(x.shape[:-count]), math.prod(x.shape[-count:])
    rows = b.reshape(indices, (planes, -1))
    result = b.one_hot_sum(rows, b.reshape(gradient, (planes, 1, -1)), pixels)
    return b.reshape(result, x.shape)


def _divisor(shape: Windows, include_pad: bool, override: int | None) -> torch.Tensor | float:
    """The number of positions counted by each window."""
    if override:
        return float(override)
    counts = torch.ones(shape.outputs)
    for i, n in enumerate(shape.inputs):
        start = torch.arange(shape.outputs[i]) * shape.stride[i] - shape.padding[i]
        edge = n + (shape.padding[i] if include_pad else 0)
        first = start if include_pad else start.clamp(min=0)
        length = (start + shape.kernel[i]).clamp(max=edge) - first
        counts = counts * length.reshape(-1, *(1,) * (len(shape.inputs) - 1 - i))
    return counts


@lowers("avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    b: Builder,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """RN(RN(sum) / count)."""
    shape = windows(x.shape, kernel, stride, padding, (1,), ceil_mode)
    sums = b.sum_rows(shape.columns(b, x, 0.0))
    divisor = _divisor(shape, count_include_pad, divisor_override)
    divisor = b.constant(divisor) if isinstance(divisor, torch.Tensor) else divisor
    return b.reshape(b.map(Function.DIV, sums, divisor), (*x.shape[: -len(kernel)], *shape.outputs))


@lowers("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def avg_pool_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each input gets the exact sum of the shares of the windows that contain it."""
    shape = windows(x.shape, kernel, stride, padding, (1,), ceil_mode)
    divisor = _divisor(shape, count_include_pad, divisor_override)
    divisor = b.constant(divisor) if isinstance(divisor, torch.Tensor) else divisor
    share = b.map(Function.DIV, b.reshape(gradient, (shape.planes, *shape.outputs)), divisor)
    return b.reshape(b.sum_rows(shape.gradient_columns(b, share)), x.shape)


# ---- adaptive average pooling: a product with a matrix of zeros and ones, then the division ----


def _bins(inputs: Ints, outputs: Ints) -> torch.Tensor:
    """[outputs, inputs] of 0 and 1: the input pixels averaged by each output."""
    result = torch.ones(1, 1)
    for n, m in zip(inputs, outputs, strict=True):
        axis = torch.zeros(m, n)
        for i in range(m):
            axis[i, i * n // m : -(-(i + 1) * n // m)] = 1
        result = torch.kron(result, axis)
    return result


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(b: Builder, x: Value, output: Ints) -> Value:
    count = len(output)
    inputs = x.shape[-count:]
    if all(n % m == 0 for n, m in zip(inputs, output, strict=True)):
        return avg_pool(b, x, [n // m for n, m in zip(inputs, output, strict=True)])
    bins = _bins(inputs, output)
    flat = b.reshape(x, (1, -1, math.prod(inputs)))
    sums = b.dot(flat, b.constant(bins[None]))
    return b.reshape(b.map(Function.DIV, sums, b.constant(bins.sum(1))), (*x.shape[:-count], *output))


@lowers("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(b: Builder, gradient: Value, x: Value) -> Value:
    return _adaptive_backward(b, gradient, x, 2)


@lowers("_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(b: Builder, gradient: Value, x: Value) -> Value:
    return _adaptive_backward(b, gradient, x, 3)


def _adaptive_backward(b: Builder, gradient: Value, x: Value, count: int) -> Value:
    inputs, output = x.shape[-count:], gradient.shape[-count:]
    if all(n % m == 0 for n, m in zip(inputs, output, strict=True)):
        kernel = [n // m for n, m in zip(inputs, output, strict=True)]
        return avg_pool_backward(b, gradient, x, kernel, kernel, (0,), False, True, None)
    bins = _bins(inputs, output)
    share = b.map(Function.DIV, b.reshape(gradient, (1, -1, bins.shape[0])), b.constant(bins.sum(1)))
    return b.reshape(b.dot(share, b.constant(bins.T.contiguous()[None])), x.shape)


# ---- adaptive maximum pooling: windows of unequal size, as a table of positions ----


def _bin_positions(inputs: Ints, outputs: Ints) -> torch.Tensor:
    """[outputs, widest window]: flat input positions of each output's window, padded with -1."""
    members = [row.nonzero().reshape(-1) for row in _bins(inputs, outputs)]
    return torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=-1)


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(b: Builder, x: Value, output: Ints) -> tuple[Value, Value]:
    """(maximum, flat position in the plane of the first maximum)."""
    count = len(output)
    planes, pixels = math.prod(x.shape[:-count]), math.prod(x.shape[-count:])
    table = _bin_positions(x.shape[-count:], output)
    columns = b.reshape(x, (planes, pixels))
    windows_first = b.gather_rows(columns.like(columns.layout.t()), b.constant(table), -math.inf)
    windows_last = windows_first.like(windows_first.layout.permute(2, 0, 1))
    starts = b.constant((torch.arange(table.shape[0]) * table.shape[1]).view(1, -1))
    position = b.gather_rows(b.constant(table.reshape(-1)), b.map(Function.IADD, b.argmax_rows(windows_last), starts))
    shape = (*x.shape[:-count], *output)
    return b.reshape(b.max_rows(windows_last), shape), b.reshape(position, shape)


@lowers("adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(b: Builder, gradient: Value, x: Value, indices: Value) -> Value:
    return _to_winners(b, gradient, x, indices, 2)


@lowers("adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(b: Builder, gradient: Value, x: Value, indices: Value) -> Value:
    return _to_winners(b, gradient, x, indices, 3)

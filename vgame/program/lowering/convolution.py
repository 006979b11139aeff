"""Convolutions of any number of spatial dimensions as products over window copies (im2col).

One geometry serves the output, the gradient of the input (which is also the transposed convolution) and the gradient of
the weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vgame.arithmetic.functions import Function
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.reduction import total
from vgame.program.lowering.table import lowers
from vgame.program.operators import Access, Dim

Ints = Sequence[int]


#: Largest number of phases with separate products.
MOST_PHASES = 9


@dataclass(frozen=True, slots=True)
class Phase:
    """Input pixels residue, residue + stride, .. of one axis, and the taps by which they contribute to outputs.

    Pixel q contributes by tap taps[u] to output (offset + q - back * u) / divisor, if that is an integer.
    """

    residue: int
    pixels: int
    taps: range
    offset: int
    back: int
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """x [batch, groups * inner, *inputs] -> y [batch, groups * outer, *outputs] by weights [groups * outer, inner,
    *kernel]."""

    batch: int
    groups: int
    inner: int
    outer: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def window(self) -> int:
        return math.prod(self.kernel)

    def _x_dims(self) -> tuple[Dim, ...]:
        spatial = tuple(Dim(n, -p) for n, p in zip(self.inputs, self.padding, strict=True))
        return (Dim(self.batch), Dim(self.groups * self.inner), *spatial)

    def columns(self, b: Builder, x: Value, *, transposed: bool) -> Value:
        """[groups, batch * outputs, inner * kernel], or with `transposed` [groups, inner * kernel, batch * outputs]."""
        x, axes = b.plain(x), range(len(self.kernel))
        pixel = [(self.batch, (0, 1)), *((n, (2 + i, self.stride[i])) for i, n in enumerate(self.outputs))]
        taps = [(self.inner, (1, 1)), *((self.kernel[i], (2 + i, self.dilation[i])) for i in axes)]
        return self._copy(b, x, self._x_dims(), self.inner, taps + pixel if transposed else pixel + taps, taps)

    def gradient_columns(self, b: Builder, y: Value, phases: Sequence[Phase]) -> Value:
        """[groups, batch * pixels, outer * taps]: the outputs to which each pixel of a phase contributes, with the
        taps."""
        spatial = (Dim(n, phase.offset, phase.divisor) for n, phase in zip(self.outputs, phases, strict=True))
        dims = (Dim(self.batch), Dim(self.groups * self.outer), *spatial)
        pixel = [(self.batch, (0, 1)), *((phase.pixels, (2 + i, 1)) for i, phase in enumerate(phases))]
        taps = [(self.outer, (1, 1)), *((len(phase.taps), (2 + i, -phase.back)) for i, phase in enumerate(phases))]
        return self._copy(b, y, dims, self.outer, pixel + taps, taps)

    def _copy(
        self,
        b: Builder,
        x: Value,
        dims: tuple[Dim, ...],
        channels: int,
        space: list[tuple[int, tuple[int, int]]],
        taps: list[tuple[int, tuple[int, int]]],
    ) -> Value:
        space = [(self.groups, (1, channels)), *space]
        access = Access(x.ref, dims, tuple(target for _, target in space))
        copied = b.copy([n for n, _ in space], [access], torch.float32)
        k = math.prod(n for n, _ in taps)
        rest = copied.elements // self.groups // k
        return b.reshape(copied, (self.groups, k, rest) if space[1 : 1 + len(taps)] == taps else (self.groups, rest, k))

    def weights(self, b: Builder, w: Value) -> Value:
        """[groups, outer, inner * kernel]."""
        return b.reshape(w, (self.groups, self.outer, self.inner * self.window))

    def swapped_weights(self, b: Builder, w: Value, phases: Sequence[Phase]) -> Value:
        """[groups, inner, outer * taps]."""
        taps = [slice(phase.taps.start, phase.taps.stop, phase.taps.step) for phase in phases]
        w = w.like(w.layout[:, :, *taps])
        split = b.reshape(w, (self.groups, self.outer, self.inner, -1))
        return b.reshape(split.like(split.layout.transpose(1, 2)), (self.groups, self.inner, -1))

    def unfold_channels(self, b: Builder, product: Value, channels: int, spatial: tuple[int, ...]) -> Value:
        """[groups, channels, batch * pixels] -> [batch, groups * channels, *spatial], a view."""
        split = b.reshape(product, (self.groups * channels, self.batch, *spatial))
        return split.like(split.layout.transpose(0, 1))

    def forward(self, b: Builder, x: Value, w: Value) -> Value:
        product = b.dot(self.weights(b, w), self.columns(b, x, transposed=False))
        return self.unfold_channels(b, product, self.outer, self.outputs)

    def input_gradient(self, b: Builder, y: Value, w: Value) -> Value:
        """Phase by phase: products without the zero terms of a stride."""
        y, parts = b.plain(y), []
        for phases in itertools.product(*map(self._phases, range(len(self.kernel)))):
            product = b.dot(self.swapped_weights(b, w, phases), self.gradient_columns(b, y, phases))
            pixels = tuple(phase.pixels for phase in phases)
            if pixels == self.inputs:
                return self.unfold_channels(b, product, self.inner, pixels)
            parts.append(self._spread(product, phases))
        shape = (self.batch, self.groups * self.inner, *self.inputs)
        return b.copy(shape, parts, torch.float32) if parts else b.full(shape, 0.0, False)

    def _phases(self, axis: int) -> list[Phase]:
        """The phases of an axis; a single one if there would be too many."""
        n, kernel, stride = self.inputs[axis], self.kernel[axis], self.stride[axis]
        padding, dilation = self.padding[axis], self.dilation[axis]
        if math.prod(self.stride) > MOST_PHASES:
            return [Phase(0, n, range(kernel), padding, dilation, stride)]
        common = math.gcd(stride, dilation)
        found = []
        for residue in range(min(stride, n)):
            first = next((t for t in range(kernel) if (residue + padding - t * dilation) % stride == 0), None)
            if first is not None:
                taps = range(first, kernel, stride // common)
                offset = (residue + padding - first * dilation) // stride
                found.append(Phase(residue, -(-(n - residue) // stride), taps, offset, dilation // common))
        return found

    def _spread(self, product: Value, phases: Sequence[Phase]) -> Access:
        """A phase's pixels [groups, inner, batch * pixels] at their places in [batch, groups * inner, *inputs]."""
        spatial = [Dim(p.pixels, -p.residue, s) for p, s in zip(phases, self.stride, strict=True)]
        dims = (Dim(self.groups * self.inner), Dim(self.batch), *spatial)
        return Access(product.ref, dims, ((1, 1), (0, 1), *((2 + i, 1) for i in range(len(phases)))))

    def weight_gradient(self, b: Builder, x: Value, y: Value) -> Value:
        pixels = self.batch * math.prod(self.outputs)
        rows = y.like(y.layout.transpose(0, 1))
        rows = b.reshape(rows, (self.groups, self.outer, pixels))
        product = b.dot(rows, self.columns(b, x, transposed=True))
        return b.reshape(product, (self.groups * self.outer, self.inner, *self.kernel))


def _wide(values: Ints, count: int) -> tuple[int, ...]:
    return tuple(values) * count if len(values) == 1 else tuple(values)


def geometry(
    x: torch.Size,
    w: torch.Size,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    transposed: bool,
    extra: Ints,
) -> Geometry:
    """Geometry of the (untransposed) convolution; a transposed one is its input gradient."""
    count = len(w) - 2
    kernel = tuple(w[2:])
    stride, padding, dilation = _wide(stride, count), _wide(padding, count), _wide(dilation, count)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if transposed:
        outputs, extra = tuple(x[2:]), _wide(extra, count)
        inputs = tuple((n - 1) * stride[i] - 2 * padding[i] + spans[i] + extra[i] for i, n in enumerate(outputs))
    else:
        inputs = tuple(x[2:])
        outputs = tuple((n + 2 * padding[i] - spans[i]) // stride[i] + 1 for i, n in enumerate(inputs))
    return Geometry(x[0], groups, w[1], w[0] // groups, inputs, outputs, kernel, stride, padding, dilation)


@lowers("convolution.default")
def convolution(
    b: Builder,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Value:
    shape = geometry(x.shape, w.shape, stride, padding, dilation, groups, transposed, output_padding)
    y = shape.input_gradient(b, x, w) if transposed else shape.forward(b, x, w)
    if bias is None:
        return y
    return b.map(Function.ADD, y, bias.like(bias.layout.reshape(-1, *(1,) * (len(w.shape) - 2))))


@lowers("convolution_backward.default")
def convolution_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    w: Value,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    shape = geometry(x.shape, w.shape, stride, padding, dilation, groups, transposed, output_padding)
    to_x = to_w = to_bias = None
    if output_mask[0]:
        to_x = shape.forward(b, gradient, w) if transposed else shape.input_gradient(b, gradient, w)
    if output_mask[1]:
        to_w = shape.weight_gradient(b, gradient, x) if transposed else shape.weight_gradient(b, x, gradient)
    if output_mask[2]:
        to_bias = total(b, gradient, [d for d in range(len(gradient.shape)) if d != 1])
    return to_x, to_w, to_bias

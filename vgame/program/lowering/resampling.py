"""Resizing: along each axis a product with a constant matrix of weights; the gradient is the product with its
transpose.

The weights are computed here in binary64 from rationals and rounded once; nearest neighbours have weights of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.table import lowers

Ints = Sequence[int]
Scale = float | None


def _source(i: int, n: int, m: int, corners: bool, scale: Scale) -> float:
    """Coordinate of output i of m among n inputs."""
    if corners:
        return i * (n - 1) / (m - 1) if m > 1 else 0.0
    return (i + 0.5) * (1 / scale if scale else n / m) - 0.5


def _linear(x: float, n: int) -> dict[int, float]:
    x = max(x, 0.0)
    left, part = min(math.floor(x), n - 1), x - math.floor(x)
    right = min(left + 1, n - 1)
    return {left: 1.0} if left == right else {left: 1 - part, right: part}


def _cubic(x: float, n: int) -> dict[int, float]:
    """Keys' kernel with a = -0.75 over the four neighbours, those outside moved to the edge."""
    start, weights = math.floor(x), dict[int, float]()
    for tap in range(start - 1, start + 3):
        d, a = abs(x - tap), -0.75
        weight = ((a + 2) * d - (a + 3)) * d * d + 1 if d <= 1 else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        place = min(max(tap, 0), n - 1)
        weights[place] = weights.get(place, 0.0) + weight
    return weights


def _filtered(rule: str, i: int, n: int, m: int, corners: bool, scale: Scale) -> dict[int, float]:
    """Antialiased: a triangle (linear) or Keys' kernel with a = -0.5 (cubic), as wide as an output covers inputs; the
    weights sum to 1."""
    ratio = ((n - 1) / (m - 1) if m > 1 else 0.0) if corners else (1 / scale if scale else n / m)
    center, width = ratio * (i + 0.5), max(ratio, 1.0)
    support = width * (1 if rule == "linear" else 2)
    first, last = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), n)
    weights = {j: _kernel(rule, abs(j - center + 0.5) / width) for j in range(first, last)}
    return {j: weight / sum(weights.values()) for j, weight in weights.items()}


def _kernel(rule: str, d: float) -> float:
    if rule == "linear":
        return max(1 - d, 0.0)
    return (1.5 * d - 2.5) * d * d + 1 if d < 1 else ((-0.5 * d + 2.5) * d - 4) * d + 2 if d < 2 else 0.0


def _nearest(place: float, n: int, m: int, scale: Scale) -> int:
    """The input for a place among m outputs. torch multiplies in binary32, so at some scales it is one lower."""
    ratio = np.float32(1 / scale if scale else n / m)
    return min(int(np.float32(place) * ratio), n - 1)


def _matrix(rule: str, n: int, m: int, corners: bool, scale: Scale) -> torch.Tensor:
    """[m, n] weights of one axis."""
    matrix = torch.zeros(m, n, dtype=torch.float64)
    for i in range(m):
        if rule.startswith("nearest"):
            weights = {_nearest(i + (0.5 if rule == "nearest, exact" else 0.0), n, m, scale): 1.0}
        elif rule.endswith(", filtered"):
            weights = _filtered(rule.partition(",")[0], i, n, m, corners, scale)
        else:
            weights = (_linear if rule == "linear" else _cubic)(_source(i, n, m, corners, scale), n)
        for j, weight in weights.items():
            matrix[i, j] = weight
    return matrix


def _along(b: Builder, x: Value, dim: int, matrix: torch.Tensor) -> Value:
    """The matrix applied along one dimension."""
    moved = x.like(x.layout.movedim(dim, -1))
    rows = b.reshape(moved, (1, x.elements // x.shape[dim], x.shape[dim]))
    weights = b.constant(matrix)
    product = b.dot(rows, weights.like(weights.layout.unsqueeze(0)))
    result = b.reshape(product, (*moved.shape[:-1], matrix.shape[0]))
    return result.like(result.layout.movedim(-1, dim))


def _forward(rule: str, b: Builder, x: Value, output: Ints, corners: bool, scales: Sequence[Scale]) -> Value:
    front = len(x.shape) - len(output)
    for i, m in enumerate(output):
        x = _along(b, x, front + i, _matrix(rule, x.shape[front + i], m, corners, scales[i]))
    return x


def _backward(rule: str, b: Builder, g: Value, inputs: Ints, corners: bool, scales: Sequence[Scale]) -> Value:
    for d in range(len(inputs) - 1, 1, -1):
        matrix = _matrix(rule, inputs[d], g.shape[d], corners, scales[d - 2])
        g = _along(b, g, d, matrix.T.contiguous())
    return g


def _padded(scales: Sequence[Scale], output: Ints) -> list[Scale]:
    return [*scales, *[None] * (len(output) - len(scales))]


def _smooth(name: str, rule: str) -> None:
    @lowers(f"{name}.default")
    def forward(b: Builder, x: Value, output: Ints, corners: bool, *scales: Scale) -> Value:
        return _forward(rule, b, x, output, corners, _padded(scales, output))

    @lowers(f"{name}_backward.default")
    def backward(b: Builder, g: Value, output: Ints, inputs: Ints, corners: bool, *scales: Scale) -> Value:
        return _backward(rule, b, g, inputs, corners, _padded(scales, output))


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _smooth(_name, "linear")
_smooth("upsample_bicubic2d", "cubic")
_smooth("_upsample_bilinear2d_aa", "linear, filtered")
_smooth("_upsample_bicubic2d_aa", "cubic, filtered")


@lowers(
    "upsample_nearest1d_backward.default", "upsample_nearest2d_backward.default", "upsample_nearest3d_backward.default"
)
def nearest_backward(b: Builder, g: Value, output: Ints, inputs: Ints, *scales: Scale) -> Value:
    """Exact sums; the forward pass is a gather that torch decomposes itself."""
    return _backward("nearest", b, g, inputs, False, _padded(scales, output))


@lowers(
    "_upsample_nearest_exact1d_backward.default",
    "_upsample_nearest_exact2d_backward.default",
    "_upsample_nearest_exact3d_backward.default",
)
def nearest_exact_backward(b: Builder, g: Value, output: Ints, inputs: Ints, *scales: Scale) -> Value:
    return _backward("nearest, exact", b, g, inputs, False, _padded(scales, output))

"""Functions of limited accuracy: those with vgame's own definition (docs/capture.md), and those that torch computes
with binary32 constants also in binary64.

In: an operator of torch on binary64 numbers. Out: vgame's value if it is as near to torch's as expected, else torch's
value. So an error is detected, but the limited accuracy itself does not count as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

T = torch.Tensor
aten = torch.ops.aten
NEAR = 2.0**-22  # relative
CEPHES = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)  # atanf of Cephes
ERFCC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)  # of Numerical Recipes


def _atan(x: T) -> T:
    size = x.abs()
    reduced = torch.where(size > math.tan(3 * math.pi / 8), -1 / size, (size - 1) / (size + 1))
    start = torch.where(size > math.tan(3 * math.pi / 8), math.pi / 2, math.pi / 4)
    small = size <= math.tan(math.pi / 8)
    y, start = torch.where(small, size, reduced), torch.where(small, 0.0, start)
    square, series = y * y, torch.zeros_like(y)
    for coefficient in CEPHES:
        series = series * square + coefficient
    return torch.copysign(start + (series * square * y + y), x)


def _atan2(y: T, x: T) -> T:
    angle = _atan(y / x)
    return torch.where(x < 0, angle + torch.where(y < 0, -math.pi, math.pi), angle)


def _hard_sigmoid(x: T) -> T:
    return (x + 3).clamp(0, 6) / 6


def _hard_swish_gradient(gradient: T, x: T) -> T:
    return torch.where(x <= -3, 0.0, torch.where(x < 3, gradient * (x / 3 + 0.5), gradient))


def _near(op: Any, other: Callable[..., T]) -> Callable[..., T]:
    def function(*x: T) -> T:
        true, found = op(*x), other(*x)
        return torch.where((found - true).abs() <= NEAR * true.abs(), found, true)

    return function


def _in_place(function: Callable[..., T]) -> Callable[..., T]:
    return lambda x, *others: x.copy_(function(x.clone(), *others))


def _erfc(x: T) -> T:
    z, series = x.clamp(0.5, 11), torch.zeros_like(x)
    for coefficient in ERFCC:
        series = series / (1 + z / 2) + coefficient
    return torch.where((x > 0.5) & (x < 11), torch.exp(series - z * z) / (1 + z / 2), torch.erfc(x))


OTHERS: dict[str, Callable[..., T]] = {
    "atan": _atan,
    "atan2": _atan2,
    "asin": lambda x: _atan(x / torch.sqrt((1 - x) * (1 + x))),
    "acos": lambda x: 2 * _atan(torch.sqrt((1 - x) / (1 + x))),
    "erfc": _erfc,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda x: x * _hard_sigmoid(x),
    "hardsigmoid_backward": lambda gradient, x: torch.where(x.abs() < 3, gradient / 6, 0.0),
    "hardswish_backward": _hard_swish_gradient,
}


def _grouped(a: T, b: T, offs: T | None = None, *_: Any, **__: Any) -> T:
    """Products of groups that end at offs: groups of a's rows, of b's columns, or of the summed dimension; torch's
    kernel has no binary64."""
    if offs is None:
        return a @ b
    ends = [0, *offs.tolist()]
    parts = list(enumerate(slice(start, end) for start, end in pairwise(ends)))
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, part] @ b[part] for _, part in parts])
    if a.dim() == 2:
        rows = [a[part] @ b[n] for n, part in parts]
        return torch.cat([*rows, a.new_zeros(len(a) - ends[-1], b.shape[-1])])
    columns = [a[n] @ b[:, part] for n, part in parts]
    return torch.cat([*columns, a.new_zeros(a.shape[1], b.shape[-1] - ends[-1])], 1)


OTHERWISE: dict[Any, Callable[..., T]] = {aten._grouped_mm.default: _grouped}
for _name, _other in OTHERS.items():
    _function = _near(getattr(aten, _name).default, _other)
    OTHERWISE[getattr(aten, _name).default] = _function
    if hasattr(aten, f"{_name}_"):
        OTHERWISE[getattr(aten, f"{_name}_").default] = _in_place(_function)

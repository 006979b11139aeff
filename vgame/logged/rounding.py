"""RN_b, 26 <= b <= 32: binary64 to the binary32 numbers whose low 32 - b bits are zero, to nearest, ties to even,
rounded once.

In: binary64 values. Out: binary32 on the grid of b bits; the distance of a value from the midpoint of its cell, and its
side. Significands have p = b - 8 bits; below 2^-126 the grid is that of the subnormals, 2^(32 - b) * 2^-149 wide; what
rounds to 2^128 is infinite; zeros keep their sign; NaN stays. The reference computes with integers, the fast twins with
compiled loops and torch passes.

A cell is the interval from one grid magnitude to the next, a midpoint its middle. Directions are those of the
magnitude: DOWN is towards zero. The paper's Algorithms 4 (the logged entry) and 2 (the auditor's value for an entry)
are `entry_of` and `copy_entry`.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction

import numpy as np
import torch
from numba import njit
from torch import Tensor

from vgame.arithmetic.reference.binary32 import LEAST_EXPONENT, round_to_binary32
from vgame.system.jit import compiled_loop
from vgame.system.threads import share


class Direction(IntEnum):
    """An entry of the rounding log, numbered as in the paper."""

    DOWN = 0
    NONE = 1
    UP = 2


# --- reference: integers ---


def ulp(value: Fraction, bits: int) -> Fraction:
    """Width of the cell that holds |value|: 2^(E - p + 1), E = floor(log2 |value|), never below that of the
    subnormals."""
    least = Fraction(2) ** (LEAST_EXPONENT + 32 - bits)
    if value == 0:
        return least
    numerator, denominator = abs(value.numerator), value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(value)
    return max(Fraction(2) ** (exponent - bits + 9), least)


def grid(value: Fraction, bits: int) -> tuple[Fraction, Fraction, Fraction]:
    """(lower end of the cell of |value|, RN_b(|value|) without overflow, width of the cell)."""
    width = ulp(value, bits)
    quotient, rest = divmod(abs(value), width)
    up = 2 * rest > width or (2 * rest == width and quotient % 2)
    return quotient * width, (quotient + up) * width, width


def pack(magnitude: Fraction, negative: bool) -> int:
    """The word of a grid value; from 2^128 on infinity."""
    return round_to_binary32(magnitude) | negative << 31


def round_fraction(value: Fraction, bits: int) -> int:
    """The word RN_b(value) of an exact value; 0 is +0."""
    return pack(grid(value, bits)[1], value < 0)


def entry_of(value: Fraction, bits: int, threshold: Fraction) -> Direction:
    """Algorithm 4: DOWN or UP, as RN_b rounds, where |x - RN_b(x)| exceeds `threshold` ulp (base-2 exponent); else
    NONE."""
    _, nearest, width = grid(value, bits)
    if abs(abs(value) - nearest) <= threshold * width:
        return Direction.NONE
    return Direction.UP if nearest > abs(value) else Direction.DOWN


def copy_entry(value: Fraction, bits: int, entry: Direction) -> int:
    """Algorithm 2: the end of the value's cell that the trainer rounded to; without an entry RN_b."""
    lower, nearest, width = grid(value, bits)
    chosen = {Direction.NONE: nearest, Direction.DOWN: lower, Direction.UP: lower + width}[entry]
    return pack(chosen, value < 0)


# --- compiled ---

compile_loop = compiled_loop(error_model="numpy")
_inline = njit(inline="always", error_model="numpy")
LARGEST, LEAST_NORMAL = 2.0**129, 2.0**-126
EXPONENT = 0x7FF0000000000000


@_inline
def nearest(magnitude, scale):
    """(RN_b of a magnitude, half the width of its cell, distance from its midpoint); scale = 2^-p. Values above 2^129
    are cut there: they round to infinity.

    SAFETY: c is 1.5 * 2^52 widths, so the sum rounds to a multiple of the width, ties to even; magnitudes have under
    2^24 widths.
    """
    cut = 2.0**129 if magnitude > 2.0**129 else magnitude
    power = np.int64(np.float64(cut).view(np.int64) & 0x7FF0000000000000).view(np.float64)
    half = (power if power > 2.0**-126 else 2.0**-126) * scale
    c = half * (1.5 * 2.0**53)
    value = (cut + c) - c
    return value, half, half - abs(cut - value)


@compile_loop
def _round(x, scale, out, first, last):
    source, target = x[first:last], out[first:last]
    for i in range(source.size):
        value, _, _ = nearest(abs(source[i]), scale)
        target[i] = np.float32(np.copysign(value, source[i]))


def round_tensor(x: Tensor, bits: int) -> Tensor:
    """RN_b(x) as binary32, elementwise. x: binary64."""
    if x.device.type != "cpu":
        return torch.copysign(nearest_tensor(x.abs(), bits)[0], x).float()
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=torch.float32)
    source, target = x.view(-1).numpy(), out.view(-1).numpy()
    share(x.numel(), 1, lambda first, last: _round(source, 2.0 ** (8 - bits), target, first, last))
    return out


# --- torch passes: any device, and few elements ---


def nearest_tensor(magnitude: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Twin of `nearest`."""
    cut = torch.where(magnitude > LARGEST, LARGEST, magnitude)
    power = (cut.view(torch.int64) & EXPONENT).view(torch.float64)
    half = torch.where(power > LEAST_NORMAL, power, LEAST_NORMAL) * 2.0 ** (8 - bits)
    c = half * (1.5 * 2.0**53)
    value = (cut + c) - c
    return value, half, half - (cut - value).abs()


def cells(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """(|RN_b(x)|, half the width of the cell of |x|, distance from its midpoint), binary64. x: binary64.

    All exact, except a rounded distance if |x| is less than 2^-53 of the least cell.
    """
    return nearest_tensor(x.abs(), bits)


def copy_entries(x: Tensor, bits: int, up: Tensor) -> Tensor:
    """Twin of `copy_entry` for entries UP (true) or DOWN, as binary32; a zero is +0, as everywhere in sums."""
    value, half, _ = cells(x, bits)
    lower = torch.where(x.abs() < value, value - 2 * half, value)
    chosen = torch.where(up, lower + 2 * half, lower)
    return torch.copysign(chosen, x).float() + 0.0

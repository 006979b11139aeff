"""Enclosures of the elementary functions, independent of the checked code (docs/numerics-elementary.md, section 5).

In: a single word. Out: the correctly rounded result and its distance to a midpoint, by interval arithmetic of rising
precision. The enclosures for runs of words are in exhaustive_panels.py.
"""

from __future__ import annotations

import math

import numpy as np
from mpmath import iv
from mpmath.libmp import mpf_sub, to_float

from vgame.arithmetic.functions import Function

INFINITY, NAN = 0x7F800000, 0x7FC00000

#: (low, high, value): every x in low..high has RN(f(x)) = value. With half an ulp below 1 = 2^-25 and half the least
#: number = 2^-150:
CONSTANT: dict[Function, list[tuple[float, float, float]]] = {
    Function.EXP: [(89.0, math.inf, math.inf), (-math.inf, -104.0, 0.0)],  # e^89 > 2^128, e^-104 < 2^-150
    Function.EXPM1: [(89.0, math.inf, math.inf), (-math.inf, -18.0, -1.0)],  # e^-18 < 2^-25
    Function.LOG: [(-math.inf, -(2.0**-149), math.nan), (0.0, 0.0, -math.inf), (math.inf, math.inf, math.inf)],
    Function.LOG1P: [(-math.inf, -1 - 2.0**-23, math.nan), (-1.0, -1.0, -math.inf), (math.inf, math.inf, math.inf)],
    Function.TANH: [(10.0, math.inf, 1.0), (-math.inf, -10.0, -1.0)],  # 2 e^-20 < 2^-25
    Function.ERF: [(4.0, math.inf, 1.0), (-math.inf, -4.0, -1.0)],  # erfc(4) < 2^-25
    Function.SIGMOID: [(18.0, math.inf, 1.0), (-math.inf, -104.0, 0.0)],  # e^-18 < 2^-25, e^-104 < 2^-150
    Function.SIN: [(math.inf, math.inf, math.nan), (-math.inf, -math.inf, math.nan)],
    Function.COS: [(math.inf, math.inf, math.nan), (-math.inf, -math.inf, math.nan)],
}
#: f(+-0), exact; None: the zero itself
AT_ZERO = {Function.EXP: 1.0, Function.COS: 1.0, Function.SIGMOID: 0.5}


def to_word(value: float) -> int:
    """The word of a binary32 number; NaN is canonical."""
    return NAN if value != value else int(np.float32(value).view(np.uint32))


def from_word(word: int) -> float:
    """The exact value of a word."""
    return float(np.uint32(word).view(np.float32))


def erf_interval(x: float) -> object:
    """2 x / sqrt(pi) * sum (-1)^n x^(2n) / (n! (2n + 1)), the sum in integers of F fractional bits, |x| < 4."""
    numerator, denominator = (x * x).as_integer_ratio()  # exact: 48 bits
    bits = iv.prec + 64
    power, total, n = 1 << bits, 1 << bits, 0  # power = floor(x^2n / n!) up to the error below
    while power:
        n += 1
        power = power * numerator // (denominator * n)
        total += (-1) ** n * (power // (2 * n + 1))
    # error of power: e_n < e_(n-1) x^2/n + 1, so all e_n < sum of 16^k/k! < 2^24; the terms left out sum to less than
    # 2^24 units
    error = (n + 2) << 24
    series = iv.mpf([total - error, total + error]) / iv.mpf(2) ** bits
    return 2 * iv.mpf(x) / iv.sqrt(iv.pi) * series


INTERVALS = {
    Function.EXP: lambda x: iv.exp(iv.mpf(x)),
    Function.EXPM1: lambda x: iv.exp(iv.mpf(x)) - 1,
    Function.LOG: lambda x: iv.log(iv.mpf(x)),
    Function.LOG1P: lambda x: iv.log(iv.mpf(x) + 1),
    Function.TANH: lambda x: 1 - 2 / (iv.exp(iv.mpf(2 * x)) + 1),
    Function.ERF: erf_interval,
    Function.SIGMOID: lambda x: 1 / (1 + iv.exp(iv.mpf(-x))),
    Function.SIN: lambda x: iv.sin(iv.mpf(x)),
    Function.COS: lambda x: iv.cos(iv.mpf(x)),
}


def round_exactly(raw: tuple, bits: int = 24) -> tuple[int, float]:
    """(word, distance): the number of `bits` bits nearest to a raw mpf (ties to even), the distance to the nearest
    midpoint in ulp."""
    sign, significand, exponent, size = raw
    unit = max(exponent + size - bits, -125 - bits)
    shift = max(unit - exponent, 1)
    quotient, rest = divmod(significand << (shift - unit + exponent), 1 << shift)
    half = 1 << (shift - 1)
    distance = abs(rest - half) / (1 << shift)
    quotient += rest > half or (rest == half and quotient & 1)
    word = (((unit + 125 + bits) << (bits - 1)) + quotient) << (24 - bits)
    return min(word, INFINITY) | sign << 31, distance


def settle(function: Function, word: int) -> tuple[int, float]:
    """(RN(f(x)), distance of f(x) to a midpoint in ulp), for any word; the distance is 1/2 if f(x) is a binary32
    value."""
    x = from_word(word)
    if x != x:
        return NAN, 0.5
    if x == 0 and function is not Function.LOG:
        return (to_word(AT_ZERO[function]) if function in AT_ZERO else word), 0.5
    if function is Function.LOG and x == 1:
        return 0, 0.5
    for low, high, value in CONSTANT[function]:
        if low <= x <= high:
            return to_word(value), 0.5
    return settle_by_intervals(function, x)


def settle_by_intervals(function: Function, x: float, bits: int = 24) -> tuple[int, float]:
    """Evaluate with 128, 256, ... bits until both ends of the interval round alike (f(x) is no midpoint, so this
    ends)."""
    # mpmath returns 1 + x for exp(x), as if exact, if it has no bits for x^2: x may be a midpoint
    iv.prec = 128 if bits == 24 else 1024
    while iv.prec < 1 << 14:
        low, high = INTERVALS[function](x)._mpi_
        (word, distance), (other, _) = round_exactly(low, bits), round_exactly(high, bits)
        narrow = abs(to_float(mpf_sub(high, low)) / to_float(low)) < 2.0**-100 if to_float(low) else False
        if word == other and narrow:
            return word, distance
        iv.prec *= 2
    raise ArithmeticError(f"{function.name}({x.hex()}) is undecided")

"""Constants of the reductions, shared by all twins; 1/pi in exact pieces for every binary32 exponent, so that x / pi
loses only even integers (after Payne and Hanek).

Out: `PI_ROWS`, three tables indexed by the eight exponent bits of x. With x = m 2^s, |m| < 2^24:

    x / pi = x * P1[e] + x * P2[e] + x * P3[e] + even integer + error,  |error| < 2^-86

where P1 and P2 have at most 29 bits, so that x * P1 and x * P2 are exact in binary64, and |x * P1| < 2^26.
"""

from __future__ import annotations

import math

from vgame.arithmetic.elementary_tables import INVERSE_PI

SHIFTER = 1.5 * 2.0**52  # t + SHIFTER rounds t to an integer, in the low bits
SCALER = SHIFTER + 1023.0  # the same, biased: the low bits shifted up by 52 are the number 2^k
REDUCE = 0x3FE6A09E00000000 + (1 << 52) - 1  # the bits of a number just below sqrt(1/2); rounds the shift by 52 up
SIGMOID_LINEAR = 2.0**-11  # below, sigmoid(x) rounds like 1/2 + SIGMOID_SLOPE x
SIGMOID_SLOPE = 0.25 - 2.0**-28

FRACTION = 256  # INVERSE_PI = floor(2^256 / pi)
FIRST, SECOND, THIRD = -28, -57, -110  # the lowest bit of each piece of (2^s / pi mod 2)


def _pieces(biased_exponent: int) -> tuple[float, float, float]:
    """The pieces for one exponent. Only truncation of bits: every step is exact integer arithmetic."""
    s = max(biased_exponent - 127 - 23, -2)  # below 2^21 nothing is dropped: one row serves all small x
    fraction = FRACTION - s
    value = INVERSE_PI % (1 << (fraction + 1))  # 2^s / pi mod 2, in units of 2^-fraction
    pieces = []
    for lowest in (FIRST, SECOND, THIRD):
        unit = fraction + lowest
        pieces.append(math.ldexp(value >> unit, lowest - s))
        value %= 1 << unit
    return tuple(pieces)


#: P1, P2, P3: 256 binary64 numbers each.
PI_ROWS: tuple[list[float], ...] = tuple(map(list, zip(*map(_pieces, range(256)), strict=True)))

"""1/pi in exact pieces for every binary32 exponent, so that x / pi loses only even integers (after Payne and Hanek).

Out: `inverse_pi_pieces()`, three tables indexed by the eight exponent bits of x. With x = m 2^s, |m| < 2^24:

    x / pi = x * P1[e] + x * P2[e] + x * P3[e] + even integer + error,  |error| < 2^-86

where P1 and P2 have at most 29 bits, so that x * P1 and x * P2 are exact in binary64, and |x * P1| < 2^26.
"""

from __future__ import annotations

import math

from vgame.arithmetic.elementary_tables import INVERSE_PI

FRACTION = 256  # INVERSE_PI = floor(2^256 / pi)
FIRST, SECOND, THIRD = -28, -57, -110  # the lowest bit of each piece of (2^s / pi mod 2)


def _pieces(biased_exponent: int) -> tuple[float, float, float]:
    """The pieces for one exponent. Cutting bits off is all that happens: every step is exact integer arithmetic."""
    s = max(biased_exponent - 127 - 23, -2)  # below 2^21 nothing is dropped: one row serves all small x
    fraction = FRACTION - s
    value = INVERSE_PI % (1 << (fraction + 1))  # 2^s / pi mod 2, in units of 2^-fraction
    pieces = []
    for lowest in (FIRST, SECOND, THIRD):
        unit = fraction + lowest
        pieces.append(math.ldexp(value >> unit, lowest - s))
        value %= 1 << unit
    return tuple(pieces)


def inverse_pi_pieces() -> tuple[list[float], list[float], list[float]]:
    """P1, P2, P3: 256 binary64 numbers each."""
    return tuple(map(list, zip(*map(_pieces, range(256)), strict=True)))

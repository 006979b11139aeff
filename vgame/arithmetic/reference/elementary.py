"""exp, expm1, log, log1p, tanh, erf, sigmoid, sin, cos: correctly rounded by mpmath in a Ziv loop.

In: a binary32 word. Out: RN(f(x)) as a word. Slow and exact; twin: contracts/arithmetic/Elementary.sol.

Each function has two parts. The special part handles NaN, infinities, zeros, exact values and arguments whose rounded
result is a limit. Elsewhere f(x) is irrational (Lindemann-Weierstrass for all but erf, whose values at the binary32
numbers were all checked, docs/numerics-elementary.md), so it is neither a binary32 number nor a midpoint, and the loop
ends: it encloses f(x) at growing precision until both ends round to the same word.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import libmp

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference.binary32 import (
    NAN,
    NEGATIVE_INFINITY,
    ONE,
    POSITIVE_INFINITY,
    SIGN_BIT,
    SIGNIFICAND_BITS,
    decode,
    is_nan,
    is_zero,
    round_to_binary32,
)

HALF = 0x3F000000
MINUS_ONE = 0xBF800000
FIRST_PRECISION = 64
#: mpmath promises a few ulps of its working precision; the loop allows 2^8.
GUARD_BITS = 8

Mpf = tuple[int, int, int, int]


def elementary(function: Function, word: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(function(x)) for one of the nine elementary functions.

    No special value depends on `bits` >= 8: those that are not exact lie within 2^-25 of 1, or beyond the exponents.
    """
    if is_nan(word):
        return NAN
    special = _SPECIAL[function](word)
    return special if special is not None else _ziv(_APPROXIMATE[function], word, bits)


def _ziv(approximate: Callable[[Mpf, int], Mpf], word: int, bits: int) -> int:
    """RN of the value that `approximate` gives with a relative error below 2^(GUARD_BITS - precision)."""
    sign, mantissa, exponent = decode(word)
    x = libmp.from_man_exp(-mantissa if sign else mantissa, exponent)
    precision = FIRST_PRECISION
    while True:
        ends = {round_to_binary32(end, bits) for end in _enclose(approximate(x, precision), precision)}
        if len(ends) == 1:
            return ends.pop()
        precision *= 2


def _enclose(value: Mpf, precision: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Triples value * (1 - 2^(GUARD_BITS - precision)) and value * (1 + 2^(GUARD_BITS - precision))."""
    sign, mantissa, exponent, _ = value
    shift = precision - GUARD_BITS
    scaled = mantissa << shift
    return (sign, scaled - mantissa, exponent - shift), (sign, scaled + mantissa, exponent - shift)


# --- the values, with a relative error of a few 2^-precision ---


def _expm1(x: Mpf, precision: int) -> Mpf:
    """exp(x) - 1; the cancellation costs at most -log2|x| bits, so that many are added."""
    lost = max(0, -_magnitude(x)) + 2
    return libmp.mpf_sub(libmp.mpf_exp(x, precision + lost), libmp.fone)


def _log1p(x: Mpf, precision: int) -> Mpf:
    """log of the exact 1 + x: mpmath's log keeps its relative precision next to 1."""
    return libmp.mpf_log(libmp.mpf_add(libmp.fone, x), precision)


def _sigmoid(x: Mpf, precision: int) -> Mpf:
    """1 / (1 + exp(-x)); all terms are positive, nothing cancels."""
    denominator = libmp.mpf_add(libmp.fone, libmp.mpf_exp(libmp.mpf_neg(x), precision))
    return libmp.mpf_rdiv_int(1, denominator, precision)


def _magnitude(x: Mpf) -> int:
    """The least m with |x| < 2^m."""
    return x[2] + x[3]


_APPROXIMATE: dict[Function, Callable[[Mpf, int], Mpf]] = {
    Function.EXP: libmp.mpf_exp,
    Function.EXPM1: _expm1,
    Function.LOG: libmp.mpf_log,
    Function.LOG1P: _log1p,
    Function.TANH: libmp.mpf_tanh,
    Function.ERF: libmp.mpf_erf,
    Function.SIGMOID: _sigmoid,
    Function.SIN: libmp.mpf_sin,
    Function.COS: libmp.mpf_cos,
}


# --- the special arguments: a word, or None where the loop decides ---


def _beyond(word: int, limit: int, below: int, above: int) -> int | None:
    """`above` if x >= limit, `below` if x <= -limit (infinities included); both signs use one integer limit."""
    if (word & 0x7FFFFFFF) < round_to_binary32((0, limit, 0)):
        return None
    return below if word & SIGN_BIT else above


def _exp_special(word: int) -> int | None:
    # exp(89) > 2^128 overflows; exp(-104) < 2^-150 rounds to zero; the loop copes with -104 < x <= -89.
    if is_zero(word):
        return ONE
    if word & SIGN_BIT:
        return _beyond(word, 104, 0, 0)
    return _beyond(word, 89, 0, POSITIVE_INFINITY)


def _expm1_special(word: int) -> int | None:
    # expm1(-89) is nearer to -1 than half an ulp (2^-25).
    return word if is_zero(word) else _beyond(word, 89, MINUS_ONE, POSITIVE_INFINITY)


def _log_special(word: int) -> int | None:
    if is_zero(word):
        return NEGATIVE_INFINITY
    if word & SIGN_BIT:
        return NAN
    return {POSITIVE_INFINITY: POSITIVE_INFINITY, ONE: 0}.get(word)


def _log1p_special(word: int) -> int | None:
    if is_zero(word) or word == POSITIVE_INFINITY:
        return word
    if word == MINUS_ONE:
        return NEGATIVE_INFINITY
    return NAN if word > MINUS_ONE else None


def _tanh_special(word: int) -> int | None:
    # 1 - tanh(32) < 2 exp(-64) < 2^-25.
    return word if is_zero(word) else _beyond(word, 32, MINUS_ONE, ONE)


def _erf_special(word: int) -> int | None:
    # 1 - erf(4) < exp(-16) / (4 sqrt(pi)) < 2^-25.
    return word if is_zero(word) else _beyond(word, 4, MINUS_ONE, ONE)


def _sigmoid_special(word: int) -> int | None:
    # 1 - sigmoid(104) < exp(-104) < 2^-150; sigmoid(-104) < exp(-104) rounds to zero.
    return HALF if is_zero(word) else _beyond(word, 104, 0, ONE)


def _sin_special(word: int) -> int | None:
    if is_zero(word):
        return word
    return NAN if word & 0x7FFFFFFF == POSITIVE_INFINITY else None


def _cos_special(word: int) -> int | None:
    return ONE if is_zero(word) else _sin_special(word)


_SPECIAL: dict[Function, Callable[[int], int | None]] = {
    Function.EXP: _exp_special,
    Function.EXPM1: _expm1_special,
    Function.LOG: _log_special,
    Function.LOG1P: _log1p_special,
    Function.TANH: _tanh_special,
    Function.ERF: _erf_special,
    Function.SIGMOID: _sigmoid_special,
    Function.SIN: _sin_special,
    Function.COS: _cos_special,
}

"""The elementary functions in binary64, written once: the twins of torch, numba and Triton are made of these formulas.

In: d, the argument in binary64; its binary32 word and the table of 1/pi, which sin and cos read. Out: the value before
the last rounding. Every name that is not defined here is a primitive, or a constant of elementary_tables.py and
elementary_reduction.py, which a twin gives to `bound`:

    bits(d), real(b)      the bits of a binary64 number as an int64, and back
    wide(j)               an int64 as a binary64 number
    where(c, x, y), abs   elementwise
    NAME_polynomial(x)    Horner's rule with the coefficients NAME_Q
    turn(word, turns, i)  piece i of 1/pi for the word's exponent

The order of the operations is the definition of the binary64 value: nothing may be reordered or fused.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from vgame.arithmetic import elementary_reduction, elementary_tables
from vgame.arithmetic.functions import Function

INF, NAN = float("inf"), float("nan")


def clamp(d, low, high):
    """NaN stays NaN."""
    d = where(d < low, low, d)
    return where(d > high, high, d)


def split_exp(d):
    """(e, s): exp(d) = s (1 + e), s = 2^k, e = exp(r) - 1 for |r| <= ln(2) / 2."""
    n = d * LOG2E + SCALER
    k = n - SCALER
    r = (d - k * LN2_HI) - k * LN2_LO
    return (exp_polynomial(r) * r + 1.0) * r, real(bits(n) << 52)


def expm1_of(d):
    """exp(d) - 1 = s e - (1 - s): at s = 1 the sign of e = -0 stays."""
    e, s = split_exp(d)
    return e * s - (1.0 - s)


def split_log(b):
    """(f, j): the number with the bits b is (1 + f) 2^-j, 1 + f in [sqrt(1/2), sqrt(2)] (a little below at the left
    end)."""
    j = (REDUCE - b) >> 52
    return real(b + (j << 52)) - 1.0, wide(j)


def join_log(f, j):
    """log((1 + f) 2^-j). Subtracting j * LN2 (not adding) keeps the sign of f = -0 at j = 0."""
    s = f / (f * 0.5 + 1.0)
    w = s * s
    return log_polynomial(w) * w * s - j * LN2_LO + s - j * LN2_HI


def outside_log(y, d, pole):
    """y where pole < d < inf, else log's value at its pole (-inf), at +inf, and NaN elsewhere."""
    special = where(d == pole, -INF, where(d == INF, INF, NAN))
    return where((d > pole) & (d < INF), y, special)


def exp(d, word, turns):
    e, s = split_exp(clamp(d, -105.0, 90.0))
    return (e + 1.0) * s


def expm1(d, word, turns):
    return expm1_of(clamp(d, -30.0, 90.0))


def log(d, word, turns):
    f, j = split_log(bits(d))
    return outside_log(join_log(f, j), d, 0.0)


def log1p(d, word, turns):
    f, j = split_log(bits(d + 1.0))
    return outside_log(join_log(where(j == 0.0, d, f), j), d, -1.0)


def tanh(d, word, turns):
    e = expm1_of(clamp(d * 2.0, -20.0, 20.0))
    return e / (e + 2.0)


def erf(d, word, turns):
    d = clamp(d, -4.0, 4.0)
    return erf_polynomial(d * d - 8.0) * d


def sigmoid(d, word, turns):
    e, s = split_exp(clamp(-d, -40.0, 105.0))
    y = 1.0 / ((e + 1.0) * s + 1.0)
    return where(abs(d) < SIGMOID_LINEAR, d * SIGMOID_SLOPE + 0.5, y)


def sine_of_turns(d, word, turns, half):
    """sin(d + pi half), half = 0 or 1/2: d / pi + half = k + f, sin = (-1)^k sin(pi f)."""
    a = d * turn(word, turns, 0)
    b = d * turn(word, turns, 1)
    n = a + b + half + SHIFTER
    f = a - (n - SHIFTER - half) + b + d * turn(word, turns, 2)
    y = sinpi_polynomial(f * f) * f
    return real(bits(y) ^ (bits(n) << 63))


def sin(d, word, turns):
    return sine_of_turns(d, word, turns, 0.0)


def cos(d, word, turns):
    return sine_of_turns(d, word, turns, 0.5)


PARTS = (clamp, split_exp, expm1_of, split_log, join_log, outside_log, sine_of_turns)
VALUES = {
    Function.EXP: exp,
    Function.EXPM1: expm1,
    Function.LOG: log,
    Function.LOG1P: log1p,
    Function.TANH: tanh,
    Function.ERF: erf,
    Function.SIGMOID: sigmoid,
    Function.SIN: sin,
    Function.COS: cos,
}
CONSTANTS = ("LOG2E", "LN2_HI", "LN2_LO", "SHIFTER", "SCALER", "REDUCE", "SIGMOID_LINEAR", "SIGMOID_SLOPE")


def bound(
    primitives: Mapping[str, Any], made: Callable[[Callable], Any], constant: Callable[[Any], Any]
) -> dict[Function, Any]:
    """The functions over a twin's primitives; `made` is applied to each part and each function, `constant` to each
    constant."""
    found = vars(elementary_tables) | vars(elementary_reduction) | {"INF": INF, "NAN": NAN}
    names: dict[str, Any] = {name: constant(found[name]) for name in (*CONSTANTS, "INF", "NAN")}
    names |= {"__builtins__": builtins} | dict(primitives)

    def remade(formula: Any) -> Any:
        return made(FunctionType(formula.__code__, names, formula.__name__))

    for part in PARTS:
        names[part.__name__] = remade(part)
    return {function: remade(formula) for function, formula in VALUES.items()}

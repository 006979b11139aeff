"""The elementary functions as numba loops. Twin: elementary.py (torch), the same binary64 operations in the same order.

In: a flat binary32 array and an output array. Out: RN(f(x)) for every element, where the output is binary32. Where it
is binary64 it receives the value before the last rounding, which is the same in both twins
(tests/unit/test_elementary.py).

`fastmath` stays off: the bits rest on the order of the operations, and nothing here may become a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_reduction import PI_ROWS, REDUCE, SCALER, SHIFTER, SIGMOID_LINEAR, SIGMOID_SLOPE
from vgame.arithmetic.elementary_tables import ERF_Q, EXP_Q, LN2_HI, LN2_LO, LOG2E, LOG_Q, SINPI_Q
from vgame.arithmetic.functions import Function
from vgame.system.jit import compiled_loop
from vgame.system.threads import share

CHUNK = 1 << 15  # elements per pass: they stay in the cache
WORTH = 1 << 16  # elements that are worth a thread
PI_1, PI_2, PI_3 = map(np.array, PI_ROWS)
ERF_LOW, ERF_HIGH = ERF_Q[:14], ERF_Q[14:]
INF = np.inf

_inline = njit(inline="always", error_model="numpy")


@_inline
def _bits(x):
    return np.float64(x).view(np.int64)


@_inline
def _float(x):
    return np.int64(x).view(np.float64)


@_inline
def _horner_from(result, coefficients, x):
    """c[0] + x (c[1] + x (... + x result)). A loop of this length is unrolled; one of 28 would not be."""
    for i in range(len(coefficients) - 1, -1, -1):
        result = result * x + coefficients[i]
    return result


@_inline
def _horner(coefficients, x):
    return _horner_from(coefficients[-1], coefficients[:-1], x)


@_inline
def _clamp(d, low, high):
    """NaN stays NaN."""
    d = low if d < low else d
    return high if d > high else d


@_inline
def _split_exp(d):
    """(e, s): exp(d) = s (1 + e), s = 2^k, e = exp(r) - 1 for |r| <= ln(2) / 2."""
    n = d * LOG2E + SCALER
    k = n - SCALER
    r = (d - k * LN2_HI) - k * LN2_LO
    return (_horner(EXP_Q, r) * r + 1.0) * r, _float(_bits(n) << 52)


@_inline
def _expm1(d):
    e, s = _split_exp(d)
    return e * s - (1.0 - s)


@_inline
def _split_log(b):
    """(f, j): the number with the bits b is (1 + f) 2^-j, 1 + f in [sqrt(1/2), sqrt(2)] (a little below at the left
    end)."""
    j = (REDUCE - b) >> 52
    return _float(b + (j << 52)) - 1.0, np.float64(j)


@_inline
def _join_log(f, j):
    """log((1 + f) 2^-j). Subtracting j * LN2 (not adding) keeps the sign of f = -0 at j = 0."""
    s = f / (f * 0.5 + 1.0)
    w = s * s
    return _horner(LOG_Q, w) * w * s - j * LN2_LO + s - j * LN2_HI


@_inline
def exp(x):
    e, s = _split_exp(_clamp(np.float64(x), -105.0, 90.0))
    return (e + 1.0) * s


@_inline
def expm1(x):
    return _expm1(_clamp(np.float64(x), -30.0, 90.0))


@_inline
def log(x):
    f, j = _split_log(_bits(x))
    special = -INF if x == 0.0 else (INF if x == INF else np.nan)
    return _join_log(f, j) if (x > 0.0) & (x < INF) else special


@_inline
def log1p(x):
    d = np.float64(x)
    f, j = _split_log(_bits(d + 1.0))
    special = -INF if x == -1.0 else (INF if x == INF else np.nan)
    return _join_log(d if j == 0.0 else f, j) if (x > -1.0) & (x < INF) else special


@_inline
def tanh(x):
    e = _expm1(_clamp(np.float64(x) * 2.0, -20.0, 20.0))
    return e / (e + 2.0)


@_inline
def erf(x):
    d = _clamp(np.float64(x), -4.0, 4.0)
    u = d * d - 8.0
    return _horner_from(_horner(ERF_HIGH, u), ERF_LOW, u) * d


@_inline
def sigmoid(x):
    d = np.float64(x)
    e, s = _split_exp(_clamp(-d, -40.0, 105.0))
    y = 1.0 / ((e + 1.0) * s + 1.0)
    return d * SIGMOID_SLOPE + 0.5 if abs(d) < SIGMOID_LINEAR else y


@_inline
def _sine_of_turns(x, half):
    """sin(x + pi half), half = 0 or 1/2: x / pi + half = k + f, sin = (-1)^k sin(pi f)."""
    d = np.float64(x)
    row = (np.float32(x).view(np.int32) >> 23) & 255
    a = d * PI_1[row]
    b = d * PI_2[row]
    n = a + b + half + SHIFTER
    f = a - (n - SHIFTER - half) + b + d * PI_3[row]
    y = _horner(SINPI_Q, f * f) * f
    return _float(_bits(y) ^ (_bits(n) << 63))


@_inline
def sin(x):
    return _sine_of_turns(x, 0.0)


@_inline
def cos(x):
    return _sine_of_turns(x, 0.5)


def _loop(value: Callable) -> Callable:
    """out[i] = value(x[i])."""

    def run(x, out):
        for i in range(x.size):
            out[i] = value(x[i])

    run.__qualname__ = f"loop_of_{value.__name__}"  # what the compiler's cache knows it by
    return compiled_loop(error_model="numpy")(run)


@compiled_loop()
def _patch(words, out, at, exact):
    """out[i] = exact[k] where words[i] = at[k]. The loop that only asks whether there is one is a vector loop."""
    for k in range(at.size):
        hit = np.uint32(0)
        for i in range(words.size):
            hit = np.uint32(hit | np.uint32(words[i] == at[k]))
        for i in range(words.size if hit else 0):
            if words[i] == at[k]:
                out[i] = exact[k]


LOOPS = {
    Function.EXP: _loop(exp),
    Function.EXPM1: _loop(expm1),
    Function.LOG: _loop(log),
    Function.LOG1P: _loop(log1p),
    Function.TANH: _loop(tanh),
    Function.ERF: _loop(erf),
    Function.SIGMOID: _loop(sigmoid),
    Function.SIN: _loop(sin),
    Function.COS: _loop(cos),
}

PATCHES = {function: np.array(rows, dtype=np.uint32).reshape(-1, 2).T.copy() for function, rows in EXCEPTIONS.items()}


def fill(function: Function, x: np.ndarray, out: np.ndarray) -> None:
    """out[i] = RN(f(x[i])); x: binary32, flat, contiguous. A binary64 `out` receives the values before the last
    rounding."""
    assert x.size == out.size, "the loops look at no bounds"
    for start in range(0, x.size, CHUNK):
        part, target = x[start : start + CHUNK], out[start : start + CHUNK]
        LOOPS[function](part, target)
        at, exact = PATCHES[function]
        if at.size:
            _patch(part.view(np.uint32), target, at, exact.view(np.float32))


def evaluate(function: Function, x: np.ndarray) -> np.ndarray:
    """RN(f(x)) elementwise, any shape; threads share a large array."""
    source = np.ascontiguousarray(x, dtype=np.float32).reshape(-1)
    result = np.empty_like(source)
    share(source.size, 1, lambda first, last: fill(function, source[first:last], result[first:last]), WORTH)
    return result.reshape(np.shape(x))

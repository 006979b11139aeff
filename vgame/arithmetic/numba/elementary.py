"""The elementary functions as numba loops. Twins: torch/elementary.py and triton/elementary.py, of the same formulas.

In: a flat binary32 array and an output array. Out: RN(f(x)) for every element, if the output is binary32. A binary64
output receives the value before the last rounding, which is the same in both twins (tests/unit/test_elementary.py).

`fastmath` stays off: the bits depend on the order of the operations, and no operation may become a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_formulas import bound
from vgame.arithmetic.elementary_reduction import PI_ROWS
from vgame.arithmetic.elementary_tables import ERF_Q, EXP_Q, LOG_Q, SINPI_Q
from vgame.arithmetic.functions import Function
from vgame.system.jit import compiled_loop
from vgame.system.threads import share

CHUNK = 1 << 15  # elements per pass: they stay in the cache
WORTH = 1 << 16  # least number of elements for a thread
TURNS = np.array(PI_ROWS)
ERF_LOW, ERF_HIGH = ERF_Q[:14], ERF_Q[14:]

_inline = njit(inline="always", error_model="numpy")


@_inline
def _bits(x):
    return np.float64(x).view(np.int64)


@_inline
def _real(x):
    return np.int64(x).view(np.float64)


@_inline
def _where(condition, x, y):
    return x if condition else y


@_inline
def _horner_from(result, coefficients, x):
    """c[0] + x (c[1] + x (... + x result)). A loop of this length is unrolled; one of 28 would not be."""
    for i in range(len(coefficients) - 1, -1, -1):
        result = result * x + coefficients[i]
    return result


@_inline
def _exp_polynomial(x):
    return _horner_from(EXP_Q[-1], EXP_Q[:-1], x)


@_inline
def _log_polynomial(x):
    return _horner_from(LOG_Q[-1], LOG_Q[:-1], x)


@_inline
def _erf_polynomial(x):
    return _horner_from(_horner_from(ERF_HIGH[-1], ERF_HIGH[:-1], x), ERF_LOW, x)


@_inline
def _sinpi_polynomial(x):
    return _horner_from(SINPI_Q[-1], SINPI_Q[:-1], x)


@_inline
def _turn(word, turns, piece):
    return turns[piece, (word >> 23) & 255]


VALUES = bound(
    {
        "__name__": __name__, "bits": _bits, "real": _real, "wide": np.float64, "where": _where, "turn": _turn,
        "exp_polynomial": _exp_polynomial, "log_polynomial": _log_polynomial, "erf_polynomial": _erf_polynomial,
        "sinpi_polynomial": _sinpi_polynomial,
    },
    _inline,
    lambda constant: constant,
)  # fmt: skip


def _loop(value: Callable) -> Callable:
    """out[i] = value(x[i])."""

    def run(x, out):
        for i in range(x.size):
            out[i] = value(np.float64(x[i]), np.float32(x[i]).view(np.int32), TURNS)

    run.__qualname__ = f"loop_of_{value.__name__}"  # its key in the compiler's cache
    return compiled_loop(error_model="numpy")(run)


@compiled_loop()
def _patch(words, out, at, exact):
    """out[i] = exact[k] where words[i] = at[k]. The first loop only tests whether such a word exists, and is
    vectorised."""
    for k in range(at.size):
        hit = np.uint32(0)
        for i in range(words.size):
            hit = np.uint32(hit | np.uint32(words[i] == at[k]))
        for i in range(words.size if hit else 0):
            if words[i] == at[k]:
                out[i] = exact[k]


LOOPS = {function: _loop(value) for function, value in VALUES.items()}

PATCHES = {function: np.array(rows, dtype=np.uint32).reshape(-1, 2).T.copy() for function, rows in EXCEPTIONS.items()}


def fill(function: Function, x: np.ndarray, out: np.ndarray) -> None:
    """out[i] = RN(f(x[i])); x: binary32, flat, contiguous. A binary64 `out` receives the values before the last
    rounding."""
    assert x.size == out.size, "the loops check no bounds"
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

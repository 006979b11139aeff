"""Enclosures of the elementary functions on panels of 4,096 consecutive binary32 words (docs/numerics-elementary.md,
section 5).

In: a function and the first words of some panels. Out: for each panel a polynomial (or, for sin and cos of large x, the
addition theorem) with a proved error bound; `unconfirmed` lists the words whose claimed result it does not confirm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from exhaustive_reference import CONSTANT, INTERVALS, NAN, to_word
from mpmath import iv
from mpmath.libmp import mpf_sub, to_float
from numba import njit

from vgame.arithmetic.functions import Function

PANEL = 4096
ORDER = 8  # degree of the Taylor polynomials
LEAST_ERROR = 2.0**-171  # 2^-22 of the least binary32 step, so that no input close to a midpoint is missed
SLACK = 2.0**-45  # of sum |a_j| h^j: covers every rounding error of a Taylor enclosure; the proof needs 2^-48
TURN_ERROR = 2.0**-46  # the same for an enclosure by the addition theorem; the proof needs 2^-49
SERIES_BELOW = 2.0**-8  # the expansion point is 0 below, the middle of the panel above
TURN_ABOVE = 2.0**7  # sin and cos by the addition theorem


@dataclass(frozen=True, slots=True)
class Panels:
    """|f(x) - sum_j coefficients[p, j] (scale[p] (x - centre[p]))^j| <= error[p] as evaluated, on panel p; inf: no
    enclosure."""

    centre: np.ndarray
    scale: np.ndarray  # powers of two; not 1 for the logarithm only, whose coefficients would overflow
    coefficients: np.ndarray
    error: np.ndarray


def centre_values(function: Function, centres: np.ndarray) -> np.ndarray:
    """f at each centre, from an interval of relative width below 2^-60, rounded to binary64: relative error below
    2^-52."""
    iv.prec = 120
    values = np.empty(len(centres))
    for i, centre in enumerate(centres.tolist()):
        low, high = INTERVALS[function](centre)._mpi_
        values[i] = to_float(low)
        if not abs(to_float(mpf_sub(high, low))) <= 2.0**-60 * abs(values[i]):
            raise ArithmeticError(f"wide interval: {function.name}({centre.hex()})")
    return values


def fill_logarithm(a: np.ndarray, base: np.ndarray) -> None:
    """a_j = -(-1 / base)^j / j."""
    power = -np.ones_like(base)
    for j in range(1, ORDER + 1):
        power = power / -base
        a[:, j] = power / j


def fill_logistic(a: np.ndarray, constant: float, linear: float) -> None:
    """From y' = constant + linear y - y^2."""
    for j in range(ORDER):
        square = sum(a[:, i] * a[:, j - i] for i in range(j + 1))
        a[:, j + 1] = ((constant if j == 0 else 0.0) + linear * a[:, j] - square) / (j + 1)


def fill_erf(a: np.ndarray, c: np.ndarray) -> None:
    """From y' = 2 / sqrt(pi) e^(-x^2) and y'' = -2 x y'."""
    iv.prec = 120
    a[:, 1] = [to_float((2 / iv.sqrt(iv.pi) * iv.exp(-(iv.mpf(x) ** 2)))._mpi_[0]) for x in c.tolist()]
    for j in range(ORDER - 1):
        a[:, j + 2] = -2 * (c * (j + 1) * a[:, j + 1] + j * a[:, j]) / ((j + 1) * (j + 2))


def taylor_coefficients(function: Function, c: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """a_j = f^(j)(c) / (j! scale^j), j = 0..ORDER, from f(c) and the differential equation of f; scale = 1 except for
    LOG."""
    a = np.zeros((len(c), ORDER + 1))
    a[:, 0] = centre_values(function, c)
    match function:
        case Function.EXP | Function.EXPM1:  # all derivatives are e^c
            power = centre_values(Function.EXP, c)
            a[:, 1:] = power[:, None] / np.array([float(math.factorial(j)) for j in range(1, ORDER + 1)])
        case Function.LOG:
            fill_logarithm(a, c * scale)
        case Function.LOG1P:
            fill_logarithm(a, 1.0 + c)
        case Function.TANH:
            fill_logistic(a, constant=1.0, linear=0.0)
        case Function.SIGMOID:
            fill_logistic(a, constant=0.0, linear=1.0)
        case Function.ERF:
            fill_erf(a, c)
        case _:  # sin and cos: y'' = -y
            a[:, 1] = centre_values(Function.COS, c) if function is Function.SIN else -centre_values(Function.SIN, c)
            for j in range(2, ORDER + 1):
                a[:, j] = -a[:, j - 2] / (j * (j - 1))
    return a


def ninth_power(h: np.ndarray) -> np.ndarray:
    """h^9 by multiplications: no library function is called."""
    cube = h * h * h
    return cube * cube * cube


def remainder(function: Function, c: np.ndarray, h: np.ndarray, a: np.ndarray) -> np.ndarray:
    """A bound of |f(c + t) - sum_(j <= 8) a_j t^j| for |t| <= h; inf if there is none."""
    match function:
        case Function.EXP | Function.EXPM1:  # e^(c + h) h^9 / 9!
            return 2 * a[:, 1] * ninth_power(h) / math.factorial(9)
        case Function.LOG | Function.LOG1P:  # (h / base)^9 / (9 (1 - h / base)^9)
            ratio = h / (c if function is Function.LOG else 1.0 + c)
            return np.where((ratio > 0) & (ratio < 1 / 64), ninth_power(ratio), np.inf)
        case Function.SIN | Function.COS:  # h^9 / 9!
            return ninth_power(h) / math.factorial(9)
        case Function.SIGMOID:  # Cauchy on |z - c| = 2, where |sigmoid| < 17 sigmoid(c)
            return 2 * 17 * a[:, 0] * ninth_power(h / 2)
        case _:  # Cauchy on |z - c| = 1, where |tanh| < 1.6 and |erf| < 5
            return 10.0 * ninth_power(h)


def taylor_panels(function: Function, first: np.ndarray) -> Panels:
    """Taylor enclosures for the panels that begin at these words (all words of a panel share sign and exponent)."""
    begin = np.abs(first.view(np.float32).astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(first >> 23 & 255, 1).astype(np.int64) - 150)
    near = (begin < SERIES_BELOW) & (function is not Function.LOG)
    centre = np.where(near, 0.0, np.copysign(begin + PANEL // 2 * unit, first.view(np.float32)))
    h = np.where(near, begin + (PANEL - 1) * unit, PANEL // 2 * unit)
    scale = np.ldexp(1.0, -np.frexp(centre)[1]) if function is Function.LOG else np.ones_like(centre)
    _, distinct, index = np.unique(centre, return_index=True, return_inverse=True)
    a = taylor_coefficients(function, centre[distinct], scale[distinct])[index]
    size = np.abs(a[:, ORDER])
    for j in range(ORDER - 1, -1, -1):
        size = size * (h * scale) + np.abs(a[:, j])
    error = np.maximum(SLACK * size + 2 * remainder(function, centre, h, a), LEAST_ERROR)
    if not np.isfinite(a).all() or np.isnan(error).any():
        raise ArithmeticError(f"{function.name}: an enclosure is no number")
    return Panels(centre, scale, a, error)


@njit(inline="always")
def _differs(v, error, claimed):
    """RN(v - error) or RN(v + error) is not the claimed word."""
    low, high = np.float32(v - error), np.float32(v + error)
    return (low.view(np.uint32) != claimed) | (high.view(np.uint32) != claimed)


@njit(nogil=True)
def _check_taylor(claimed, first, centre, scale, a, error, flags):
    """flags[p, i] = 1 where the enclosure does not confirm claimed[p, i]."""
    for p in range(first.size):
        for i in range(PANEL):
            t = (np.float64(np.uint32(first[p] + i).view(np.float32)) - centre[p]) * scale[p]
            v = a[p, ORDER]
            for j in range(ORDER - 1, -1, -1):
                v = v * t + a[p, j]
            flags[p, i] = _differs(v, error[p], claimed[p, i])


@njit(nogil=True)
def _check_turns(claimed, at_first, at_offset, flags):
    """The same by sin(x + d) = sin x cos d + cos x sin d; rows of the tables: the function and its derivative, cos d
    and sin d."""
    for p in range(claimed.shape[0]):
        for i in range(PANEL):
            v = at_first[0, p] * at_offset[0, i] + at_first[1, p] * at_offset[1, i]
            flags[p, i] = _differs(v, TURN_ERROR, claimed[p, i])


def offset_turns(unit: float) -> np.ndarray:
    """cos(i unit), sin(i unit) for i < PANEL, within 2^-51: by the addition theorem from 64 + 64 angles."""
    steps = np.arange(64) * unit
    (s1, c1), (s2, c2) = (
        [centre_values(f, angles) for f in (Function.SIN, Function.COS)] for angles in (steps * 64, steps)
    )
    cosine = np.outer(c1, c2) - np.outer(s1, s2)
    sine = np.outer(s1, c2) + np.outer(c1, s2)
    return np.stack([cosine.ravel(), sine.ravel()])


def flag_taylor(function: Function, first: np.ndarray, claimed: np.ndarray) -> np.ndarray:
    """Flags of panels on which f is smooth."""
    flags = np.empty(claimed.shape, dtype=np.bool_)
    panels = taylor_panels(function, first)
    _check_taylor(claimed, first, panels.centre, panels.scale, panels.coefficients, panels.error, flags)
    return flags


def flag_turns(function: Function, first: np.ndarray, claimed: np.ndarray) -> np.ndarray:
    """Flags of panels with |x| >= TURN_ABOVE, all of one sign and one exponent."""
    flags = np.empty(claimed.shape, dtype=np.bool_)
    begin = first.view(np.float32).astype(np.float64)
    sine, cosine = (centre_values(f, begin) for f in (Function.SIN, Function.COS))
    at_first = np.stack([sine, cosine] if function is Function.SIN else [cosine, -sine])
    unit = math.ldexp(1.0, int(first[0] >> 23 & 255) - 150)
    _check_turns(claimed, at_first, offset_turns(math.copysign(unit, begin[0])), flags)
    return flags


def ends(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the first and the last word of each panel."""
    with np.errstate(invalid="ignore"):
        return tuple(w.view(np.float32).astype(np.float64) for w in (first, first + np.uint32(PANEL - 1)))


def expected_constants(function: Function, first: np.ndarray) -> np.ndarray:
    """Per panel: the result word of every x of the panel if CONSTANT (or NaN) covers it, else -1."""
    begin, end = ends(first)
    expected = np.where(np.isnan(begin), NAN, -1)
    for low, high, value in CONSTANT[function]:
        inside = (np.minimum(begin, end) >= low) & (np.maximum(begin, end) <= high)
        expected[inside] = to_word(value)
    return expected


def unconfirmed(function: Function, first: np.ndarray, claimed: np.ndarray) -> np.ndarray:
    """The words of these panels whose claimed result no enclosure confirms; they are left to `settle`.

    first: uint32[panels], multiples of PANEL; claimed: uint32[panels, PANEL].
    """
    flags = np.ones(claimed.shape, dtype=np.bool_)
    expected = expected_constants(function, first)
    constant = expected >= 0
    flags[constant] = claimed[constant] != expected[constant, None].astype(np.uint32)
    begin, end = ends(first)
    least = {Function.LOG: 0.0, Function.LOG1P: -1.0}.get(function, -math.inf)
    smooth = ~constant & np.isfinite(end) & (begin > least)
    turns = smooth & (np.abs(begin) >= TURN_ABOVE) & (function in (Function.SIN, Function.COS))
    for key in np.unique(first[turns] >> 23):
        chosen = turns & (first >> 23 == key)
        flags[chosen] = flag_turns(function, first[chosen], claimed[chosen])
    taylor = smooth & ~turns
    if taylor.any():
        flags[taylor] = flag_taylor(function, first[taylor], claimed[taylor])
    return (first[:, None] + np.arange(PANEL, dtype=np.uint32))[flags]

"""The elementary functions and the square root as Triton kernels: one pass over the tensor.

In: a binary32 tensor. Out: RN(f(x)) for every element. Twins: elementary.py (torch), numba/elementary.py (numba), the
same binary64 operations in the same order; nothing may be fused (`enable_fp_fusion=False`;
tests/gpu/test_machine_code.py looks at the code).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic import elementary_tables as tables
from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_reduction import PI_ROWS, REDUCE, SCALER, SHIFTER, SIGMOID_LINEAR, SIGMOID_SLOPE
from vgame.arithmetic.functions import Function

BLOCK = 1024

_LOG2E, _LN2_HI, _LN2_LO = (tl.constexpr(x) for x in (tables.LOG2E, tables.LN2_HI, tables.LN2_LO))
_EXP_Q, _LOG_Q = tl.constexpr(tables.EXP_Q), tl.constexpr(tables.LOG_Q)
_SINPI_Q, _ERF_Q = tl.constexpr(tables.SINPI_Q), tl.constexpr(tables.ERF_Q)
_SHIFTER, _SCALER, _REDUCE = (tl.constexpr(x) for x in (SHIFTER, SCALER, REDUCE))
_LINEAR, _SLOPE = tl.constexpr(SIGMOID_LINEAR), tl.constexpr(SIGMOID_SLOPE)
_INF, _NAN = tl.constexpr(float("inf")), tl.constexpr(float("nan"))


@triton.jit
def _bits(d):
    return d.to(tl.int64, bitcast=True)


@triton.jit
def _float(b):
    return b.to(tl.float64, bitcast=True)


@triton.jit
def _horner(COEFFICIENTS: tl.constexpr, x, LAST: tl.constexpr):
    """c[0] + x (c[1] + x (... + x c[LAST]))."""
    result = x * COEFFICIENTS[LAST] + COEFFICIENTS[LAST - 1]
    for i in tl.static_range(LAST - 2, -1, -1):
        result = result * x + COEFFICIENTS[i]
    return result


@triton.jit
def _clamp(d, low, high):
    """NaN stays NaN."""
    d = tl.where(d < low, low, d)
    return tl.where(d > high, high, d)


@triton.jit
def _split_exp(d):
    """(e, s): exp(d) = s (1 + e), s = 2^k, e = exp(r) - 1 for |r| <= ln(2) / 2."""
    n = d * _LOG2E + _SCALER
    k = n - _SCALER
    r = (d - k * _LN2_HI) - k * _LN2_LO
    return (_horner(_EXP_Q, r, 9) * r + 1.0) * r, _float(_bits(n) << 52)


@triton.jit
def _expm1_of(d):
    e, s = _split_exp(d)
    return e * s - (1.0 - s)


@triton.jit
def _split_log(b):
    """(f, j): the number with the bits b is (1 + f) 2^-j."""
    j = (_REDUCE - b) >> 52
    return _float(b + (j << 52)) - 1.0, j.to(tl.float64)


@triton.jit
def _join_log(f, j):
    """log((1 + f) 2^-j). Subtracting j * LN2 (not adding) keeps the sign of f = -0 at j = 0."""
    s = f / (f * 0.5 + 1.0)
    w = s * s
    return _horner(_LOG_Q, w, 6) * w * s - j * _LN2_LO + s - j * _LN2_HI


@triton.jit
def _outside_log(y, d, pole):
    """y where pole < x < inf, else log's value at its pole (-inf), at +inf, and NaN elsewhere."""
    special = tl.where(d == pole, -_INF, tl.where(d == _INF, _INF, _NAN))
    return tl.where((d > pole) & (d < _INF), y, special)


@triton.jit
def _exp(d, word, turns):
    e, s = _split_exp(_clamp(d, -105.0, 90.0))
    return (e + 1.0) * s


@triton.jit
def _expm1(d, word, turns):
    return _expm1_of(_clamp(d, -30.0, 90.0))


@triton.jit
def _log(d, word, turns):
    f, j = _split_log(_bits(d))
    return _outside_log(_join_log(f, j), d, 0.0)


@triton.jit
def _log1p(d, word, turns):
    f, j = _split_log(_bits(d + 1.0))
    return _outside_log(_join_log(tl.where(j == 0.0, d, f), j), d, -1.0)


@triton.jit
def _tanh(d, word, turns):
    e = _expm1_of(_clamp(d * 2.0, -20.0, 20.0))
    return e / (e + 2.0)


@triton.jit
def _erf(d, word, turns):
    d = _clamp(d, -4.0, 4.0)
    return _horner(_ERF_Q, d * d - 8.0, 27) * d


@triton.jit
def _sigmoid(d, word, turns):
    e, s = _split_exp(_clamp(-d, -40.0, 105.0))
    y = 1.0 / ((e + 1.0) * s + 1.0)
    return tl.where(tl.abs(d) < _LINEAR, d * _SLOPE + 0.5, y)


@triton.jit
def _sine_of_turns(d, word, turns, half):
    """sin(x + pi half), half = 0 or 1/2: x / pi + half = k + f, sin = (-1)^k sin(pi f). turns: 1/pi in three pieces per
    exponent."""
    row = turns + ((word >> 23) & 255)
    a = d * tl.load(row)
    b = d * tl.load(row + 256)
    n = a + b + half + _SHIFTER
    f = a - (n - _SHIFTER - half) + b + d * tl.load(row + 512)
    y = _horner(_SINPI_Q, f * f, 8) * f
    return _float(_bits(y) ^ (_bits(n) << 63))


@triton.jit
def _sin(d, word, turns):
    return _sine_of_turns(d, word, turns, 0.0)


@triton.jit
def _cos(d, word, turns):
    return _sine_of_turns(d, word, turns, 0.5)


@triton.jit
def _sqrt(d, word, turns):
    """The instruction that IEEE-754 asks for (sqrt.rn.f32), not a library's approximation."""
    return tl.sqrt_rn(word.to(tl.float32, bitcast=True)).to(tl.float64)


@triton.jit
def _apply(
    x, out, turns, elements, VALUE: tl.constexpr, EXCEPTIONS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i] = RN32(VALUE(x[i])) as words; the COUNT exceptional inputs are put right."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < elements
    word = tl.load(x + i, mask=inside, other=0)
    value = VALUE(word.to(tl.float32, bitcast=True).to(tl.float64), word, turns)
    narrow = value.to(tl.float32)
    result = narrow.to(tl.int32, bitcast=True)
    result = tl.where(narrow != narrow, 0x7FC00000, result)
    for e in tl.static_range(COUNT):
        result = tl.where(word == EXCEPTIONS[2 * e], EXCEPTIONS[2 * e + 1], result)
    tl.store(out + i, result, mask=inside)


VALUES = {
    Function.SQRT: _sqrt,
    Function.EXP: _exp,
    Function.EXPM1: _expm1,
    Function.LOG: _log,
    Function.LOG1P: _log1p,
    Function.TANH: _tanh,
    Function.ERF: _erf,
    Function.SIGMOID: _sigmoid,
    Function.SIN: _sin,
    Function.COS: _cos,
}


@cache
def _turns(device: torch.device) -> Tensor:
    """1/pi in three pieces for every exponent, one after the other."""
    return torch.tensor(PI_ROWS, dtype=torch.float64).to(device)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


#: (word, result), one pair after the other, as int32.
_EXCEPTIONS = {f: tuple(_signed(word) for pair in pairs for word in pair) for f, pairs in EXCEPTIONS.items()}


def evaluate(function: Function, x: Tensor) -> Tensor:
    """RN(f(x)) elementwise, NaN canonical, -0 kept; x: binary32, any strides. Twin: elementary.evaluate_torch."""
    if x.dtype != torch.float32:
        raise TypeError(f"binary32 expected, not {x.dtype}")
    source = x.contiguous().view(-1).view(torch.int32)
    out = torch.empty_like(source)
    if source.numel():
        exceptions = _EXCEPTIONS.get(function, ())
        _apply[(triton.cdiv(source.numel(), BLOCK),)](
            source, out, _turns(x.device), source.numel(), VALUE=VALUES[function], EXCEPTIONS=exceptions or (0, 0),
            COUNT=len(exceptions) // 2, BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
    return out.view(torch.float32).view(x.shape)

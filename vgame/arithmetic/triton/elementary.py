"""The elementary functions and the square root as Triton kernels: one pass over the tensor.

In: a binary32 tensor. Out: RN(f(x)) for every element, by the formulas of elementary_formulas.py, as in its twins. No
operations may be fused (`enable_fp_fusion=False`; tests/gpu/test_machine_code.py checks the machine code).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic import elementary_tables as tables
from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_formulas import bound
from vgame.arithmetic.elementary_reduction import PI_ROWS
from vgame.arithmetic.functions import Function

BLOCK = 1024

_EXP_Q, _LOG_Q = tl.constexpr(tables.EXP_Q), tl.constexpr(tables.LOG_Q)
_SINPI_Q, _ERF_Q = tl.constexpr(tables.SINPI_Q), tl.constexpr(tables.ERF_Q)


@triton.jit
def _bits(d):
    return d.to(tl.int64, bitcast=True)


@triton.jit
def _real(b):
    return b.to(tl.float64, bitcast=True)


@triton.jit
def _wide(j):
    return j.to(tl.float64)


@triton.jit
def _where(condition, x, y):
    return tl.where(condition, x, y)


@triton.jit
def _abs(d):
    return tl.abs(d)


@triton.jit
def _horner(COEFFICIENTS: tl.constexpr, x, LAST: tl.constexpr):
    """c[0] + x (c[1] + x (... + x c[LAST]))."""
    result = x * COEFFICIENTS[LAST] + COEFFICIENTS[LAST - 1]
    for i in tl.static_range(LAST - 2, -1, -1):
        result = result * x + COEFFICIENTS[i]
    return result


@triton.jit
def _exp_polynomial(x):
    return _horner(_EXP_Q, x, 9)


@triton.jit
def _log_polynomial(x):
    return _horner(_LOG_Q, x, 6)


@triton.jit
def _erf_polynomial(x):
    return _horner(_ERF_Q, x, 27)


@triton.jit
def _sinpi_polynomial(x):
    return _horner(_SINPI_Q, x, 8)


@triton.jit
def _turn(word, turns, piece: tl.constexpr):
    return tl.load(turns + ((word >> 23) & 255) + 256 * piece)


@triton.jit
def _sqrt(d, word, turns):
    """The instruction of IEEE-754 (sqrt.rn.f32), not a library's approximation."""
    return tl.sqrt_rn(word.to(tl.float32, bitcast=True)).to(tl.float64)


@triton.jit
def _apply(
    x, out, turns, elements, VALUE: tl.constexpr, EXCEPTIONS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i] = RN32(VALUE(x[i])) as words; the COUNT exceptional inputs are corrected."""
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


_PRIMITIVES = {
    "__name__": __name__, "tl": tl, "bits": _bits, "real": _real, "wide": _wide, "where": _where, "abs": _abs,
    "turn": _turn, "exp_polynomial": _exp_polynomial, "log_polynomial": _log_polynomial,
    "erf_polynomial": _erf_polynomial, "sinpi_polynomial": _sinpi_polynomial,
}  # fmt: skip
VALUES = {Function.SQRT: _sqrt} | bound(_PRIMITIVES, triton.jit, tl.constexpr)


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

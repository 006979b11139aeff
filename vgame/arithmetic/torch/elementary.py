"""RN(f(x)) for the elementary functions, on every IEEE-754 device: binary32 tensors in, binary32 tensors out.

Straight-line binary64: + - * / and integer operations on the bits, no library function, no order freedom, no fused
operation. Torch never contracts across operations, so every device computes the same binary64 value, and
scripts/exhaustive.py has shown for all 2^32 inputs that it rounds to the right binary32 number
(docs/numerics-elementary.md). Assumed: round to nearest, no flush to zero.

Twin: numba/elementary.py (numba), the same operations in the same order. Every temporary is used in place where it can
be.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vgame.arithmetic import elementary_tables as tables
from vgame.arithmetic import gate
from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_reduction import PI_ROWS, REDUCE, SCALER, SHIFTER, SIGMOID_LINEAR, SIGMOID_SLOPE
from vgame.arithmetic.functions import Function

CHUNK = 1 << 15  # elements per pass on a CPU: the temporaries stay in the second-level cache
FEW_TURNS = 2.0**21  # below, one row of the table of 1/pi serves all x
LOW_BITS = (1 << 29) - 1  # what binary64 has more than binary32; at a midpoint they are 2^28
BELOW_MIDPOINT = (1 << 28) - 1


def _bits(d: Tensor) -> Tensor:
    return d.view(torch.int64)


def _float(b: Tensor) -> Tensor:
    return b.view(torch.float64)


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """c[0] + x (c[1] + x (...)), a new tensor."""
    result = x.mul(coefficients[-1]).add_(coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        result.mul_(x).add_(coefficient)
    return result


def _split_exp(d: Tensor) -> tuple[Tensor, Tensor]:
    """(e, s): exp(d) = s (1 + e), s = 2^k, e = exp(r) - 1 for |r| <= ln(2) / 2. Overwrites d."""
    n = d.mul(tables.LOG2E).add_(SCALER)
    k = n.sub(SCALER)
    r = d.sub_(k.mul(tables.LN2_HI)).sub_(k.mul_(tables.LN2_LO))
    e = _horner(tables.EXP_Q, r).mul_(r).add_(1.0).mul_(r)
    return e, _float(_bits(n).bitwise_left_shift_(52))


def _expm1_of(d: Tensor) -> Tensor:
    """exp(d) - 1 = s e - (1 - s): at s = 1 the sign of e = -0 stays. Overwrites d."""
    e, s = _split_exp(d)
    return e.mul_(s).sub_(s.neg_().add_(1.0))


def _split_log(b: Tensor) -> tuple[Tensor, Tensor]:
    """(f, j): the number with the bits b is (1 + f) 2^-j, 1 + f in [sqrt(1/2), sqrt(2)] (a little below at the left
    end). Overwrites b."""
    j = b.neg().add_(REDUCE).bitwise_right_shift_(52)
    f = _float(b.add_(j.bitwise_left_shift(52))).sub_(1.0)
    return f, j.to(torch.float64)


def _join_log(f: Tensor, j: Tensor) -> Tensor:
    """log((1 + f) 2^-j). Subtracting j * LN2 (not adding) keeps the sign of f = -0 at j = 0. Overwrites both."""
    s = f.div_(f.mul(0.5).add_(1.0))
    w = s.mul(s)
    y = _horner(tables.LOG_Q, w).mul_(w).mul_(s)
    return y.sub_(j.mul(tables.LN2_LO)).add_(s).sub_(j.mul_(tables.LN2_HI))


def _outside_log(y: Tensor, x: Tensor, pole: float) -> Tensor:
    """y where pole < x < inf, else log's value at its pole (-inf), at +inf, and NaN elsewhere."""
    if x.device.type == "cpu":
        low, high = x.aminmax()  # NaN wins in both
        if low > pole and high < torch.inf:
            return y
    special = torch.where(x == torch.inf, torch.inf, torch.nan).masked_fill_(x == pole, -torch.inf)
    return torch.where((x > pole) & (x < torch.inf), y, special.to(torch.float64))


def _exp(x: Tensor) -> Tensor:
    e, s = _split_exp(x.to(torch.float64).clamp_(-105.0, 90.0))
    return e.add_(1.0).mul_(s)


def _expm1(x: Tensor) -> Tensor:
    return _expm1_of(x.to(torch.float64).clamp_(-30.0, 90.0))


def _log(x: Tensor) -> Tensor:
    return _outside_log(_join_log(*_split_log(_bits(x.to(torch.float64)))), x, 0.0)


def _log1p(x: Tensor) -> Tensor:
    d = x.to(torch.float64)
    f, j = _split_log(_bits(d.add(1.0)))
    return _outside_log(_join_log(torch.where(j == 0.0, d, f), j), x, -1.0)


def _tanh(x: Tensor) -> Tensor:
    e = _expm1_of(x.to(torch.float64).mul_(2.0).clamp_(-20.0, 20.0))
    return e.div_(e.add(2.0))


def _erf(x: Tensor) -> Tensor:
    d = x.to(torch.float64).clamp_(-4.0, 4.0)
    return _horner(tables.ERF_Q, d.mul(d).sub_(8.0)).mul_(d)


def _sigmoid(x: Tensor) -> Tensor:
    d = x.to(torch.float64)
    e, s = _split_exp(d.neg().clamp_(-40.0, 105.0))
    denominator = e.add_(1.0).mul_(s).add_(1.0)
    y = denominator.new_ones(()).div(denominator)
    return torch.where(x.abs() < SIGMOID_LINEAR, d.mul_(SIGMOID_SLOPE).add_(0.5), y)


@cache
def _pi_tables(device: torch.device) -> list[Tensor]:
    return [torch.tensor(rows, dtype=torch.float64, device=device) for rows in PI_ROWS]


def _inverse_pi(x: Tensor) -> list[Tensor] | list[float]:
    """The pieces of 1/pi for each x, or one set for all where no x is large."""
    if x.device.type == "cpu":
        low, high = x.aminmax()
        if low > -FEW_TURNS and high < FEW_TURNS:
            return [rows[0] for rows in PI_ROWS]
    row = x.view(torch.int32).bitwise_right_shift(23).bitwise_and_(255)
    return [table.index_select(0, row) for table in _pi_tables(x.device)]


def _sine_of_turns(x: Tensor, half: float) -> Tensor:
    """sin(x + pi half), half = 0 or 1/2: x / pi + half = k + f, sin = (-1)^k sin(pi f)."""
    d = x.to(torch.float64)
    first, second, third = _inverse_pi(x)
    a, b = d.mul(first), d.mul(second)
    n = a.add(b).add_(half).add_(SHIFTER)
    f = a.sub_(n.sub(SHIFTER).sub_(half)).add_(b).add_(d.mul_(third))
    y = _horner(tables.SINPI_Q, f.mul(f)).mul_(f)
    return _float(_bits(y).bitwise_xor_(_bits(n).bitwise_left_shift_(63)))


def _sin(x: Tensor) -> Tensor:
    return _sine_of_turns(x, 0.0)


def _cos(x: Tensor) -> Tensor:
    return _sine_of_turns(x, 0.5)


WIDE = {
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
def _exceptions(function: Function, device: torch.device) -> tuple[Tensor, Tensor]:
    """The exceptional words in rising order (as int32), and the right results in binary64."""
    rows = torch.tensor(EXCEPTIONS[function], dtype=torch.int64).to(torch.int32)
    words, order = rows[:, 0].sort()
    return words.to(device), rows[order, 1].view(torch.float32).to(torch.float64).to(device)


def _patch(function: Function, x: Tensor, y: Tensor) -> Tensor:
    """y with the exceptional inputs put right; their binary64 values lie within one unit of a midpoint, which is
    rare."""
    if not EXCEPTIONS[function]:
        return y
    if x.device.type == "cpu" and int(_bits(y).sub(BELOW_MIDPOINT).bitwise_and_(LOW_BITS).amin()) > 2:
        return y
    words, exact = _exceptions(function, x.device)
    place = torch.searchsorted(words, x.view(torch.int32)).clamp_(max=len(words) - 1)
    return torch.where(words[place] == x.view(torch.int32), exact[place], y)


def evaluate_wide(function: Function, x: Tensor) -> Tensor:
    """The binary64 value before the last rounding. x: flat, contiguous, binary32, not empty."""
    return _patch(function, x, WIDE[function](x))


def evaluate_torch(function: Function, x: Tensor) -> Tensor:
    """RN(f(x)) elementwise by torch operations, on the device of x."""
    if x.dtype != torch.float32:
        raise TypeError(f"binary32 expected, not {x.dtype}")
    source = x.contiguous().reshape(-1)
    result = torch.empty_like(source)
    step = max(source.numel() if x.device.type != "cpu" else CHUNK, 1)
    for start in range(0, source.numel(), step):
        chunk = slice(start, start + step)
        result[chunk].copy_(evaluate_wide(function, source[chunk]))
    return result.view(x.shape)


def evaluate(function: Function, x: Tensor) -> Tensor:
    """RN(f(x)) elementwise: compiled loops on a CPU, Triton kernels or torch operations elsewhere. The bits are the
    same."""
    if gate.in_use(x.device):
        from vgame.arithmetic.triton import elementary as kernels  # imported only where it runs

        return kernels.evaluate(function, x)
    if x.device.type != "cpu":
        return evaluate_torch(function, x)
    if x.dtype != torch.float32:
        raise TypeError(f"binary32 expected, not {x.dtype}")
    from vgame.arithmetic.numba import elementary as elementary_kernel  # numba is imported only where its loops run

    return torch.from_numpy(elementary_kernel.evaluate(function, x.detach().numpy()))

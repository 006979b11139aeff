"""RN(f(x)) for the elementary functions, on every IEEE-754 device: binary32 tensors in, binary32 tensors out.

Straight-line binary64: + - * / and integer operations on the bits, no library function, no order freedom, no fused
operation. Torch never contracts across operations, so every device computes the same binary64 value, and
scripts/exhaustive.py has shown for all 2^32 inputs that it rounds to the right binary32 number
(docs/numerics-elementary.md). Assumed: round to nearest, no flush to zero.

Twins: numba/elementary.py and triton/elementary.py, of the same formulas (elementary_formulas.py).
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from vgame.arithmetic import elementary_tables as tables
from vgame.arithmetic import gate
from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.elementary_formulas import bound
from vgame.arithmetic.elementary_reduction import PI_ROWS
from vgame.arithmetic.functions import Function

CHUNK = 1 << 15  # elements per pass on a CPU: the temporaries stay in the second-level cache
LOW_BITS = (1 << 29) - 1  # additional bits of binary64; 2^28 at a midpoint
BELOW_MIDPOINT = (1 << 28) - 1


def _bits(d: Tensor) -> Tensor:
    return d.view(torch.int64)


def _real(b: Tensor) -> Tensor:
    return b.view(torch.float64)


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """c[0] + x (c[1] + x (...)), a new tensor."""
    result = x.mul(coefficients[-1]).add_(coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        result.mul_(x).add_(coefficient)
    return result


@cache
def _turns(device: torch.device) -> Tensor:
    """1/pi in three pieces for every exponent."""
    return torch.tensor(PI_ROWS, dtype=torch.float64, device=device)


def _turn(word: Tensor, turns: Tensor, piece: int) -> Tensor:
    return turns[piece].index_select(0, word.bitwise_right_shift(23).bitwise_and_(255))


_PRIMITIVES = {
    "bits": _bits,
    "real": _real,
    "wide": Tensor.double,
    "where": torch.where,
    "turn": _turn,
    "exp_polynomial": partial(_horner, tables.EXP_Q),
    "log_polynomial": partial(_horner, tables.LOG_Q),
    "erf_polynomial": partial(_horner, tables.ERF_Q),
    "sinpi_polynomial": partial(_horner, tables.SINPI_Q),
}
VALUES = bound(_PRIMITIVES, lambda formula: formula, lambda constant: constant)


@cache
def _exceptions(function: Function, device: torch.device) -> tuple[Tensor, Tensor]:
    """The exceptional words in rising order (as int32), and the right results in binary64."""
    rows = torch.tensor(EXCEPTIONS[function], dtype=torch.int64).to(torch.int32)
    words, order = rows[:, 0].sort()
    return words.to(device), rows[order, 1].view(torch.float32).to(torch.float64).to(device)


def _patch(function: Function, x: Tensor, y: Tensor) -> Tensor:
    """y with the exceptional inputs corrected. Their binary64 values are within one unit of a midpoint, which is
    rare."""
    if not EXCEPTIONS[function]:
        return y
    if x.device.type == "cpu" and int(_bits(y).sub(BELOW_MIDPOINT).bitwise_and_(LOW_BITS).amin()) > 2:
        return y
    words, exact = _exceptions(function, x.device)
    place = torch.searchsorted(words, x.view(torch.int32)).clamp_(max=len(words) - 1)
    return torch.where(words[place] == x.view(torch.int32), exact[place], y)


def unpatched(function: Function, x: Tensor) -> Tensor:
    """The formula's value, which is wrong for the exceptional inputs."""
    return VALUES[function](x.double(), x.view(torch.int32), _turns(x.device))


def evaluate_wide(function: Function, x: Tensor) -> Tensor:
    """The binary64 value before the last rounding. x: flat, contiguous, binary32, not empty."""
    return _patch(function, x, unpatched(function, x))


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

"""The arithmetic of each rounding mode as tensor kernels. Twin: vgame/execute/reference.py, element by element.

correct: every output is RN(exact value). nearest: RN of a binary64 result of the vendor's functions and products. fp32:
the vendor's binary32. Only whitelisted kernels are used: + - * / on binary32 are IEEE instructions; never add(alpha=),
addcmul, lerp, or division by a Python number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from vgame.arithmetic import certified, gate
from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.indexed_matrix import IndexedMatrix
from vgame.arithmetic.torch import elementary, narrow
from vgame.arithmetic.vendor import vendor
from vgame.system.threads import Runner, each

Tensor = torch.Tensor


class Kernels(Protocol):
    """The operations of a rounding mode; shapes as in vgame.arithmetic.certified.

    `folds`: whether dot accepts folded matrices. `fuses`: whether chains may compute maps. dot may pass its jobs to
    `run`, and its result is complete when they are done; or it runs them itself. bfloat16: the result is rounded to 8
    bits, once. halves: it is stored as torch.bfloat16; asked only of kernels with `halves`.
    """

    folds: bool
    fuses: bool
    halves: bool

    def map(self, function: Function, *operands: Tensor, bfloat16: bool = False) -> Tensor: ...
    def dot(self, a: Tensor, b: Tensor, run: Runner = each, bfloat16: bool = False, halves: bool = False) -> Tensor: ...
    def sum_rows(self, a: Tensor, bfloat16: bool = False) -> Tensor: ...
    def one_hot_sum(self, index: Tensor, b: Tensor, m: int, bfloat16: bool = False) -> Tensor: ...


def _positive_zero(x: Tensor) -> Tensor:
    """-0 + 0 = +0, everything else unchanged."""
    return x.add_(0.0)


def _wrap(x: Tensor) -> Tensor:
    """int64 modulo 2^32, as int32."""
    return x.to(torch.int32)


def _unsigned(x: Tensor) -> Tensor:
    return x.to(torch.int64) & 0xFFFFFFFF


def _floor_quotient(x: Tensor, y: Tensor, rounding: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    x, y = x.to(torch.int64), y.to(torch.int64)
    zero = y == 0
    return _wrap(torch.where(zero, 0, rounding(x, torch.where(zero, 1, y))))


def _to_integer(x: Tensor) -> Tensor:
    wide = torch.where(torch.isnan(x), 0.0, x).to(torch.float64)
    return wide.clamp(-(2.0**31), 2.0**31 - 1).trunc().to(torch.int32)


#: Two binary32 exponents differ by at most 277, and each pass removes 27 quotient bits.
FMOD_ROUNDS = 11


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    """x - trunc(x / y) y, exact: long division by 27 quotient bits at a time (the vendor's fmod is wrong for large
    quotients).

    SAFETY: every remainder and product below has at most 24 + 28 significant bits, so binary64 holds it.
    """
    x, y = torch.broadcast_tensors(x, y)
    rest, divisor = x.abs().to(torch.float64), y.abs().to(torch.float64)
    valid = torch.isfinite(rest) & (divisor > 0)
    rest, divisor = torch.where(valid, rest, 0.0), torch.where(valid & torch.isfinite(divisor), divisor, torch.inf)
    shift = (torch.frexp(rest)[1] - torch.frexp(torch.where(torch.isinf(divisor), 1.0, divisor))[1]).clamp(min=0)
    for _ in range(FMOD_ROUNDS):
        power = ((shift - 27).clamp(min=0).to(torch.int64) + 1023 << 52).view(torch.float64)
        scaled = divisor * power
        rest = rest - torch.where(torch.isinf(scaled), 0.0, (rest / scaled).floor() * scaled.nan_to_num(posinf=0.0))
        rest = torch.where(rest < 0, rest + scaled, rest)
        if not gate.in_use(x.device) and not bool((shift > 27).any()):  # this check waits for the device
            break
        shift = (shift - 27).clamp(min=0)
    return torch.where(valid, torch.copysign(rest.to(torch.float32), x), torch.nan)


def _sqrt(x: Tensor) -> Tensor:
    if gate.in_use(x.device):
        from vgame.arithmetic.triton import elementary as by_kernel  # imported only where it runs

        return by_kernel.evaluate(Function.SQRT, x)
    return x.to(torch.float64).sqrt_().to(torch.float32)


def _truth(x: Tensor) -> Tensor:
    return x.to(torch.int32)


FLOAT: dict[Function, Callable[..., Tensor]] = {
    Function.NEG: torch.neg,
    Function.ABS: torch.abs,
    Function.SQRT: _sqrt,
    Function.FLOOR: torch.floor,
    Function.CEIL: torch.ceil,
    Function.TRUNC: torch.trunc,
    Function.ROUND: torch.round,
    Function.CAST: torch.clone,
    Function.ADD: torch.add,
    Function.SUB: torch.sub,
    Function.MUL: torch.mul,
    Function.DIV: torch.div,
    Function.MAX: lambda x, y: _positive_zero(torch.maximum(x, y)),
    Function.MIN: lambda x, y: _positive_zero(torch.minimum(x, y)),
    Function.FMOD: _fmod,
}

OTHER: dict[Function, Callable[..., Tensor]] = {
    Function.EQ: lambda x, y: _truth(x == y),
    Function.NE: lambda x, y: _truth(x != y),
    Function.LT: lambda x, y: _truth(x < y),
    Function.LE: lambda x, y: _truth(x <= y),
    Function.IADD: lambda x, y: _wrap(x.to(torch.int64) + y),
    Function.ISUB: lambda x, y: _wrap(x.to(torch.int64) - y),
    Function.IMUL: lambda x, y: _wrap(x.to(torch.int64) * y),
    Function.IDIV: lambda x, y: _floor_quotient(x, y, lambda a, b: torch.div(a, b, rounding_mode="floor")),
    Function.IMOD: lambda x, y: _floor_quotient(x, y, torch.remainder),
    Function.IAND: torch.bitwise_and,
    Function.IOR: torch.bitwise_or,
    Function.IXOR: torch.bitwise_xor,
    Function.ISHL: lambda x, y: _wrap(_unsigned(x) << (y.to(torch.int64) & 31)),
    Function.ISHR: lambda x, y: _wrap(_unsigned(x) >> (y.to(torch.int64) & 31)),
    Function.IMAX: torch.maximum,
    Function.IMIN: torch.minimum,
    Function.IEQ: lambda x, y: _truth(x == y),
    Function.INE: lambda x, y: _truth(x != y),
    Function.ILT: lambda x, y: _truth(x < y),
    Function.ILE: lambda x, y: _truth(x <= y),
    Function.ULT: lambda x, y: _truth(_unsigned(x) < _unsigned(y)),
    Function.ITOF: lambda x: x.to(torch.float32),
    Function.FTOI: _to_integer,
    Function.SELECT: lambda c, x, y: torch.where(c != 0, x, y),
}


def integer_max(rows: Tensor, block: int) -> Tensor:
    """out[r,j] = the largest int32 of rows[r, j*block .. min(length, (j+1)*block) - 1]; shapes as in
    certified.reduce_max."""
    whole = rows.shape[1] // block * block
    parts = [rows[:, :whole].unflatten(1, (-1, block)).amax(-1)] if whole else []
    if whole < rows.shape[1]:
        parts.append(rows[:, whole:].amax(-1, keepdim=True))
    return torch.cat(parts, 1)


VENDOR: dict[Function, Callable[[Tensor], Tensor]] = {
    Function.EXP: torch.exp,
    Function.EXPM1: torch.expm1,
    Function.LOG: torch.log,
    Function.LOG1P: torch.log1p,
    Function.TANH: torch.tanh,
    Function.ERF: torch.erf,
    Function.SIGMOID: torch.sigmoid,
    Function.SIN: torch.sin,
    Function.COS: torch.cos,
}


class Correct:
    """The default: correctly rounded, the same bits on every device."""

    folds = fuses = halves = True

    def map(self, function: Function, *operands: Tensor, bfloat16: bool = False) -> Tensor:
        kernel = partial(elementary.evaluate, function) if function in ELEMENTARY else FLOAT.get(function)
        result = (kernel or OTHER[function])(*operands)
        return narrow.pointwise(function, result, operands) if bfloat16 else result

    def dot(
        self,
        a: Tensor | IndexedMatrix,
        b: Tensor | IndexedMatrix,
        run: Runner = each,
        bfloat16: bool = False,
        halves: bool = False,
    ) -> Tensor:
        return certified.dot(a, b, run, bfloat16, halves)

    def sum_rows(self, a: Tensor | IndexedMatrix, bfloat16: bool = False) -> Tensor:
        return certified.narrow_rows(a) if bfloat16 else certified.sum_rows(a)

    def one_hot_sum(self, index: Tensor, b: Tensor, m: int, bfloat16: bool = False) -> Tensor:
        return (certified.narrow_one_hot_sum if bfloat16 else certified.one_hot_sum)(index, b, m)


def _rounded(x: Tensor, bfloat16: bool) -> Tensor:
    """The values rounded to binary32, and then to bfloat16 if `bfloat16`."""
    x = x.to(torch.float32)
    return narrow.nearest(x) if bfloat16 else x


class Plain:
    """The vendor's arithmetic in one precision, rounded to binary32 after every operator (and then to bfloat16):
    nearest, fp32."""

    folds = fuses = halves = False

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def map(self, function: Function, *operands: Tensor, bfloat16: bool = False) -> Tensor:
        kernel = VENDOR.get(function) or FLOAT.get(function)
        if kernel is None:
            result = OTHER[function](*operands)
            return narrow.nearest(result) if bfloat16 else result
        return _rounded(kernel(*(x.to(self.dtype) for x in operands)), bfloat16)

    def dot(self, a: Tensor, b: Tensor, run: Runner = each, bfloat16: bool = False, halves: bool = False) -> Tensor:
        a, b = a.to(self.dtype), b.to(self.dtype)
        if self.dtype is torch.float64:  # vendor() may be a device's kernels with another order
            out = a.new_empty(max(len(a), len(b)), a.shape[1], b.shape[1])
            vendor().product(a, b, out)
            return _rounded(out, bfloat16)
        return _rounded(torch.matmul(a, b.transpose(1, 2)), bfloat16)

    def sum_rows(self, a: Tensor, bfloat16: bool = False) -> Tensor:
        x = a.to(self.dtype)
        return _rounded(vendor().total(x) if self.dtype is torch.float64 else x.sum(-1), bfloat16)

    def one_hot_sum(self, index: Tensor, b: Tensor, m: int, bfloat16: bool = False) -> Tensor:
        batch, n, k = max(index.shape[0], b.shape[0]), b.shape[1], b.shape[2]
        target = torch.zeros(batch, n, m + 1, dtype=self.dtype, device=b.device)
        valid = torch.where((index >= 0) & (index < m), index, m).to(torch.int64)
        target.scatter_add_(2, valid[:, None].expand(batch, n, k), b.to(self.dtype).expand(batch, n, k))
        return _rounded(target[..., :m].transpose(1, 2), bfloat16)


MODES: dict[str, Callable[[], Kernels]] = {
    "correct": Correct,
    "nearest": lambda: Plain(torch.float64),
    "fp32": lambda: Plain(torch.float32),
}

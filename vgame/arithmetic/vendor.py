"""The assumptions of the certificates about a library, and the only calls of the library.

In: binary64 tensors whose values are binary32 numbers or products of two. Out: binary64 sums with a promised error.
Another device (a perturbed one, a reversed one, a compiled one) is another `Vendor`, installed with `using`.

Promises (u = 2^-53, n = number of non-zero terms of a sum, S = sum of their magnitudes; docs/numerics-products.md,
section 2):

* classical   |result - exact| <= ((1 + u)^(n-1) - 1) * S, for any order of summation, with or without FMA;
* exact       the result is exact if all terms are multiples of some q > 0 and S <= 2^53 q;
* total       a sum with an infinite or NaN term is NaN or the infinity by IEEE's rules: no term is skipped.

They hold for every kernel that adds each term once with IEEE-754 binary64 additions or FMAs rounded to nearest. They
are void for Strassen and Winograd forms, for FFTs, and for binary64 emulated on narrower units (`refuse_emulation`).
For vgame's own kernels on a CPU they are proved (section 13).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vgame.arithmetic.numba import digit_products
from vgame.arithmetic.numba import products as own_products
from vgame.arithmetic.numba.digit_tile import permitted
from vgame.arithmetic.workspace import widen
from vgame.errors import VgameError

#: The switch by which cuBLAS (13.0u2 and later) replaces binary64 products by emulated ones; off unless set.
EMULATION_SWITCH = "CUBLAS_EMULATE_DOUBLE_PRECISION"


#: (rows of a, rows of b, sums, squares of both): see `Vendor`.
Multiply = Callable[[own_products.Places, own_products.Places, Tensor, tuple[Tensor, Tensor]], None]
#: (rows of a, rows of b, out, squares of both, whether to 8 bits, most bound per norms, most open words).
Digits = Callable[
    [own_products.Places, own_products.Places, Tensor, tuple[Tensor, Tensor], bool, float, int], Tensor | None
]


class EmulatedBinary64(VgameError):
    """The library is set to emulate binary64 products, which have no known error bound."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """Binary64 kernels that keep the promises above (the norm: its own promise).

    product(a [Ba, M, K], b [Bb, N, K], out [B, M, N]): out = sum_k a*b; Ba, Bb: B or 1; never reads out.
    total(x [.., K]) -> [..]: sum_k x.
    scatter(x [T, n], owner int64 [T], out [size, n]): out[j], zero so far, = sum of the rows t with owner[t] = j.
    norm(x [.., K]) -> [..]: Euclidean, at least (1 - 2^-22) times the norm; not finite if and only if a term is not.
    multiply(a, b, sums [B, M, N], squares ([Ba, M], [Bb, N])): product, and the squares of norm, of binary32 rows read
    in place, in the chains of numba/products.py; None: they are widened for `product`.
    digits(a, b, out [B, M, N], squares, early, most, limit): the rounded sums by numba/digit_products.py; the flat
    positions of the open ones, None where the rows are not suited.
    """

    product: Callable[[Tensor, Tensor, Tensor], None]
    total: Callable[[Tensor], Tensor]
    scatter: Callable[[Tensor, Tensor, Tensor], None]
    norm: Callable[[Tensor], Tensor]
    multiply: Multiply | None = None
    digits: Digits | None = None


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Whitelisted: mm and bmm with beta = 0 into a buffer of their own; never addmm_ or baddbmm_ over K-blocks."""
    refuse_emulation(out)
    bind_product(a, b, out)()


def bind_product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    """A function that computes the native product."""
    batch = out.shape[0]
    if batch == 1:
        return partial(torch.mm, a[0], b[0].mT, out=out[0])
    if b.shape[0] == 1 and a.is_contiguous() and out.is_contiguous():
        return partial(torch.mm, a.flatten(0, 1), b[0].mT, out=out.flatten(0, 1))
    return partial(torch.bmm, a.expand(batch, -1, -1), b.mT.expand(batch, -1, -1), out=out)


def _total(x: Tensor) -> Tensor:
    return x.sum(-1)


def _scatter(x: Tensor, owner: Tensor, out: Tensor) -> None:
    """A single column is fast only as a vector."""
    if x.shape[1] == 1:
        x, out = x[:, 0], out[:, 0]
    out.index_add_(0, owner, x)


def _norm(x: Tensor) -> Tensor:
    """vector_norm is fast along contiguous rows only."""
    if x.stride(-1) == 1:
        return torch.linalg.vector_norm(x, dim=-1)
    return widen(x, "squares").square_().sum(-1).sqrt_()


def refuse_emulation(like: Tensor) -> None:
    """Raise EmulatedBinary64 if the environment lets the library of `like`'s device emulate binary64."""
    if like.device.type == "cpu":
        return
    if os.environ.get(EMULATION_SWITCH, "0") not in ("", "0"):
        raise EmulatedBinary64(f"{EMULATION_SWITCH} is set: emulated binary64 products have no proven bound; unset it")


NATIVE = Vendor(_product, _total, _scatter, _norm, own_products.multiply, digit_products.round_products)
_current: ContextVar[Vendor] = ContextVar("vendor", default=NATIVE)


def vendor() -> Vendor:
    """The kernels in use."""
    return _current.get()


def own_multiply(device: torch.device) -> Multiply | None:
    """vgame's own kernel for products on `device`, or None."""
    return vendor().multiply if own_products.in_use(device) else None


def own_digits(device: torch.device) -> Digits | None:
    """vgame's own kernel for products by digits on `device`, if the processor multiplies tiles of bytes; else None."""
    return vendor().digits if own_products.in_use(device) and permitted() else None


@contextmanager
def using(replacement: Vendor) -> Iterator[Vendor]:
    """Context in which every approximate sum comes from `replacement`. Results must not change by one bit."""
    token = _current.set(replacement)
    try:
        yield replacement
    finally:
        _current.reset(token)


def _in_three(k: int) -> list[slice]:
    """Uneven thirds of 0..k-1, last first; empty ones omitted."""
    cuts = [0, k // 5, k // 2, k]
    return [slice(i, j) for i, j in zip(cuts[-2::-1], cuts[:0:-1], strict=True) if i < j]


def _reversed_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    parts = []
    for k in _in_three(a.shape[-1]):
        parts.append(torch.empty_like(out))
        _product(a[..., k].flip(-1), b[..., k].flip(-1), parts[-1])
    out.copy_(torch.stack(parts).sum(0))


def _reversed_total(x: Tensor) -> Tensor:
    return torch.stack([x[..., k].flip(-1).sum(-1) for k in _in_three(x.shape[-1])]).sum(0)


def _reversed_scatter(x: Tensor, owner: Tensor, out: Tensor) -> None:
    _scatter(x.flip(0), owner.flip(0), out)


def reversed_order():
    """Context that acts as a further device inside this process: every sum runs backwards and in three parts."""
    return using(Vendor(_reversed_product, _reversed_total, _reversed_scatter, _norm))

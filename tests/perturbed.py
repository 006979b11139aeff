"""The worst library that keeps its promises: every sum is off by almost as much as `Vendor` allows.

In: what a vendor's kernels get. Out: sums at the border of the proven bound, norms at the border of theirs. Results of
the certified functions must not change by one bit under it.

Sums that the promises make exact stay exact: one term, or all multiples of a quantum q with magnitudes up to 2^53 q.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from vgame.arithmetic.certificate import UNIT
from vgame.arithmetic.numba import digit_products
from vgame.arithmetic.numba import products as own_products
from vgame.arithmetic.numba.products import Places
from vgame.arithmetic.numba.rounding_test import round_pass
from vgame.arithmetic.torch.exact import Bags, Rows, Terms, exact_sums
from vgame.arithmetic.vendor import NATIVE, Digits, Multiply, Vendor, using

KINDS = ("up", "down", "random", "midpoint")
#: The least norm that is promised, per norm.
LEAST_NORM = 1 - 2.0**-22 + 2.0**-24
#: The exact value is known to 2 u S, and adding the error rounds once more.
_OWN_ERROR = 3


def perturbed_products(kind: str, scale: float = 1.0) -> AbstractContextManager[Vendor]:
    """Within the block, sums err by `scale` times the bound: upwards, downwards, at random, or toward the nearest
    midpoint.

    With scale > 1 the promise is broken, and a test of independence has to notice.
    """
    return using(_vendor(_pushing(kind, scale)))


def perturbed_kernels(kind: str, scale: float = 1.0) -> AbstractContextManager[Vendor]:
    """The same of our own kernels of products on a CPU (numba/products.py, digit_products.py), whose bounds are
    others."""
    return using(replace(NATIVE, multiply=_multiply(_pushing(kind, scale)), digits=_digits(kind, scale)))


def _pushing(kind: str, scale: float) -> Callable[..., Tensor]:
    """What makes sums err, in one of the ways."""
    assert kind in KINDS, f"{kind}: one of {', '.join(KINDS)}"
    generator = torch.Generator().manual_seed(1)

    def push(sums: Tensor, exact: Tensor, terms: Tensor, size: Tensor, quantum: Tensor) -> Tensor:
        """sums, or where rounding errors are possible: exact -+ (terms - 1) u size, less what is not known for sure."""
        error = scale * ((terms - 1 - _OWN_ERROR) * UNIT * size * (1 - 2.0**-20))
        may_err = (terms > 1 + _OWN_ERROR) & (size > 2.0**53 * quantum) & torch.isfinite(size)
        return torch.where(may_err, exact + error * _direction(kind, exact, generator), sums)

    return push


def _direction(kind: str, exact: Tensor, generator: torch.Generator) -> Tensor:
    """+1 or -1 per element."""
    if kind == "midpoint":
        return torch.where(exact >= exact.float().double(), 1.0, -1.0)
    if kind == "random":
        return torch.randint(0, 2, exact.shape, generator=generator).to(exact.device).double() * 2 - 1
    return torch.full_like(exact, 1.0 if kind == "up" else -1.0)


def _vendor(push: Callable[..., Tensor]) -> Vendor:
    def product(a: Tensor, b: Tensor, out: Tensor) -> None:
        NATIVE.product(a, b, out)
        (count_a, quantum_a), (count_b, quantum_b) = _facts(a), _facts(b)
        size = _outer(NATIVE.norm(a), NATIVE.norm(b), torch.mul)
        exact = _exact_products(a, b, size)
        out.copy_(
            push(out, exact, _outer(count_a, count_b, torch.minimum), size, _outer(quantum_a, quantum_b, torch.mul))
        )

    def total(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        (count, quantum), size = _facts(rows), rows.abs().sum(-1)
        known = rows.nan_to_num(0.0, 0.0, 0.0)
        exact = _exact(Rows(rows.shape[1], lambda e, k: known[e, k]), size.nan_to_num(0.0, 0.0, 0.0) * (1 + 2.0**-20))
        return push(NATIVE.total(rows), exact, count, size, quantum).view(x.shape[:-1])

    def scatter(x: Tensor, owner: Tensor, out: Tensor) -> None:
        NATIVE.scatter(x, owner, out)
        for terms, sums in zip(x.unbind(1), out.unbind(1), strict=True):
            sums.copy_(_push_bags(push, terms.contiguous(), owner, sums))

    def norm(x: Tensor) -> Tensor:
        return NATIVE.norm(x) * LEAST_NORM

    return Vendor(product, total, scatter, norm)


def _multiply(push: Callable[..., Tensor]) -> Multiply:
    def multiply(a: Places, b: Places, sums: Tensor, squares: tuple[Tensor, Tensor]) -> None:
        own_products.multiply(a, b, sums, squares)
        left, right = (_rows(x, square) for x, square in zip((a, b), squares, strict=True))
        (count_a, quantum_a), (count_b, quantum_b) = _facts(left), _facts(right)
        size = _outer(*(square.sqrt() for square in squares), torch.mul)
        terms = _outer(count_a, count_b, torch.minimum).clamp_max_(own_products.terms_of(a[2].size))
        exact = _exact_products(left, right, size)
        sums.copy_(push(sums, exact, terms, size, _outer(quantum_a, quantum_b, torch.mul)))
        for square in squares:
            square *= LEAST_NORM**2

    return multiply


def _digits(kind: str, scale: float) -> Digits:
    generator = torch.Generator().manual_seed(1)

    def multiply(
        a: Places, b: Places, out: Tensor, squares: tuple[Tensor, Tensor], early: bool, most: float, limit: int
    ) -> Tensor | None:
        sums = torch.empty(out.shape, dtype=torch.float64)
        bounds = digit_products.multiply(a, b, sums, squares, early, most)
        if bounds is None:
            return None
        left, right = (_rows(x, square) for x, square in zip((a, b), squares, strict=True))
        size = _outer(*(square.sqrt() for square in squares), torch.mul)
        exact = _exact_products(left, right, size)
        error = scale * (_outer(*bounds, torch.mul) - _OWN_ERROR * UNIT * size) * (1 - 2.0**-20)
        sums.copy_(exact + error * _direction(kind, exact, generator))
        for square in squares:
            square *= LEAST_NORM**2
        found = torch.empty(out.numel(), dtype=torch.int32)
        return round_pass(sums, bounds[0].unsqueeze(2), bounds[1].unsqueeze(1), out, found, limit, early)

    return multiply


def _rows(x: Places, like: Tensor) -> Tensor:
    """The rows [B, R, K] in binary64."""
    memory, begins, columns = map(torch.from_numpy, x)
    return memory[begins.view(*like.shape, 1) + columns].double()


def _outer(a: Tensor, b: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return combine(a.unsqueeze(2), b.unsqueeze(1))


def _exact_products(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """The exact products rounded to odd, one gathered row of terms per element."""
    batch, m, n = size.shape
    a, b = (x.nan_to_num(0.0, 0.0, 0.0).expand(batch, -1, -1) for x in (a, b))

    def terms(e: Tensor, k: slice) -> Tensor:
        return a[e // (m * n), e // n % m, k] * b[e // (m * n), e % n, k]

    bound = size.reshape(-1).nan_to_num(0.0, 0.0, 0.0) * (1 + 2.0**-20)
    return _exact(Rows(a.shape[2], terms), bound).view(size.shape)


def _push_bags(push: Callable[..., Tensor], x: Tensor, owner: Tensor, sums: Tensor) -> Tensor:
    """`push` for sums over the terms x [T] of each owner."""
    size = len(sums)
    magnitude = torch.zeros_like(sums).index_add_(0, owner, x.abs())
    count = torch.bincount(owner[x != 0], minlength=size)
    lowest = torch.full((size,), 1024, dtype=torch.int64).scatter_reduce_(0, owner, _lowest_bit(x), "amin")
    bound = magnitude.nan_to_num(0.0, 0.0, 0.0) * (1 + 2.0**-20)
    exact = _exact(Bags(max(1, int(count.max())), size, x.nan_to_num(0.0, 0.0, 0.0), owner), bound)
    return push(sums, exact, count, magnitude, _power(lowest))


def _exact(terms: Terms, bound: Tensor) -> Tensor:
    return exact_sums(terms, torch.arange(bound.numel(), device=bound.device), bound)


def _facts(x: Tensor) -> tuple[Tensor, Tensor]:
    """(number of non-zeros, quantum) of rows [.., K]."""
    return (x != 0).sum(-1), _power(_lowest_bit(x).amin(-1))


def _lowest_bit(x: Tensor) -> Tensor:
    """Exponent (int64) of the lowest set bit of each binary64 value (never subnormal); 1024 for zero."""
    word = x.contiguous().view(torch.int64) & (1 << 63) - 1
    fraction = word & (1 << 52) - 1 | 1 << 52
    place = ((fraction & -fraction).double().view(torch.int64) >> 52) - 1023
    return torch.where(word == 0, 1024, (word >> 52) - (1023 + 52) + place)


def _power(exponent: Tensor) -> Tensor:
    """2^exponent; infinity for 1024."""
    return (exponent + 1023 << 52).view(torch.float64)

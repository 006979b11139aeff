"""Exact sums of binary64 terms, in any order: error-free extraction, then rounding to odd.

In: terms that are multiples of 2^-298 (binary32 values, products of two), a bound on the sum of their magnitudes.
Out: a binary64 that rounds to binary32 as the exact sum does (the exact sum rounded to odd).
Source: S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation I", SIAM J. Sci. Comput. 31 (2008), for the
extraction; S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd", IEEE Trans. Comput. 57 (2008), for the rounding.
Proofs: docs/numerics-products.md, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vgame.arithmetic.torch.rounding_test import weigh
from vgame.arithmetic.workspace import gather_size, scratch, spans

#: A sum is an integer multiple of this.
LOWEST = -298
#: No sum of binary32 words is larger.
HIGHEST = 2.0**159
_EXPONENT_SHIFT = 52


@dataclass(frozen=True, slots=True)
class Portion:
    """Some terms of the selected sums `sums`; the expansion of a value per sum to its terms; the addition of terms per
    sum."""

    sums: slice
    terms: Tensor
    spread: Callable[[Tensor], Tensor]
    total: Callable[[Tensor], Tensor]


class Terms(Protocol):
    """Many sums of at most `length` terms each, whose terms can be produced again for any selection of the sums."""

    length: int

    def portions(self, select: Tensor) -> Iterator[Portion]:
        """The terms of the sums `select` (int64), each once; the receiver may overwrite them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Sums of equally many terms: gather(sums, slice of 0..length-1) -> fresh binary64 [sums, slice]."""

    length: int
    gather: Callable[[Tensor, slice], Tensor]

    def portions(self, select: Tensor) -> Iterator[Portion]:
        limit = gather_size(select.device)
        for e in spans(select.numel(), max(1, limit // self.length)):
            for k in spans(self.length, limit):
                yield Portion(e, self.gather(select[e], k), lambda v: v.unsqueeze(-1), lambda x: x.sum(-1))


@dataclass(frozen=True, slots=True)
class Bags:
    """Sum e of 0..count-1 is over the terms [T] with owner[t] = e (int64 [T]), at most `length` of them."""

    length: int
    count: int
    terms: Tensor
    owner: Tensor

    def portions(self, select: Tensor) -> Iterator[Portion]:
        size = select.numel()
        rank = torch.full((self.count,), size, dtype=torch.int64, device=select.device)
        rank[select] = torch.arange(size, device=select.device)
        owner = rank[self.owner]
        keep = (owner < size).nonzero().squeeze(-1)
        terms, owner = self.terms[keep], owner[keep]
        yield Portion(slice(0, size), terms, lambda v: v[owner], lambda x: x.new_zeros(size).index_add_(0, owner, x))


def exact_sums(terms: Terms, select: Tensor, bound: Tensor) -> Tensor:
    """binary64 z with RN32(z) = RN32(sum), for the sums `select` (int64); bound: at least their sums of magnitudes."""
    value, certain = _sweep(terms, select, bound, 1 if terms.length <= 1 << 16 else 2)
    rest = certain.logical_not_().nonzero().squeeze(-1)
    if rest.numel():
        levels = all_levels(bound[rest], terms.length)
        value[rest], certain = _sweep(terms, select[rest], bound[rest], levels)
        assert bool(certain.all()), "every bit was extracted, so every sum is known"
    return value


def exhaust(terms: Terms, select: Tensor, bound: Tensor) -> None:
    """Do the work of the hardest sums with these numbers of terms, for timing."""
    for levels in (1, all_levels(bound.new_full((1,), HIGHEST), terms.length)):
        _sweep(terms, select, bound, levels)


def _sweep(terms: Terms, select: Tensor, bound: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """(the selected sums, whether that is certain) from `levels` exact digits and a rounded sum of the rest."""
    scales = scales_of(bound, terms.length, levels)
    digits, left = digits_of(terms, select, scales)
    return settled(digits, scales, weigh(terms.length) * left)


def digits_of(terms: Terms, select: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """(digits [levels + 1, sums], the magnitudes rounded by the last digit) of the selected sums."""
    levels, count = scales.shape
    digits = scales.new_zeros(levels + 1, count)
    left = scales.new_zeros(count)
    for portion in terms.portions(select):
        for level in range(levels):
            digits[level, portion.sums] += _extract(portion, scales[level, portion.sums])
        digits[levels, portion.sums] += portion.total(portion.terms)
        left[portion.sums] += portion.total(portion.terms.abs_())
    return digits, left


def settled(digits: Tensor, scales: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """(sums rounded to odd, whether that is certain) from digits, which are overwritten; error: bound of the error of
    the last digits."""
    _carry(digits, scales)
    head, tail = _collapse(digits)
    return round_to_odd(head, tail), _is_certain(head, tail, error)


def _is_certain(head: Tensor, tail: Tensor, error: Tensor) -> Tensor:
    """Whether every number within `error` of head + tail rounds to binary32 as round_to_odd(head, tail) does.

    True if the error is 0, or the tail outweighs it, or head is not a midpoint (these end in 28 zero bits) and no
    midpoint is near.
    """
    no_midpoint = head.view(torch.int64) & (1 << 28) - 1 != 0
    return (error == 0) | (tail.abs() > 4 * error) | (no_midpoint & (tail == 0) & (error < head.abs() * 2.0**-54))


def scales_of(bound: Tensor, length: int, levels: int) -> Tensor:
    """Powers of two [levels, count]: sigma_0 > 2 * bound, sigma_(l+1) = 2 * 2^ceil(log2 length) * 2^-53 * sigma_l."""
    ratio = 2.0 ** (1 + (length - 1).bit_length() - 53)
    return torch.stack([power_above(bound) * (2 * ratio**level) for level in range(levels)])


def power_above(x: Tensor) -> Tensor:
    """A power of two in (x, 2x] for each binary64 x > 0 (normal), a tiny one for 0."""
    return ((x.view(torch.int64) >> _EXPONENT_SHIFT) + 1 << _EXPONENT_SHIFT).view(torch.float64)


def all_levels(bound: Tensor, length: int) -> int:
    """Number of levels such that the last one resolves the lowest possible bit of a term."""
    top = math.frexp(float(bound.max()))[1] + 2
    return max(2, 1 - ((LOWEST + 52 - top) // (52 - (length - 1).bit_length())))


def _extract(portion: Portion, scale: Tensor) -> Tensor:
    """Move each term's part above 2^-53 * scale out of the terms; returns the sum of these parts, exact in any
    order."""
    sigma, terms = portion.spread(scale), portion.terms
    high = torch.add(terms, sigma, out=scratch("high", tuple(terms.shape), torch.float64, terms.device)).sub_(sigma)
    terms.sub_(high)
    return portion.total(high)


def _carry(digits: Tensor, scales: Tensor) -> None:
    """Digits that do not overlap: afterwards |digits[l]| <= 2^-54 * scales[l-1] for l >= 1. In place, exact."""
    for level in range(len(scales), 0, -1):
        grid = 0.75 * scales[level - 1]
        carry = (digits[level] + grid) - grid
        digits[level] -= carry
        digits[level - 1] += carry


def _collapse(digits: Tensor) -> tuple[Tensor, Tensor]:
    """(head, tail): head = RN(head + tail); the sum is strictly between head and head + 2 tail, or head if tail = 0."""
    head, tail = digits[0].clone(), torch.zeros_like(digits[0])
    for digit in digits[1:]:
        addend = torch.where(tail == 0, digit, 0.0)
        total = head + addend
        rounded = total - head
        error = (head - (total - rounded)) + (addend - rounded)
        head, tail = total, torch.where(tail == 0, error, tail)
    return head, tail


def round_to_odd(head: Tensor, tail: Tensor) -> Tensor:
    """head if tail is 0 or head's last bit is 1, else head's neighbour on the side of tail."""
    bits = head.view(torch.int64)
    step = torch.where((head < 0) == (tail < 0), 1, -1)
    move = (tail != 0) & (bits & 1 == 0)
    return (bits + torch.where(move, step, 0)).view(torch.float64)

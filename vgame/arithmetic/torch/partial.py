"""Sums with terms on several ranks: the data that each rank provides about its terms, and the word computed from the
data of all.

In: a rank's terms of every sum. Out: binary64 sums with the data of their error bounds; exact digits of selected sums.
Both are added up over the ranks. Proofs: docs/numerics-products.md, section 12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix, places_of
from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba.exact import product_digits
from vgame.arithmetic.numba.rounding_test import round_pass
from vgame.arithmetic.torch.exact import Rows, all_levels, digits_of, scales_of, settled
from vgame.arithmetic.torch.products import Tile, part_of
from vgame.arithmetic.torch.rounding_test import canonical_nan, weigh
from vgame.arithmetic.torch.sums import partial_sums
from vgame.arithmetic.torch.tiling import shared_tiles
from vgame.arithmetic.workspace import widen
from vgame.system.threads import each

#: Digits of a sum that are requested first; all of them if these do not decide.
FIRST = 2


@dataclass(frozen=True, slots=True)
class Approximate:
    """Data of sums [B, M, N]: `sums`, binary64; `sizes`: the squares of the norms [B, M] and [B, N] of a product's
    rows, or the sums of magnitudes [B, M]; `depth`: Theorem 2's t. All but `depth` are added up over the ranks."""

    sums: Tensor
    sizes: tuple[Tensor, ...]
    depth: int


def factors(sizes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """[B, M] and [B, N]; their products bound the sums' magnitudes."""
    return (sizes[0].sqrt(), sizes[1].sqrt()) if len(sizes) > 1 else (sizes[0], sizes[0].new_ones(1, 1))


class Terms(Protocol):
    """A rank's terms of sums [B, M, N]."""

    def approximate(self) -> Approximate: ...

    def digits(self, positions: Tensor, scales: Tensor) -> Tensor:
        """Digits [levels + 1, sums] of the sums at flat positions (int64); magnitudes rounded by the last digit."""

    def exact(self, position: int) -> list[Fraction] | None:
        """The terms of one sum; None if one of them is not finite."""


@dataclass(frozen=True, slots=True)
class Products:
    """sum_k a[b, m, k] * b[b, n, k] over this rank's k; both operands have B batches."""

    a: Matrix
    b: Matrix

    @torch.no_grad()
    def approximate(self) -> Approximate:
        batch, m, k = self.a.shape
        sums = torch.empty(batch, m, self.b.shape[1], dtype=torch.float64, device=self.a.device)
        norm_a, norm_b = sums.new_empty(batch, m), sums.new_empty(batch, self.b.shape[1])

        def fill(i: slice, m: slice, n: slice) -> int:
            tile = Tile(part_of(self.a, i, m), part_of(self.b, i, n), sums[i, m, n])
            tile.add_blocks()
            sums[i, m, n], norm_a[i, m], norm_b[i, n] = tile.sums, tile.norm_a, tile.norm_b
            return tile.terms

        depths: list[int] = []
        each([partial(lambda *place: depths.append(fill(*place)), *place) for place in shared_tiles(sums, k)])
        return Approximate(sums, (norm_a.square_(), norm_b.square_()), max(depths))

    def digits(self, positions: Tensor, scales: Tensor) -> Tensor:
        rows, columns = self.a.shape[1], self.b.shape[1]
        if len(scales) == FIRST and compiled.in_use(positions.device):
            return product_digits(positions, (rows, columns), places_of(self.a), places_of(self.b), scales)
        i, m, n = positions // (rows * columns), positions // columns % rows, positions % columns

        def products(e: Tensor, k: slice) -> Tensor:
            left = widen(_rows(self.a, i[e] * rows + m[e], k), "left")
            return left.mul_(widen(_rows(self.b, i[e] * columns + n[e], k), "right"))

        return _digits(Rows(self.a.shape[2], products), positions, scales)

    def exact(self, position: int) -> list[Fraction] | None:
        rows, columns = self.a.shape[1], self.b.shape[1]
        pair, every = divmod(position, columns), slice(None)
        left = _rows(self.a, torch.tensor([pair[0]]), every)[0].tolist()
        right = _rows(self.b, torch.tensor([pair[0] // rows * columns + pair[1]]), every)[0].tolist()
        return _fractions(left, right)


@dataclass(frozen=True, slots=True)
class Summands:
    """sum_k a[0, m, k] over this rank's k."""

    a: Matrix

    @torch.no_grad()
    def approximate(self) -> Approximate:
        sums, magnitudes, depth = partial_sums(self.a)
        return Approximate(sums.view(1, -1, 1), (magnitudes.view(1, -1),), depth)

    def digits(self, positions: Tensor, scales: Tensor) -> Tensor:
        terms = Rows(self.a.shape[2], lambda e, k: widen(_rows(self.a, positions[e], k), "left"))
        return _digits(terms, positions, scales)

    def exact(self, position: int) -> list[Fraction] | None:
        terms = _rows(self.a, torch.tensor([position]), slice(None))[0].tolist()
        return _fractions(terms, [1.0] * len(terms))


@dataclass(frozen=True, slots=True)
class Nothing:
    """A rank without terms of a sum."""

    def approximate(self) -> Approximate:
        return Approximate(torch.zeros(1, 1, 1, dtype=torch.float64), (torch.zeros(1, 1, dtype=torch.float64),), 1)

    def digits(self, positions: Tensor, scales: Tensor) -> Tensor:
        return torch.zeros(len(scales) + 2, positions.numel(), dtype=torch.float64)

    def exact(self, position: int) -> list[Fraction] | None:
        return []


def contradiction(first: Approximate, second: Approximate) -> int | None:
    """The flat position of a sum whose data from two devices with the same terms contradict each other, or None."""
    errors = []
    for one in (first, second):
        left, right = (x.nan_to_num(nan=0.0, posinf=0.0) for x in factors(one.sizes))
        errors.append((left * weigh(one.depth)).unsqueeze(2) * right.unsqueeze(1))
    x, y = first.sums, second.sums
    alike = ((x - y).abs() <= (errors[0] + errors[1]) * SLACK) | (x == y) | (x.isnan() & y.isnan())
    for a, b in zip(first.sizes, second.sizes, strict=True):  # one word is enough
        if not bool((((a - b).abs() <= b * 2.0**-20) | (a == b) | (a.isnan() & b.isnan())).all()):
            return 0
    wrong = alike.logical_not_().view(-1).nonzero()
    return int(wrong[0]) if len(wrong) else None


def is_within(claim: float, depth: int, terms: list[Fraction] | None) -> bool:
    """Whether `claim` is within Theorem 2's bound of the sum of these terms; True if they are not finite (None)."""
    if terms is None or not math.isfinite(claim):
        return terms is None
    return abs(Fraction(claim) - sum(terms)) <= Fraction(weigh(depth)) * sum(map(abs, terms))


def _fractions(left: list[float], right: list[float]) -> list[Fraction] | None:
    if not all(map(math.isfinite, (*left, *right))):
        return None
    return [Fraction(x) * Fraction(y) for x, y in zip(left, right, strict=True)]


def _rows(x: Matrix, chosen: Tensor, k: slice) -> Tensor:
    """Some terms of some of the B * R rows."""
    if isinstance(x, IndexedMatrix):
        return x.block(k).some(chosen.numpy())
    whole = x if isinstance(x, Tensor) else x.whole()
    return whole[..., k][chosen // whole.shape[1], chosen % whole.shape[1]]


def _digits(terms: Rows, positions: Tensor, scales: Tensor) -> Tensor:
    digits, left = digits_of(terms, torch.arange(positions.numel(), device=positions.device), scales)
    return torch.cat([digits, left.unsqueeze(0)])


# ---- data of all ranks, added up ----


def rounded(sums: Tensor, sizes: tuple[Tensor, Tensor], weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """(RN32 of sums [B, M, N], flat positions where it is not certain, bounds of the magnitudes there). The magnitudes
    are at most the product of sizes [B, M] and [B, N], the errors at most `weight` times that."""
    left, right = (s.nan_to_num(nan=0.0, posinf=0.0) for s in sizes)  # non-finite sums are final
    bound, out = (left * weight).unsqueeze(2), torch.empty(sums.shape, dtype=torch.float32)
    if compiled.in_use(sums.device):
        found = torch.empty(sums.numel(), dtype=torch.int32)
        places = round_pass(sums, bound, right.unsqueeze(1), out, found, sums.numel()).long()
    else:
        error = bound * right.unsqueeze(1)
        out.copy_(sums + error).add_(0.0)
        places = ((sums - error).float() < out).view(-1).nonzero().squeeze(-1)
    rows, columns = sums.shape[1:]
    batch = places // (rows * columns)
    magnitudes = left[batch, places // columns % rows] * right[batch, places % columns]
    return canonical_nan(out), places, magnitudes


def weight(depths: list[int]) -> float:
    """e / S of sums of the ranks' sums: t is the largest t of the ranks, plus one addition for each rank but one."""
    return weigh(max(depths) + len(depths) - 1)


def scales(magnitudes: Tensor, length: int, every: bool) -> Tensor:
    """Scales of the digits of sums of `length` terms with a bounded sum of magnitudes; every: of all digits."""
    bound = magnitudes * SLACK
    return scales_of(bound, length, all_levels(bound, length) if every and bound.numel() else FIRST)


def certain(digits: Tensor, scales: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(RN32, whether it is certain) of the sums with these digits, added up over all ranks."""
    value, sure = settled(digits[:-1].clone(), scales, weigh(length) * digits[-1])
    return value.float().add_(0.0), sure

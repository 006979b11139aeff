"""Tiles of a product: sums by digits if the processor multiplies tiles of bytes and the operands are suited, else as in
products.py.

In, out: as a Tile. Method: approximate sums by numba/digit_products.py, with a bound of their own; the rounding test
and the exact tier are those of every product. Proof: docs/numerics-products.md, section 14.
"""

from __future__ import annotations

import math

import torch

from vgame.arithmetic.certificate import tally
from vgame.arithmetic.indexed_matrix import places_of
from vgame.arithmetic.torch.products import Tile
from vgame.arithmetic.torch.rounding_test import is_at_worst
from vgame.arithmetic.vendor import own_digits

#: Least rows and terms of both sides, and least number of terms of a tile, for which digits are faster.
SIDE, LENGTH, WORTH = 32, 48, 1 << 22
#: Largest share of sums that may stay open: as expected from the rows (more, and the exact tier takes longer than the
#: digits save), and after the rounding test (then it takes longer than a product).
EXPECTED, OPEN = 1 / 128, 1 / 32
#: Measured: (share of open sums) / (bound of normal data, per norms, * sqrt K * 2^(bits of the result)).
SHARE = 12.0


class DigitTile(Tile):
    """A tile of a product that tries digits first."""

    def run(self) -> None:
        """Fill `out`. Rows that are not suited, and sums that digits leave open too often, as for low-bit data and its
        ties, are computed by binary64 multiply-adds."""
        if not self.by_digits():
            super().run()

    def by_digits(self) -> bool:
        """Fill `out` by digits if they are suited; returns whether `out` is filled."""
        multiply = own_digits(self.out.device) if self.fused else None
        rows, columns, length = *self.out.shape[1:], self.a.shape[2]
        large = min(rows, columns) >= SIDE and length >= LENGTH and self.out.numel() * length >= WORTH
        if multiply is None or not large or is_at_worst():
            return False
        if not self.early and self.looks_exact(0):  # of sums of bfloat16 to 8 bits few are ties
            return False
        most = EXPECTED / (SHARE * math.sqrt(length) * (2**8 if self.early else 2**24))
        squares = torch.empty(self.a.shape[:2], dtype=torch.float64), torch.empty(self.b.shape[:2], dtype=torch.float64)
        rest = multiply(
            places_of(self.a), places_of(self.b), self.out, squares, self.early, most, int(self.out.numel() * OPEN)
        )
        if rest is None:
            return False
        self.norm_a, self.norm_b = (square.sqrt_() for square in squares)
        self.unrounded = rest if self.early else None
        if rest.numel():
            self.sum_exactly(rest)
        tally(self.out.numel(), 0, rest.numel())
        return True

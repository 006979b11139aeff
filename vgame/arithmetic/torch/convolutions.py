"""dot of filters and patches of pictures: 3 x 3 convolutions by minimal filtering if that is faster; other products
directly.

In, out: as products.dot. Method: approximate sums by Winograd's F(2 x 2, 3 x 3) in binary64, with a bound of their own;
the rounding test and the exact tier are those of every product. Proof: docs/numerics-products.md, section 11.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from vgame.arithmetic.certificate import tally
from vgame.arithmetic.indexed_matrix import IndexedMatrix, places_of
from vgame.arithmetic.numba.compiled import flat
from vgame.arithmetic.numba.filtering import (
    WORDS,
    bound_patches,
    transform_filters,
    transform_products,
    transform_tiles,
)
from vgame.arithmetic.numba.rounding_test import round_pass
from vgame.arithmetic.torch import products
from vgame.arithmetic.torch.digits import DigitTile
from vgame.arithmetic.torch.products import unfolded
from vgame.arithmetic.torch.rounding_test import hard_part, weigh
from vgame.arithmetic.vendor import vendor
from vgame.arithmetic.workspace import TILE, in_words, new, scratch
from vgame.system.threads import Runner, each, threads

#: Least numbers of filters, channels and pixels for filtering; largest number of words of the filters' transforms.
FILTERS, CHANNELS, PIXELS, WIDEST = 32, 32, 1024, TILE
#: Words of the transforms that a thread processes at a time.
AT_A_TIME = 1 << 20


@torch.no_grad()
def dot(
    a: Tensor | IndexedMatrix,
    b: Tensor | IndexedMatrix,
    run: Runner = each,
    bfloat16: bool = False,
    halves: bool = False,
) -> Tensor:
    """As products.dot."""
    if not is_filtered(a, b):
        return products.dot(a, b, run, bfloat16, DigitTile, halves)
    a, b = products.readable(a, b)
    patches, rows = b.patches, a.shape[1]
    out = new((1, rows, b.shape[1]), torch.bfloat16 if halves else torch.float32)
    filters = transform_filters(in_words(unfolded(a))[0].contiguous(), patches.backwards)
    count, sharers = b.shape[1] // (2 * patches.width), threads()  # rows of tiles
    words = count * patches.width // 2 * WORDS * max(rows, patches.channels)
    parts = min(count, -(-words // (AT_A_TIME * sharers)) * sharers)
    edges = [count * i // parts for i in range(parts + 1)]
    run([partial(_fill, a, b, filters, out, bfloat16, *edges[i : i + 2]) for i in range(parts)])
    return out


def is_filtered(a: Tensor | IndexedMatrix, b: Tensor | IndexedMatrix) -> bool:
    """Whether minimal filtering is used: b's rows are patches, and there are enough of them."""
    if not isinstance(b, IndexedMatrix) or b.patches is None or a.shape[0] != 1:
        return False
    rows, channels = a.shape[1], b.patches.channels
    return rows >= FILTERS and channels >= CHANNELS and b.shape[1] >= PIXELS and WORDS * rows * channels <= WIDEST


def _fill(
    a: Tensor | IndexedMatrix,
    b: IndexedMatrix,
    filters: tuple[Tensor, Tensor],
    out: Tensor,
    bfloat16: bool,
    first: int,
    last: int,
) -> None:
    """Rows of tiles first..last-1."""
    pixels = slice(2 * first * b.patches.width, 2 * last * b.patches.width)
    part = b.tile(slice(0, 1), pixels)
    products.fill_tile(
        lambda words: FilteredTile(a, part, words, filters, b, first, bfloat16), out[:, :, pixels], bfloat16
    )


class FilteredTile(DigitTile):
    """A tile of a product: filters a [1, M, 9 C], patches b [1, pixels, 9 C] of some rows of tiles -> out [1, M,
    pixels], a view.

    filters: their transforms and norms; pictures: all patches; first: number of the first row of tiles.
    """

    def __init__(
        self,
        a,
        b: IndexedMatrix,
        out: Tensor,
        filters: tuple[Tensor, Tensor],
        pictures: IndexedMatrix,
        first: int,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(a, b, out, bfloat16)
        self.filters, self.pictures, self.first = filters, pictures, first

    def run(self) -> None:
        """Fill `out`, by digits where they are suited, which is faster. If minimal filtering leaves too many sums open
        (as for low-bit data), or if sums are not finite, they are computed directly."""
        if self.by_digits():
            return
        left, right = self._filter()
        rest = None
        if bool(torch.isfinite(left).all() & torch.isfinite(right).all()):
            found = scratch("found", (self.out.numel(),), torch.int32, self.out.device)
            rest = round_pass(self.sums, left, right, self.out, found, sum(self.out.shape[1:]), self.early)
        if rest is None or hard_part(1, self.out.device).numel():
            return products.Tile.run(self)
        self.unrounded = rest if self.early else None
        if rest.numel():
            self.sum_exactly(rest)
        tally(self.out.numel(), 0, rest.numel())

    def _filter(self) -> tuple[Tensor, Tensor]:
        """Compute `sums`, and `norm_a` and `norm_b`, which are at least the rows' norms; returns (left [1, M, 1], right
        [1, 1, pixels]) of the sums' bound."""
        (u, norms), patches, device = self.filters, self.pictures.patches, self.out.device
        rows, pixels = self.out.shape[1:]
        channels, tiles = patches.channels, pixels // 4
        squares = torch.empty(pixels // (2 * patches.width), 4, patches.width + 2, dtype=torch.float64)
        v = scratch("tiles", (WORDS, channels, tiles), torch.float64, device)
        memory = flat(self.pictures.memory)
        transform_tiles(memory, patches.strides, patches.lines, self.first, v.numpy(), squares.numpy())
        right, self.norm_b = torch.empty(2, 1, pixels, dtype=torch.float64).unbind()
        bound_patches(squares.numpy(), right[0].numpy(), self.norm_b[0].numpy())
        self.norm_a = 3.0 * norms.unsqueeze(0)
        p = scratch("product", (WORDS, rows, tiles), torch.float64, device)
        if self.multiply:
            unused = (torch.empty(WORDS, size, dtype=torch.float64) for size in (rows, tiles))
            self.multiply(places_of(u), places_of(v.mT), p, tuple(unused))
        else:
            vendor().product(u, v.mT, p)
        self.sums = scratch("sums", tuple(self.out.shape), torch.float64, device)
        transform_products(p.numpy(), patches.width, self.sums[0].numpy())
        return (norms * weigh(channels + 11)).view(1, -1, 1), right.unsqueeze(1)

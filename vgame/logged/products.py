"""Products in the mode `logged`: the tiles of vgame/arithmetic/torch/products.py, rounded as in sums.py.

In: operands as in vgame.arithmetic.certified, and the `Site` of the sum. Out: binary32 on the grid of b bits; entries
made or followed.
"""

from __future__ import annotations

import operator
from functools import partial

import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK
from vgame.arithmetic.indexed_matrix import IndexedMatrix
from vgame.arithmetic.numba.operands import gather_rows
from vgame.arithmetic.torch.products import Tile, part_of, pick
from vgame.arithmetic.torch.rounding_test import weigh
from vgame.arithmetic.torch.row_facts import row_facts
from vgame.arithmetic.torch.tiling import shared_tiles
from vgame.arithmetic.workspace import TILE, spans
from vgame.logged.rounding import round_tensor
from vgame.logged.sums import EXACT, Site, follow, given_entries, record, round_pass, sort_found, without_entry
from vgame.system.threads import each

#: Number of sums whose rows' bits are checked first.
SAMPLE = 64
#: Up to so many sums, and one in so many, are logged without that check: their entries cost less.
FEW, RARE = 4, 2048


@torch.no_grad()
def dot(a: Tensor | IndexedMatrix, b: Tensor | IndexedMatrix, site: Site) -> Tensor:
    """out[b,m,n] = sum_k a[b,m,k] * b[b,n,k] as the mode rounds it; shapes as in certified.dot."""
    out = torch.empty(max(a.shape[0], b.shape[0]), a.shape[1], b.shape[1], dtype=torch.float32, device=a.device)

    def fill(i: slice, m: slice, n: slice) -> Site:
        tile = LoggedTile(part_of(a, i, m), part_of(b, i, n), out[i, m, n])
        tile.place(site.part(), (i.start, m.start, n.start), tuple(out.shape))
        tile.run()
        return tile.site

    jobs = [partial(fill, *place) for place in shared_tiles(out, a.shape[2])]
    in_order = site.look or out.device.type != "cpu"  # observers need the program order
    site.take(map(operator.call, jobs) if in_order else each(jobs))
    return out


class LoggedTile(Tile):
    """One tile of a product, at `origin` of a result of shape `whole`."""

    def place(self, site: Site, origin: tuple[int, int, int], whole: tuple[int, int, int]) -> None:
        """The batch, rows and columns of the tile."""
        self.site, self.origin, self.whole = site, origin, whole

    def settle(self) -> None:
        """out = the finite sums as the mode rounds them."""
        left, right = (self.norm_a * weigh(self.terms)).unsqueeze(2), self.norm_b.unsqueeze(1)
        flat, turns = round_pass(self.sums, left, right, self.site, self.out)
        if self.site.given and flat.numel():
            free = without_entry(self._name(flat), self.site)
            flat, turns = flat[free], turns[free]
        if self.site.look:
            bounds = (left * right).expand_as(self.sums).reshape(-1)
            every = torch.arange(self.out.numel(), device=self.out.device)
            self.site.look(self._name(every), self.sums.view(-1), bounds)
        if flat.numel():
            self._settle_found(flat, turns)
        if self.site.given:
            self._copy_given()

    def _settle_found(self, flat: Tensor, turns: Tensor) -> None:
        """Settle the sums found by the pass: few at once, many after a check of the rows' bits."""
        if flat.numel() <= FEW + self.out.numel() // RARE:
            exact = (turns == EXACT).nonzero().squeeze(-1)
            logged = (turns != EXACT).nonzero().squeeze(-1)
            self.site.exact += exact.numel()
        else:
            exact, logged = sort_found(self.sums.view(-1)[flat], *self._bounds(flat), self.site)
        record(self.site, self._name(flat[logged]), turns[logged] == 1)
        if exact.numel():
            self._round_exactly(flat[exact])

    def _bounds(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds at some positions, and smaller ones if the rows' bits allow them, tested on a few rows first."""
        i, m, n = self.unravel(flat)
        size = pick(self.norm_a, i, m) * pick(self.norm_b, i, n)
        plain, some = size * weigh(self.terms), slice(0, flat.numel(), -(-flat.numel() // SAMPLE))
        if bool((self._small_bounds(size[some], i[some], m[some], n[some]) > plain[some] / 2).all()):
            return plain, plain
        return plain, self._small_bounds(size, i, m, n)

    def _small_bounds(self, size: Tensor, i: Tensor, m: Tensor, n: Tensor) -> Tensor:
        """Bounds from the number of non-zero terms and their lowest bits; size: products of the rows' norms."""
        (count_a, quantum_a), (count_b, quantum_b) = _facts_of(self.a, i, m), _facts_of(self.b, i, n)
        terms = torch.minimum(count_a, count_b).clamp_max_(self.terms)
        return torch.where(size * SLACK <= 2.0**53 * (quantum_a * quantum_b), 0.0, weigh(terms) * size)

    def _round_exactly(self, flat: Tensor) -> None:
        """out = RN_b of the exact sums at the positions `flat`.

        Rounding to binary32 first is harmless unless that gives a midpoint of the grid of b bits.
        """
        self.sum_exactly(flat.int())
        if self.site.bits == 32:
            return
        at = self.unravel(flat)
        value = self.out[at]
        low = 32 - self.site.bits
        double = (value.view(torch.int32) & (1 << low) - 1) == 1 << low - 1
        value = round_tensor(value.double(), self.site.bits) + 0.0
        if bool(double.any()):
            value[double] = round_tensor(self.sums_to_odd(flat[double]), self.site.bits) + 0.0
        self.out[at] = value

    def _name(self, flat: Tensor) -> Tensor:
        """Flat positions in the whole result."""
        if tuple(self.out.shape) == self.whole:
            return flat
        i, m, n = (x + first for x, first in zip(self.unravel(flat), self.origin, strict=True))
        return (i * self.whole[1] + m) * self.whole[2] + n

    def _copy_given(self) -> None:
        """Write the trainer's ends of cells at the log's entries."""
        positions, up = given_entries(self.site, self.out.device)
        rows, columns = self.whole[1:]
        at = positions // (rows * columns), positions // columns % rows, positions % columns
        if tuple(self.out.shape) != self.whole:
            at = tuple(x - first for x, first in zip(at, self.origin, strict=True))
            inside = torch.ones_like(up)
            for x, size in zip(at, self.out.shape, strict=True):
                inside &= (x >= 0) & (x < size)
            positions, up, *at = (x[inside] for x in (positions, up, *at))
        i, m, n = at
        bound = pick(self.norm_a, i, m) * pick(self.norm_b, i, n) * weigh(self.a.shape[2])
        self.out[i, m, n] = follow(positions, up, self.sums[i, m, n], bound, self.site)


def _facts_of(x: Tensor | IndexedMatrix, batch: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """(non-zeros, quantum) of rows of x; only these rows are read."""
    rows = x.shape[1]
    needed, place = (row if x.shape[0] == 1 else batch * rows + row).unique(return_inverse=True)
    if isinstance(x, IndexedMatrix):
        chosen = gather_rows(x.memory, x.rows.reshape(-1)[needed.numpy()], x.columns)
    else:
        chosen = x[needed // rows, needed % rows]
    count, quantum = row_facts(
        chosen.view(1, needed.numel(), x.shape[2]), spans(x.shape[2], TILE // needed.numel() + 1)
    )
    return count[0][place], quantum[0][place]

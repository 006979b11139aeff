"""Sums of rows and sums selected by an index, in mode `logged`: rounded like products (sums.py), with the sum of the
magnitudes in the bound.

In: operands as in vgame.arithmetic.certified, and the `Site` of the sum. Out: binary32 on the grid of b bits; entries
made or followed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.compiled import in_use
from vgame.arithmetic.numba.exact import rows_of
from vgame.arithmetic.torch import one_hot
from vgame.arithmetic.torch import sums as certified_sums
from vgame.arithmetic.torch.exact import Bags, Rows, exact_sums, exhaust
from vgame.arithmetic.torch.rounding_test import canonical_nan, hard_part, weigh
from vgame.arithmetic.torch.row_facts import row_facts
from vgame.arithmetic.vendor import NATIVE, vendor
from vgame.arithmetic.workspace import TILE, spans, sum_size, widen
from vgame.logged.rounding import round_tensor
from vgame.logged.sums import Site, follow, given_entries, record, round_pass, sort_found, without_entry


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums s [R] with bounds e, `widest` for a device of any order. For some of the sums: name: their positions in the
    whole result; find: the inverse, with the positions present here; is_exact: whether they are exact because of the
    terms' bits; odd: their exact sums, rounded to odd.
    """

    s: Tensor
    e: Tensor
    widest: Tensor
    name: Callable[[Tensor], Tensor]
    find: Callable[[Tensor], tuple[Tensor, Tensor]]
    is_exact: Callable[[Tensor], Tensor]
    odd: Callable[[Tensor], Tensor]

    def round(self, site: Site, out: Tensor) -> None:
        """out [R], contiguous, = the sums as the mode rounds them."""
        one = self.s.new_ones(1, 1, 1)
        flat, turns = round_pass(self.s.view(1, 1, -1), one, self.e.view(1, 1, -1), site, out.view(1, 1, -1))
        if site.look:
            site.look(self.name(torch.arange(self.s.numel(), device=self.s.device)), self.s, self.e)
        if flat.numel():
            self._settle_found(flat, turns, site, out)
        if site.given:
            positions, up = given_entries(site, self.s.device)
            place, here = self.find(positions)
            place = place[here]
            out[place] = follow(positions[here], up[here], self.s[place], self.widest[place], site)
        canonical_nan(out)

    def _settle_found(self, flat: Tensor, turns: Tensor, site: Site, out: Tensor) -> None:
        if site.given:
            free = without_entry(self.name(flat), site)
            flat, turns = flat[free], turns[free]
        small = self.e[flat].masked_fill(self.is_exact(flat), 0.0)
        exact, logged = sort_found(self.s[flat], self.e[flat], small, site)
        record(site, self.name(flat[logged]), turns[logged] == 1)
        if exact.numel():
            out[flat[exact]] = round_tensor(self.odd(flat[exact]), site.bits) + 0.0


# --- rows ---


@torch.no_grad()
def sum_rows(a: Tensor, site: Site) -> Tensor:
    """out[r] = sum_k a[r,k] as the mode rounds it. a: binary32 [R, K]."""
    out = torch.empty(a.shape[0], dtype=torch.float32, device=a.device)
    for r in spans(a.shape[0], max(1, sum_size(a.device) // a.shape[1])):
        _sum_tile(a[r], r.start, site, out[r])
    return out


def _sum_tile(rows: Tensor, first: int, site: Site, out: Tensor) -> None:
    """rows [R, K] -> out [R], rows first.. of the result."""
    length = rows.shape[1]
    block = certified_sums.block_length(length)
    sums, magnitude = _add_rows(rows, block)
    magnitude.nan_to_num_(nan=0.0, posinf=0.0)
    bound = magnitude * weigh(block + -(-length // block) - 1)
    terms = Rows(length, lambda e, k: rows[e][:, k].double())
    if (hard := hard_part(len(rows), rows.device).long()).numel():
        exhaust(terms, hard, magnitude[hard] * SLACK)

    def find(positions: Tensor) -> tuple[Tensor, Tensor]:
        return positions - first, (positions >= first) & (positions < first + rows.shape[0])

    def is_exact(i: Tensor) -> Tensor:
        _, quantum = row_facts(rows[i].unsqueeze(0), spans(length, TILE))
        return magnitude[i] * SLACK <= 2.0**53 * quantum[0]

    def odd(i: Tensor) -> Tensor:
        return exact_sums(terms, i, magnitude[i] * SLACK)

    widest = magnitude * weigh(length)
    _Sums(sums, bound, widest, lambda i: i + first, find, is_exact, odd).round(site, out)


def _add_rows(rows: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The sums of rows [R, K], of blocks first, and the sums of their magnitudes."""
    length = rows.shape[1]
    if in_use(rows.device) and vendor().total is NATIVE.total:
        memory, begins, step = rows_of(rows.unsqueeze(0))
        source, rounded = (memory, begins, certified_sums.AT_ONCE, length, step), torch.empty(len(rows))
        return compiled_rounding.sum_rows(source, block, 0.0, 0.0, rounded)[1:]
    sums, magnitude = torch.zeros(2, rows.shape[0], dtype=torch.float64, device=rows.device)
    for k in spans(length, TILE // block * block):
        x = widen(rows[:, k], "rows")
        sums += certified_sums.two_stages(x, block)
        magnitude += certified_sums.two_stages(x.abs_(), block)
    return sums, magnitude


# --- sums selected by an index ---


@torch.no_grad()
def one_hot_sum(index: Tensor, b: Tensor, m: int, site: Site) -> Tensor:
    """out[b,j,n] = sum of the b[b,n,k] with index[b,k] = j as the mode rounds it; shapes as in
    certified.one_hot_sum."""
    n = b.shape[1]
    out = torch.zeros(max(len(index), len(b)), m, n, dtype=torch.float32, device=b.device)
    for i, columns, owners, terms in one_hot.tiles(index, b, m):
        first = (i.start * m, columns.start, n)
        _sum_owned(owners, terms, first, site, out[i].view(-1, n)[:, columns])
    return out


def _sum_owned(owners: one_hot.Owners, b: Tensor, first: tuple[int, int, int], site: Site, out: Tensor) -> None:
    """b [B, n, K] -> out [B * m, n], a view of the result that is zero so far; `first`: its first row and column, its
    columns."""
    x = one_hot.wide_terms(b, owners.kept)
    rows, width = len(owners.count), x.shape[1]
    if not rows:
        return
    sums, magnitude = one_hot.add_up(owners, x)
    one_hot.exhaust_bags(owners, x, magnitude)
    magnitude.nan_to_num_(nan=0.0, posinf=0.0)
    named = owners.named(torch.arange(rows, device=x.device))
    row, column, columns = first

    def name(i: Tensor) -> Tensor:
        return (named[i // width] + row) * columns + column + i % width

    def find(positions: Tensor) -> tuple[Tensor, Tensor]:
        wanted, across = positions // columns - row, positions % columns - column
        place = torch.searchsorted(named, wanted).clamp_(max=rows - 1)
        return place * width + across, (named[place] == wanted) & (across >= 0) & (across < width)

    def bags(i: Tensor) -> tuple[Bags, Tensor]:
        return one_hot.bags_of(owners, x, (i // width, i % width))

    def odd(i: Tensor) -> Tensor:
        every = torch.arange(i.numel(), device=x.device)
        return exact_sums(bags(i)[0], every, magnitude.view(-1)[i] * SLACK)

    def is_exact(i: Tensor) -> Tensor:
        return magnitude.view(-1)[i] * SLACK <= 2.0**53 * bags(i)[1]

    bound = (magnitude * weigh(owners.count).unsqueeze(1)).view(-1)
    result = torch.empty(sums.numel(), dtype=torch.float32, device=x.device)
    widest = (magnitude * weigh(b.shape[2])).view(-1)
    _Sums(sums.view(-1), bound, widest, name, find, is_exact, odd).round(site, result)
    out[named] = result.view(rows, width)

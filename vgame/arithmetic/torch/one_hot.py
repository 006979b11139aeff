"""one_hot_sum: correctly rounded sums of the terms that an index assigns to each target.

In: an int32 index with the target of each term, binary32 terms. Out: binary32 RN(exact sum) per target. Embedding
gradients have few batches, many columns and far more targets than terms; pooling gradients thousands of batches of one
column. Method: as in sums.py, with an index addition for the vendor's sum. Reference:
vgame/arithmetic/reference/functions.py, one_hot_sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vgame.arithmetic import gate
from vgame.arithmetic.certificate import OF_ZERO, SLACK, tally
from vgame.arithmetic.torch.exact import Bags, Rows, exact_sums, exhaust
from vgame.arithmetic.torch.narrow import narrow_sums
from vgame.arithmetic.torch.rounding_test import canonical_nan, enclose, hard_part, weigh
from vgame.arithmetic.torch.row_facts import lowest_bit, power_of_two
from vgame.arithmetic.torch.sums import settle
from vgame.arithmetic.vendor import NATIVE, vendor
from vgame.arithmetic.workspace import batch_of, scratch, spans, sum_size

#: With more targets per term than this, only targets that occur are kept.
SPARSE = 16


@torch.no_grad()
def one_hot_sum(index: Tensor, b: Tensor, m: int) -> Tensor:
    """out[b,j,n] = RN(sum of b[b,n,k] over the k with index[b,k] = j), j < m; +0 without such a k. Other indices are
    ignored.

    index: int32 [Ba, K]; b: binary32 [Bb, N, K], any strides; Ba and Bb equal or 1. Returns binary32 [B, m, N].
    """
    assert index.dtype == torch.int32 and b.dtype == torch.float32, "an int32 index, binary32 terms"
    assert index.dim() == 2 and b.dim() == 3 and index.shape[1] == b.shape[2] >= 1, "index [Ba, K], terms [Bb, N, K]"
    assert len({index.shape[0], b.shape[0], 1}) <= 2, "equal batches, or a shared one"
    if gate.in_use(b.device) and vendor().scatter is NATIVE.scatter:
        from vgame.arithmetic.triton import sums  # imported only where it runs

        return sums.one_hot_sum(index, b, m)
    out = torch.zeros(max(len(index), len(b)), m, b.shape[1], dtype=torch.float32, device=b.device)
    for i, columns, owners, terms in tiles(index, b, m):
        _sum_owned(owners, terms, out[i].view(-1, b.shape[1])[:, columns])
    return out


def narrow_one_hot_sum(index: Tensor, b: Tensor, m: int) -> Tensor:
    """`one_hot_sum` to bfloat16, rounded once."""
    out = one_hot_sum(index, b, m)

    def rest_of(places: Tensor, words: Tensor) -> Tensor:
        i, j, n = places // (m * b.shape[1]), places // b.shape[1] % m, places % b.shape[1]
        chosen = (index[0].expand(len(i), -1) if len(index) == 1 else index[i]) == j.unsqueeze(1)
        terms = torch.where(chosen, b[i if len(b) > 1 else 0, n], 0.0)
        bound = terms.double().abs().sum(-1) * SLACK
        rows = Rows(terms.shape[1], lambda e, k: terms[e, k].double())
        return exact_sums(rows, torch.arange(len(places), device=b.device), bound) - words

    narrow_sums(out, rest_of)
    return out


def tiles(index: Tensor, b: Tensor, m: int) -> Iterator[tuple[slice, slice, Owners, Tensor]]:
    """(batches, columns, owners, terms [B, n, K]) of the tiles of the result."""
    batch, n, k = max(index.shape[0], b.shape[0]), b.shape[1], b.shape[2]
    most = max(k, min(m, SPARSE * k))  # rows of terms or sums that a batch may need
    width = max(1, min(n, sum_size(b.device) // most))
    for i in spans(batch, max(1, sum_size(b.device) // (width * most))):
        owners = owners_of(batch_of(index, i).expand(i.stop - i.start, -1), m)
        for columns in spans(n, width):
            terms = batch_of(b, i)[:, columns].expand(i.stop - i.start, -1, -1)
            yield i, columns, owners, terms


@dataclass(frozen=True, slots=True)
class Owners:
    """The assignment of terms to rows. `names`: the rows of the result that occur; None: all of them, in order."""

    kept: Tensor | None  # int64 [T], the terms that belong to a row; None: all
    row: Tensor  # int64 [T], position of their row in names
    names: Tensor | None
    count: Tensor  # int64 [rows], terms per row
    longest: int

    def named(self, row: Tensor) -> Tensor:
        """Rows of the result."""
        return row if self.names is None else self.names[row]


def owners_of(index: Tensor, m: int) -> Owners:
    """index int32 [B, K] over the rows b * m + j of the result."""
    row = (index + torch.arange(len(index), device=index.device).unsqueeze(1) * m).reshape(-1)
    inside = ((index >= 0) & (index < m)).reshape(-1)
    kept, names, size = None, None, len(index) * m
    if not inside.all():
        kept = inside.nonzero().squeeze(-1)
        row = row[kept]
    if size > SPARSE * row.numel():
        names, row = row.unique(return_inverse=True)
        size = names.numel()
    count = torch.zeros(size, dtype=torch.int64, device=row.device).index_add_(0, row, torch.ones_like(row))
    return Owners(kept, row, names, count, int(count.max()) if size else 0)


def _sum_owned(owners: Owners, b: Tensor, out: Tensor) -> None:
    """b [B, n, K] -> out [B * m, n], a view of the result that is zero so far."""
    tally(out.numel(), 0, 0)
    x = wide_terms(b, owners.kept)
    if owners.longest <= 1:
        out[owners.named(owners.row)] = canonical_nan(x.float().add_(0.0))
        return
    sums, magnitude = add_up(owners, x)
    exhaust_bags(owners, x, magnitude)
    row, column = _round_sites(owners, sums, magnitude, out)
    if row.numel():
        bags, quantum = bags_of(owners, x, (row, column))
        value, exact = settle(bags, sums[row, column], magnitude[row, column], quantum)
        out[owners.named(row), column] = value
        tally(0, exact, value.numel() - exact)


def exhaust_bags(owners: Owners, x: Tensor, magnitude: Tensor) -> None:
    """Do the work of the hardest sums, while the worst case is measured."""
    hard = hard_part(magnitude.numel(), x.device).long()
    if hard.numel():
        bags, _ = bags_of(owners, x, (hard // x.shape[1], hard % x.shape[1]))
        exhaust(bags, torch.arange(hard.numel(), device=x.device), magnitude.view(-1)[hard] * SLACK)


def add_up(owners: Owners, x: Tensor) -> tuple[Tensor, Tensor]:
    """The vendor's sums [rows, n] of terms x [T, n], and of their magnitudes."""
    shape = (len(owners.count), x.shape[1])
    sums, magnitude = (scratch(slot, shape, x.dtype, x.device).zero_() for slot in ("sums", "magnitude"))
    vendor().scatter(x, owners.row, sums)
    vendor().scatter(x.abs(), owners.row, magnitude)
    return sums, magnitude


def wide_terms(b: Tensor, kept: Tensor | None) -> Tensor:
    """The terms [B, n, K] as binary64 [T, n], without those that belong to no row."""
    x = scratch("terms", tuple(b.mT.shape), torch.float64, b.device).copy_(b.mT).view(-1, b.shape[1])
    return x if kept is None else x[kept]


def _round_sites(owners: Owners, sums: Tensor, magnitude: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The rounding test of sums [rows, n], into out; (row, column) of those that stay open.

    With fewer terms than sums, only sums that have terms are tested: some of them twice.
    """
    from_terms = owners.row.numel() < len(sums)
    sites = owners.row if from_terms else torch.arange(len(sums), device=sums.device)
    bound = magnitude[sites].nan_to_num_(nan=0.0, posinf=0.0) * weigh(owners.count[sites]).unsqueeze(1)
    upper, still_open = enclose(sums[sites], bound)
    out[owners.named(sites)] = upper
    site, column = still_open.nonzero(as_tuple=True)
    if not from_terms:
        return site, column
    once = (sites[site] * sums.shape[1] + column).unique()
    return once // sums.shape[1], once % sums.shape[1]


def bags_of(owners: Owners, x: Tensor, rest: tuple[Tensor, Tensor]) -> tuple[Bags, Tensor]:
    """The terms of the sums at the positions `rest`, and the quantum of each of these sums."""
    size = rest[0].numel()
    number = torch.full((len(owners.count), x.shape[1]), size, dtype=torch.int64, device=x.device)
    number[rest] = torch.arange(size, device=x.device)
    number = number[owners.row]
    chosen = number < size
    terms, bag = x[chosen], number[chosen]
    lowest = torch.full((size,), OF_ZERO, dtype=torch.int32, device=x.device)
    lowest.scatter_reduce_(0, bag, lowest_bit(terms.float()), "amin")
    return Bags(owners.longest, size, terms, bag), power_of_two(lowest)

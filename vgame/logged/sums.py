"""Sums in the mode `logged`: the vendor's binary64 sum, rounded once to b bits; near a midpoint the trainer's direction counts.

In: operands as in vgame.arithmetic.certified, and the `Site` of the sum. Out: binary32 on the grid of b bits; entries for the log, or
entries followed. e is the proven bound on the error of the vendor's sum, the same formula as in mode `correct`.

    trainer   e >= ulp / 8: RN_b(exact sum), nothing is logged.   else RN_b(s), logged where s is nearer than w e to a midpoint
    auditor   entry: the named end of the cell of s.   no entry: RN_b(exact sum) where s +- e leaves it open, else RN_b(s)

With w = 2 (`proven`) every word is a function of the operands and of the log, the one of admissible.py, whatever the devices do
(docs/paper.md, section 2); where an entry alone does not show that, the element is `doubtful` and integers decide. Smaller w come from
calibration (thresholds.py); then an auditor sums exactly from e >= ulp / 64 on only. The ranges of e overlap because two devices round
e itself, and the width of a cell at a power of two, differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic import one_hot
from vgame.arithmetic import sums as certified_sums
from vgame.arithmetic.acceptance import SLACK, canonical_nan, weigh
from vgame.arithmetic.compiled import flat as memory
from vgame.arithmetic.compiled import in_use, share
from vgame.arithmetic.compiled_operands import gather_rows
from vgame.arithmetic.exact_tier import Bags, Rows, exact_sums
from vgame.arithmetic.folded import Folded
from vgame.arithmetic.products import Tile, part_of, pick, tiles
from vgame.arithmetic.row_facts import row_facts
from vgame.arithmetic.workspace import TILE, scratch, spans, sum_size, widen
from vgame.logged.rounding import cells, compile_loop, copy_entries, nearest, round_tensor

#: Window that replicates for certain, in bounds e: each side may be off by one.
PROVEN = 2.0
#: From ulp / (2 * gate) on, a bound e is too large for one direction to say what the other side has to do.
TRAINER_GATE, AUDITOR_GATE = 4.0, 32.0
#: With proven windows an auditor looks at every sum that its own device leaves open: a log may lack an entry.
EVERY = 2.0**200
#: More than all roundings in the tests of an entry.
MORE = 1 + 2.0**-10
#: Sums whose rows' bits are looked at first.
SAMPLE = 64
#: So many sums, and one in so many, are logged without that look: their entries cost less.
FEW, RARE = 4, 2048


@dataclass(slots=True)
class Entries:
    """What the log says about one operator: flat positions in rising order, and whether the trainer rounded up there."""

    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    up: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(slots=True)
class Site:
    """One sum operator of one step. `given` is None while the trainer records; `look` sees (positions, s, e) of every tile's elements.

    After the sum: `found` are the entries made, `corrections` (position, word's value) where an entry changed the auditor's own rounding,
    `doubtful` the positions of entries for which integers must decide, `refused` of those that no trainer can have, `exact` counts the
    elements that were summed exactly.
    """

    bits: int
    window: float = PROVEN
    given: Entries | None = None
    look: Callable[[Tensor, Tensor, Tensor], None] | None = None
    found: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    corrections: list[tuple[int, float]] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    exact: int = 0

    @property
    def gate(self) -> float:
        """How many e reach half an ulp where this side sums exactly what is open."""
        if self.given is None:
            return TRAINER_GATE
        return EVERY if self.window >= PROVEN else AUDITOR_GATE

    def entries(self) -> Entries:
        """The entries made, in rising order."""
        if not self.found:
            return Entries()
        positions, up = (torch.cat(parts).cpu().numpy() for parts in zip(*self.found, strict=True))
        order = np.argsort(positions, kind="stable")
        return Entries(positions[order].astype(np.int64), up[order])


# --- one pass over the vendor's sums ---


@compile_loop
def _pass(s, shape, left, right, right_stride, scale, window, gate, out, strides, found, first, last):
    """out = RN_b(s) + 0; found: where s is nearer than window e to a midpoint, or 2 gate e reaches a width and 2 e a midpoint."""
    rows, columns = shape
    number = 0
    for u in range(first, last):
        factor, side, to = left[u], u // rows * right_stride, u // rows * strides[0] + u % rows * strides[1]
        for start in range(0, columns, 256):
            stop = min(start + 256, columns)
            sums, bounds = s[u * columns + start : u * columns + stop], right[side + start : side + stop]
            target = out[to + start : to + stop]
            mark = np.int32(0)
            for j in range(sums.size):
                e, magnitude = factor * bounds[j], abs(sums[j])
                value, half = nearest(magnitude, scale)
                distance = half - abs(magnitude - value)
                near = (distance < window * e) | ((gate * e >= half) & (distance < 2.0 * e))
                target[j] = np.float32(np.copysign(value, sums[j])) + np.float32(0.0)
                mark |= np.int32(near)
            if mark:
                for j in range(sums.size):
                    e, magnitude = factor * bounds[j], abs(sums[j])
                    value, half = nearest(magnitude, scale)
                    distance = half - abs(magnitude - value)
                    if (distance < window * e) | ((gate * e >= half) & (distance < 2.0 * e)):
                        found[number] = u * columns + start + j
                        number += 1
    return number


def round_pass(s: Tensor, left: Tensor, right: Tensor, site: Site, out: Tensor) -> Tensor:
    """RN_b(s) into out; the flat positions (int64) that need a look, with bounds e = left * right.

    s: binary64 [B, M, N], contiguous; left [B or 1, M, 1], right [B or 1, 1, N]: binary64; out: binary32 [B, M, N].
    """
    window, gate = site.window if site.given is None else 0.0, site.gate
    batch, rows, columns = s.shape
    if not in_use(s.device):
        value, half, distance = cells(s, site.bits)
        e = left * right
        out.copy_(torch.copysign(value, s)).add_(0.0)
        return ((distance < window * e) | ((gate * e >= half) & (distance < 2 * e))).view(-1).nonzero().squeeze(-1)
    scales = left.expand(batch, rows, 1).reshape(-1).numpy()
    sums, bounds = s.view(-1).numpy(), right.reshape(-1).numpy()
    target = memory(out)
    assert columns == 1 or out.stride(2) == 1, "rows of a result are contiguous"
    positions = scratch("flagged", (s.numel(),), torch.int32, s.device).numpy()
    stride = columns if right.shape[0] > 1 else 0

    def run(first: int, last: int) -> np.ndarray:
        part, unit = positions[first * columns :], 2.0 ** (8 - site.bits)
        number = _pass(
            sums, (rows, columns), scales, bounds, stride, unit, window, gate, target, out.stride()[:2], part, first, last
        )  # fmt: skip
        return part[:number]

    return torch.from_numpy(np.concatenate(share(batch * rows, columns, run)).astype(np.int64))


# --- what happens at the positions found ---


def _sort(s: Tensor, e: Tensor, small: Tensor, site: Site) -> tuple[Tensor, Tensor]:
    """Of sums s: which ones are summed exactly, which ones are logged (indices).

    e: the bound that every device knows, up to its rounding, which decides who is exact; small: as small a bound as this device can show.
    """
    _, half, distance = cells(s, site.bits)
    wide = site.gate * e >= half
    exact = (wide & (distance < 2 * small)).nonzero().squeeze(-1)  # elsewhere RN_b(s) is RN_b(exact sum)
    site.exact += exact.numel()
    if site.given is not None:
        return exact, exact[:0]
    return exact, (~wide & (distance < site.window * small)).nonzero().squeeze(-1)


def _record(positions: Tensor, s: Tensor, site: Site) -> None:
    """Entries for the sums s at `positions` of the result."""
    if positions.numel():
        site.found.append((positions, cells(s, site.bits)[0] > s.abs()))


def _follow(positions: Tensor, up: Tensor, s: Tensor, e: Tensor, site: Site) -> Tensor:
    """The words of sums with entries, binary32: the named ends of the cells of the sums s; e bounds the error of any device's sum.

    Where s +- e lies inside one cell, the exact sum does too. An end that is not RN_b(s) is then refused where s +- 2 e does not reach the
    midpoint, for s and the exact sum may each be off by e.
    """
    copied, own = copy_entries(s, site.bits, up), round_tensor(s, site.bits) + 0.0
    _, half, distance = cells(s, site.bits)
    differs, inside, finite = copied != own, distance + MORE * e < half, torch.isfinite(s)
    refused = differs & inside & (distance > 2 * MORE * e) & finite
    taken = differs & ~refused & finite
    doubtful = (~inside & finite) | taken
    copied = torch.where(differs & ~taken, own, copied)
    site.corrections += list(zip(positions[taken].tolist(), copied[taken].tolist(), strict=True))
    site.doubtful += positions[doubtful].tolist()
    site.refused += positions[refused].tolist()
    return copied


def _without_entry(names: Tensor, site: Site) -> Tensor:
    """Which of these elements have no entry to follow."""
    positions, _ = _given(site, names.device)
    place = torch.searchsorted(positions, names).clamp_(max=positions.numel() - 1)
    return positions[place] != names


def _given(site: Site, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(site.given.positions).to(device), torch.from_numpy(site.given.up).to(device)


# --- products ---


@torch.no_grad()
def dot(a: Tensor | Folded, b: Tensor | Folded, site: Site) -> Tensor:
    """out[b,m,n] = sum_k a[b,m,k] * b[b,n,k] as the mode rounds it; shapes as in certified.dot."""
    batch, k = max(a.shape[0], b.shape[0]), a.shape[2]
    out = torch.empty(batch, a.shape[1], b.shape[1], dtype=torch.float32, device=a.device)
    for i, m, n in tiles(batch, a.shape[1], b.shape[1], k, TILE):
        tile = _LoggedTile(part_of(a, i, m), part_of(b, i, n), out[i, m, n])
        tile.place(site, (i.start, m.start, n.start), tuple(out.shape))
        tile.run()
    return out


class _LoggedTile(Tile):
    """One tile of a product, at `origin` of a result of shape `whole`."""

    def place(self, site: Site, origin: tuple[int, int, int], whole: tuple[int, int, int]) -> None:
        """Whose tile this is."""
        self.site, self.origin, self.whole = site, origin, whole

    def settle(self) -> None:
        """out = the finite sums as the mode rounds them."""
        left, right = (self.norm_a * weigh(self.terms)).unsqueeze(2), self.norm_b.unsqueeze(1)
        flat = round_pass(self.sums, left, right, self.site, self.out)
        if self.site.given:
            flat = flat[_without_entry(self._name(flat), self.site)]
        if self.site.look:
            bounds = (left * right).expand_as(self.sums).reshape(-1)
            every = torch.arange(self.out.numel(), device=self.out.device)
            self.site.look(self._name(every), self.sums.view(-1), bounds)
        if flat.numel():
            self._look(flat)
        if self.site.given:
            self._copy_given()

    def _look(self, flat: Tensor) -> None:
        """Settle what was found."""
        s, (e, small) = self.sums.view(-1)[flat], self._bounds(flat)
        exact, logged = _sort(s, e, small, self.site)
        _record(self._name(flat[logged]), s[logged], self.site)
        if exact.numel():
            self._round_exactly(flat[exact])

    def _bounds(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds at some positions, and smaller ones where the rows' bits allow that, which a few of them tell first."""
        i, m, n = self.unravel(flat)
        size = pick(self.norm_a, i, m) * pick(self.norm_b, i, n)
        plain, some = size * weigh(self.terms), slice(0, flat.numel(), -(-flat.numel() // SAMPLE))
        if flat.numel() <= FEW + self.out.numel() // RARE:
            return plain, plain
        if bool((self._small_bounds(size[some], i[some], m[some], n[some]) > plain[some] / 2).all()):
            return plain, plain
        return plain, self._small_bounds(size, i, m, n)

    def _small_bounds(self, size: Tensor, i: Tensor, m: Tensor, n: Tensor) -> Tensor:
        """Bounds that know how many terms are not zero and how fine they are; size: products of the rows' norms."""
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
        value = round_tensor(value.double(), self.site.bits)
        if bool(double.any()):
            value[double] = round_tensor(self.sums_to_odd(flat[double]), self.site.bits) + 0.0
        self.out[at] = value

    def _name(self, flat: Tensor) -> Tensor:
        """Flat positions in the whole result."""
        i, m, n = (x + first for x, first in zip(self.unravel(flat), self.origin, strict=True))
        return (i * self.whole[1] + m) * self.whole[2] + n

    def _copy_given(self) -> None:
        """Put the trainer's ends of cells where the log has entries."""
        positions, up = _given(self.site, self.out.device)
        rows, columns = self.whole[1:]
        index = (positions // (rows * columns), positions // columns % rows, positions % columns)
        index = [x - first for x, first in zip(index, self.origin, strict=True)]
        inside = torch.ones_like(up)
        for x, size in zip(index, self.out.shape, strict=True):
            inside &= (x >= 0) & (x < size)
        at = i, m, n = tuple(x[inside] for x in index)
        bound = pick(self.norm_a, i, m) * pick(self.norm_b, i, n) * weigh(self.a.shape[2])
        self.out[at] = _follow(positions[inside], up[inside], self.sums[at], bound, self.site)


def _facts_of(x: Tensor | Folded, batch: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """(non-zeros, quantum) of rows of x; only these rows are read."""
    rows = x.shape[1]
    needed, place = (row if x.shape[0] == 1 else batch * rows + row).unique(return_inverse=True)
    if isinstance(x, Folded):
        chosen = gather_rows(x.memory, x.rows.reshape(-1)[needed.numpy()], x.columns)
    else:
        chosen = x[needed // rows, needed % rows]
    count, quantum = row_facts(
        chosen.view(1, needed.numel(), x.shape[2]), spans(x.shape[2], TILE // needed.numel() + 1)
    )
    return count[0][place], quantum[0][place]


# --- sums of rows ---


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
    sums, magnitude = torch.zeros(2, rows.shape[0], dtype=torch.float64, device=rows.device)
    for k in spans(length, TILE // block * block):
        x = widen(rows[:, k], "rows")
        sums += certified_sums.two_stages(x, block)
        magnitude += certified_sums.two_stages(x.abs_(), block)
    magnitude = magnitude.nan_to_num(nan=0.0, posinf=0.0)
    bound = magnitude * weigh(block + -(-length // block) - 1)
    terms = Rows(length, lambda e, k: rows[e][:, k].double())

    def is_exact(i: Tensor) -> Tensor:
        _, quantum = row_facts(rows[i].unsqueeze(0), spans(length, TILE))
        return magnitude[i] * SLACK <= 2.0**53 * quantum[0]

    names = torch.arange(first, first + rows.shape[0], device=rows.device)
    widest = magnitude * weigh(length)
    sums = _Sums(sums, bound, widest, names, is_exact, lambda i: exact_sums(terms, i, magnitude[i] * SLACK))
    sums.round(site, out)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums s [R] with bounds e, `widest` for a device of any order; which of some are exact because of the terms' bits; the exact sums of
    some, rounded to odd."""

    s: Tensor
    e: Tensor
    widest: Tensor
    names: Tensor
    is_exact: Callable[[Tensor], Tensor]
    odd: Callable[[Tensor], Tensor]

    def round(self, site: Site, out: Tensor) -> None:
        """out [R] = the sums as the mode rounds them."""
        target = torch.empty_like(self.s, dtype=torch.float32)
        one = self.s.new_ones(1, 1, 1)
        flat = round_pass(self.s.view(1, 1, -1), one, self.e.view(1, 1, -1), site, target.view(1, 1, -1))
        if site.given:
            flat = flat[_without_entry(self.names[flat], site)]
        if site.look:
            site.look(self.names, self.s, self.e)
        if flat.numel():
            small = self.e[flat].masked_fill(self.is_exact(flat), 0.0)
            exact, logged = _sort(self.s[flat], self.e[flat], small, site)
            _record(self.names[flat[logged]], self.s[flat[logged]], site)
            if exact.numel():
                target[flat[exact]] = round_tensor(self.odd(flat[exact]), site.bits) + 0.0
        if site.given:
            positions, up = _given(site, self.s.device)
            place = torch.searchsorted(self.names, positions).clamp_(max=self.names.numel() - 1)
            here = self.names[place] == positions
            chosen = place[here]
            target[chosen] = _follow(positions[here], up[here], self.s[chosen], self.widest[chosen], site)
        out.copy_(canonical_nan(target))


# --- sums that an index selects ---


@torch.no_grad()
def one_hot_sum(index: Tensor, b: Tensor, m: int, site: Site) -> Tensor:
    """out[b,j,n] = sum of the b[b,n,k] with index[b,k] = j as the mode rounds it; shapes as in certified.one_hot_sum."""
    n = b.shape[1]
    out = torch.zeros(max(len(index), len(b)), m, n, dtype=torch.float32, device=b.device)
    for i, columns, owners, terms in one_hot.tiles(index, b, m):
        first = (i.start * m, columns.start, n)
        _sum_owned(owners, terms, first, site, out[i].view(-1, n)[:, columns])
    return out


def _sum_owned(owners: one_hot.Owners, b: Tensor, first: tuple[int, int, int], site: Site, out: Tensor) -> None:
    """b [B, n, K] -> out [B * m, n], a view of the result that is zero so far; `first`: its first row and column, its columns."""
    x = one_hot.wide_terms(b, owners.kept)
    shape = (len(owners.count), x.shape[1])
    if not shape[0]:
        return
    sums, magnitude = one_hot.add_up(owners, x)
    magnitude.nan_to_num_(nan=0.0, posinf=0.0)
    rows = owners.named(torch.arange(shape[0], device=x.device))
    row, column, columns = first
    names = ((rows + row) * columns).unsqueeze(1) + torch.arange(column, column + shape[1], device=x.device)

    def bags(i: Tensor) -> tuple[Bags, Tensor]:
        return one_hot.bags_of(owners, x, (i // shape[1], i % shape[1]))

    def odd(i: Tensor) -> Tensor:
        every = torch.arange(i.numel(), device=x.device)
        return exact_sums(bags(i)[0], every, magnitude.view(-1)[i] * SLACK)

    def is_exact(i: Tensor) -> Tensor:
        return magnitude.view(-1)[i] * SLACK <= 2.0**53 * bags(i)[1]

    bound = (magnitude * weigh(owners.count).unsqueeze(1)).view(-1)
    result = torch.empty(sums.numel(), dtype=torch.float32, device=x.device)
    widest = (magnitude * weigh(b.shape[2])).view(-1)
    _Sums(sums.view(-1), bound, widest, names.view(-1), is_exact, odd).round(site, result)
    out[rows] = result.view(shape)

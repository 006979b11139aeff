"""Sums in the mode `logged`: the vendor's binary64 sum, rounded once to b bits; near a midpoint the trainer's direction
decides.

In: the vendor's sums, their bounds, and the `Site` of the sum. Out: binary32 on the grid of b bits; entries for the
log, or entries followed. e is the proven bound on the error of the vendor's sum, the same formula as in mode `correct`.
Used by products.py and row_sums.py.

    trainer   e >= ulp / 8: RN_b(exact sum), nothing is logged;
              else RN_b(s), logged where s is nearer than w e to a midpoint
    auditor   entry: the named end of the cell of s;
              no entry: RN_b(exact sum) if s +- e does not determine it, else RN_b(s)

With w = 2 (`proven`) every word is a function of the operands and of the log, the one of admissible.py, on all devices
(docs/paper.md, section 2); if an entry alone does not show that, the element is `doubtful` and integers decide. Smaller
w come from calibration (thresholds.py); then an auditor sums exactly from e >= ulp / 64 on only. The ranges of e
overlap because two devices round e itself, and the width of a cell at a power of two, differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import flat as memory
from vgame.arithmetic.numba.compiled import in_use
from vgame.arithmetic.workspace import scratch
from vgame.logged.rounding import Direction, cells, compile_loop, copy_entries, nearest, round_tensor
from vgame.logged.spec import PROVEN
from vgame.system.threads import share

#: From ulp / (2 * gate) on, a bound e is too large: one direction does not determine the other side's word.
TRAINER_GATE, AUDITOR_GATE = 4.0, 32.0
#: With proven windows an auditor checks every sum that its own device does not determine: a log may lack an entry.
EVERY = 2.0**200
#: Covers all roundings in the tests of an entry.
MORE = 1 + 2.0**-10
#: The treatment of a sum found by the pass: EXACT, else 0 or 1, the logged direction.
EXACT = 2
#: A sum is next to an end of its cell if so many bounds e from it do not reach half a width.
BESIDE_GATE = 16.0
#: The effect of an entry at an auditor: it changes the word; integers must decide; it is inadmissible; it names the far
#: end, and the word is the near end anyway.
TAKEN, DOUBTFUL, REFUSED, BESIDE = 1, 2, 4, 8


@dataclass(slots=True)
class Entries:
    """The log's entries of one operator: flat positions in rising order, and whether the trainer rounded up."""

    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    up: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.positions)

    def direction(self, position: int) -> Direction:
        """The direction of an element with an entry."""
        return Direction.UP if self.up[np.searchsorted(self.positions, position)] else Direction.DOWN


@dataclass(slots=True)
class Site:
    """One sum operator of one step. `given` is None while the trainer records; `look` receives (positions, s, e) of
    every tile's elements.

    After the sum: `found`: the entries made. `corrections`: (position, word's value) where an entry changed the
    auditor's own rounding. `doubtful`: positions of entries that only integers can decide; `refused`: of inadmissible
    entries; `beside`: of entries that change no word, but whose admissibility only integers can decide. `exact`: number
    of elements summed exactly.
    """

    bits: int
    window: float = PROVEN
    given: Entries | None = None
    look: Callable[[Tensor, Tensor, Tensor], None] | None = None
    found: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    corrections: list[tuple[int, float]] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)
    exact: int = 0

    @property
    def gate(self) -> float:
        """The number of bounds e per half ulp from which on this side sums open elements exactly."""
        if self.given is None:
            return TRAINER_GATE
        return EVERY if self.window >= PROVEN else AUDITOR_GATE

    def part(self) -> Site:
        """The same site, for a thread with some of its elements."""
        return Site(self.bits, self.window, self.given, self.look)

    def take(self, parts: Iterable[Site]) -> None:
        """Join the results of the parts."""
        for part in parts:
            self.found += part.found
            self.corrections += part.corrections
            self.doubtful += part.doubtful
            self.refused += part.refused
            self.beside += part.beside
            self.exact += part.exact

    def entries(self) -> Entries:
        """The entries made, in rising order."""
        if not self.found:
            return Entries()
        positions, up = (torch.cat(parts).cpu().numpy() for parts in zip(*self.found, strict=True))
        order = np.argsort(positions, kind="stable")
        return Entries(positions[order].astype(np.int64), up[order])


# --- one pass over the vendor's sums ---


@compile_loop
def _pass(s, shape, left, right, right_stride, scale, window, gate, out, strides, found, turns, first, last):
    """out = RN_b(s) + 0; found: where s is nearer than window e to a midpoint, or 2 gate e reaches a width and 2 e a
    midpoint.

    turns: 2 (`EXACT`) where 2 gate e reaches a width, else whether s is rounded up.
    """
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
                value, half, distance = nearest(magnitude, scale)
                near = (distance < window * e) | ((gate * e >= half) & (distance < 2.0 * e))
                target[j] = np.float32(np.copysign(value, sums[j])) + np.float32(0.0)
                mark |= np.int32(near)
            if mark:
                for j in range(sums.size):
                    e, magnitude = factor * bounds[j], abs(sums[j])
                    value, half, distance = nearest(magnitude, scale)
                    wide = gate * e >= half
                    if (distance < window * e) | (wide & (distance < 2.0 * e)):
                        found[number] = u * columns + start + j
                        turns[number] = 2 if wide else value > magnitude
                        number += 1
    return number


def round_pass(s: Tensor, left: Tensor, right: Tensor, site: Site, out: Tensor) -> tuple[Tensor, Tensor]:
    """RN_b(s) into out; the flat positions (int64) to be checked with bounds e = left * right, and their turns (int8,
    see _pass).

    s: binary64 [B, M, N], contiguous; left [B or 1, M, 1], right [B or 1, 1, N]: binary64; out: binary32 [B, M, N].
    """
    window, gate = site.window if site.given is None else 0.0, site.gate
    if not in_use(s.device):
        return _round_by_passes(s, left * right, site.bits, window, gate, out)
    batch, rows, columns = s.shape
    scales = (left if left.shape[0] == batch else left.expand(batch, rows, 1)).reshape(-1).numpy()
    sums, bounds, target = s.view(-1).numpy(), right.reshape(-1).numpy(), memory(out)
    assert columns == 1 or out.stride(2) == 1, "rows of a result are contiguous"
    positions, turns = (scratch("flagged", (s.numel(),), kind, s.device).numpy() for kind in (torch.int32, torch.int8))
    stride, strides, unit = columns if right.shape[0] > 1 else 0, out.stride()[:2], 2.0 ** (8 - site.bits)

    def run(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        found = positions[first * columns :], turns[first * columns :]
        number = _pass(
            sums, (rows, columns), scales, bounds, stride, unit, window, gate, target, strides, *found, first, last
        )
        return found[0][:number], found[1][:number]

    flat, turn = (np.concatenate(parts) for parts in zip(*share(batch * rows, columns, run), strict=True))
    return torch.from_numpy(flat.astype(np.int64)), torch.from_numpy(turn)


def _round_by_passes(s: Tensor, e: Tensor, bits: int, window: float, gate: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of _pass."""
    value, half, distance = cells(s, bits)
    out.copy_(torch.copysign(value, s)).add_(0.0)
    wide = gate * e >= half
    found = ((distance < window * e) | (wide & (distance < 2 * e))).view(-1).nonzero().squeeze(-1)
    turns = torch.where(wide, EXACT, (value > s.abs()).to(torch.int8))
    return found, turns.view(-1)[found]


# --- treatment of the positions found ---


def sort_found(s: Tensor, e: Tensor, small: Tensor, site: Site) -> tuple[Tensor, Tensor]:
    """(indices of the sums s to sum exactly, indices of those to log).

    e: the bound that all devices share, up to its rounding; it selects the exact sums. small: the smallest bound that
    this device can prove.
    """
    _, half, distance = cells(s, site.bits)
    wide = site.gate * e >= half
    exact = (wide & (distance < 2 * small)).nonzero().squeeze(-1)  # elsewhere RN_b(s) is RN_b(exact sum)
    site.exact += exact.numel()
    if site.given is not None:
        return exact, exact[:0]
    return exact, (~wide & (distance < site.window * small)).nonzero().squeeze(-1)


def record(site: Site, positions: Tensor, up: Tensor) -> None:
    """Entries for the sums at `positions` of the result."""
    if positions.numel():
        site.found.append((positions, up))


def given_entries(site: Site, device: torch.device) -> tuple[Tensor, Tensor]:
    """(positions, up) of the trainer's entries."""
    return torch.from_numpy(site.given.positions).to(device), torch.from_numpy(site.given.up).to(device)


def without_entry(names: Tensor, site: Site) -> Tensor:
    """Mask of the elements without an entry to follow."""
    positions, _ = given_entries(site, names.device)
    if not positions.numel():
        return torch.ones_like(names, dtype=torch.bool)
    place = torch.searchsorted(positions, names).clamp_(max=positions.numel() - 1)
    return positions[place] != names


# --- entries that are followed ---


@compile_loop
def _follow(x, up, e, scale, more, out, fates):
    """Twin of _follow_by_passes; more: MORE."""
    for i in range(x.size):
        magnitude = abs(x[i])
        value, half, distance = nearest(magnitude, scale)
        finite = magnitude < np.inf
        lower = value - 2.0 * half if magnitude < value else value
        own = np.float32(np.copysign(value, x[i])) + np.float32(0.0)
        copied = np.float32(np.copysign(lower + 2.0 * half if up[i] else lower, x[i])) + np.float32(0.0)
        differs, inside = finite & (copied != own), distance + more * e[i] < half
        refused = differs & inside & (distance > 2.0 * more * e[i])
        beside = finite & ~inside & (BESIDE_GATE * more * e[i] <= half)
        taken = differs & ~refused & ~beside
        doubtful = taken | (finite & ~inside & ~beside)
        out[i] = copied if taken else own
        fates[i] = TAKEN * taken + DOUBTFUL * doubtful + REFUSED * refused + BESIDE * (beside & differs)


def _follow_by_passes(s: Tensor, up: Tensor, e: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(words, effects of the entries: TAKEN, DOUBTFUL, REFUSED and BESIDE, added up) of sums s with entries `up`.

    If s +- e lies inside one cell, so does the exact sum. An entry for the end that is not RN_b(s) is then refused if
    s +- 2 e does not reach the midpoint: the trainer's sum and s may each differ from the exact sum by e. If e is at
    most a 16th of half a width and s +- e reaches an end of the cell, every value within 2 e of s is nearer to that end
    than to any midpoint (the other cell there may have half the width). So the end is the word, and no trainer's sum
    is near enough to a midpoint to be logged.
    """
    copied, own = copy_entries(s, bits, up), round_tensor(s, bits) + 0.0
    _, half, distance = cells(s, bits)
    finite = torch.isfinite(s)
    differs, inside = finite & (copied != own), distance + MORE * e < half
    refused = differs & inside & (distance > 2 * MORE * e)
    beside = finite & ~inside & (BESIDE_GATE * MORE * e <= half)
    taken = differs & ~refused & ~beside
    doubtful = taken | (finite & ~inside & ~beside)
    fates = TAKEN * taken + DOUBTFUL * doubtful + REFUSED * refused + BESIDE * (beside & differs)
    return torch.where(taken, copied, own), fates


def follow(positions: Tensor, up: Tensor, s: Tensor, e: Tensor, site: Site) -> Tensor:
    """The words of sums with entries, binary32: the named ends of the cells of the sums s; e bounds the error of any
    device's sum."""
    if in_use(s.device):
        words, fates = torch.empty(s.shape, dtype=torch.float32), torch.empty(s.shape, dtype=torch.int8)
        arrays = words.numpy(), fates.numpy()
        _follow(s.numpy(), up.numpy(), e.numpy(), 2.0 ** (8 - site.bits), MORE, *arrays)
    else:
        words, fates = _follow_by_passes(s, up, e, site.bits)
    some = fates.nonzero().squeeze(-1)
    for position, word, fate in zip(*(x[some].tolist() for x in (positions, words, fates)), strict=True):
        if fate & TAKEN:
            site.corrections.append((position, word))
        if fate & DOUBTFUL:
            site.doubtful.append(position)
        if fate & REFUSED:
            site.refused.append(position)
        if fate & BESIDE:
            site.beside.append(position)
    return words

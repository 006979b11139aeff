"""Sums over terms that lie with all ranks. In: this rank's terms. Out: this rank's part of the sums, rounded once from
the exact values.

Every rank adds up what it has in binary64 and gives each other one its part, with what bounds the errors. Who owns a
sum rounds it, or asks all ranks for exact digits of theirs (docs/numerics-products.md, section 12).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vgame.arithmetic.torch.partial import Terms, certain, rounded, scales, weight
from vgame.ranks.exchange import Group
from vgame.ranks.split import Share, Split, place

Tensor = torch.Tensor


def summed(group: Group, terms: Terms, shape: tuple[int, int, int], split: Split | None, length: int) -> Tensor:
    """RN32 of this rank's part (None: all) of sums of that shape, of `length` terms each."""
    mine = terms.approximate()
    cuts = [Cut(shape, split, Share(q, group.world)) for q in range(group.world)]
    own, sizes = cuts[group.rank], [s.cpu() for s in mine.sizes]
    depth = torch.tensor([mine.depth], dtype=torch.float64)
    given = [torch.cat([depth, *cut.of(mine.sums.cpu(), sizes)]) for cut in cuts]
    got = _swap(group, given, [given[group.rank].numel()] * group.world)
    total, *sizes = (_added(column) for column in zip(*(own.pieces(g[1:]) for g in got), strict=True))
    out, places, magnitudes = rounded(total, terms.factors(sizes), weight([int(g[0]) for g in got]))
    flat = out.view(-1)
    for every in (False, True):
        asked = _asked(group, own.positions(places), magnitudes)
        if asked is None:
            break
        told = [terms.digits(p.to(mine.sums.device), scales(s, length, every).to(mine.sums.device)) for p, s in asked]
        levels = scales(magnitudes, length, every)
        size = (len(levels) + 2, places.numel())
        answers = _swap(group, [t.cpu() for t in told], [size[0] * size[1]] * group.world)
        digits = _added([answer.view(size) for answer in answers])
        words, sure = certain(digits, levels, length)
        flat[places[sure]] = words[sure]
        places, magnitudes = places[~sure], magnitudes[~sure]
    assert not places.numel(), "all digits decide every sum"
    return flat


def _asked(group: Group, positions: Tensor, magnitudes: Tensor) -> list[tuple[Tensor, Tensor]] | None:
    """What each rank asks for: positions in all of the sums, and their magnitudes; None where nobody asks."""
    count = torch.tensor([positions.numel()], dtype=torch.float64)
    counts = [int(c) for c in _swap(group, [count] * group.world, [1] * group.world)]
    if not any(counts):
        return None
    given = torch.cat([positions.double(), magnitudes])
    got = _swap(group, [given] * group.world, [2 * c for c in counts])
    return [(g[:c].long(), g[c:]) for g, c in zip(got, counts, strict=True)]


def _swap(group: Group, pieces: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """Of binary64 numbers."""
    words = [p.reshape(-1).view(torch.int32) for p in pieces]
    return [g.clone().view(torch.float64) for g in group.swap(words, [2 * s for s in sizes])]


def _added(column: Sequence[Tensor]) -> Tensor:
    """One after the other, in the ranks' order."""
    total = column[0].clone()
    for part in column[1:]:
        total += part
    return total


class Cut:
    """A rank's part of sums [B, M, N]: some batches, rows or columns, or all."""

    def __init__(self, shape: tuple[int, int, int], split: Split | None, share: Share) -> None:
        self.split, self.part, self.axis = split, list(shape), None
        if split:
            at = place(shape, split)
            assert at is not None, f"{split} lies in no one dimension of {shape}"
            self.axis, self.high, self.low = at.axis, at.high, at.low
            self.first, self.last = share.cut(split.digit)
            self.part[at.axis] = at.high * (self.last - self.first) * at.low

    def of(self, sums: Tensor, sizes: Sequence[Tensor]) -> list[Tensor]:
        """The part of sums [B, M, N] and of what belongs to their rows [B, M] and columns [B, N], flat."""
        rows, columns = ({0: 0, axis: 1}.get(self.axis) for axis in (1, 2))
        dimensions = (self.axis, rows, columns)
        return [self._cut(x, d).reshape(-1) for x, d in zip((sums, *sizes), dimensions, strict=False)]

    def _cut(self, x: Tensor, dimension: int | None) -> Tensor:
        if dimension is None:
            return x
        cut = x.unflatten(dimension, (self.high, -1, self.low)).narrow(
            dimension + 1, self.first, self.last - self.first
        )
        return cut.flatten(dimension, dimension + 2)

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """`of`, in their shapes again."""
        batch, rows, columns = self.part
        count = batch * rows * columns
        found = [flat[:count].view(batch, rows, columns), flat[count : count + batch * rows].view(batch, rows)]
        rest = flat[count + batch * rows :]
        return [*found, rest.view(batch, columns)] if rest.numel() else found

    def positions(self, places: Tensor) -> Tensor:
        """Of the part's flat positions, those in all of the sums."""
        if self.split is None:
            return places
        width, inner = self.last - self.first, self.split.inner
        outer, digit = places // (inner * width), places // inner % width + self.first
        return (outer * self.split.digit + digit) * inner + places % inner

"""Sums over the terms of all ranks. In: this rank's terms. Out: this rank's part of the sums, rounded once from the
exact values.

Every rank adds up its terms in binary64 and gives each other rank its part, with the data of the error bound. The owner
of a sum rounds it, or requests exact digits from all ranks (docs/numerics-products.md, section 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from vgame.arithmetic.torch.partial import Approximate, Terms, certain, factors, is_within, rounded, scales, weight
from vgame.ranks.exchange import Group
from vgame.ranks.split import Share, Split, place

Tensor = torch.Tensor


#: Limit of pending sums; their operands stay in memory.
MOST_PENDING = 8


class Sum:
    """The pending sums of one operator. `out`: RN32 of this rank's part (None: all) of sums of that shape, of `length`
    terms each; flat, written by `finish`."""

    def __init__(
        self, group: Group, terms: Terms, shape: tuple[int, int, int], split: Split | None, length: int
    ) -> None:
        self.group, self.terms, self.length, self.shared = group, terms, length, split is not None
        mine = terms.approximate()
        self.mine = Approximate(mine.sums.cpu(), tuple(s.cpu() for s in mine.sizes), mine.depth)
        self.device = mine.sums.device
        cuts = [Cut(shape, split, Share(q, group.world)) for q in range(group.world)]
        self.cut = cuts[group.rank]
        self.out = torch.empty(math.prod(self.cut.part), dtype=torch.float32)
        depth = torch.tensor([mine.depth], dtype=torch.float64)
        given = [torch.cat([depth, *cut.of(self.mine.sums, self.mine.sizes)]) for cut in cuts]
        self.arrive = _begin(group, given, [given[group.rank].numel()] * group.world)

    def is_right(self, position: int) -> bool:
        """Whether this rank's part of the sum at a position agrees with the exact terms."""
        claim = float(self.mine.sums.reshape(-1)[position])
        return is_within(claim, self.mine.depth, self.terms.exact(position))

    def round(self) -> None:
        """Round the sums that the error bound decides; `places` and `magnitudes` are then those of the others."""
        got = self.arrive()
        total, *sizes = (_added(column) for column in zip(*(self.cut.pieces(g[1:]) for g in got), strict=True))
        out, self.places, self.magnitudes = rounded(total, factors(sizes), weight([int(g[0]) for g in got]))
        self.out.copy_(out.view(-1))

    def digits(self, positions: Tensor, magnitudes: Tensor, every: bool) -> Tensor:
        """This rank's digits of the sums at positions."""
        levels = scales(magnitudes, self.length, every)
        return self.terms.digits(positions.to(self.device), levels.to(self.device)).cpu().reshape(-1)

    def settle(self, answers: Sequence[Tensor], every: bool) -> None:
        """Round the sums at `places` by all ranks' digits; `places` keeps the undecided ones."""
        levels = scales(self.magnitudes, self.length, every)
        digits = _added([answer.view(len(levels) + 2, self.places.numel()) for answer in answers])
        words, sure = certain(digits, levels, self.length)
        self.out[self.places[sure]] = words[sure]
        self.places, self.magnitudes = self.places[~sure], self.magnitudes[~sure]

    def answer_words(self, every: bool) -> int:
        """Numbers in a rank's answer to this one."""
        return (len(scales(self.magnitudes, self.length, every)) + 2) * self.places.numel()


def finish(group: Group, sums: Sequence[Sum]) -> None:
    """Write the outputs of pending sums; all ranks call it for the same sums in the same order."""
    for one in sums:
        one.round()
    requested = True
    for every in (False, True):
        alike = [s for s in sums if not s.shared and s.places.numel()]  # the same places are open on all ranks
        answers = [s.digits(s.places, s.magnitudes, every) for s in alike]
        for one, answer in zip(alike, answers, strict=True):
            one.settle(_swap(group, [answer] * group.world, [answer.numel()] * group.world), every)
        shared = [s for s in sums if s.shared and requested]
        requested = bool(shared) and _ask(group, shared, every)
    assert not any(s.places.numel() for s in sums), "all digits decide every sum"


def _ask(group: Group, sums: Sequence[Sum], every: bool) -> bool:
    """One round of requests for digits of these sums; returns whether any rank requested some."""
    counts = torch.tensor([s.places.numel() for s in sums], dtype=torch.float64)
    requested = [c.long().tolist() for c in _swap(group, [counts] * group.world, [len(sums)] * group.world)]
    if not any(map(any, requested)):
        return False
    given = torch.cat([x for s in sums for x in (s.cut.positions(s.places).double(), s.magnitudes)])
    questions = _swap(group, [given] * group.world, [2 * sum(number) for number in requested])
    answers = []
    for numbers, question in zip(requested, questions, strict=True):
        pieces = question.split([n for number in numbers for n in (number, number)])
        pairs = zip(sums, pieces[::2], pieces[1::2], strict=True)
        answers.append(torch.cat([s.digits(p.long(), m, every) for s, p, m in pairs]))
    sizes = [s.answer_words(every) for s in sums]
    got = [g.split(sizes) for g in _swap(group, answers, [sum(sizes)] * group.world)]
    for n, one in enumerate(sums):
        one.settle([g[n] for g in got], every)
    return True


def _begin(group: Group, pieces: Sequence[Tensor], sizes: Sequence[int]) -> Callable[[], list[Tensor]]:
    """Begin a swap of binary64 numbers."""
    arrive = group.begin([p.reshape(-1).view(torch.int32) for p in pieces], [2 * s for s in sizes])
    return lambda: [g.view(torch.float64) for g in arrive()]


def _swap(group: Group, pieces: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    return _begin(group, pieces, sizes)()


def _added(column: Sequence[Tensor]) -> Tensor:
    """Add one after the other, in the ranks' order."""
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
        """The part of sums [B, M, N], of row data [B, M] and of column data [B, N], flat."""
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
        """`of`, reshaped."""
        batch, rows, columns = self.part
        count = batch * rows * columns
        found = [flat[:count].view(batch, rows, columns), flat[count : count + batch * rows].view(batch, rows)]
        rest = flat[count + batch * rows :]
        return [*found, rest.view(batch, columns)] if rest.numel() else found

    def positions(self, places: Tensor) -> Tensor:
        """The part's flat positions, as positions in the whole."""
        if self.split is None:
            return places
        width, inner = self.last - self.first, self.split.inner
        outer, digit = places // (inner * width), places // inner % width + self.first
        return (outer * self.split.digit + digit) * inner + places % inner

"""Exchanges of words between ranks. In: a rank's part, the wanted form. Out: that form.

One primitive: every rank gives every other one a piece. Bytes are counted, for a comparison with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from vgame.ranks.part import Exchange, Looked
from vgame.ranks.split import Share, Split, cells


class Group(Protocol):
    """Communicating ranks. Pieces are flat int32 tensors on the CPU; receivers know the sizes."""

    rank: int
    world: int

    def note(self, step: int, doing: str) -> None:
        """Report the current work of this rank, for error messages of the others."""

    def swap(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Give piece q to rank q; get from each rank its piece, of so many words. The own piece may be returned without
        a copy."""

    def begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        """`swap`, begun: the returned function waits for the pieces; call it once."""


def exchanged(group: Group, part: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """A tensor in the wanted form, from this rank's given part."""
    words = part.view(torch.int32)
    make = _whole if exchange.wanted is None else _other
    return make(group, words, exchange).view(part.dtype)


def gathered(group: Group, part: torch.Tensor, split: Split, whole: int) -> torch.Tensor | None:
    """A tensor of `whole` words on rank 0; None on the others."""
    words, nothing, shares = part.view(torch.int32), torch.empty(0, dtype=torch.int32), shares_of(group)
    sizes = [0 if group.rank else share.elements(split, whole) for share in shares]
    got = group.swap([words] + [nothing] * (group.world - 1), sizes)
    return None if group.rank else _along(split, whole, got, shares).view(part.dtype)


def shares_of(group: Group) -> list[Share]:
    """The shares of all ranks."""
    return [Share(rank, group.world) for rank in range(group.world)]


def _whole(group: Group, words: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """All parts, joined along the digit."""
    split, shares = exchange.given, shares_of(group)
    sizes = [share.elements(split, exchange.whole) for share in shares]
    return _along(split, exchange.whole, group.swap([words] * group.world, sizes), shares)


def _along(split: Split, whole: int, parts: Sequence[torch.Tensor], shares: Sequence[Share]) -> torch.Tensor:
    shapes = (split.shape(whole, share.width(split.digit)) for share in shares)
    return torch.cat([p.view(shape) for p, shape in zip(parts, shapes, strict=True)], 1).reshape(-1)


def _other(group: Group, words: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """A part by one digit, from the ranks' parts by the other digit."""
    given, wanted, shares = exchange.given, exchange.wanted, shares_of(group)
    whole = cells(exchange.whole, given, wanted)
    mine, theirs = (1, 3) if whole[1] == given.digit and given.inner > wanted.inner else (3, 1)

    def shape(has: int, needs: int) -> tuple[int, ...]:
        sizes = list(whole)
        sizes[mine], sizes[theirs] = has, needs
        return tuple(sizes)

    here, widths = (
        words.view(shape(shares[group.rank].width(given.digit), wanted.digit)),
        [s.width(given.digit) for s in shares],
    )
    cuts = [share.cut(wanted.digit) for share in shares]
    pieces = [here.narrow(theirs, low, high - low).reshape(-1) for low, high in cuts]
    need = shares[group.rank].width(wanted.digit)
    shapes = [shape(width, need) for width in widths]
    got = group.swap(pieces, [torch.Size(s).numel() for s in shapes])
    return torch.cat([g.view(s) for g, s in zip(got, shapes, strict=True)], mine).reshape(-1)


def looked_up(
    group: Group, index: torch.Tensor, table: torch.Tensor, fill: torch.Tensor, looked: Looked
) -> torch.Tensor:
    """Rows of a table of which each rank has a part: [indices, width]; `fill` for an index without a row. A rank
    requests missing rows from their holders. Usually no rank misses one, and a single exchange shows it."""
    width, shares = looked.operator.width, shares_of(group)
    ends = torch.tensor([share.cut(looked.held.digit)[1] * looked.held.inner // width for share in shares])
    begin = shares[group.rank].cut(looked.held.digit)[0] * looked.held.inner // width
    rows, wanted = table.view(torch.int32).view(-1, width), index.long()
    owner = torch.where((wanted >= 0) & (wanted < looked.rows), torch.searchsorted(ends, wanted, right=True), -1)
    out = fill.view(torch.int32).expand(wanted.numel(), width).clone()
    places = [(owner == rank).nonzero().squeeze(-1) for rank in range(group.world)]
    out[places[group.rank]] = rows[wanted[places[group.rank]] - begin]
    numbers = torch.tensor([0 if q == group.rank else p.numel() for q, p in enumerate(places)], dtype=torch.int32)
    requested = torch.stack(
        group.swap([numbers] * group.world, [group.world] * group.world)
    )  # [requesting rank, holder]
    if bool(requested.any()):
        mine = requested[:, group.rank].tolist()
        questions = [
            wanted[p].int() if n else index.new_empty(0) for p, n in zip(places, numbers.tolist(), strict=True)
        ]
        came = group.swap(questions, mine)
        answers = group.swap([rows[q.long() - begin].reshape(-1) for q in came], (numbers * width).tolist())
        for place, number, answer in zip(places, numbers.tolist(), answers, strict=True):
            if number:
                out[place] = answer.view(-1, width)
    return out.view(table.dtype)

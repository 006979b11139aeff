"""Every rank hashes its share of the state: blocks of leaves, which are subtrees of the tensors' trees.

In: the parts of all ranks. Out: on rank 0, the root of each tensor. A share is a range of whole blocks, so a rank
hashes mostly its own words of a tensor that is split along its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vgame.commit.merkle import Kind, fold
from vgame.commit.tensor import tensor_roots
from vgame.commit.words import LEAF_WORDS, tensor_height
from vgame.ranks.exchange import Group, shares_of
from vgame.ranks.plan import Form
from vgame.ranks.split import Share, Split

#: Height of a block, and its words: the weights of a layer have several blocks per rank.
HEIGHT = 10
BLOCK = LEAF_WORDS << HEIGHT
ROOT_WORDS = 8


def shared_roots(group: Group, parts: Sequence[torch.Tensor], state: Sequence[tuple[Form, int]]) -> list[bytes]:
    """The roots of tensors, from each rank's `parts`, on rank 0; empty on the others. `state`: form and words of each
    tensor."""
    mine = [r for part, (form, words) in zip(parts, state, strict=True) for r in _roots(group, part, form, words)]
    cuts = [[_blocks(words, share) for share in shares_of(group)] for _, words in state]
    blocks = [[high - low for low, high in cut] for cut in cuts]
    sent = torch.frombuffer(bytearray(b"".join(mine) or b"\0" * 4), dtype=torch.int32)[: ROOT_WORDS * len(mine)]
    came = [ROOT_WORDS * sum(b[q] for b in blocks) if group.rank == 0 else 0 for q in range(group.world)]
    nothing = torch.empty(0, dtype=torch.int32)
    got = group.swap([sent] + [nothing] * (group.world - 1), came)
    if group.rank:
        return []
    received = [iter(words.view(-1, ROOT_WORDS)) for words in got]
    roots = []
    for (_, words), numbers in zip(state, blocks, strict=True):
        nodes = [next(received[q]).numpy().tobytes() for q, number in enumerate(numbers) for _ in range(number)]
        height = tensor_height(words)
        roots.append(fold(Kind.TENSOR, nodes, max(0, height - HEIGHT), min(height, HEIGHT)))
    return roots


def _blocks(words: int, share: Share) -> tuple[int, int]:
    """[low, high): the blocks of a rank."""
    return share.cut(-(-words // BLOCK))


def _roots(group: Group, part: torch.Tensor, form: Form, words: int) -> list[bytes]:
    """The roots of this rank's blocks."""
    blocks = _range(group, part, form, words).split(BLOCK)
    nodes, height = list(tensor_roots(blocks)) if blocks[0].numel() else [], min(tensor_height(words), HEIGHT)
    if nodes:  # the last one may be lower
        below = tensor_height(blocks[-1].numel())
        nodes[-1] = fold(Kind.TENSOR, [nodes[-1]], height - below, below)
    return nodes


def _range(group: Group, part: torch.Tensor, form: Form, words: int) -> torch.Tensor:
    """The words of this rank's blocks, which are consecutive."""
    shares, ranges = shares_of(group), []
    for share in shares:
        low, high = _blocks(words, share)
        ranges.append((min(BLOCK * low, words), min(BLOCK * high, words)))
    mine = ranges[group.rank]
    if form is None:
        return part[slice(*mine)]
    if words == form.digit * form.inner:  # parts are consecutive
        held = [tuple(d * form.inner for d in share.cut(form.digit)) for share in shares]
        low = held[group.rank][0]
        given = [_common(held[group.rank], theirs) for theirs in ranges]
        pieces = [part[a - low : b - low] for a, b in given]
        got = group.swap(_words(pieces), [b - a for a, b in (_common(h, mine) for h in held)])
        return torch.cat(got).view(part.dtype)
    rows = [_rows(form, theirs) for theirs in ranges]
    own = part.view(form.shape(words, shares[group.rank].width(form.digit)))
    first, end = rows[group.rank]
    shapes = [(end - first, share.width(form.digit), form.inner) for share in shares]
    got = group.swap(_words([own[a:b].reshape(-1) for a, b in rows]), [torch.Size(s).numel() for s in shapes])
    joined = torch.cat([g.view(s) for g, s in zip(got, shapes, strict=True)], 1).view(-1)
    begin = first * form.digit * form.inner
    return joined[mine[0] - begin : mine[1] - begin].view(part.dtype)


def _words(pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [piece.cpu().view(torch.int32) for piece in pieces]


def _common(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    low = max(one[0], other[0])
    return low, max(low, min(one[1], other[1]))


def _rows(form: Split, words: tuple[int, int]) -> tuple[int, int]:
    """The range of outer rows with these words."""
    row = form.digit * form.inner
    first = words[0] // row
    return first, max(first, -(-words[1] // row)) if words[1] > words[0] else first

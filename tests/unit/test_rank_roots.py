"""Shares of hashing: the root of a tensor held in any parts is that of the whole one."""

from __future__ import annotations

import random

import pytest
import torch
from rank_groups import LocalGroup, together

from vgame.commit.tensor import tensor_root
from vgame.commit.words import LEAF_WORDS
from vgame.ranks import roots
from vgame.ranks.exchange import gathered
from vgame.ranks.executor import RankExecutor
from vgame.ranks.plan import Form
from vgame.ranks.split import Share, Split


def drawn(rng: random.Random, most: int) -> tuple[torch.Tensor, Form]:
    """A tensor of floats, some of them NaNs of any payload, or of integers, and how it is split."""
    outer, digit, inner = (rng.choice([1, 1, 2, 3, rng.randint(1, 2 * most)]) for _ in range(3))
    words = torch.randint(-(2**31), 2**31 - 1, (outer * digit * inner,), dtype=torch.int32)
    tensor = words if rng.random() < 0.3 else words.view(torch.float32)
    return tensor, None if rng.random() < 0.2 else Split(digit, inner)


def roots_of(state: list[tuple[torch.Tensor, Form]], world: int) -> list[bytes]:
    """The roots computed by the ranks; also checks each tensor gathered on rank 0."""

    def work(group: LocalGroup) -> list[bytes]:
        share = Share(group.rank, world)
        parts = [RankExecutor.part_of(tensor, form, share) for tensor, form in state]
        for part, (tensor, form) in zip(parts, state, strict=True):
            if form is not None:
                whole = gathered(group, part, form, tensor.numel())
                assert whole is None if group.rank else torch.equal(whole.view(torch.int32), tensor.view(torch.int32))
        return roots.shared_roots(group, parts, [(form, tensor.numel()) for tensor, form in state])

    first, *others = together(world, work)
    assert others == [[]] * (world - 1), "rank 0 alone has the root"
    return first


@pytest.mark.parametrize("seed", range(12))
def test_roots_of_drawn_parts(seed, monkeypatch):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(roots, "HEIGHT", height := rng.randrange(3))
    monkeypatch.setattr(roots, "BLOCK", LEAF_WORDS << height)
    for world in (1, 2, 3, 5):
        state = [drawn(rng, 12) for _ in range(6)]
        assert roots_of(state, world) == [tensor_root(tensor) for tensor, _ in state], world


@pytest.mark.parametrize("form", [None, Split(2, 333_333), Split(3, 1), Split(666_666, 1)])
def test_roots_of_several_blocks_as_they_are(form):
    tensor = torch.randn(666_666)
    assert roots_of([(tensor, form), (tensor[:0], None)], 3) == [tensor_root(tensor), tensor_root(tensor[:0].clone())]


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_hashes_its_share(world, monkeypatch):
    hashed: dict[int, int] = {}
    tensor, root = torch.randn(1_000_000), roots.tensor_roots

    def counted(blocks: tuple[torch.Tensor, ...]) -> list[bytes]:
        hashed[blocks[0].data_ptr()] = sum(b.numel() for b in blocks)
        return root(blocks)

    monkeypatch.setattr(roots, "tensor_roots", counted)
    assert roots_of([(tensor, None)], world) == [tensor_root(tensor)]
    assert len(hashed) == world and max(hashed.values()) <= 1_000_000 / world + roots.BLOCK

"""Sums with terms on several ranks: the words are those of one rank, for all permitted errors of the library."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext

import pytest
import torch
from certified_data import FAMILIES, draw
from perturbed import perturbed_products
from rank_groups import LocalGroup, together
from wide import of_many

from vgame.arithmetic import certified
from vgame.arithmetic.indexed_matrix import IndexedMatrix, fold
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.torch import partial
from vgame.arithmetic.torch.partial import Nothing, Products, Summands, Terms
from vgame.ranks.split import Share, Split
from vgame.ranks.sums import Sum, finish

families = pytest.mark.parametrize("family", sorted(FAMILIES))
LIBRARIES = {
    "passes": lambda: compiled(False),
    "loops": nullcontext,
    "reversed": certified.reversed_order,
    "up": lambda: perturbed_products("up"),
    "midpoint": lambda: perturbed_products("midpoint"),
}


def shared(world: int, shape: tuple[int, int, int], split: Split | None, length: int, terms, library) -> list:
    """Each rank's part of the result. `terms`: from a rank to its terms, called while the library is in use."""

    def work(group: LocalGroup) -> torch.Tensor:
        with library():
            one = Sum(group, terms(group.rank), shape, split, length)
            finish(group, [one])
            return one.out

    return together(world, work)


def cut(x: torch.Tensor, rank: int, edges: list[int]) -> torch.Tensor:
    return x[..., edges[rank] : edges[rank + 1]]


def edges_of(length: int, world: int, seed: int) -> list[int]:
    """Uneven shares, none of them empty."""
    return [0, *sorted(random.Random(seed).sample(range(1, length), world - 1)), length]


def same(part: torch.Tensor, whole: torch.Tensor, split: Split | None, share: Share) -> bool:
    if split is not None:
        low, high = share.cut(split.digit)
        whole = whole.reshape(split.shape(whole.numel(), split.digit))[:, low:high]
    return torch.equal(part.view(torch.int32), whole.reshape(-1).view(torch.int32))


@families
@pytest.mark.parametrize("library", sorted(LIBRARIES))
@pytest.mark.parametrize(("k", "world"), of_many([(5, 2), (40, 3), (700, 2), (2100, 4)], (40, 3), (2100, 4)))
def test_products_over_all_ranks_terms(family, library, k, world):
    batch, m, n = (1, 6, 8) if k > 40 else (2, 4, 6)
    a, b = draw(family, batch, m, k, seed=1), draw(family, batch, n, k, seed=2)
    whole, edges = certified.dot(a, b), edges_of(k, world, k)
    for split in (None, Split(m, n), Split(n, 1), Split(n // 2, 2)):
        found = shared(
            world, (batch, m, n), split, k, lambda r: Products(cut(a, r, edges), cut(b, r, edges)), LIBRARIES[library]
        )
        for rank, part in enumerate(found):
            assert same(part, whole, split, Share(rank, world)), f"{split}, rank {rank}"


@families
@pytest.mark.parametrize("library", ["loops", "passes", "up"])
@pytest.mark.parametrize(("k", "world"), of_many([(3, 2), (70, 3), (3000, 4)], (3, 2), (3000, 4)))
def test_sums_over_all_ranks_terms(family, library, k, world):
    a = draw(family, 1, 12, k, seed=3)
    whole, edges = certified.sum_rows(a), edges_of(k, world, k)
    for split in (None, Split(12, 1), Split(3, 4)):
        found = shared(world, (1, 12, 1), split, k, lambda r: Summands(cut(a, r, edges)), LIBRARIES[library])
        for rank, part in enumerate(found):
            assert same(part, whole, split, Share(rank, world)), f"{split}, rank {rank}"


def test_a_rank_without_terms():
    a = draw("normal", 1, 1, 500, seed=4)
    found = shared(3, (1, 1, 1), None, 500, lambda r: Summands(a) if r == 1 else Nothing(), nullcontext)
    assert all(torch.equal(part, certified.sum_rows(a).view(1)) for part in found)


def test_patches_are_read_in_place():
    """The gradient of a convolution's weights: the terms are pixels, and rows of patches are folded."""
    pictures, over = draw("normal", 4, 16, 34, 34, seed=5), draw("normal", 1, 8, 4 * 1024, seed=6)

    def patches(x: torch.Tensor):
        s = x.stride()
        view = x.as_strided((16, 3, 3, len(x), 32, 32), (s[1], s[2], s[3], s[0], s[2], s[3]), x.storage_offset())
        return fold(view, (1, 144, len(x) * 1024))

    assert isinstance(patches(pictures), IndexedMatrix)
    whole = certified.dot(over, patches(pictures))
    for library in ("loops", "passes"):
        found = shared(
            2,
            (1, 8, 144),
            Split(8, 144),
            4096,
            lambda r: Products(over[..., 2048 * r : 2048 * (r + 1)], patches(pictures[2 * r : 2 * r + 2])),
            LIBRARIES[library],
        )
        assert all(same(part, whole, Split(8, 144), Share(rank, 2)) for rank, part in enumerate(found))


def test_the_bound_is_needed(monkeypatch):
    """A library with 2^14 times the promised errors needs 2^14 times the bound, or words are wrong."""
    a, b = draw("normal", 1, 300, 64, seed=7), draw("normal", 1, 300, 64, seed=8)
    whole, edges = certified.dot(a, b).view(-1), [0, 32, 64]

    def words(factor: float) -> torch.Tensor:
        monkeypatch.setattr("vgame.ranks.sums.weight", lambda depths: factor * partial.weight(depths))
        terms = lambda r: Products(cut(a, r, edges), cut(b, r, edges))  # noqa: E731
        return shared(2, (1, 300, 300), None, 64, terms, lambda: perturbed_products("midpoint", 2.0**14))[0]

    assert torch.equal(words(2.0**14), whole)
    assert not torch.equal(words(1.0), whole)


def test_digits_that_leave_a_sum_open_are_requested_again(monkeypatch):
    """Cancellation below the range of two digits, with terms on different ranks."""
    calls: list[bool] = []
    scales = partial.scales
    monkeypatch.setattr(
        "vgame.ranks.sums.scales", lambda m, length, every: (calls.append(every), scales(m, length, every))[1]
    )
    row = torch.tensor([2.0**120, 1.0, 2.0**-140, -(2.0**120), 2.0**-24, 0.0]).view(1, 1, 6)
    terms: dict[int, Terms] = {0: Summands(row[..., :3]), 1: Summands(row[..., 3:])}
    found = shared(2, (1, 1, 1), None, 6, lambda r: terms[r], nullcontext)
    assert all(torch.equal(part, certified.sum_rows(row).view(1)) for part in found)
    assert True in calls, "all digits were needed"


def test_a_ranks_sum_is_compared_with_its_terms():
    a = draw("normal", 1, 2, 50, seed=9)
    group = LocalGroup(0, 1, {}, threading.Barrier(1))
    one = Sum(group, Summands(a), (1, 2, 1), None, 50)
    assert one.is_right(0) and one.is_right(1)
    one.mine.sums[0, 1, 0] += 1e-9
    assert one.is_right(0) and not one.is_right(1)

"""The exact tier's sums over the few terms of a row that are not 0: the reference's words, and fewer left to others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, dot_words, draw, layouts, words

from vgame.arithmetic.certificate import NEVER_CERTAIN, SLACK
from vgame.arithmetic.indexed_matrix import Matrix, places_of
from vgame.arithmetic.numba.exact import LEAST_LENGTH, LEAST_LISTED, ExactProducts
from vgame.arithmetic.numba.exact_sum import SPARSE
from vgame.arithmetic.torch.rounding_test import weigh

ROWS, LENGTH = 9, LEAST_LENGTH + 5
FINITE = sorted(FAMILIES.keys() - {"edges"})


def sparse(family: str, batch: int, least: int = 0) -> torch.Tensor:
    """[batch, ROWS, LENGTH]: row r has some `least` + 5 r terms that are not 0, where the family has so many; zeros of
    both signs."""
    x = draw(family, batch * ROWS, LENGTH).view(batch, ROWS, LENGTH).nan_to_num(0.0, 1.0, -1.0)
    kept = torch.rand(batch, ROWS, LENGTH) * LENGTH < torch.arange(ROWS).view(-1, 1) * 5 + least
    zeros = torch.tensor([0.0, -0.0])[torch.randint(0, 2, x.shape)]
    return torch.where(kept, x, zeros)


def exact(a: Matrix, b: Matrix, whole: tuple[torch.Tensor, torch.Tensor], error: float) -> tuple[torch.Tensor, int]:
    """All products as the exact tier computes them, and the number that is not settled by lists."""
    out = torch.full((max(len(x) for x in whole), ROWS, ROWS), torch.nan)
    bounds = [x.double().norm(dim=-1) * SLACK for x in whole]
    run = ExactProducts(places_of(a), places_of(b), tuple(bounds), error, out)
    given = np.random.default_rng(0).permutation(out.numel()).astype(np.int32)
    assert given.size >= LEAST_LISTED
    left = run._without_sparse(given).size
    out.fill_(torch.nan)
    run(run.in_order(given), 0, given.size)
    return out, left


@pytest.mark.parametrize("batches", [(1, 1), (2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("family", FINITE)
def test_every_layout(family: str, batches: tuple[int, int]) -> None:
    a, b = (sparse(family, batch) for batch in batches)
    expected = dot_words(a, b)
    for left, right in zip(layouts(a), layouts(b), strict=True):
        assert words(exact(left, right, (a, b), weigh(LENGTH))[0]) == expected


@pytest.mark.parametrize("on_the_left", [False, True])
def test_lists_settle_the_products_with_sparse_rows(on_the_left: bool) -> None:
    few, many = sparse("normal", 1), sparse("normal", 1, LENGTH)
    a, b = (few, many) if on_the_left else (many, few)
    dense = int(((few != 0).sum(-1) >= LENGTH // SPARSE).sum())
    found, left = exact(a, b, (a, b), weigh(LENGTH))
    assert 0 < dense < ROWS and left == dense * ROWS
    assert words(found) == dot_words(a, b)


def test_products_that_lists_leave_open_are_settled_by_others() -> None:
    a, b = sparse("cancelling", 1), sparse("cancelling", 1)
    found, left = exact(a, b, (a, b), NEVER_CERTAIN)
    assert left > ROWS * ROWS // 2
    assert words(found) == dot_words(a, b)

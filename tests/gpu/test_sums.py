"""Products, row sums and one-hot sums by the Triton kernels are the reference's words, on every family of hard
operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from certified_data import FAMILIES, dot_words, draw, one_hot_words, sum_words, words
from torch import Tensor

from vgame.arithmetic.certified import Counts, counting, dot, one_hot_sum, sum_rows

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about intended infinities
EVERY = pytest.mark.parametrize("family", FAMILIES)


def counted(run: Callable[[], Tensor]) -> tuple[Tensor, Counts]:
    with counting() as counts:
        return run(), counts


@EVERY
def test_products(family: str) -> None:
    a, b = draw(family, 2, 4, 65), draw(family, 1, 3, 65, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)
    assert words(dot(b[:, :2], b.mT.contiguous().mT)) == dot_words(b[:, :2], b)


@EVERY
def test_rows(family: str) -> None:
    a = draw(family, 33, 7)
    assert words(sum_rows(a)) == sum_words(a)
    assert words(sum_rows(a.mT)) == sum_words(a.mT)


@EVERY
def test_one_hot(family: str) -> None:
    b = draw(family, 1, 3, 40)
    index = torch.randint(-1, 6, (2, 40), dtype=torch.int32)
    assert words(one_hot_sum(index, b, 5)) == one_hot_words(index, b, 5)


@pytest.fixture
def everything_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound so large that the first look decides only exact sums; the test below has none."""
    from triton import language

    from vgame.arithmetic.triton import products, sums

    for module in (products, sums):
        monkeypatch.setattr(module, "_WEIGHT", language.constexpr(1.0))


@pytest.mark.parametrize("family", ["normal", "wide", "any bits", "cancelling"])
@pytest.mark.parametrize("tier", ["extraction", "integers"])
def test_the_exact_tier_alone(
    family: str, tier: str, everything_is_open: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgame.arithmetic.triton import exact

    if tier == "integers":
        monkeypatch.setattr(exact, "_WEIGHT", type(exact._WEIGHT)(2.0**60))
    a, b = draw(family, 1, 3, 37), draw(family, 1, 2, 37, seed=2)
    result, counts = counted(lambda: dot(a, b))
    assert words(result) == dot_words(a, b)
    assert counts.tier > 0
    assert words(sum_rows(a[0])) == sum_words(a[0])
    index = torch.randint(0, 2, (1, 37), dtype=torch.int32)
    assert words(one_hot_sum(index, b, 2)) == one_hot_words(index, b, 2)


def test_a_tie_that_the_exactness_test_settles() -> None:
    """Low-bit data: a quarter of the sums are midpoints, none of them goes to the exact tier."""
    a, b = draw("int12", 1, 8, 64), draw("int12", 1, 8, 64, seed=1)
    result, counts = counted(lambda: dot(a, b))
    assert words(result) == dot_words(a, b)
    assert counts.tier == 0


def test_a_bound_that_is_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: without the bound a sum that binary64 rounds onto a midpoint is rounded the wrong way."""
    from triton import language

    from vgame.arithmetic.triton import products

    a = torch.tensor([[[1.0, 2.0**-24, 2.0**-60]]])
    b = torch.ones(1, 1, 3)
    assert words(dot(a, b)) == dot_words(a, b) == [[[0x3F800001]]]
    monkeypatch.setattr(products, "_WEIGHT", language.constexpr(0.0))
    assert words(dot(a, b)) != dot_words(a, b)


def test_long_rows_in_pieces() -> None:
    from vgame.arithmetic.triton.sums import PIECE

    a = draw("normal", 1, 2 * PIECE + 5)
    assert words(sum_rows(a)) == sum_words(a)
    b = draw("cancelling", 35, 1100)  # rows that lie beside each other
    assert words(sum_rows(b.mT.contiguous().mT)) == sum_words(b)


def test_products_in_blocks() -> None:
    a, b = draw("normal", 1, 2, 3000), draw("normal", 1, 2, 3000, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)


@pytest.mark.parametrize("at_a_time", [64, 2])
@pytest.mark.parametrize("batches", [(1, 1), (2, 1), (2, 2)])
def test_products_in_blocks_of_batches(
    batches: tuple[int, int], at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks, the last one shorter; two at a time, the third is added to the first."""
    from vgame.arithmetic.triton import products

    monkeypatch.setattr(products, "BLOCKS", at_a_time)
    a, b = draw("cancelling", batches[0], 2, 3001), draw("cancelling", batches[1], 5, 3001, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)
    assert words(dot(a, b.mT.contiguous().mT)) == dot_words(a, b)


@pytest.mark.parametrize("backwards", [(), (4, 5)])
@pytest.mark.parametrize("family", ["normal", "any bits", "cancelling"])
def test_products_of_patches(family: str, backwards: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches are read in place, as rows and as columns, without a copy."""
    from vgame.arithmetic import indexed_matrix as folded

    monkeypatch.setattr(folded, "LEAST", 1)
    pictures = draw(family, 2, 3, 30).view(2, 3, 5, 6)
    view = pictures.as_strided((2, 3, 4, 3, 3, 3), (90, 6, 1, 30, 6, 1))  # picture, line, word, channel, 3, 3
    weights = draw(family, 1, 4, 27, seed=1)
    patches = folded.fold(folded.Mirrored(view, backwards), (1, 24, 27))
    copied = (view.flip(backwards) if backwards else view).reshape(1, 24, 27)
    assert isinstance(patches, folded.PlacedMatrix) and patches.mirrored
    assert words(dot(weights, patches)) == dot_words(weights, copied)
    turned = folded.fold(folded.Mirrored(view.permute(3, 4, 5, 0, 1, 2), tuple(d - 3 for d in backwards)), (1, 27, 24))
    given = draw(family, 1, 4, 24, seed=2)
    assert isinstance(turned, folded.PlacedMatrix) and not turned.mirrored
    assert words(dot(turned, given)) == dot_words(copied.mT, given)


@pytest.mark.parametrize("family", ["normal", "any bits", "cancelling"])
def test_rows_in_runs(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels of a batch of pictures are added in place, and so are mirrored pictures."""
    from vgame.arithmetic import indexed_matrix as folded

    monkeypatch.setattr(folded, "LEAST", 1)
    pictures = draw(family, 5, 3, 70)
    for view, shape in ((pictures.permute(1, 0, 2), (1, 3, 350)), (pictures.permute(0, 2, 1)[:, ::2], (1, 175, 3))):
        rows = folded.fold(view, shape)
        assert isinstance(rows, folded.PlacedMatrix)
        assert words(sum_rows(rows)[0]) == sum_words(view.reshape(shape)[0])
        assert torch.equal(rows.whole().view(torch.int32), view.reshape(shape).view(torch.int32))


def test_tiles_of_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    from vgame.arithmetic import indexed_matrix as folded
    from vgame.arithmetic.torch import products
    from vgame.arithmetic.triton import products as kernels

    monkeypatch.setattr(folded, "LEAST", 1)
    monkeypatch.setattr(products, "TILE", 1 << 9)
    monkeypatch.setattr(kernels, "TILE", 1 << 7)
    words_of = draw("normal", 2, 7, 40)
    view = words_of.as_strided((2, 30, 2, 5), (280, 1, 40, 2))
    placed = folded.fold(view, (2, 30, 10))
    given = draw("normal", 1, 9, 10, seed=1)
    assert isinstance(placed, folded.PlacedMatrix)
    assert words(dot(placed, given)) == dot_words(view.reshape(2, 30, 10), given)

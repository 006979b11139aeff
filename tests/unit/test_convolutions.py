"""Convolutions by minimal filtering: the words of the direct product, an error within the bound, and the conditions of
the direct way."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch
from certified_data import FAMILIES, draw
from torch import Tensor

from vgame.arithmetic import indexed_matrix as folded
from vgame.arithmetic import vendor
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Mirrored, fold
from vgame.arithmetic.numba import filtering as compiled_filtering
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.torch import convolutions, products
from vgame.arithmetic.torch.convolutions import FilteredTile, dot
from vgame.arithmetic.torch.products import Tile
from vgame.system.threads import ours

families = pytest.mark.parametrize("family", sorted(FAMILIES))


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    """Small convolutions are folded and filtered too, in several parts; none is made of digits
    (test_digit_products.py)."""
    monkeypatch.setattr(vendor, "permitted", lambda: False)
    monkeypatch.setattr(folded, "LEAST", 0)
    for name in ("FILTERS", "CHANNELS", "PIXELS"):
        monkeypatch.setattr(convolutions, name, 1)
    monkeypatch.setattr(convolutions, "AT_A_TIME", 1 << 10)


@pytest.fixture
def ways(monkeypatch):
    """Counts of tiles: filtered ones, and those of them computed directly."""
    found = {"filtered": 0, "direct": 0}

    def count(way: str, owner: type, name: str) -> None:
        run = getattr(owner, name)

        def counted(self):
            found[way] += isinstance(self, FilteredTile)
            return run(self)

        monkeypatch.setattr(owner, name, counted)

    count("filtered", FilteredTile, "_filter")
    count("direct", Tile, "run")
    return found


def patches(pictures: Tensor, size: int = 3, stride: int = 1, dilation: int = 1, backwards: bool = False):
    """The patches around all pixels of pictures [N, C, H, W] that have padding already, in a convolution's layout."""
    n, c, h, w = pictures.shape
    high, wide = ((x - dilation * (size - 1) - 1) // stride + 1 for x in (h, w))
    steps = (0, c * h * w, stride * w, stride, h * w, dilation * w, dilation)
    view = pictures.as_strided((1, n, high, wide, c, size, size), steps)
    return fold(Mirrored(view, (5, 6) if backwards else ()), (1, n * high * wide, c * size * size))


def same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


@families
@pytest.mark.parametrize("seed", range(4))
def test_words_are_those_of_the_direct_product(family, seed):
    """Any numbers of pictures, channels, filters and pixels; patches from first to last and from last to first."""
    draws = random.Random(f"{family} {seed}")
    n, c, m = draws.randint(1, 3), draws.choice([1, 2, 5, 40]), draws.choice([1, 3, 20])
    h, w = (draws.choice([2, 4, 6, 14]) for _ in range(2))
    pictures, filters = draw(family, n, c, h + 2, w + 2, seed=seed), draw(family, 1, m, 9 * c, seed=seed + 9)
    rows = patches(pictures, backwards=seed % 2 == 1)
    assert rows.patches is not None and rows.patches.backwards == (seed % 2 == 1)
    assert same(dot(filters, rows), products.dot(filters, rows.whole()))


@families
@pytest.mark.parametrize("seed", range(4))
def test_words_in_bfloat16_are_exact_sums_rounded_once(family, seed):
    """By the passes of the direct product, which round exact sums; operands on the grid of bfloat16 too."""
    draws = random.Random(f"{family} {seed} narrow")
    n, c, m = draws.randint(1, 3), draws.choice([1, 2, 5, 40]), draws.choice([1, 3, 20])
    h, w = (draws.choice([2, 4, 6, 14]) for _ in range(2))
    pictures, filters = draw(family, n, c, h + 2, w + 2, seed=seed), draw(family, 1, m, 9 * c, seed=seed + 9)
    if seed >= 2:
        pictures, filters = pictures.bfloat16().float(), filters.bfloat16().float()
    rows = patches(pictures, backwards=seed % 2 == 1)
    with compiled(False):
        expected = products.dot(filters, rows.whole(), bfloat16=True)
    assert same(dot(filters, rows, bfloat16=True), expected)


def test_low_bit_data_are_filtered_to_bfloat16(ways):
    """To 24 bits many of their sums are ties; to 8 bits hardly any is open."""
    pictures, filters = draw("int12", 2, 64, 18, 18), draw("int12", 1, 64, 576, seed=1)
    rows = patches(pictures)
    with compiled(False):
        expected = products.dot(filters, rows.whole(), bfloat16=True)
    assert same(dot(filters, rows, bfloat16=True), expected) and ways["filtered"] and not ways["direct"]


def test_filters_in_any_memory_layout():
    """As in the gradient of a convolution's input: rows of filters that strides cannot express."""
    pictures, filters = draw("normal", 2, 24, 10, 8), draw("normal", 24, 5, 9, seed=1)
    matrix = fold(filters.permute(1, 0, 2), (1, 5, 24 * 9))
    rows = patches(pictures, backwards=True)
    assert isinstance(matrix, IndexedMatrix) and same(dot(matrix, rows), products.dot(matrix.whole(), rows.whole()))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parts_and_threads(threads, ways):
    """One row of tiles at a time or many, by any number of threads."""
    pictures, filters = draw("normal", 3, 16, 14, 18), draw("normal", 1, 33, 144, seed=1)
    rows, before = patches(pictures), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with ours():
            found = dot(filters, rows)
    finally:
        torch.set_num_threads(before)
    assert same(found, products.dot(filters, rows.whole())) and ways["filtered"] >= threads and not ways["direct"]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"edges"}))
def test_errors_are_within_the_bound(family):
    """Against exact fractions; the norms of the exact tier are bounds too."""
    for seed in range(4):
        pictures, filters = draw(family, 1, 7, 6, 8, seed=seed), draw(family, 1, 3, 63, seed=seed + 9)
        rows = patches(pictures, backwards=seed % 2 == 1)
        tile = _tile(filters, rows)
        left, right = tile._filter()
        for m in range(3):
            for pixel in random.Random(seed).sample(range(24), 8):
                terms = [
                    Fraction(x) * Fraction(y)
                    for x, y in zip(filters[0, m].tolist(), rows.whole()[0, pixel].tolist(), strict=True)
                ]
                bound = Fraction(left[0, m, 0].item()) * Fraction(right[0, 0, pixel].item())
                assert abs(Fraction(tile.sums[0, m, pixel].item()) - sum(terms)) <= bound
                norms = Fraction(tile.norm_a[0, m].item()) * Fraction(tile.norm_b[0, pixel].item())
                assert norms * (1 + Fraction(1, 1 << 19)) >= sum(map(abs, terms))


def _tile(filters: Tensor, rows: IndexedMatrix) -> FilteredTile:
    transforms = convolutions.transform_filters(filters[0], rows.patches.backwards)
    return FilteredTile(filters, rows, torch.empty(1, filters.shape[1], rows.shape[1]), transforms, rows, 0)


def test_the_bound_has_the_symmetries_of_a_tile():
    """Pictures upside down, or from right to left: the same bounds and norms at the mirrored pixels, exact for whole
    numbers."""
    squares = torch.randint(0, 9, (3, 4, 10), generator=torch.Generator().manual_seed(3)).double().square()

    def bounds_of(squares: Tensor) -> list[Tensor]:
        found = [torch.empty(48, dtype=torch.float64) for _ in range(2)]
        compiled_filtering.bound_patches(squares.numpy(), *(x.numpy() for x in found))
        return [x.view(3, 2, 8) for x in found]

    for dims in ((1,), (2,)):
        for found, mirrored in zip(bounds_of(squares), bounds_of(squares.flip(dims)), strict=True):
            assert torch.equal(found.flip(dims), mirrored)


def test_without_a_bound_words_change(monkeypatch):
    """Red twin: integers, whose sums are ties, and slightly wrong transforms."""
    pictures, filters = draw("int12", 2, 64, 18, 18), draw("int12", 1, 64, 576, seed=1)
    rows, transform = patches(pictures), convolutions.transform_products

    def erring(p, width, out):
        transform(p, width, out)
        out *= 1 + 2.0**-50

    monkeypatch.setattr(convolutions, "transform_products", erring)
    assert same(dot(filters, rows), products.dot(filters, rows.whole()))
    monkeypatch.setattr(convolutions, "weigh", lambda terms: 0.0)
    assert not same(dot(filters, rows), products.dot(filters, rows.whole()))


@pytest.mark.parametrize("word", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("where", ["pictures", "filters"])
def test_non_finite_sums_are_computed_directly(word, where, ways):
    pictures, filters = draw("normal", 1, 4, 6, 6), draw("normal", 1, 3, 36, seed=1)
    (pictures[0, 2, 3] if where == "pictures" else filters[0, 1])[2] = word
    rows = patches(pictures)
    assert same(dot(filters, rows), products.dot(filters, rows.whole())) and ways["direct"] > 0


def test_low_bit_data_goes_the_direct_way(ways):
    """Ties stay open after any approximation; the direct way decides them by exactness."""
    pictures, filters = draw("int12", 2, 64, 18, 18), draw("int12", 1, 64, 576, seed=1)
    rows = patches(pictures)
    assert same(dot(filters, rows), products.dot(filters, rows.whole())) and ways["direct"] > 0


@pytest.mark.parametrize("shape", [{"stride": 2}, {"dilation": 2}, {"size": 5}, {"size": 1}])
def test_unsupported_convolutions_are_not_filtered(shape):
    rows = patches(draw("normal", 2, 3, 15, 15), **shape)
    assert not isinstance(rows, IndexedMatrix) or rows.patches is None


@pytest.mark.parametrize("sizes", [(7, 8), (8, 7)])
def test_an_odd_number_of_lines_or_words_is_not_filtered(sizes):
    rows = patches(draw("normal", 2, 3, sizes[0] + 2, sizes[1] + 2))
    assert isinstance(rows, IndexedMatrix) and rows.patches is None


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ((1, 2, 6, 6), (0, 192, 24, 3, 1, 24, 3)),
        ((2, 1, 6, 6), (192, 0, 8, 1, 64, 8, 1)),
        ((1, 2, 2, 6, 6), (0, 192, 0, 8, 1, 64, 8, 1)),
    ],
    ids=["words apart", "batches", "groups"],
)
def test_unsupported_views_are_not_filtered(sizes, steps):
    """Words of a picture that are not adjacent; pictures without a single stride."""
    view = draw("normal", 384).as_strided((*sizes, 3, 3, 3), steps)
    rows = fold(view, (sizes[0], math.prod(sizes[1:]), 27))
    assert isinstance(rows, IndexedMatrix) and rows.patches is None


def test_a_part_of_a_batch_is_filtered_too():
    """Dimensions of size one are ignored."""
    view = draw("normal", 384).as_strided((1, 1, 2, 1, 6, 6, 3, 3, 3), (0, 0, 192, 0, 8, 1, 64, 8, 1))
    whole = view.as_strided((1, 2, 6, 6, 3, 3, 3), (0, 192, 8, 1, 64, 8, 1))
    assert fold(view, (1, 72, 27)).patches == fold(whole, (1, 72, 27)).patches
    assert fold(view, (1, 72, 27)).patches is not None


def test_mirrored_pictures_are_not_filtered():
    """Only both dimensions of a patch may run backwards."""
    view = draw("normal", 2, 3, 8, 8).as_strided((1, 2, 6, 6, 3, 3, 3), (0, 192, 8, 1, 64, 8, 1))
    for backwards in ((1,), (2,), (4,), (5,), (6,), (2, 5), (2, 3, 5, 6)):
        assert fold(Mirrored(view, backwards), (1, 72, 27)).patches is None

"""Matrices read in place (patches, permuted rows, strides): the words are those of their copies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from certified_data import draw
from compiled_twins import families

from vgame.arithmetic import indexed_matrix as folded
from vgame.arithmetic import workspace
from vgame.arithmetic.certified import dot, reversed_order, sum_rows
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.compiled import compiled as compiled_loops
from vgame.arithmetic.torch import products, sums


def patches(family: str, seed: int = 0) -> torch.Tensor:
    """A view [3, 8, 9, 5, 3, 3] of the patches of images [3, 5, 10, 11]: rows in front, columns behind."""
    return draw(family, 3, 5, 10, 11, seed=seed).unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5)


@families
@pytest.mark.parametrize("wide_bound", [False, True])
def test_folded_patches_are_their_copies(family, wide_bound, monkeypatch):
    """Forward, weight gradient (columns in front) and one image per batch; few open elements and nearly all."""
    monkeypatch.setattr(folded, "LEAST", 0)
    if wide_bound:
        monkeypatch.setattr(products, "weigh", lambda terms: 2.0**-20)
        monkeypatch.setattr(products, "_slicing_pays", lambda *_: False)
        monkeypatch.setattr(products.Tile, "_certify_compiled", exact_tier_only(products.Tile))
    view = patches(family)
    turned = view.permute(3, 4, 5, 0, 1, 2)
    for x, shape in ((view, (1, 216, 45)), (view, (3, 72, 45)), (turned, (1, 45, 216))):
        other = draw(family, 1, 7, shape[2], seed=1)
        matrix = folded.fold(x, shape)
        assert isinstance(matrix, folded.IndexedMatrix) and torch.equal(
            matrix.whole().view(torch.int32), x.reshape(shape).view(torch.int32)
        )
        with compiled_loops(False):
            assert isinstance(folded.fold(x, shape), torch.Tensor)
            passes = dot(x.reshape(shape), other)
        assert torch.equal(dot(matrix, other).view(torch.int32), passes.view(torch.int32))
        assert torch.equal(dot(other, matrix).view(torch.int32), passes.mT.contiguous().view(torch.int32))
        with reversed_order():
            assert torch.equal(dot(matrix, other), passes) or bool(passes.isnan().any())


def exact_tier_only(tile: type) -> Callable:
    """_certify_compiled without facts: open elements go directly to the exact tier."""

    def certify(self) -> tuple[torch.Tensor, int]:
        left, right = (self.norm_a * products.weigh(self.terms)).unsqueeze(2), self.norm_b.unsqueeze(1)
        found = torch.empty(self.out.numel(), dtype=torch.int32)
        return compiled_rounding.round_pass(self.sums, left, right, self.out, found, self.out.numel()), 0

    assert hasattr(tile, "_certify_compiled")
    return certify


def test_folded_matrices_come_in_tiles(monkeypatch):
    monkeypatch.setattr(folded, "LEAST", 0)
    monkeypatch.setitem(workspace.PRODUCTS, "cpu", 600)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.BLOCK", 16)
    view, other = patches("wide"), draw("wide", 1, 7, 45, seed=1)
    for shape in ((1, 216, 45), (3, 72, 45)):
        expected = dot(view.reshape(shape), other)
        assert torch.equal(dot(folded.fold(view, shape), other), expected)


@pytest.mark.parametrize("backwards", [(4,), (4, 5), (0, 3, 5)])
def test_mirrored_patches(backwards, monkeypatch):
    """A transposed convolution reads its kernel backwards."""
    view, other = patches("wide"), draw("wide", 1, 7, 45, seed=1)
    mirrored = folded.Mirrored(view, backwards)
    copied = folded.fold(mirrored, (1, 216, 45))
    monkeypatch.setattr(folded, "LEAST", 0)
    matrix = folded.fold(mirrored, (1, 216, 45))
    assert isinstance(copied, torch.Tensor) and torch.equal(matrix.whole(), copied)
    assert torch.equal(dot(matrix, other), dot(copied, other))
    assert not torch.equal(dot(folded.fold(view, (1, 216, 45)), other), dot(copied, other))


@pytest.mark.parametrize(("most", "kept"), [(216 + 45, True), (216 + 45 - 1, False)])
def test_large_tables_are_not_kept(most, kept, monkeypatch):
    """Tables of an untrusted program could fill the memory."""
    monkeypatch.setattr(folded, "LEAST", 0)
    monkeypatch.setattr(folded, "MOST_KEPT", most)
    first, second = (folded.fold(patches("wide"), (1, 216, 45)) for _ in range(2))
    assert (first.rows is second.rows) == kept
    assert torch.equal(first.whole(), second.whole())


def test_dimensions_are_never_cut():
    """A shape that would divide a dimension between rows and columns is copied."""
    view = patches("normal")
    assert isinstance(folded.fold(view, (1, 648, 15)), torch.Tensor)
    assert torch.equal(folded.fold(view, (1, 648, 15)), view.reshape(1, 648, 15))


@families
@pytest.mark.parametrize("k", [1, 2, 7, 63, 64, 1023, 1024, 5000])
def test_sums_are_the_passes(family, k, monkeypatch):
    """Contiguous rows, columns, every second word; and with a bound so wide that everything stays open."""
    a = draw(family, 24, k)
    views = [a, a.mT.contiguous().mT, a.repeat_interleave(2, 1)[:, ::2]]
    with compiled_loops(False):
        passes = sum_rows(a).view(torch.int32)
    assert all(torch.equal(sum_rows(view).view(torch.int32), passes) for view in views)
    monkeypatch.setattr(sums, "weigh", lambda terms: 2.0**-20)
    assert all(torch.equal(sum_rows(view).view(torch.int32), passes) for view in views)


def test_runs_of_a_table():
    for table, run in (
        ([4], 1),
        ([4, 5, 6], 3),
        ([4, 5, 9, 10, 0, 1], 2),
        ([4, 5, 9], 1),
        ([1, 2, 5, 6, 7, 9], 1),
        ([5, 4], 1),
    ):
        assert compiled_operands.run_of(np.array(table)) == run


@families
@pytest.mark.parametrize("width", [3, 8, 21])
@pytest.mark.parametrize("turned", [False, True])
def test_folded_operands_are_read_in_any_runs(family, width, turned, monkeypatch):
    """Pixels by channels and channels by pixels: by rows, across them, word by word; in tiles that end where a run does
    not."""
    monkeypatch.setattr(folded, "LEAST", 0)
    monkeypatch.setitem(workspace.PRODUCTS, "cpu", 1 << 11)
    view = draw(family, 3, 40, 9, width).permute(*((1, 0, 2, 3) if turned else (0, 2, 3, 1)))
    shape = (1, 40, 27 * width) if turned else (1, 27 * width, 40)
    matrix, other = folded.fold(view, shape), draw("normal", 1, 7, shape[2], seed=2)
    assert isinstance(matrix, folded.IndexedMatrix)
    with compiled_loops(False):
        passes = dot(other, view.reshape(shape)).view(torch.int32)
    assert torch.equal(dot(other, matrix).view(torch.int32), passes)
    assert torch.equal(dot(matrix, other).view(torch.int32), passes.mT)


@families
@pytest.mark.parametrize("height", [7, 30, 300])
def test_folded_sums_are_their_copies(family, height, monkeypatch):
    """Channels of images in front, as in the sums of batch normalisation. Short runs, runs, runs of several blocks."""
    monkeypatch.setattr(folded, "LEAST", 0)
    view = draw(family, 6, 5, height, 7).permute(1, 0, 2, 3)
    matrix = folded.fold(view, (1, 5, 42 * height))
    assert isinstance(matrix, folded.IndexedMatrix)
    with compiled_loops(False):
        passes = sum_rows(view.reshape(1, 5, 42 * height)).view(torch.int32)
    assert torch.equal(sum_rows(matrix).view(torch.int32), passes)
    with reversed_order():
        assert torch.equal(sum_rows(matrix).view(torch.int32), passes)


@families
@pytest.mark.parametrize("width", [16, 64, 700])
def test_runs_of_rows_that_are_not_adjacent(family, width, monkeypatch):
    """Every second channel: its runs cannot be read side by side."""
    monkeypatch.setattr(folded, "LEAST", 0)
    view = draw(family, 6, 10, width)[:, ::2].permute(1, 0, 2)
    matrix = folded.fold(view, (1, 5, 6 * width))
    assert isinstance(matrix, folded.IndexedMatrix)
    with compiled_loops(False):
        passes = sum_rows(view.reshape(1, 5, 6 * width)).view(torch.int32)
    assert torch.equal(sum_rows(matrix).view(torch.int32), passes)


@pytest.mark.parametrize("seed", range(40))
def test_folded_matrices_of_any_view(seed, monkeypatch):
    """Permuted and sliced dimensions: sums and products are those of a copy."""
    monkeypatch.setattr(folded, "LEAST", 0)
    draws = random.Random(seed)
    lines = draws.random() < 0.5  # whether the last dimension stays in line
    sizes = [draws.choice([2, 3, 4, 7]) for _ in range(draws.randint(3, 5))] + [draws.choice([16, 33, 64])]
    order = draws.sample(range(len(sizes) - lines), len(sizes) - lines) + [len(sizes) - 1] * lines
    view = draw("wide", math.prod(sizes)).view(sizes).permute(order)
    view = view[::2] if draws.random() < 0.3 else view
    cut = draws.randint(1, view.dim() - 1)
    shape = (1, math.prod(view.shape[:cut]), math.prod(view.shape[cut:]))
    matrix, copy = folded.fold(view, shape), view.reshape(shape).clone()
    other = draw("normal", 1, 7, shape[2], seed=1)
    assert torch.equal(sum_rows(matrix).view(torch.int32), sum_rows(copy).view(torch.int32))
    assert torch.equal(dot(matrix, other).view(torch.int32), dot(copy, other).view(torch.int32))


@pytest.mark.parametrize("run", [16, 32, 64])
def test_sums_of_permuted_rows(run, monkeypatch):
    """Rows whose first and last are at the places of adjacent rows; the rows between are permuted."""
    monkeypatch.setattr(folded, "LEAST", 0)
    view = draw("normal", 50, 2, 2, run).permute(0, 2, 1, 3)
    matrix = folded.fold(view.permute(1, 2, 0, 3), (1, 4, 50 * run))
    assert isinstance(matrix, folded.IndexedMatrix)
    expected = sum_rows(view.permute(1, 2, 0, 3).reshape(1, 4, 50 * run))
    assert torch.equal(sum_rows(matrix).view(torch.int32), expected.view(torch.int32))


def test_a_broadcast_row_is_not_taken_for_exact():
    """A broadcast operand has facts like any other: sums that round are rounded."""
    a, b = torch.ones(1024).expand(1, 600, 1024), torch.zeros(1, 1024, 1024)
    b[:, :, 0] = 1.0
    b[:, 1:, 1], b[:, 1:, 2] = 2.0**-24, 2.0**-90
    expected = torch.full((1, 600, 1024), 1.0 + 2.0**-23)
    expected[..., 0] = 1.0
    assert torch.equal(dot(a, b), expected) and torch.equal(dot(b, a), expected.mT)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("sizes", [(4, 1, 100), (4, 3, 100), (1, 1, 100), (4, 5, 1), (4, 1, 1)])
def test_any_strides(sizes, order):
    """Dimensions in any order of memory, of length one among them, and rows taken from more."""
    batch, rows, k = sizes
    x = draw("normal", *(sizes[d] + 1 for d in order)).permute([order.index(d) for d in range(3)])[:batch, :rows, :k]
    y = draw("normal", batch, 7, k, seed=1)
    assert torch.equal(dot(x, y), dot(x.contiguous().clone(), y)) and torch.equal(dot(y, x), dot(y, x.clone()))
    with compiled_loops(False):
        assert torch.equal(dot(x.contiguous().clone(), y), dot(x, y))


def test_the_bound_of_a_sum_is_needed(monkeypatch):
    """Red twin: without a bound, sums next to a midpoint keep the error of the first rounding."""
    a = torch.tensor([[2.0**24, 1.0, 2.0**-149], [2.0**24 + 2, 1.0, -(2.0**-149)]])
    with compiled_loops(False):
        passes = sum_rows(a)
    assert torch.equal(sum_rows(a), passes)
    monkeypatch.setattr(sums, "weigh", lambda terms: 0.0)
    assert not torch.equal(sum_rows(a), passes)

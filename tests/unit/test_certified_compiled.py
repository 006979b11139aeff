"""The compiled loops against the torch passes, bit by bit, and their integer sums against the reference. Data:
certified_data.py."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, LEAST, draw, words

from vgame.arithmetic import workspace
from vgame.arithmetic.certified import counting, dot, reversed_order, sum_rows
from vgame.arithmetic.numba import exact as compiled_exact
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.compiled import compiled as compiled_loops
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import indexed_matrix as folded
from vgame.arithmetic.torch import products, row_facts, sums

families = pytest.mark.parametrize("family", FAMILIES)


def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dot by the compiled loops and by torch passes, as words."""
    with compiled_loops(False):
        passes = dot(a, b).view(torch.int32)
    return dot(a, b).view(torch.int32), passes


def finite(family: str, *shape: int, seed: int = 0) -> torch.Tensor:
    return draw(family, *shape, seed=seed).nan_to_num(1.0, 1.0, 1.0)


@families
@pytest.mark.parametrize("shape", [(1, 40, 50, 70), (3, 9, 300, 129), (1, 17, 5, 4100), (2, 1, 1, 1), (1, 3, 600, 33)])
@pytest.mark.parametrize("order", ["rows", "columns", "mixed"])
@pytest.mark.parametrize("exact_first", [True, False])
def test_equal_to_the_passes(family, shape, order, exact_first, monkeypatch):
    """Ties, zeros, subnormals, huge ranges, cancellation, infinities; every order of memory; facts early and late."""
    monkeypatch.setattr(products, "LARGE", 0 if exact_first else 1 << 60)
    batch, m, n, k = shape
    a, b = draw(family, batch, m, k), draw(family, 1, n, k, seed=1)
    if order != "rows":
        b = b.mT.contiguous().mT
    if order == "columns":
        a = a.mT.contiguous().mT
    mine, theirs = both(a, b)
    assert torch.equal(mine, theirs)


@families
@pytest.mark.parametrize("order", ["rows", "columns", "every second"])
@pytest.mark.parametrize("k", [140, 2 * compiled_exact.TERMS + 9])
def test_the_exact_tier_decides_everything(family, order, k, monkeypatch):
    """A bound so wide that most elements stay open, and no slices; rows that are collected at once, and in pieces."""
    monkeypatch.setattr(products, "weigh", lambda terms: 2.0**-20)
    monkeypatch.setattr(products, "_slicing_pays", lambda *_: False)
    monkeypatch.setattr(products.Tile, "_all_exact", lambda *_: False)
    a, b = draw(family, 2, 40, k), draw(family, 1, 40, k, seed=1)
    if order == "columns":
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    elif order == "every second":
        a, b = a[..., ::2], b[..., ::2]
    with counting() as counts:
        mine, theirs = both(a, b)
    assert torch.equal(mine, theirs)
    assert counts.tier > 1000 or family not in ("normal", "wide", "cancelling", "any bits")


@families
@pytest.mark.parametrize("k", [1, 2, 7, 300])
def test_integer_sums_are_the_reference(family, k):
    a, b = finite(family, 1, 12, k)[0], finite(family, 1, 12, k, seed=1)[0]
    limbs = np.empty(compiled_exact.LIMBS, np.int64)
    for x, y in zip(a, b, strict=True):
        value = compiled_exact._integer_sum(x.numpy(), 0, np.arange(k), y.numpy(), 0, np.arange(k), limbs)
        result = torch.tensor([value], dtype=torch.float64).float() + 0.0
        assert words(result) == [reference.dot(words(x), words(y))]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_integer_sums_at_both_ends(sign):
    """The largest and the least products, and their sum: every limb between them."""
    largest = float(np.float32(2.0**128 - 2.0**104))
    limbs = np.empty(compiled_exact.LIMBS, np.int64)
    for x, y in (
        ([largest] * 3, [largest] * 3),
        ([LEAST], [LEAST]),
        ([largest, LEAST, -largest], [largest, LEAST, largest]),
    ):
        a, b = np.array(x, np.float32), np.array(y, np.float32) * np.float32(sign)
        exact = sum(
            int(p * 2.0**149) * int(q * 2.0**149) for p, q in zip(a.astype(float), b.astype(float), strict=True)
        )
        value = compiled_exact._integer_sum(a, 0, np.arange(len(x)), b, 0, np.arange(len(x)), limbs)
        numerator, denominator = float(value).as_integer_ratio()
        mine = numerator * 2**298 // denominator
        assert abs(mine - exact) * 2**32 <= abs(exact) and (mine == exact or abs(exact) >= 2**33)


def test_integer_sums_beside_a_midpoint_wherever_its_bits_lie():
    """2^24 + 1 units, and one bit 28 to 31 places below the last: what is rounded away still tells on which side the
    sum lies."""
    limbs, ones = np.empty(compiled_exact.LIMBS, np.int64), np.ones(3, np.float32)
    for place, below, sign in itertools.product(range(-64, 64), range(28, 32), (1.0, -1.0)):
        x = torch.tensor([2.0 ** (place + 24), 2.0**place, sign * 2.0 ** (place - below)])
        value = compiled_exact._integer_sum(x.numpy(), 0, np.arange(3), ones, 0, np.arange(3), limbs)
        assert float(np.float32(value)) == 2.0 ** (place + 24) + (sign > 0) * 2.0 ** (place + 1)


@pytest.mark.parametrize("k", [300, 5000])
def test_a_second_digit_settles_what_one_leaves_open(k):
    """Rows whose halves nearly cancel: one digit is certain of few sums, two of most; both are right where they are
    certain."""
    a, b = draw("cancelling", 200, k), draw("normal", 200, k, seed=1)
    half = k // 2
    b[:, half : 2 * half] = b[:, :half]
    certain = np.zeros(2, np.int64)
    for x, y in zip(a.numpy(), b.numpy(), strict=True):
        sigma = 2.0 * compiled_exact._power_above(
            float(np.linalg.norm(x.astype(float)) * np.linalg.norm(y.astype(float))) * 1.001
        )
        finer, error = sigma * 2.0 ** (1 + (k - 1).bit_length() - 53), products.weigh(k)
        digit, rest, left = compiled_exact._sum_terms(x, y, sigma)
        settled = (
            compiled_exact._settle(digit, 0.0, rest, left, sigma, 0.0, error),
            compiled_exact._settle(*compiled_exact._sum_terms_twice(x, y, sigma, finer), sigma, finer, error),
        )
        expected = reference.dot(words(torch.from_numpy(x)), words(torch.from_numpy(y)))
        for level, (value, sure) in enumerate(settled):
            certain[level] += sure
            assert not sure or words(torch.tensor([value], dtype=torch.float64).float() + 0.0) == [expected]
    assert certain[0] < certain[1] and certain[1] > 150


@families
def test_row_facts_are_the_passes(family):
    x = finite(family, 2, 30, 77)
    for view in (x, x.mT.contiguous().mT, x[..., ::3]):
        count, quantum = row_facts.row_facts(view, [slice(0, view.shape[2])])
        with compiled_loops(False):
            count_too, quantum_too = row_facts.row_facts(view, [slice(0, view.shape[2])])
        assert torch.equal(count, count_too) and torch.equal(quantum, quantum_too)


def test_threads_do_not_show(monkeypatch, threads_come_back):
    a, b = draw("bf16", 3, 31, 200), draw("cancelling", 3, 37, 200, seed=1)
    expected = both(a, b)[1]
    monkeypatch.setattr("vgame.system.threads.WORTH", 1)
    monkeypatch.setattr(products, "WORTH", 1)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize(
    ("file", "part"),
    [(compiled_exact, "exact_products"), (compiled_rounding, "look_again")],
    ids=["exact tier", "look"],
)
def test_each_part_is_needed(file, part, monkeypatch):
    """Red twins: without the exact tier, or with a second look that drops what it gets, bits change."""
    a, b = draw("cancelling", 1, 60, 200), draw("normal", 1, 60, 200, seed=1)
    b[..., 100:200] = b[..., :100]
    mine, theirs = both(a, b)
    assert torch.equal(mine, theirs)
    drop = {"exact_products": lambda *_: None, "look_again": lambda positions, *_: (positions[:0], 0)}
    monkeypatch.setattr(file, part, drop[part])
    monkeypatch.setattr(products, "_slicing_pays", lambda *_: False)
    assert not torch.equal(dot(a, b).view(torch.int32), theirs)


def test_the_switch_switches(monkeypatch):
    def refuse(*_):
        raise RuntimeError("compiled")

    a = draw("normal", 1, 4, 9)
    monkeypatch.setattr(compiled_rounding, "_round", refuse)
    with pytest.raises(RuntimeError, match="compiled"):
        dot(a, a)
    with compiled_loops(False):
        dot(a, a)


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
    """_certify_compiled without facts: what stays open goes straight to the exact tier."""

    def certify(self) -> tuple[torch.Tensor, int]:
        left, right = (self.norm_a * products.weigh(self.terms)).unsqueeze(2), self.norm_b.unsqueeze(1)
        found = torch.empty(self.out.numel(), dtype=torch.int32)
        return compiled_rounding.round_pass(self.sums, left, right, self.out, found, self.out.numel()), 0

    assert hasattr(tile, "_certify_compiled")
    return certify


def test_folded_matrices_come_in_tiles(monkeypatch):
    monkeypatch.setattr(folded, "LEAST", 0)
    monkeypatch.setitem(workspace.PRODUCTS, "cpu", 600)
    monkeypatch.setattr(products, "BLOCK", 16)
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
    """Those of a stranger's program would fill the memory."""
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
    """Channels of images in front: what batch normalisation sums. Short runs, runs, runs of several blocks."""
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
def test_runs_of_rows_that_are_no_neighbours(family, width, monkeypatch):
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
    """Rows whose first and last lie where neighbours would, and which change places between."""
    monkeypatch.setattr(folded, "LEAST", 0)
    view = draw("normal", 50, 2, 2, run).permute(0, 2, 1, 3)
    matrix = folded.fold(view.permute(1, 2, 0, 3), (1, 4, 50 * run))
    assert isinstance(matrix, folded.IndexedMatrix)
    expected = sum_rows(view.permute(1, 2, 0, 3).reshape(1, 4, 50 * run))
    assert torch.equal(sum_rows(matrix).view(torch.int32), expected.view(torch.int32))


def test_one_row_that_serves_all_is_not_taken_for_exact():
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
    """Red twin: without a bound, sums next to a midpoint keep what the first rounding made of them."""
    a = torch.tensor([[2.0**24, 1.0, 2.0**-149], [2.0**24 + 2, 1.0, -(2.0**-149)]])
    with compiled_loops(False):
        passes = sum_rows(a)
    assert torch.equal(sum_rows(a), passes)
    monkeypatch.setattr(sums, "weigh", lambda terms: 0.0)
    assert not torch.equal(sum_rows(a), passes)

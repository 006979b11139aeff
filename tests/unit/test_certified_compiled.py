"""The compiled loops against the torch passes, bit by bit, and their integer sums against the reference. Data:
certified_data.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from certified_data import LEAST, draw, words
from compiled_twins import families

from vgame.arithmetic.certified import counting, dot
from vgame.arithmetic.numba import exact as compiled_exact
from vgame.arithmetic.numba import exact_sum
from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.numba.compiled import compiled as compiled_loops
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import products, row_facts


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
    """Ties, zeros, subnormals, huge ranges, cancellation, infinities; every memory layout; the exact tier first or
    last."""
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
    limbs = np.empty(exact_sum.LIMBS, np.int64)
    for x, y in zip(a, b, strict=True):
        value = exact_sum.integer_sum(x.numpy(), 0, np.arange(k), y.numpy(), 0, np.arange(k), limbs)
        result = torch.tensor([value], dtype=torch.float64).float() + 0.0
        assert words(result) == [reference.dot(words(x), words(y))]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_integer_sums_at_both_ends(sign):
    """The largest and the least products, and their sum: every limb between them."""
    largest = float(np.float32(2.0**128 - 2.0**104))
    limbs = np.empty(exact_sum.LIMBS, np.int64)
    for x, y in (
        ([largest] * 3, [largest] * 3),
        ([LEAST], [LEAST]),
        ([largest, LEAST, -largest], [largest, LEAST, largest]),
    ):
        a, b = np.array(x, np.float32), np.array(y, np.float32) * np.float32(sign)
        exact = sum(
            int(p * 2.0**149) * int(q * 2.0**149) for p, q in zip(a.astype(float), b.astype(float), strict=True)
        )
        value = exact_sum.integer_sum(a, 0, np.arange(len(x)), b, 0, np.arange(len(x)), limbs)
        numerator, denominator = float(value).as_integer_ratio()
        mine = numerator * 2**298 // denominator
        assert abs(mine - exact) * 2**32 <= abs(exact) and (mine == exact or abs(exact) >= 2**33)


def test_integer_sums_beside_a_midpoint_wherever_its_bits_lie():
    """2^24 + 1 units, and one bit 28 to 31 places below the last: the rounded-off part still decides the side of the
    sum."""
    limbs, ones = np.empty(exact_sum.LIMBS, np.int64), np.ones(3, np.float32)
    for place, below, sign in itertools.product(range(-64, 64), range(28, 32), (1.0, -1.0)):
        x = torch.tensor([2.0 ** (place + 24), 2.0**place, sign * 2.0 ** (place - below)])
        value = exact_sum.integer_sum(x.numpy(), 0, np.arange(3), ones, 0, np.arange(3), limbs)
        assert float(np.float32(value)) == 2.0 ** (place + 24) + (sign > 0) * 2.0 ** (place + 1)


@pytest.mark.parametrize("k", [300, 5000])
def test_a_second_digit_settles_sums_that_one_leaves_open(k):
    """Rows whose halves nearly cancel: one digit makes few sums certain, two most; certain results are right."""
    a, b = draw("cancelling", 200, k), draw("normal", 200, k, seed=1)
    half = k // 2
    b[:, half : 2 * half] = b[:, :half]
    certain = np.zeros(2, np.int64)
    for x, y in zip(a.numpy(), b.numpy(), strict=True):
        sigma = 2.0 * exact_sum.power_above(
            float(np.linalg.norm(x.astype(float)) * np.linalg.norm(y.astype(float))) * 1.001
        )
        finer, error = sigma * 2.0 ** (1 + (k - 1).bit_length() - 53), products.weigh(k)
        digit, rest, left = compiled_exact._sum_terms(x, y, sigma)
        settled = (
            exact_sum.settle(digit, 0.0, rest, left, sigma, 0.0, error),
            exact_sum.settle(*compiled_exact._sum_terms_twice(x, y, sigma, finer), sigma, finer, error),
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


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, threads_come_back):
    a, b = draw("bf16", 3, 31, 200), draw("cancelling", 3, 37, 200, seed=1)
    expected = both(a, b)[1]
    monkeypatch.setattr("vgame.system.threads.WORTH", 1)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.WORTH", 1)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize(
    ("file", "part"),
    [(compiled_exact, "exact_products"), (compiled_rounding, "look_again")],
    ids=["exact tier", "look"],
)
def test_each_part_is_needed(file, part, monkeypatch):
    """Red twins: without the exact tier, or with a second look that drops its input, bits change."""
    a, b = draw("cancelling", 1, 60, 200), draw("normal", 1, 60, 200, seed=1)
    b[..., 100:200] = b[..., :100]
    mine, theirs = both(a, b)
    assert torch.equal(mine, theirs)
    drop = {"exact_products": lambda *_: None, "look_again": lambda positions, *_: (positions[:0], 0)}
    monkeypatch.setattr(file, part, drop[part])
    monkeypatch.setattr(products, "_slicing_pays", lambda *_: False)
    assert not torch.equal(dot(a, b).view(torch.int32), theirs)


def test_the_switch_selects_the_passes(monkeypatch):
    def refuse(*_):
        raise RuntimeError("compiled")

    a = draw("normal", 1, 4, 9)
    monkeypatch.setattr(compiled_rounding, "round_sums", refuse)
    with pytest.raises(RuntimeError, match="compiled"):
        dot(a, a)
    with compiled_loops(False):
        dot(a, a)

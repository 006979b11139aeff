"""Results do not depend on the device: not one bit changes under libraries with the largest permitted errors.

Each property has a red twin: a library that breaks its promise, or a proof constant that is wrong, and then bits do
change. Data: certified_data.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import permutations

import pytest
import torch
from certified_data import FAMILIES, dot_words, draw, sum_words, words
from perturbed import KINDS, perturbed_products
from wide import of_many

from vgame.arithmetic.certified import counting, dot, one_hot_sum, reversed_order, sum_rows
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.torch import exact as exact_tier
from vgame.arithmetic.torch import one_hot, products, rounding_test, row_facts, sums

families = pytest.mark.parametrize("family", FAMILIES)


def operands(family: str, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a [2, 9, k], b [1, 11, k], an index over about k / 12 targets."""
    index = torch.arange(k).mul(7).remainder(k // 12 + 2).int().view(1, -1) - 1
    return draw(family, 2, 9, k), draw(family, 1, 11, k, seed=1), index


def results(family: str, k: int, device: AbstractContextManager) -> list[torch.Tensor]:
    a, b, index = operands(family, k)
    with device:
        return [dot(a, b).view(torch.int32), sum_rows(a).view(torch.int32), one_hot_sum(index, a, 9).view(torch.int32)]


def same(family: str, k: int, device: AbstractContextManager) -> list[bool]:
    """By function: whether the device gives the same words as this library."""
    expected = results(family, k, nullcontext())
    return [torch.equal(x, y) for x, y in zip(results(family, k, device), expected, strict=True)]


@families
@pytest.mark.parametrize("k", [2, 5, 9, 64, 129, 768, 2100])
def test_any_order_of_summation(family, k):
    assert same(family, k, reversed_order()) == [True] * 3


def test_the_reversed_device_differs():
    """Red twin of the order: the sums that the certificate gets do differ."""
    a, b = draw("normal", 1, 64, 768).double(), draw("normal", 1, 64, 768, seed=1).double()
    out, other = torch.empty(1, 64, 64).double(), torch.empty(1, 64, 64).double()
    products.vendor().product(a, b, out)
    with reversed_order() as device:
        device.product(a, b, other)
    assert int((out != other).sum()) > 1000


@families
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", of_many([2, 5, 9, 64, 129, 768, 2100], 5, 64, 768))
def test_any_error_within_the_bound(family, kind, k):
    assert same(family, k, perturbed_products(kind)) == [True] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [129, 768])
def test_an_error_beyond_the_bound_changes_bits(kind, k):
    """Red twin: an error of 2^20 times the bound changes bits, of products and of sums."""
    broken = [
        same(family, k, perturbed_products(kind, 2.0**20)) for family in ("normal", "wide", "subnormal", "any bits")
    ]
    assert not all(x[0] for x in broken) and not all(x[1] and x[2] for x in broken)


def test_the_bound_is_needed(monkeypatch):
    """Red twin: with a bound that is too small by 2^20, promised errors change bits."""
    expected = results("normal", 768, nullcontext())
    monkeypatch.setattr(rounding_test, "UNIT", rounding_test.UNIT * 2.0**-20)
    differences = [
        int((x != y).sum())
        for kind in KINDS
        for x, y in zip(results("normal", 768, perturbed_products(kind)), expected, strict=True)
    ]
    assert max(differences) > 0


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_the_bound_is_tight_to_a_small_factor(scale):
    """Errors of 16 times the bound, pushed toward midpoints, are caught among 60,000 products; errors of the bound are
    not."""
    a, b = draw("normal", 1, 250, 129), draw("normal", 1, 250, 129, seed=1)
    expected = dot(a, b)
    with perturbed_products("midpoint", scale):
        assert torch.equal(dot(a, b), expected) == (scale == 1.0)


def _loose(facts: Callable) -> Callable:
    """Row facts that claim quanta 2^200 times too coarse."""
    return lambda *args: (facts(*args)[0], facts(*args)[1] * 2.0**200)


def test_the_exactness_test_is_needed_as_it_is(monkeypatch):
    """Red twin: a false claim of exactness is exposed by a library with permitted errors."""
    a, b = draw("wide", 1, 40, 129), draw("wide", 1, 40, 129, seed=1)
    monkeypatch.setattr(products, "weigh", lambda terms: 2.0**-20)  # most elements reach the second look
    expected = dot(a, b)
    with perturbed_products("midpoint", 1.0):
        assert torch.equal(dot(a, b), expected)
        monkeypatch.setattr(products, "row_facts", _loose(row_facts.row_facts))
        with counting() as counts:
            assert not torch.equal(dot(a, b), expected)
    assert counts.exact > 0


def test_the_spread_test_is_needed_as_it_is(monkeypatch):
    """Red twin for short sums: exactness claimed for all of them changes bits."""
    a = draw("any bits", 4000, 12)
    expected = sum_rows(a)
    with perturbed_products("midpoint"):
        assert torch.equal(sum_rows(a), expected)
        monkeypatch.setattr(sums, "SLACK", 0.0)
        assert not torch.equal(sum_rows(a), expected)


def test_the_tail_is_needed(monkeypatch):
    """Red twin of the exact tier: without rounding to odd, sums next to a midpoint go wrong."""
    a = torch.tensor([[2.0**24, 1.0, 2.0**-149], [2.0**24 + 2, 1.0, -(2.0**-149)]])
    assert words(sum_rows(a)) == sum_words(a)
    monkeypatch.setattr(exact_tier, "round_to_odd", lambda head, tail: head)
    with compiled(False):
        assert words(sum_rows(a)) != sum_words(a)


def test_the_report_of_uncertainty_is_needed(monkeypatch):
    """Red twin of the extraction: a first sweep that always claims certainty ignores the residual's rounding."""
    a = torch.tensor(list(permutations([2.0**24, 1.0, 2.0**-149, 2.0**-30, -(2.0**-30)])))
    assert words(sum_rows(a)) == sum_words(a)
    monkeypatch.setattr(exact_tier, "_is_certain", lambda head, tail, error: torch.ones_like(head, dtype=torch.bool))
    with compiled(False):
        assert words(sum_rows(a)) != sum_words(a)


def test_zeros_are_made_positive():
    """Red twin of +0: the library itself gives -0 for a negative sum that underflows."""
    a = torch.full((1, 1, 1), -(2.0**-149))
    b = torch.full((1, 1, 1), 2.0**-2)
    assert words((a.double() * b.double()).float()) == [[[0x80000000]]]
    assert words(dot(a, b)) == [[[0]]] == dot_words(a, b)


def test_one_hot_sums_of_duplicates_reach_every_tier():
    torch.manual_seed(0)
    index = torch.randint(0, 40, (1, 512)).int()
    b = draw("any bits", 1, 64, 512)
    with counting() as counts:
        expected = one_hot_sum(index, b, 5000)
    assert counts.tier > 5 and counts.bound > 1000, counts
    assert one_hot.SPARSE * 512 > 5000
    with perturbed_products("random"):
        assert torch.equal(one_hot_sum(index, b, 5000), expected)

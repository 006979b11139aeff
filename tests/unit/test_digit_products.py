"""Products by exact sums of digits: sums within the proven bound for all ends of tiles and chunks, and no bit of a
result depends on them. docs/numerics-products.md, section 14."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, LEAST, dot_words, draw, layouts, words
from perturbed import KINDS, perturbed_kernels
from wide import of_many

from vgame.arithmetic import indexed_matrix, vendor
from vgame.arithmetic.certified import counting, dot, own_kernels
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix, fold, places_of
from vgame.arithmetic.numba import digit_products
from vgame.arithmetic.numba.digit_tile import permitted
from vgame.arithmetic.torch import digits, products
from vgame.arithmetic.vendor import NATIVE, using
from vgame.execute.devices import use_device
from vgame.execute.doctor import examine

pytestmark = pytest.mark.skipif(not permitted(), reason="this processor, or the system, has no tiles of bytes (AMX)")

#: Families whose rows all have scales.
SUITED = [family for family in FAMILIES if family not in ("edges", "any bits", "subnormal")]
U = Fraction(1, 2**53)


def sums_of(a: Matrix, b: Matrix, early: bool = False) -> tuple | None:
    """(sums [B, M, N], squares, left, right), in memory filled with NaN, which must stay beyond the end; None if a row
    is not suited."""
    shapes = (max(a.shape[0], b.shape[0]), a.shape[1], b.shape[1]), tuple(a.shape[:2]), tuple(b.shape[:2])
    whole = [torch.full((math.prod(shape) + 16,), torch.nan, dtype=torch.float64) for shape in shapes]
    sums, *squares = (x[:-16].view(shape) for x, shape in zip(whole, shapes, strict=True))
    bounds = digit_products.multiply(places_of(a), places_of(b), sums, tuple(squares), early)
    assert all(bool(x[-16:].isnan().all()) for x in whole)
    return bounds and (sums, squares, *bounds)


def assert_within(a: torch.Tensor, b: torch.Tensor, early: bool = False) -> None:
    """|s - exact| + u |s| <= the bound, and norms as promised, in fractions."""
    found = sums_of(a, b, early)
    assert found is not None
    sums, squares, left, right = found
    exact_a, exact_b = ([[list(map(Fraction, row)) for row in rows] for rows in x.tolist()] for x in (a, b))
    for x, square in zip((exact_a, exact_b), squares, strict=True):
        for rows, found_squares in zip(x, square.tolist(), strict=True):
            for row, value in zip(rows, found_squares, strict=True):
                assert abs(Fraction(value) - sum(t * t for t in row)) <= Fraction(1, 2**22) * sum(t * t for t in row)
    for i, m, n in itertools.product(*map(range, sums.shape)):
        x, y = exact_a[min(i, len(a) - 1)][m], exact_b[min(i, len(b) - 1)][n]
        value = Fraction(float(sums[i, m, n]))
        exact = sum((p * q for p, q in zip(x, y, strict=True)), Fraction(0))
        bound = Fraction(float(left[min(i, len(left) - 1), m])) * Fraction(float(right[min(i, len(right) - 1), n]))
        assert abs(value - exact) + U * abs(value) <= bound


# --- the bound ---


@pytest.mark.parametrize("m", [1, 15, 16, 17, 33])
def test_every_remainder_of_a_tile(m: int) -> None:
    for n, early in itertools.product((1, 2, 7, 15, 16, 17, 31, 32, 35), (False, True)):
        assert_within(draw("normal", 1, m, 3), draw("wide", 1, n, 3, seed=1), early)


@pytest.mark.parametrize("family", SUITED)
@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 63, 64, 65, 100, 129])
def test_every_remainder_of_a_row(family: str, k: int) -> None:
    for early in (False, True):
        assert_within(draw(family, 2, 3, k), draw(family, 1, 4, k, seed=1), early)
        assert_within(draw(family, 1, 17, k), draw(family, 2, 2, k, seed=1), early)


@pytest.mark.parametrize("k", [1023, 1024, 1025, 2050, 5000, 65536])
def test_every_end_of_a_chunk(k: int) -> None:
    for family, early in itertools.product(("normal", "cancelling", "bf16"), (False, True)):
        assert_within(draw(family, 1, 2, k), draw("wide", 1, 2, k, seed=1), early)


def carrying(count: int) -> torch.Tensor:
    """Words whose digits are 127, -128, carry into the one before, or lie half way between two of the last digit,
    beside the largest word that a scale has room for."""
    most = [float(np.nextafter(np.float32(2 / (1 + 2.0**-7)), np.float32(side))) for side in (0, 1, 2)]
    near = [
        k * 2.0**-e + s * 2.0**-f
        for k in (1, 127, 128, 129)
        for e in (7, 15, 23, 31)
        for f in (38, 39, 40)
        for s in (-1, 0, 1)
    ]
    pool = torch.tensor([*most, *near, 1.0, 2.0 - 2.0**-23, 2.0**-39, 3 * 2.0**-40, 2.0**-125], dtype=torch.float32)
    generator = torch.Generator().manual_seed(count)
    signs = torch.randint(0, 2, (1, 6, count), generator=generator) * 2.0 - 1
    return pool[torch.randint(0, len(pool), (1, 6, count), generator=generator)] * signs


@pytest.mark.parametrize("k", [1, 2, 3, 64, 200])
def test_digits_that_carry(k: int) -> None:
    for early in (False, True):
        assert_within(carrying(k), carrying(k).flip(1), early)
        largest = torch.full((1, 2, k), float(np.nextafter(np.float32(2 / (1 + 2.0**-7)), np.float32(0))))
        assert_within(largest * torch.tensor([1.0, -1.0]).view(1, 2, 1), largest, early)


@pytest.mark.parametrize("exponent", [-100, -99, 98, 99])
def test_ends_of_the_range(exponent: int) -> None:
    """Largest spreads too: least words beside ones of 2^exponent."""
    a = draw("normal", 1, 3, 70)
    a = a / a.abs().amax(-1, keepdim=True) * (2.0 - 2.0**-20) * 2.0**exponent
    a[:, :, ::3] = LEAST * torch.arange(24)
    a[:, 1, ::3] = 2.0**-126
    a[:, 2] = 0.0
    for early in (False, True):
        assert_within(a, a, early)
        assert_within(a, draw("subnormal", 1, 1, 70) * 2.0**120, early)


@pytest.mark.parametrize("word", [math.inf, -math.inf, math.nan, 2.0**100, 2.0**127, LEAST, 2.0**-101])
def test_rows_that_are_not_suited(word: float) -> None:
    """Found in every row and chunk, on both sides."""
    for row, column in ((0, 0), (17, 1500)):
        a, b = draw("normal", 1, 18, 2000), draw("normal", 1, 4, 2000)
        assert sums_of(a, b) is not None
        part = a[:, row, 1000 * (column // 1000) : 1000 * (column // 1000) + 1000]
        if abs(word) < 1.0:
            part[:] = 0.0
        a[:, row, column] = word
        assert sums_of(a, b) is None and sums_of(b, a) is None


@pytest.mark.parametrize("batches", [(1, 1), (3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("k", [5, 300, 1100])
def test_rows_are_read_where_they_lie(batches: tuple[int, int], k: int) -> None:
    a, b = draw("normal", batches[0], 34, k), draw("normal", batches[1], 19, k, seed=1)
    for early in (False, True):
        sums, _, left, right = sums_of(a, b, early)
        for x, y in itertools.chain(((x, b) for x in layouts(a)), ((a, y) for y in layouts(b))):
            found = sums_of(x, y, early)
            assert torch.equal(found[0], sums)
            assert torch.allclose(found[2], left, 1e-4) and torch.allclose(found[3], right, 1e-4)


def test_a_process_that_flushes_subnormal_numbers() -> None:
    """The kernel sets the processor's modes, and restores them."""
    a, b = torch.full((1, 7, 9), LEAST), torch.full((1, 9, 9), 1.0)
    a[..., 0], b[..., 0] = 2.0**-99, 0.0
    expected = sums_of(a, b)[0]
    try:
        assert torch.set_flush_denormal(True)
        found = sums_of(a, b)[0]
        assert not bool((torch.full((3,), LEAST) * 1.0).any()), "the process flushes still"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, expected)


# --- the words ---


@pytest.fixture
def every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are made of digits even for small tiles and many open sums."""
    for name, value in {"SIDE": 1, "LENGTH": 1, "WORTH": 0, "EXPECTED": math.inf, "OPEN": 1.0}.items():
        monkeypatch.setattr(digits, name, value)
    monkeypatch.setattr(products.Tile, "looks_exact", lambda *_: False)


@contextmanager
def without() -> Iterator[None]:
    with using(replace(NATIVE, digits=None)):
        yield


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", [1, 3, 64, 256, 700])
def test_the_words_are_those_of_multiply_adds(every_tile: None, family: str, k: int, bfloat16: bool) -> None:
    a, b = draw(family, 2, 50, k), draw(family, 1, 45, k, seed=1)
    with without():
        expected = dot(a, b, bfloat16=bfloat16).view(torch.int32)
    assert torch.equal(dot(a, b, bfloat16=bfloat16).view(torch.int32), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_words_are_the_references(every_tile: None, family: str) -> None:
    a, b = draw(family, 2, 4, 70), draw(family, 1, 5, 70, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_folded_operands(every_tile: None, family: str, bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patches of 3 x 3 words around the pixels of pictures, and with them the filters' gradient."""
    monkeypatch.setattr(indexed_matrix, "LEAST", 0)
    pictures, filters = draw(family, 2, 5, 10, 18), draw(family, 1, 18, 45, seed=1)
    view = pictures.as_strided((1, 2, 8, 16, 5, 3, 3), (0, 900, 18, 1, 180, 18, 1))
    patches = fold(view, (1, 256, 45))
    turned = fold(view.permute(0, 4, 5, 6, 1, 2, 3), (1, 45, 256))
    assert isinstance(patches, IndexedMatrix) and isinstance(turned, IndexedMatrix)
    for a, b in ((filters, patches), (patches, filters), (draw(family, 1, 18, 256), turned)):
        found = dot(a, b, bfloat16=bfloat16).view(torch.int32)
        with without():
            assert torch.equal(dot(a, b, bfloat16=bfloat16).view(torch.int32), found)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_results_do_not_depend_on_the_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch, threads_come_back: None
) -> None:
    a, b = draw("normal", 2, 161, 300), draw("sparse", 2, 177, 300, seed=1)
    with without():
        expected = dot(a, b).view(torch.int32)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.WORTH", 1)
    monkeypatch.setattr(digits, "WORTH", 1)
    torch.set_num_threads(threads)
    assert len(products.shared_tiles(torch.empty(2, 161, 177), 300)) >= threads
    assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", of_many([2, 5, 9, 64, 129, 768, 2100], 5, 768))
def test_a_kernel_that_errs_by_its_bound(every_tile: None, family: str, kind: str, k: int) -> None:
    a, b = draw(family, 2, 9, k), draw(family, 1, 11, k, seed=1)
    for bfloat16 in (False, True):
        with without():
            expected = dot(a, b, bfloat16=bfloat16).view(torch.int32)
        with perturbed_kernels(kind):
            assert torch.equal(dot(a, b, bfloat16=bfloat16).view(torch.int32), expected)


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_the_bound_is_needed(scale: float) -> None:
    """Red twin: errors of 16 times the bound are caught among 60,000 products."""
    a, b = draw("normal", 1, 250, 300), draw("normal", 1, 250, 300, seed=1)
    expected = dot(a, b)
    with perturbed_kernels("midpoint", scale):
        assert torch.equal(dot(a, b), expected) == (scale == 1.0)


# --- the choice ---


def refused(*_: object) -> None:
    raise RuntimeError("binary64")


def test_large_products_of_suited_rows_are_made_of_digits() -> None:
    a, b = draw("normal", 1, 128, 300), draw("normal", 1, 128, 300, seed=1)
    expected = dot(a, b)
    with using(replace(NATIVE, multiply=refused)):
        with counting() as counts:
            assert torch.equal(dot(a, b), expected)
        assert counts.elements == 128 * 128 and counts.tier < 40
        for x in (draw("normal", 1, 31, 300), draw("int12", 1, 128, 300), draw("wide", 1, 128, 300)):
            with pytest.raises(RuntimeError, match="binary64"):  # small, many ties, a few large words
                dot(x, x)
    with use_device("compatible"), using(replace(NATIVE, digits=refused)):
        assert torch.equal(dot(a, b), expected)


def reported() -> bool:
    """Whether `vgame doctor` names these kernels."""
    return any("tiles of bytes" in finding.detail for finding in examine("cpu"))


def test_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = draw("normal", 1, 128, 300), draw("normal", 1, 128, 300, seed=1)
    expected = dot(a, b)
    assert reported()
    monkeypatch.setattr(vendor, "permitted", lambda: False)
    assert not reported()
    with using(replace(NATIVE, digits=refused)):
        assert torch.equal(dot(a, b), expected)
    with own_kernels(False):
        assert torch.equal(dot(a, b), expected)


CACHED = """
import hashlib, sys, torch
from vgame.arithmetic.indexed_matrix import places_of
from vgame.arithmetic.numba import digit_products
from vgame.arithmetic.numba.digit_tile import permitted
assert permitted()
a, b = torch.randn(2, 1, 20, 1100, generator=torch.Generator().manual_seed(4))
for early in sys.argv[1:]:
    sums, *squares = (torch.empty(1, *shape, dtype=torch.float64) for shape in ((20, 20), (20,), (20,)))
    digit_products.multiply(places_of(a), places_of(b), sums, tuple(squares), early == "early")
    print(early, hashlib.sha256(sums.numpy().tobytes()).hexdigest())
"""


@pytest.mark.wide
def test_a_cache_keeps_the_loops_of_two_processes_apart(tmp_path: Path) -> None:
    """Each compiles one of two closures of one function; a process that loads both runs both."""
    found = dict[str, set[str]]()
    for order in (["early"], ["whole"], ["early", "whole"], ["whole", "early"]):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", CACHED, *order]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for early, digest in map(str.split, output.splitlines()):
            found.setdefault(early, set()).add(digest)
    assert [len(digests) for digests in found.values()] == [1, 1] and found["early"] != found["whole"]

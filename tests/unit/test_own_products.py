"""Products by vgame's own kernels: every bit of the binary64 sums follows from the order in the proof, for all ends of
tiles and chains, and no bit of a result depends on the kernels. docs/numerics-products.md, section 13."""

from __future__ import annotations

import itertools
import math
import platform
import re
from contextlib import nullcontext
from dataclasses import astuple, replace
from fractions import Fraction

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from certified_data import FAMILIES, LEAST, dot_words, draw, layouts, words
from numba import njit, types
from perturbed import KINDS, perturbed_kernels
from wide import of_many

from vgame.arithmetic import vendor
from vgame.arithmetic.certified import dot, own_kernels
from vgame.arithmetic.indexed_matrix import IndexedMatrix, Matrix, places_of
from vgame.arithmetic.numba import products as own
from vgame.arithmetic.numba.fused_tile import FORMS, Form, form_of, fused_tile
from vgame.arithmetic.torch import products, rounding_test
from vgame.arithmetic.vendor import NATIVE, using
from vgame.execute.devices import use_device
from vgame.execute.doctor import examine

pytestmark = pytest.mark.skipif(own.form() is None, reason="this processor has no fused multiply-adds")


@pytest.fixture(autouse=True)
def no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large products too are made by multiply-adds here (test_digit_products.py has the others)."""
    monkeypatch.setattr(vendor, "permitted", lambda: False)


HOST = own.form() or FORMS["fma"]
FINITE = [family for family in FAMILIES if family != "edges"]


def sums_of(a: Matrix, b: Matrix, tiles: Form | None = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(sums [B, M, N], the rows' sums of squares), in memory filled with NaN, which must stay beyond the end."""
    behind: list[torch.Tensor] = []

    def take(shape: tuple[int, ...]) -> torch.Tensor:
        whole = torch.full((math.prod(shape) + HOST.columns,), torch.nan, dtype=torch.float64)
        behind.append(whole[math.prod(shape) :])
        return whole[: math.prod(shape)].view(shape)

    sums = take((max(a.shape[0], b.shape[0]), a.shape[1], b.shape[1]))
    squares = [take(tuple(x.shape[:2])) for x in (a, b)]
    own.bind(places_of(a), places_of(b), sums, tuple(squares), lambda _, shape, *rest: take(shape), tiles)()
    assert len(behind) == 5 and bool(torch.stack(behind).isnan().all())
    return sums, squares


def in_order(x: list[float], y: list[float]) -> float:
    """The order of the proof, in fractions; a fraction becomes the nearest float, ties to even."""
    blocks = -(-len(x) // own.CHAIN)
    size = -(-len(x) // blocks)
    parts = []
    for first in range(0, len(x), size):
        value = 0.0
        for a, b in zip(x[first : first + size], y[first : first + size], strict=True):
            value = float(Fraction(a) * Fraction(b) + Fraction(value))
        parts.append(value)
    return float(np.cumsum(np.array(parts))[-1])


def assert_in_order(a: torch.Tensor, b: torch.Tensor, tiles: Form | None = None) -> None:
    sums, squares = sums_of(a, b, tiles)
    for i, found in enumerate(sums):
        left, right = (x[min(i, len(x) - 1)].tolist() for x in (a, b))
        assert found.tolist() == [[in_order(x, y) for y in right] for x in left]
    for x, found in zip((a, b), squares, strict=True):
        assert found.tolist() == [[in_order(row, row) for row in rows] for rows in x.tolist()]


# --- the order ---


@pytest.mark.parametrize("m", [1, HOST.rows - 1, HOST.rows, HOST.rows + 1, 2 * HOST.rows + 1])
def test_every_remainder_of_a_tile(m: int) -> None:
    for n in (*range(1, HOST.columns + 2), 2 * HOST.columns + 3):
        assert_in_order(draw("wide", 1, m, 3), draw("wide", 1, n, 3, seed=1))


@pytest.mark.parametrize("family", FINITE)
@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 600])
def test_every_end_of_a_chain(family: str, k: int) -> None:
    assert_in_order(draw(family, 2, 2, k), draw(family, 1, 3, k, seed=1))
    assert_in_order(draw(family, 1, 3, k), draw(family, 2, 2, k, seed=1))


@pytest.mark.parametrize("tiles", [*FORMS.values(), Form(3, 1, 2)], ids=str)
def test_every_form(tiles: Form) -> None:
    """Also those of other processors: LLVM splits their vectors here."""
    for m, n, k in ((1, 1, 1), (13, 17, 5), (tiles.rows, tiles.columns, 300), (25, 33, 257)):
        a, b = draw("wide", 1, m, k), draw("wide", 1, n, k, seed=1)
        assert torch.equal(sums_of(a, b, tiles)[0], sums_of(a, b)[0])
    assert_in_order(draw("any bits", 1, 13, 7), draw("any bits", 1, 17, 7), tiles)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for other processors of x86 only")
@pytest.mark.parametrize(("name", "processor"), [("avx512f", "skylake-avx512"), ("fma", "haswell")])
def test_the_sums_of_a_tile_stay_in_registers(name: str, processor: str) -> None:
    """No vector goes to or comes from the stack between multiply-adds."""
    rows, vectors, lanes, columns = *astuple(FORMS[name]), FORMS[name].columns

    @njit(error_model="numpy")
    def tile(a, b, c, terms):
        fused_tile(rows, rows, vectors, lanes, a, 0, b, 0, c, 0, columns, terms, False)

    array = types.float64[::1]
    tile.compile((array, array, array, types.intp))
    code = re.sub(r'"target-(cpu|features)"="[^"]*"', "", *tile.inspect_llvm().values())
    target = llvm.Target.from_default_triple().create_target_machine(cpu=processor, features="-prefer-256-bit", opt=3)
    lines = target.emit_assembly(llvm.parse_assembly(code)).splitlines()
    places = [i for i, line in enumerate(lines) if "vfmadd" in line]
    assert len(places) >= 2 * rows * vectors
    between = lines[places[0] : places[-1]]
    assert [line for line in between if re.search(r"\(%r[sb]p\).*mm\d|mm\d.*\(%r[sb]p\)", line)] == []


@pytest.mark.parametrize("batches", [(1, 1), (3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("k", [5, 300])
def test_rows_are_read_in_place(batches: tuple[int, int], k: int) -> None:
    a, b = draw("normal", batches[0], 14, k), draw("normal", batches[1], 19, k, seed=1)
    expected = sums_of(a, b)
    for x, y in itertools.chain(((x, b) for x in layouts(a)), ((a, y) for y in layouts(b))):
        sums, squares = sums_of(x, y)
        assert torch.equal(sums, expected[0]) and all(map(torch.equal, squares, expected[1]))


@pytest.mark.parametrize("batches", [(1, 1), (3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("k", [5, 256, 300])
def test_results_do_not_depend_on_groups_of_rows(
    batches: tuple[int, int], k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one tile's rows at a time, panels of b serve several groups of rows, and several batches."""
    a, b = draw("wide", batches[0], 3 * HOST.rows + 5, k), draw("wide", batches[1], 2 * HOST.columns + 3, k, seed=1)
    expected = sums_of(a, b)
    monkeypatch.setattr(own, "NEAR", 1)
    found = sums_of(a, b)
    assert torch.equal(found[0], expected[0]) and all(map(torch.equal, found[1], expected[1]))
    assert_in_order(a[:, ::9], b[:, ::9])


@pytest.mark.parametrize("together", [1, 3, 4, 5, HOST.columns])
@pytest.mark.parametrize("run", [1, 3, 8, 9, 20, 300])
@pytest.mark.parametrize("form", [HOST, FORMS["fma"], Form(3, 1, 2)], ids=str)
def test_every_way_to_read_a_row(form: Form, run: int, together: int) -> None:
    """Rows in groups that lie beside each other, terms in runs with gaps; the words between must not be read."""
    rows, terms = 2 * HOST.columns + 1, 300
    columns = np.arange(terms) + np.arange(terms) // run * (rows + 7)
    begins = np.arange(rows) + np.arange(rows) // together * int(columns[-1] + 2)
    memory = torch.full((int(begins[-1] + columns[-1]) + 1,), torch.nan)
    used = torch.from_numpy(begins[:, None] + columns)
    memory[used] = draw("wide", 1, 1, memory.numel())[0, 0][used]
    a, b = IndexedMatrix(memory, begins[None], columns), draw("wide", 1, 5, terms, seed=1)
    for left, right in ((a, b), (b, a)):
        found = sums_of(left, right, form)
        expected = sums_of(*(x if isinstance(x, torch.Tensor) else x.whole() for x in (left, right)), form)
        assert torch.equal(found[0], expected[0]) and all(map(torch.equal, found[1], expected[1]))
    assert bool(found[0].isfinite().all())


def test_infinities_and_nan_stay_in_their_rows() -> None:
    a, b = draw("edges", 1, 20, 40), draw("edges", 1, 20, 40, seed=1)
    a[:, ::2], b[:, ::3] = draw("normal", 1, 10, 40), draw("normal", 1, 7, 40)
    sums, squares = sums_of(a, b)
    for x, found in zip((a, b), squares, strict=True):
        assert torch.equal(torch.isfinite(found), torch.isfinite(x).all(-1))
    assert bool(torch.isfinite(sums[:, ::2, ::3]).all())
    assert words(sums.float().nan_to_num(torch.nan) + 0.0) != [] and words(dot(a, b)) == dot_words(a, b)


def test_words_in_a_process_that_flushes_subnormal_numbers() -> None:
    """The kernel sets the processor's modes, and restores them."""
    a, b = torch.full((1, 7, 9), LEAST), torch.full((1, 9, 9), 1.0)
    try:
        assert torch.set_flush_denormal(True)
        sums, _ = sums_of(a, b)
        assert not bool((a * 1.0).any()), "the process flushes still"
    finally:
        torch.set_flush_denormal(False)
    assert bool((sums == 9 * LEAST).all())


# --- the words ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", [3, 256, 700])
def test_the_words_are_the_librarys(family: str, k: int) -> None:
    a, b = draw(family, 2, 50, k), draw(family, 1, 45, k, seed=1)
    with own_kernels(False):
        expected = dot(a, b).view(torch.int32)
    assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_results_do_not_depend_on_the_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch, threads_come_back: None
) -> None:
    a, b = draw("bf16", 2, 61, 300), draw("cancelling", 2, 77, 300, seed=1)
    expected = dot(a, b).view(torch.int32)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.WORTH", 1)
    torch.set_num_threads(threads)
    assert len(products.shared_tiles(torch.empty(2, 61, 77), 300)) >= threads
    assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", of_many([2, 5, 9, 64, 129, 768, 2100], 5, 768))
def test_a_kernel_that_errs_by_its_bound(family: str, kind: str, k: int) -> None:
    a, b = draw(family, 2, 9, k), draw(family, 1, 11, k, seed=1)
    expected = dot(a, b).view(torch.int32)
    with perturbed_kernels(kind):
        assert torch.equal(dot(a, b).view(torch.int32), expected)


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_the_bound_is_tight_to_a_small_factor(scale: float) -> None:
    """Red twin: errors of 16 times the bound are caught among 60,000 products."""
    a, b = draw("normal", 1, 250, 300), draw("normal", 1, 250, 300, seed=1)
    expected = dot(a, b)
    with perturbed_kernels("midpoint", scale):
        assert torch.equal(dot(a, b), expected) == (scale == 1.0)


def test_the_bound_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: with a bound that is too small by 2^20, promised errors change bits."""
    a, b = draw("normal", 1, 60, 768), draw("normal", 1, 60, 768, seed=1)
    expected = dot(a, b)
    monkeypatch.setattr(rounding_test, "UNIT", rounding_test.UNIT * 2.0**-20)
    with perturbed_kernels("midpoint"):
        assert not torch.equal(dot(a, b), expected)


def test_sums_are_within_the_bound() -> None:
    """Long rows that cancel: the bound is relative to the sum of the terms' magnitudes."""
    for k in (257, 5000):
        a, b = draw("cancelling", 1, 3, k), draw("wide", 1, 3, k, seed=1)
        for x, found in zip(a[0].tolist(), sums_of(a, b)[0][0].tolist(), strict=True):
            for y, value in zip(b[0].tolist(), found, strict=True):
                terms = [Fraction(p) * Fraction(q) for p, q in zip(x, y, strict=True)]
                bound = Fraction(own.terms_of(k) - 1, 2**53) * sum(map(abs, terms))
                assert abs(Fraction(value) - sum(terms)) <= bound * (1 + Fraction(1, 2**22))


# --- selection of the kernels ---


def made_by() -> str:
    return next(finding.detail for finding in examine("cpu") if finding.what == "products are computed by")


def test_the_switch_and_the_doctors_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("the library")

    a = draw("normal", 1, 4, 9)
    expected = dot(a, a)
    assert made_by().startswith("vgame's kernels")
    with using(replace(NATIVE, product=refuse)):
        assert torch.equal(dot(a, a), expected)
        for library in (own_kernels(False), nullcontext()):
            with library, pytest.raises(RuntimeError, match="the library"):
                dot(a, a)
            monkeypatch.setattr(own, "form", lambda: None)  # a processor without fused multiply-adds
    assert torch.equal(dot(a, a), expected)
    assert made_by() == "the library's kernels: this processor has no fused multiply-adds"


@pytest.mark.parametrize(("device", "maker"), [("default", "vgame's"), ("compatible", "the"), ("reversed", "the")])
def test_two_devices_differ_in_kernels(device: str, maker: str) -> None:
    with use_device(device):
        assert made_by().split()[0] == maker


def test_the_form_follows_the_processor() -> None:
    assert form_of("x86_64-unknown-linux-gnu", "+sse2,-fma,+avx") is None
    assert form_of("x86_64-unknown-linux-gnu", "+fma,+avx2,-avx512f") == FORMS["fma"]
    assert form_of("x86_64-unknown-linux-gnu", "+fma,+avx512f") == FORMS["avx512f"]
    assert form_of("aarch64-unknown-linux-gnu", "+neon") == form_of("arm64-apple-darwin", "") == FORMS["neon"]
    assert form_of("ppc64le-unknown-linux-gnu", "+altivec") is None


@pytest.mark.parametrize("k", [1, 255, 256, 257, 512, 513, 768, 65536, 10**6])
def test_chains_cover_a_row(k: int) -> None:
    chain, blocks = own.chain_of(k), -(-k // own.CHAIN)
    assert chain <= own.CHAIN and (blocks - 1) * chain < k <= blocks * chain
    assert own.terms_of(k) == chain + blocks - 1

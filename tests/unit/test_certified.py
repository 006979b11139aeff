"""Certified products, sums and maxima against the exact reference, bit by bit. Data: certified_data.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from certified_data import (
    EDGES,
    FAMILIES,
    INF,
    LARGEST,
    LEAST,
    NAN,
    dot_words,
    draw,
    from_words,
    one_hot_words,
    sum_words,
    words,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from vgame.arithmetic import certified, vendor, workspace
from vgame.arithmetic.certified import argmax, counting, dot, one_hot_sum, reduce_max, sum_rows
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import exact as exact_tier
from vgame.arithmetic.torch import products, sums

families = pytest.mark.parametrize("family", FAMILIES)
POSITIVE_ZERO, ONE_NAN = 0, 0x7FC00000


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).float().view(1, 1, -1)


# --- products ---


@families
@pytest.mark.parametrize("k", [1, 2, 3, 8, 127, 128, 129])
def test_dot_is_the_reference(family, k):
    a, b = draw(family, 2, 5, k), draw(family, 2, 6, k, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)


@families
@pytest.mark.parametrize("k", [1023, 1024, 1025, 4096])
def test_dot_of_long_rows(family, k):
    a, b = draw(family, 1, 2, k), draw(family, 1, 3, k, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)


@pytest.mark.parametrize("family", ["normal", "int12", "wide", "any bits"])
def test_dot_of_65536_terms(family):
    a, b = draw(family, 1, 1, 65536), draw(family, 1, 2, 65536, seed=1)
    assert words(dot(a, b)) == dot_words(a, b)


def test_every_pair_of_edges():
    """All 27 x 27 products, and all sums of two products of a sign each: infinities, inf * 0, NaN, ties at the
    border."""
    edges = from_words(EDGES)
    single = edges.view(1, -1, 1)
    assert words(dot(single, single)) == dot_words(single, single)
    pairs = torch.cartesian_prod(edges, edges).unsqueeze(0)
    ones = torch.tensor([[[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]]])
    assert words(dot(pairs, ones)) == dot_words(pairs, ones)


def test_ties_go_to_even_everywhere():
    """Every element is an exact tie: odd multiples of half an ulp, normal and subnormal."""
    odd = (2 * torch.arange(256) + 1).float().view(1, -1, 1)
    a = torch.cat([torch.full_like(odd, 2.0**24), odd], 2)
    assert words(dot(a, torch.ones(1, 1, 2))) == dot_words(a, torch.ones(1, 1, 2))
    tiny = torch.full((1, 1, 1), 2.0**-75)
    assert words(dot(odd * 2.0**-75, tiny)) == dot_words(odd * 2.0**-75, tiny)
    assert [r[0] for r in words(dot(odd * 2.0**-75, tiny))[0][:4]] == [0, 2, 2, 4]


@pytest.mark.parametrize("nudge", [0.0, LEAST, -LEAST, 2.0**-100, -(2.0**-100)])
@pytest.mark.parametrize("head", [(2.0**24, 1.0), (2.0**24 + 2, 1.0), (3 * LEAST, 0.0), (LARGEST, 2.0**103)])
def test_next_to_a_midpoint(head, nudge):
    """A midpoint, exactly or nudged by the least amount: only the exact tier sees the difference."""
    a = row(*head, nudge)
    for sign in (1.0, -1.0):
        assert words(dot(sign * a, torch.ones(1, 1, 3))) == dot_words(sign * a, torch.ones(1, 1, 3))
        assert words(sum_rows(sign * a[0])) == sum_words(sign * a[0])


def test_the_overflow_border():
    """LARGEST + 2^103 is the midpoint to 2^128 and rounds to infinity; anything below does not."""
    a = torch.cat([row(LARGEST, 2.0**103, 0.0), row(LARGEST, 2.0**103, -LEAST), row(LARGEST, 2.0**102, 0.0)], 1)
    assert dot(a, torch.ones(1, 1, 3)).view(-1).tolist() == [INF, LARGEST, LARGEST]
    assert dot(-a, torch.ones(1, 1, 3)).view(-1).tolist() == [-INF, -LARGEST, -LARGEST]


def test_zero_is_positive_and_nan_is_one_word():
    a = torch.cat([row(-0.0, -0.0), row(-1.0, 1.0), row(-LEAST, 0.0), row(INF, -INF), row(NAN, 1.0)], 1)
    b = row(1.0, 1.0) * 0.25
    assert [r[0] for r in words(dot(a, b))[0]] == [POSITIVE_ZERO] * 3 + [ONE_NAN] * 2
    assert words(sum_rows(a[0] * 0.0))[0] == POSITIVE_ZERO


def test_infinities_in_many_rows_do_not_disturb_the_others():
    a, b = draw("normal", 1, 9, 40), draw("normal", 1, 9, 40, seed=1)
    a[:, ::2] = a[:, ::2].masked_fill(a[:, ::2] > 0.5, -INF)
    b[:, 3, 7], b[:, 4] = NAN, 0.0
    assert words(dot(a, b)) == dot_words(a, b)


@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (3, 3), (1, 1)])
def test_one_batch_is_broadcast_to_all(batches):
    for family in ("normal", "int12", "edges"):
        a, b = draw(family, batches[0], 4, 33), draw(family, batches[1], 5, 33, seed=1)
        assert words(dot(a, b)) == dot_words(a, b)


def test_any_strides():
    x, y = draw("int12", 40, 12), draw("wide", 14, 40)
    views = [x.T[None], x.T[None, ::3], x.T.flip(0)[None], x.T[None, :, ::2].repeat_interleave(2, 2), x[:, :1].T[None]]
    for view in [*views, x.as_strided((1, 9, 40), (0, 3, 1))]:
        for other in (y[None], y[None, 1::2], y[:1].expand(3, -1)[None]):
            assert words(dot(view, other)) == dot_words(view, other)
    assert words(sum_rows(x.T)) == sum_words(x.T)
    folded = x.view(4, 10, 12).permute(2, 0, 1)
    assert words(sum_rows(folded)[0]) == sum_words(folded[0])


def test_words_do_not_depend_on_tiles_and_passes(monkeypatch):
    """The same words for all sizes of tiles, passes, K-blocks and gathers, with every tier in use."""
    cases = [(draw(f, 3, 9, 70), draw(f, 3, 11, 70, seed=1)) for f in ("normal", "int12", "wide", "any bits", "edges")]
    index = torch.randint(-1, 9, (3, 70)).int()

    def run() -> list:
        return [[words(dot(a, b)), words(sum_rows(a)), words(one_hot_sum(index, b, 8))] for a, b in cases]

    expected = run()
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.BLOCK", 16)
    monkeypatch.setattr(sums, "SHORT", 16), monkeypatch.setattr(sums, "TWO_STAGES", 32)
    for module in (products, sums, workspace):
        monkeypatch.setattr(module, "TILE", 40)
    for sizes in (workspace.PASS, workspace.SUMS, workspace.GATHER):
        monkeypatch.setitem(sizes, "cpu", 24)
    monkeypatch.setitem(workspace.PRODUCTS, "cpu", 40)
    assert len(products.shared_tiles(torch.empty(3, 9, 11), 70)) > 9
    assert run() == expected


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "k"),
    [
        ((1, 1, 1), 1),
        ((1, 256, 1024), 2304),
        ((1, 64, 16384), 576),
        ((48, 128, 128), 64),
        ((5, 7, 9), 3),
        ((2, 3000, 70), 5000),
    ],
)
def test_tiles_cover_a_result_once_and_stay_within_their_limit(shape, k, parts):
    """For three threads their number is a multiple of three, if there are enough rows, columns or batches."""
    limit, covered = 1 << 20, torch.zeros(shape, dtype=torch.int32)
    found = products.tiles(*shape, k, limit, parts)
    block = products.block_length(k)
    for i, m, n in found:
        covered[i, m, n] += 1
        batch, rows, columns = covered[i, m, n].shape
        assert batch * max(rows * columns, rows * block, columns * block) <= limit
    assert bool((covered == 1).all())
    assert len(found) % parts == 0 or shape == (1, 1, 1)


def test_buffers_are_never_read_before_they_are_written():
    a, b = draw("normal", 2, 30, 2100), draw("normal", 2, 31, 2100, seed=1)
    expected = words(dot(a, b))
    for buffer in workspace._kept.buffers.values():
        buffer.fill_(NAN if buffer.is_floating_point() else 77)
    assert words(dot(a, b)) == expected


# --- the tiers ---


@families
@pytest.mark.parametrize("k", [2, 30, 129])
def test_slices_are_the_reference(family, k, monkeypatch):
    """All elements of the exact tier are computed by slices."""
    monkeypatch.setattr(products, "_slicing_pays", lambda *_: True)
    monkeypatch.setattr(products.Tile, "_all_exact", lambda *_: False)
    monkeypatch.setattr(products, "weigh", lambda terms: 2.0**-20)  # a bound so wide that most elements stay open
    a, b = draw(family, 2, 5, k), draw(family, 1, 6, k, seed=1)
    with counting() as counts:
        assert words(dot(a, b)) == dot_words(a, b)
    assert counts.elements == 60 and (k == 2 or counts.tier > 30 or family not in ("normal", "wide", "cancelling"))


def test_low_bit_data_is_decided_by_exactness():
    for family, tier in (("int12", 0), ("bf16", 30)):
        a, b = draw(family, 1, 256, 768), draw(family, 1, 256, 768, seed=1)
        with counting() as counts:
            result = dot(a, b)
        assert counts.exact > 100 and counts.tier <= tier, counts
        assert words(result[:, :2, :4]) == dot_words(a[:, :2], b[:, :4])


def test_cancellation_everywhere_is_decided_by_slices():
    a = draw("wide", 1, 64, 384)
    b = draw("normal", 1, 64, 384)
    a, b = torch.cat([a, -a], 2), torch.cat([b, b * (1 + 2.0**-20)], 2)
    with counting() as counts:
        result = dot(a, b)
    assert counts.tier > 4000, counts
    assert words(result[:, :2, :3]) == dot_words(a[:, :2], b[:, :3])


def test_counts_add_up():
    a, b = draw("normal", 1, 128, 768), draw("normal", 1, 256, 768, seed=1)
    with counting() as counts:
        dot(a, b), sum_rows(a), one_hot_sum(torch.zeros(1, 768).int(), b, 3)
    assert counts.elements == 128 * 256 + 128 + 3 * 256
    assert counts.bound > 0.99 * counts.elements


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_exact_tier_reports_uncertainty(levels):
    """With too few levels the sweep reports uncertainty; certain results are right."""
    x = draw("any bits", 400, 6).double()
    every, bound = torch.arange(400), x.abs().sum(-1) * (1 + 2.0**-20)
    terms = exact_tier.Rows(6, lambda e, k: x[e, k])
    value, certain = exact_tier._sweep(terms, every, bound, levels)
    assert 0 < int(certain.sum()) < 400 or levels > 1
    expected = sum_words(x.float())
    assert [w for w, c in zip(words(value.float() + 0.0), certain, strict=True) if c] == [
        w for w, c in zip(expected, certain, strict=True) if c
    ]


def test_rounding_to_odd():
    head = torch.tensor([1.0, 1.0, 1.0, 1 + 2.0**-52, -1.0, -1.0], dtype=torch.float64)
    tail = torch.tensor([0.0, 2.0**-80, -(2.0**-80), 2.0**-80, 2.0**-80, -(2.0**-80)], dtype=torch.float64)
    expected = [1.0, 1 + 2.0**-52, 1 - 2.0**-53, 1 + 2.0**-52, -(1 - 2.0**-53), -(1 + 2.0**-52)]
    assert exact_tier.round_to_odd(head, tail).tolist() == expected


# --- sums ---


@families
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 9, 63, 64, 65, 1023, 1024, 1025, 4096])
def test_sum_rows_is_the_reference(family, k):
    a = draw(family, 12, k)
    assert words(sum_rows(a)) == sum_words(a)
    assert words(sum_rows(a.T.contiguous().T)) == sum_words(a)


def test_sum_rows_keeps_the_other_dimensions():
    a = draw("wide", 3, 4, 65536 // 16)
    assert sum_rows(a).shape == (3, 4)
    assert words(sum_rows(a))[2] == sum_words(a[2])
    long = draw("normal", 1, 65536 * 4)
    assert words(sum_rows(long)) == sum_words(long)


@families
@pytest.mark.parametrize(
    "shape", [(2, 2, 40, 3, 7), (1, 1, 30, 5, 1000), (6, 6, 20, 1, 64), (1, 3, 9, 2, 4), (3, 1, 9, 2, 4)]
)
def test_one_hot_sum_is_the_reference(family, shape):
    index_batch, batch, k, n, m = shape
    torch.manual_seed(k)
    index = torch.randint(-2, min(m, 12) + 2, (index_batch, k)).int()
    b = draw(family, batch, n, k)
    result = words(one_hot_sum(index, b, m))
    few = min(m, 14)
    assert [r[:few] for r in result] == one_hot_words(index, b, few)
    assert not any(any(column) for r in result for column in r[few:])


def test_one_hot_sum_never_multiplies():
    """An infinity in an unselected term does nothing; an empty selection gives +0; one term keeps its bits, but -0."""
    index = torch.tensor([[0, 5, 2, -1]]).int()
    b = torch.tensor([[[1.5, INF, -0.0, NAN]]])
    assert words(one_hot_sum(index, b, 4)) == [[[0x3FC00000], [0], [0], [0]]]
    assert words(one_hot_sum(index * 0 - 1, b, 2)) == [[[0], [0]]]
    assert words(one_hot_sum(index * 0, b, 1)) == [[[ONE_NAN]]]


# --- maxima ---


@families
@pytest.mark.parametrize(("length", "block"), [(1, 1), (7, 3), (9, 3), (130, 64), (5, 8)])
def test_maxima_are_the_reference(family, length, block):
    a = draw(family, 25, length)
    for view in (a, a.flip(1), a.T.contiguous().T):
        rows = words(view)
        starts = range(0, length, block)
        assert words(reduce_max(view, block)) == [
            [reference.reduce_max(r[j : j + block]) for j in starts] for r in rows
        ]
        assert argmax(view).tolist() == [reference.argmax(r) for r in rows]
        assert argmax(view).dtype == torch.int32


def test_first_of_equal_maxima_and_first_nan():
    a = torch.tensor([[-0.0, 0.0, -1.0], [0.0, -0.0, 0.0], [1.0, NAN, NAN], [INF, INF, 1.0], [-INF, -INF, -INF]])
    assert argmax(a).tolist() == [0, 0, 1, 0, 0]
    assert words(reduce_max(a, 3)) == [[0], [0], [ONE_NAN], [0x7F800000], [0xFF800000]]
    wide = torch.zeros(3, 100_000)
    wide[1, 77_777:], wide[2, 99_999] = 2.0, NAN
    assert argmax(wide).tolist() == [0, 77_777, 99_999]


# --- Hypothesis: small cases near the borders ---

edge_words = st.sampled_from(EDGES) | st.integers(0, 0xFFFFFFFF).filter(lambda w: w & 0x7FFFFFFF <= 0x7F800000)
near = st.builds(
    lambda w, d: min(max(w + d, 0), 0x7F800000), st.sampled_from([w for w in EDGES if w < 2**31]), st.integers(-2, 2)
)
rows_of = st.integers(1, 6).flatmap(
    lambda k: st.lists(st.lists(edge_words | near, min_size=k, max_size=k), min_size=2, max_size=2)
)


@settings(max_examples=300, deadline=None)
@given(rows_of)
def test_small_sums_near_the_borders(pair):
    a, b = (from_words([[r]]) for r in pair)
    assert words(dot(a, b)) == dot_words(a, b)
    assert words(sum_rows(a[0])) == sum_words(a[0])
    index = torch.arange(len(pair[0])).remainder(3).int().view(1, -1) - 1
    assert words(one_hot_sum(index, a, 2)) == one_hot_words(index, a, 2)


# --- the contract with libraries ---


def test_emulated_binary64_is_refused_off_the_cpu(monkeypatch):
    gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    vendor.refuse_emulation(gpu)
    monkeypatch.setenv(vendor.EMULATION_SWITCH, "1")
    with pytest.raises(vendor.EmulatedBinary64, match="unset it"):
        vendor.refuse_emulation(gpu)
    vendor.refuse_emulation(torch.zeros(1))


@pytest.mark.parametrize("shape", [(1, 1, 1, 5), (1, 7, 1, 9), (3, 2, 2, 4), (1, 64, 64, 64), (2, 40, 3, 300)])
def test_this_library_skips_no_term(shape):
    """inf * 0 is NaN at every position, for every kernel that a shape selects."""
    batch, m, n, k = shape
    for place in {0, k // 2, k - 1}:
        a, b = torch.ones(batch, m, k), torch.ones(batch, n, k)
        a[..., place], b[..., place] = INF, 0.0
        assert bool(dot(a, b).isnan().all())
        b[..., place] = -1.0
        assert bool((dot(a, b) == -INF).all())


def test_the_public_interface_exports_its_names():
    assert all(hasattr(certified, name) for name in certified.__all__)

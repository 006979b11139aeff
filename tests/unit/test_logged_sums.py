"""Trainer and auditor of one sum: with the proven window both give the same words on devices that err as much as the
bound allows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from certified_data import words
from enclosures import enclose_dot, enclose_sum
from logged_draws import draw
from perturbed import perturbed_products as perturbed
from wide import of_many

from vgame.arithmetic import workspace
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.vendor import reversed_order
from vgame.logged import products, row_sums
from vgame.logged.admissible import Enclosure
from vgame.logged.rounding import Direction, cells
from vgame.logged.sums import PROVEN, Entries, Site, follow, round_pass
from vgame.program.operators import Variant

pytestmark = pytest.mark.usefixtures("one_thread")


KINDS = ("normal", "cancelling", "low bits", "sparse", "subnormal", "huge")


Compute = Callable[[Site], torch.Tensor]


def cases(kind: str) -> dict[str, Compute]:
    a, b = draw(kind, (2, 24, 300), 1), draw(kind if kind != "cancelling" else "normal", (2, 40, 300), 2)
    long_a, long_b = draw(kind, (1, 6, 2600), 3), draw("normal", (1, 9, 2600), 4)
    rows = draw(kind, (200, 1500), 5)
    index = torch.randint(-1, 7, (3, 90), generator=torch.Generator().manual_seed(6)).to(torch.int32)
    terms = draw(kind, (3, 20, 90), 7)
    return {
        "dot": lambda site: products.dot(a, b, site),
        "long dot": lambda site: products.dot(long_a, long_b, site),
        "sum": lambda site: row_sums.sum_rows(rows, site),
        "one hot": lambda site: row_sums.one_hot_sum(index, terms, 6, site),
    }


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.int32), y.contiguous().view(torch.int32))


def pairs() -> list[tuple[str, AbstractContextManager, AbstractContextManager]]:
    return [
        ("two orders", nullcontext(), reversed_order()),
        ("up against down", perturbed("up"), perturbed("down")),
        ("across the midpoint", perturbed("midpoint"), reversed_order()),
    ]


@pytest.mark.parametrize("bits", (26, 32))
@pytest.mark.parametrize("kind", KINDS)
def test_the_auditor_gets_the_trainers_words(kind: str, bits: int) -> None:
    corrections = 0
    for name, compute in cases(kind).items():
        for devices, first, second in pairs():
            with first:
                site = Site(bits)
                trained = compute(site)
            entries = site.entries()
            assert np.all(np.diff(entries.positions) > 0)
            with second:
                site = Site(bits, given=entries)
                audited = compute(site)
            assert same(trained, audited), (name, devices)
            corrections += len(site.corrections)
            assert not bool((trained.view(torch.int32) & (1 << 32 - bits) - 1)[torch.isfinite(trained)].any())
    if kind == "normal" and bits == 32:
        assert corrections > 0, "the devices did not differ, so nothing was shown"


@pytest.mark.parametrize("bits", (26, 29, 32))
@pytest.mark.parametrize("allowed", (True, False), ids=["compiled", "passes"])
def test_a_negative_sum_that_rounds_to_zero_is_positive_zero(bits: int, allowed: bool) -> None:
    """-2^-149 is summed exactly, since the terms before it cancel; with fewer than 32 bits it is below half of the
    least cell."""
    a, b = torch.tensor([1.0, 1.0, 1.0, 2.0**-149]), torch.tensor([1.0, 2.0**-20, -1 - 2.0**-20, -1.0])
    word = enclose_dot(words(a), words(b), bits).word(Direction.NONE)
    with compiled(allowed):
        for given in (None, Entries()):
            found = products.dot(a.view(1, 1, -1), b.view(1, 1, -1), Site(bits, given=given))
            assert words(found.view(-1)) == [word] and (word == 0) == (bits < 32)


def sums_where_rounding_is_hard(bits: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(exact sums, bounds): at ends and midpoints of cells, at powers of two and at zero; from a small part of a cell
    to many cells."""
    dice = np.random.default_rng(7)
    low = np.where(dice.random(size) < 0.8, 0, dice.integers(0, 1 << bits - 9, size)) << 32 - bits
    end = (low + (dice.choice([0, 1, 127], size) << 23)).astype(np.int32).view(np.float32).astype(np.float64)
    half = cells(torch.from_numpy(end), bits)[1].numpy()
    e = half * 2.0 ** (dice.uniform(-3, 1, size) * dice.choice([1, 4], size))
    near = dice.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], size) * (1 + 2.0**-12 * dice.standard_normal(size))
    exact = end + half * dice.choice([-1.0, -0.5, 0.0, 0.5, 1.0], size) + e * near
    return torch.from_numpy(exact * dice.choice([-1.0, 1.0], size)), torch.from_numpy(e * dice.choice([1.0, 0.5], size))


@pytest.mark.parametrize("window", of_many((PROVEN, 1.0, 0.25), PROVEN, 0.25))
@pytest.mark.parametrize("bits", (26, 32))
@pytest.mark.parametrize("allowed", (True, False), ids=["compiled", "passes"])
def test_devices_that_err_as_much_as_they_may(bits: int, window: float, allowed: bool) -> None:
    """Honest logs replicate; with proven windows the words are those of the integers, for any log."""
    dice, size = np.random.default_rng(8), 5000
    exact, e = sums_where_rounding_is_hard(bits, size)
    most = min(1.0, window / 2) * (1 - 2.0**-10)
    first, second = (exact + e * most * torch.from_numpy(dice.choice([-1.0, 0.0, 1.0], size)) for _ in range(2))
    here = torch.ones(size, dtype=torch.bool)

    def words_of(s: torch.Tensor, given: Entries | None) -> tuple[list[int], Site]:
        site, out = Site(bits, window, given), torch.empty(size)
        with compiled(allowed):
            row_sums._Sums(
                s, e, e, lambda i: i, lambda at: (at, here[at]), lambda i: ~here[i], lambda i: exact[i]
            ).round(site, out)
        found = words(out)
        for i in site.doubtful:
            found[i] = enclosures[i].word(given.direction(i))
        return found, site

    enclosures = [Enclosure(*map(Fraction, pair), bits) for pair in zip(exact.tolist(), e.tolist(), strict=True)]
    trained, site = words_of(first, None)
    entries = site.entries()
    audited, site = words_of(second, entries)
    assert audited == trained and len(site.corrections) > 20 and not site.refused
    if window == PROVEN:
        some = np.flatnonzero(dice.random(size) < 0.5)
        for log in (entries, Entries(some, dice.random(len(some)) < 0.5)):
            directions = dict(zip(log.positions.tolist(), (Direction(2 * up) for up in log.up.tolist()), strict=True))
            expected = [one.word(directions.get(i, Direction.NONE)) for i, one in enumerate(enclosures)]
            assert words_of(second, log)[0] == expected


@pytest.mark.parametrize("bits", (26, 32))
def test_a_single_sum_is_found_as_by_the_passes(bits: int) -> None:
    """The compiled loop first tests many sums at once: here one, in a row of its own."""
    s, e = (x.view(1, -1, 1) for x in sums_where_rounding_is_hard(bits, 3000))
    for site in (Site(bits), Site(bits, given=Entries()), Site(bits, 0.25), Site(bits, 0.25, Entries())):
        found = []
        for allowed in (True, False):
            out = torch.empty(s.shape)
            with compiled(allowed):
                places, turns = round_pass(s, e, torch.ones(1, 1, 1, dtype=torch.float64), site, out)
            found.append((words(out), places.tolist(), turns.tolist()))
        assert found[0] == found[1] and 100 < len(found[0][1]) < 2900


@pytest.mark.parametrize("bits", (26, 29, 32))
@pytest.mark.parametrize("allowed", (True, False), ids=["compiled", "passes"])
@pytest.mark.parametrize(("middle", "unit"), [(1, 1.0), (3, -1.0)], ids=["above", "below"])
def test_a_sum_one_unit_beside_a_midpoint(middle: int, unit: float, bits: int, allowed: bool) -> None:
    """binary64 can represent only the midpoint: the trainer logs it, and without an entry the exact sum is rounded,
    once."""
    terms = torch.tensor([2.0**54, middle * 2.0 ** (62 - bits), unit])
    row, index = terms.view(1, 1, 3), torch.zeros(1, 3, dtype=torch.int32)
    word = enclose_sum(words(terms), bits).word(Direction.NONE)
    for compute in (
        lambda site: products.dot(row.expand(1, 4, 3), torch.ones(1, 2, 3), site),
        lambda site: row_sums.sum_rows(row[0], site),
        lambda site: row_sums.one_hot_sum(index, row, 1, site),
    ):
        trainer = Site(bits)
        with compiled(allowed):
            exact, seen = words(compute(Site(bits, given=Entries())).view(-1)), words(compute(trainer).view(-1))
        assert set(exact) == {word} and word not in seen
        assert trainer.entries().positions.tolist() == list(range(len(seen)))


def test_words_do_not_depend_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging and following tile by tile equals that of the whole: every entry has its place in the whole result."""
    rows, terms = draw("normal", (200, 150), 5), draw("normal", (3, 20, 90), 7)
    for x in (rows, terms):  # large terms that cancel: every few sums have an entry
        third = x.shape[-1] // 3
        x[..., :third] *= 2.0**15
        x[..., third : 2 * third] = -x[..., :third]
        x[..., 2 * third :] *= 2.0 ** -(torch.arange(third) % 19)
    index, corrections = (torch.arange(90) % 30 % 7 - 1).int().expand(3, -1), 0
    kinds = {
        "dot": cases("normal")["dot"],
        "sum": lambda site: row_sums.sum_rows(rows, site),
        "one hot": lambda site: row_sums.one_hot_sum(index, terms, 6, site),
    }

    def run(compute: Compute, device: str, given: Entries | None = None) -> tuple[torch.Tensor, Site]:
        with perturbed(device):
            site = Site(32, given=given)
            return compute(site), site

    whole = [run(compute, "up") for compute in kinds.values()]
    monkeypatch.setitem(workspace.PRODUCTS, "cpu", 1 << 10), monkeypatch.setitem(workspace.SUMS, "cpu", 1600)
    for (name, compute), (expected, site) in zip(kinds.items(), whole, strict=True):
        entries, (found, tiled) = site.entries(), run(compute, "up")
        assert same(found, expected) and tiled.entries().positions.tolist() == entries.positions.tolist(), name
        found, followed = run(compute, "down", entries)
        assert same(found, expected) and not followed.refused and len(entries), name
        corrections += len(followed.corrections)
    assert corrections > 0


@pytest.mark.parametrize("variant", list(Variant))
def test_an_entry_of_a_device_that_adds_in_any_order(variant: Variant) -> None:
    """Its error may be as large as the number of the terms allows, which is far more than this device's own."""
    terms = torch.zeros(4096)
    terms[:4] = torch.tensor([1.0, 2.0**-24, 1.5 * 2.0**-42, 2.0**-60])
    part = torch.where(terms != 0, 2.0 ** (terms.log2() / 2).ceil(), 0.0)
    row, index = terms.view(1, 1, -1), torch.where(terms != 0, 0, -1).int().view(1, -1)
    site = Site(32, given=Entries(np.array([0]), np.array([False])))
    out = {
        Variant.DOT: lambda: products.dot((terms / part).nan_to_num().view(row.shape), part.view(row.shape), site),
        Variant.SUM: lambda: row_sums.sum_rows(row[0], site),
        Variant.ONE_HOT: lambda: row_sums.one_hot_sum(index, row, 1, site),
    }[variant]()
    assert enclose_sum(words(terms), 32).word(Direction.DOWN) == 0x3F800000
    assert words(out.view(-1)) == [0x3F800000] and site.doubtful == [0] and not site.refused


def test_without_the_log_the_devices_differ() -> None:
    """The damaged twin: the same sums, the auditor's log empty."""
    compute = cases("normal")["dot"]
    with perturbed("up"):
        trained = compute(Site(32))
    with perturbed("down"):
        audited = compute(Site(32, given=Entries()))
    assert not same(trained, audited)


def test_passes_and_compiled_loops_agree() -> None:
    for kind in KINDS:
        for name, compute in cases(kind).items():
            if name == "sum" or kind == "huge":
                continue
            results = []
            for allowed in (True, False):
                with compiled(allowed):
                    site = Site(32)
                    results.append((compute(site), site.entries()))
            (x, log_x), (y, log_y) = results
            assert same(x, y), (kind, name)
            assert set(log_x.positions) ^ set(log_y.positions) == set(), (kind, name)


def test_passes_and_compiled_loops_follow_an_arbitrary_log_alike() -> None:
    """Equal words, corrections, doubtful and refused entries, near midpoints and far from them."""
    dice, seen = np.random.default_rng(5), set()
    for kind in KINDS:
        for bits in (26, 32):
            s = draw(kind, (4000,), 8).double() * (1 + 2.0**-26 * torch.from_numpy(dice.standard_normal(4000)))
            s[:3] = torch.tensor([0.0, float("inf"), float("nan")], dtype=torch.float64)
            e = s.abs().nan_to_num(posinf=1.0) * torch.from_numpy(2.0 ** -dice.uniform(20, 40, 4000))
            names, up = torch.arange(0, 12000, 3), torch.from_numpy(dice.random(4000) < 0.5)
            found = []
            for allowed in (True, False):
                with compiled(allowed):
                    site = Site(bits, given=Entries())
                    followed = follow(names, up, s, e, site)
                    found.append((followed, site.corrections, site.doubtful, site.refused, site.beside))
            assert same(found[0][0], found[1][0]) and found[0][1:] == found[1][1:], (kind, bits)
            seen |= {i for i in (1, 2, 3, 4) if found[0][i]}
    assert seen == {1, 2, 3, 4}

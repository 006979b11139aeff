"""The words that a log admits for a sum, and an auditor's treatment of any entry."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, words
from certified_data import draw as draw_family
from enclosures import enclose_dot, enclose_sum
from logged_draws import draw
from perturbed import perturbed_products as perturbed
from small_programs import World

from vgame.arithmetic.numba.compiled import compiled
from vgame.logged import products, row_sums
from vgame.logged.admissible import Enclosure, moments_dot
from vgame.logged.compiled_moments import moments
from vgame.logged.kernels import LoggedExecutor
from vgame.logged.rounding import Direction, round_fraction
from vgame.logged.sums import Entries, Site, without_entry
from vgame.program.operators import Contract, Ref, RefClass, Variant

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("allowed", (True, False))
def test_no_entry_changes_an_infinity(allowed: bool) -> None:
    """Infinite and NaN sums, and finite ones far beyond 2^128: no device gives another word."""
    a, b = draw("normal", (1, 8, 64), 1), draw("normal", (1, 8, 64), 2) * 2.0**70
    a[0, 0, 0], a[0, 1, 1], a[0, 2] = torch.inf, torch.nan, a[0, 2] * 2.0**70
    rows = draw("normal", (8, 64), 3)
    rows[0, 0], rows[1, 1], rows[2] = torch.inf, torch.nan, 2.0**127
    for compute, width in ((lambda site: products.dot(a, b, site)[0], 8), (lambda s: row_sums.sum_rows(rows, s), 1)):
        site = Site(32)
        with compiled(allowed):
            out = compute(site).view(8, width)
        assert not out[:3].isfinite().any() and out[3:].isfinite().all()
        assert (site.entries().positions >= 3 * width).all()


def test_every_word_is_admissible_and_others_are_not() -> None:
    """Predicate in integers: the trainer's word on any device is admitted; one an ulp further is not."""
    a, b = draw("normal", (1, 8, 512), 1), draw("normal", (1, 8, 512), 2)
    a[..., 256:] = -a[..., :256] * (1 + 2.0**-22)
    b[..., 256:] = b[..., :256]  # strong cancellation, so that the bound spans words
    words = [[x.view(torch.int32).tolist() for x in rows[0]] for rows in (a, b)]
    words = [[[w & 0xFFFFFFFF for w in row] for row in rows] for rows in words]
    free = 0
    for device in ("up", "down", "midpoint"):
        with perturbed(device, 0.5):  # its error is relative to the norms, the predicate's bound to the terms
            site = Site(32)
            out = products.dot(a, b, site)[0]
        entries = site.entries()
        logged = dict(zip(entries.positions.tolist(), entries.up.tolist(), strict=True))
        for m in range(8):
            for n in range(8):
                enclosure = enclose_dot(words[0][m], words[1][n], 32)
                word = out[m, n].view(torch.int32).item() & 0xFFFFFFFF
                up = logged.get(8 * m + n)
                entry = Direction.NONE if up is None else Direction.UP if up else Direction.DOWN
                assert enclosure.allows(entry) and enclosure.word(entry) == word
                free += enclosure.free
                if not enclosure.free:
                    assert not enclosure.admits(word + 1) and not enclosure.admits(word - 1)
    assert free > 0


def test_the_predicate_on_cases_by_hand() -> None:
    tiny = Fraction(1, 2**60)
    middle = 1 + Fraction(1, 2**24)
    one, above = 0x3F800000, 0x3F800001
    near = Enclosure(middle + tiny, 2 * tiny, 32)
    assert near.free and not near.admits(above + 1)
    assert [near.word(entry) for entry in Direction] == [one, above, above]
    far = Enclosure(middle + 4 * tiny, 2 * tiny, 32)
    assert [far.word(entry) for entry in Direction] == [above] * 3 and [far.allows(e) for e in Direction] == [
        False,
        True,
        True,
    ]
    even = Enclosure(middle + 2 * tiny, 2 * tiny, 32)
    assert even.word(Direction.DOWN) == one, "exact - e is the midpoint, whose even end is the lower one"
    odd = Enclosure(middle + 2 * (middle - 1) - 2 * tiny, 2 * tiny, 32)
    assert [odd.word(entry) for entry in Direction] == [above, above, above + 1], (
        "exact + e is the next midpoint, its even end the upper one"
    )
    assert not Enclosure(middle, tiny, 26).admits(above), "not on the grid of 26 bits"
    zero = Enclosure(Fraction(0), tiny * Fraction(1, 2**200), 32)
    assert zero.word(Direction.UP) == 0 and zero.allows(Direction.DOWN) and not zero.allows(Direction.UP)
    minus = Enclosure(-middle - tiny, 2 * tiny, 32)
    assert [minus.word(entry) for entry in Direction] == [one | 1 << 31, above | 1 << 31, above | 1 << 31]
    assert enclose_sum([0x7F800000, one], 32) is None
    third = 0x3EAAAAAB
    assert enclose_sum([one], 32).bound == 0 and enclose_sum([one, third], 32).bound == 0, "exact in binary64"
    assert enclose_sum([one, third >> 8 | third << 22 & 0x3FFFFFFF, 1], 32, 9).bound > 0
    assert round_fraction(middle, 32) == one


def test_an_auditor_has_the_word_of_the_integers_for_every_log() -> None:
    """Entries left out, added, flipped: with proven windows the word is a function of operands and log, on every
    device."""
    a, b = draw("normal", (1, 8, 512), 1), draw("normal", (1, 8, 512), 2)
    a[..., 256:] = -a[..., :256] * (1 + 2.0**-22)
    b[..., 256:] = b[..., :256]
    words = [[[w & 0xFFFFFFFF for w in row] for row in x.view(torch.int32)[0].tolist()] for x in (a, b)]
    enclosures = [enclose_dot(x, y, 32) for x in words[0] for y in words[1]]
    generator, changed = np.random.default_rng(3), 0
    for trial in range(12):
        positions = np.flatnonzero(generator.random(64) < (0, 0.3, 1)[trial % 3])
        given = Entries(positions.astype(np.int64), generator.random(len(positions)) < 0.5)
        entries = dict(zip(positions.tolist(), given.up.tolist(), strict=True))
        directions = [Direction(2 * entries[i]) if i in entries else Direction.NONE for i in range(64)]
        expected = [e.word(d) for e, d in zip(enclosures, directions, strict=True)]
        changed += sum(e.word(d) != e.word(Direction.NONE) for e, d in zip(enclosures, directions, strict=True))
        for device in ("up", "down", "midpoint"):
            with perturbed(device, 0.5):
                site = Site(32, given=given)
                out = products.dot(a, b, site).view(-1)
            for position in site.doubtful:
                out[position] = torch.tensor(expected[position]).to(torch.int32).view(torch.float32)
            assert [w & 0xFFFFFFFF for w in out.view(torch.int32).tolist()] == expected
    assert changed > 20


@pytest.mark.parametrize("device", ("up", "down"))
def test_entries_for_sums_beside_an_end_of_their_cell_need_no_integers(device: str) -> None:
    """Integers, whose sums are ends of cells, and one of whose terms has a tail: a log with an entry for each cannot
    delay an auditor."""
    a, b = (draw("low bits", (1, 12, 300), seed) for seed in (1, 2))
    a[..., 0], b[..., 0] = 2.0**-40, torch.tensor([1.0, -1.0, 0.0]).repeat(4)
    rows = [[words(row) for row in x[0]] for x in (a, b)]
    given = Entries(np.arange(144), np.random.default_rng(4).random(144) < 0.5)
    with perturbed(device):
        site = Site(32, given=given)
        found = words(products.dot(a, b, site).view(-1))
    enclosures = [enclose_dot(x, y, 32) for x in rows[0] for y in rows[1]]
    assert found == [e.word(given.direction(i)) for i, e in enumerate(enclosures)] and not site.doubtful
    assert 40 < len(site.beside) < 104 and all(
        not e.allows(given.direction(i)) for i, e in enumerate(enclosures) if i in site.beside and i % 3 == 2
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_moments_are_those_of_the_integers(family: str) -> None:
    for length in (1, 2, 7, 300):
        x, y = draw_family(family, length, seed=1), draw_family(family, length, seed=2)
        expected = moments_dot(words(x), words(y))
        assert moments(x, y) == (None if expected.value.cls else expected)
        strided = torch.stack([x, y], 1)
        assert moments(strided[:, 0], strided[:, 1]) == moments(x, y)


def three_batches(variant: Variant, terms: torch.Tensor, log: dict[int, Entries]) -> list[float]:
    """The words of three batches of the same five terms, by a log with arbitrary entries."""
    state, index = Ref(RefClass.STATE, 0), Ref(RefClass.STATE, 1)
    a, b = {Variant.DOT: (state, index), Variant.SUM: (state, state), Variant.ONE_HOT: (index, state)}[variant]
    other = torch.ones(5) if variant is Variant.DOT else torch.zeros(5, dtype=torch.int32)
    contraction = Contract(variant, 3, 1, 1, 5, a, b, True, variant is not Variant.SUM)
    executor = LoggedExecutor(World().program([contraction]), (), torch.zeros(1, 0), 0, 32, {})
    executor.read, executor.kernels.strict = lambda step: log, False
    found: dict[int, list[float]] = {}
    executor.step(1, [terms, other], lambda i, x: found.setdefault(i, x.tolist()) and x)
    return found[0]


@pytest.mark.parametrize("variant", list(Variant))
def test_every_batch_has_entries_of_its_own(variant: Variant) -> None:
    """Three batches of the same terms, with two admissible words: an entry of one batch does not affect the others."""
    terms = torch.tensor([1.0, 2.0**-24, 2.0**20, -(2.0**20), 2.0**-60])
    log = {0: Entries(np.array([1, 2]), np.array([False, True]))}
    assert three_batches(variant, terms, log) == [1 + 2.0**-23, 1.0, 1 + 2.0**-23]
    assert three_batches(variant, terms, {}) == [1 + 2.0**-23] * 3, "also of an operator that the log leaves out"


@pytest.mark.parametrize("variant", list(Variant))
def test_an_entry_that_only_the_integers_refuse_does_not_count(variant: Variant) -> None:
    """The exact sum is one and a half bounds from the midpoint: too far for any trainer's entry, too near to decide by
    one device's sum."""
    terms = torch.tensor([1.0, 2.0**-24, 2.0**20, -(2.0**20), 15 * 2.0**-33 + 2.0**-50])
    assert not enclose_sum(words(terms), 32).allows(Direction.DOWN)
    assert three_batches(variant, terms, {0: Entries(np.array([1]), np.array([False]))}) == [1 + 2.0**-23] * 3


def test_an_entry_of_selected_terms_is_judged_by_all_that_the_program_adds() -> None:
    """Four of 4096 terms belong to the target: another device's error may be that of 4096."""
    terms = torch.zeros(4096)
    terms[:4] = torch.tensor([1.0, 2.0**-24, 1.5 * 2.0**-42, 2.0**-60])
    index = torch.where(terms != 0, 0, -1).int()
    contraction = Contract(Variant.ONE_HOT, 1, 1, 1, 4096, Ref(RefClass.STATE, 1), Ref(RefClass.STATE, 0), False, False)
    executor = LoggedExecutor(World().program([contraction]), (), torch.zeros(1, 0), 0, 32, {})
    executor.read = lambda step: {0: Entries(np.array([0]), np.array([False]))}
    found: dict[int, list[float]] = {}
    executor.step(1, [terms, index], lambda i, x: found.setdefault(i, x.tolist()) and x)
    assert found[0] == [1.0]


def test_a_log_without_entries_frees_every_sum() -> None:
    site = Site(32, given=Entries())
    assert without_entry(torch.arange(3), site).tolist() == [True] * 3
    assert without_entry(torch.arange(0), site).numel() == 0

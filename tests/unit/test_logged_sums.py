"""Trainer and auditor of one sum: with the proven window both give the same words on devices that err as much as the
bound allows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, words
from certified_data import draw as draw_family
from small_programs import World

from vgame.arithmetic import workspace
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.torch.perturbed import perturbed_products as perturbed
from vgame.arithmetic.torch.vendor import reversed_order
from vgame.logged import products, row_sums
from vgame.logged.admissible import Enclosure, enclose_dot, enclose_sum, moments_dot
from vgame.logged.compiled_moments import moments
from vgame.logged.kernels import LoggedExecutor
from vgame.logged.rounding import Direction, cells, round_fraction
from vgame.logged.sums import PROVEN, Entries, Site, follow, round_pass, without_entry
from vgame.program.operators import Contract, Ref, RefClass, Variant

pytestmark = pytest.mark.usefixtures("one_thread")


def draw(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if kind == "cancelling":
        x = x * torch.exp2(torch.randint(-18, 18, shape, generator=generator).float())
        half = shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half] * (
            1 + 2.0**-20 * torch.randint(0, 3, (*shape[:-1], half), generator=generator)
        )
    elif kind == "low bits":
        x = torch.randint(-9, 10, shape, generator=generator) / 8
    elif kind == "sparse":
        x[torch.rand(shape, generator=generator) < 0.9] = 0.0
    elif kind == "subnormal":
        x = x * 2.0**-75
    elif kind == "huge":
        x = x * 2.0**62
    return x


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
    """-2^-149 is summed exactly, for the terms before it cancel; with fewer than 32 bits it lies below half of the
    least cell."""
    a, b = torch.tensor([1.0, 1.0, 1.0, 2.0**-149]), torch.tensor([1.0, 2.0**-20, -1 - 2.0**-20, -1.0])
    word = enclose_dot(words(a), words(b), bits).word(Direction.NONE)
    with compiled(allowed):
        for given in (None, Entries()):
            found = products.dot(a.view(1, 1, -1), b.view(1, 1, -1), Site(bits, given=given))
            assert words(found.view(-1)) == [word] and (word == 0) == (bits < 32)


def sums_where_rounding_is_hard(bits: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(exact sums, bounds): at ends and midpoints of cells, at powers of two and at zero; from little of a cell to many
    of them."""
    dice = np.random.default_rng(7)
    low = np.where(dice.random(size) < 0.8, 0, dice.integers(0, 1 << bits - 9, size)) << 32 - bits
    end = (low + (dice.choice([0, 1, 127], size) << 23)).astype(np.int32).view(np.float32).astype(np.float64)
    half = cells(torch.from_numpy(end), bits)[1].numpy()
    e = half * 2.0 ** (dice.uniform(-3, 1, size) * dice.choice([1, 4], size))
    near = dice.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], size) * (1 + 2.0**-12 * dice.standard_normal(size))
    exact = end + half * dice.choice([-1.0, -0.5, 0.0, 0.5, 1.0], size) + e * near
    return torch.from_numpy(exact * dice.choice([-1.0, 1.0], size)), torch.from_numpy(e * dice.choice([1.0, 0.5], size))


@pytest.mark.parametrize("window", (PROVEN, 1.0, 0.25))
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
    """The compiled loop looks at many sums at once first: here at one, a row of its own."""
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
    """binary64 holds the midpoint only: the trainer logs it, and without an entry the exact sum is rounded, once."""
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


def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who computes tile by tile logs, and follows, as who computes at once: every entry at its place in the whole
    result."""
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


def test_without_the_log_the_devices_part() -> None:
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


def test_an_arbitrary_log_is_followed_alike_by_passes_and_compiled_loops() -> None:
    """Words, corrections, what integers must decide, what is refused: the same, for entries near midpoints and far from
    them."""
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


@pytest.mark.parametrize("allowed", (True, False))
def test_no_entry_says_anything_of_an_infinity(allowed: bool) -> None:
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
    """Predicate in integers: what the trainer gives under any device is admitted; an ulp further is not."""
    a, b = draw("normal", (1, 8, 512), 1), draw("normal", (1, 8, 512), 2)
    a[..., 256:] = -a[..., :256] * (1 + 2.0**-22)
    b[..., 256:] = b[..., :256]  # much cancels, so that the bound spans words
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


def test_an_auditor_has_the_word_of_the_integers_whatever_the_log_says() -> None:
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
    hold an auditor up."""
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
    """The words of three batches of the same five terms, by a log in which no entry needs to be possible."""
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
    """Three batches of the same terms, which leave two words: what is logged of one batch says nothing of the
    others."""
    terms = torch.tensor([1.0, 2.0**-24, 2.0**20, -(2.0**20), 2.0**-60])
    log = {0: Entries(np.array([1, 2]), np.array([False, True]))}
    assert three_batches(variant, terms, log) == [1 + 2.0**-23, 1.0, 1 + 2.0**-23]
    assert three_batches(variant, terms, {}) == [1 + 2.0**-23] * 3, "also of an operator that the log leaves out"


@pytest.mark.parametrize("variant", list(Variant))
def test_an_entry_that_only_the_integers_refuse_does_not_count(variant: Variant) -> None:
    """The exact sum is one and a half bounds from the midpoint: too far for any trainer, too near for one device's sum
    to tell."""
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

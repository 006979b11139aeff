"""Exact sums, their partial sums and maxima, against Fractions and numpy."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from random import Random

import numpy as np
import pytest
from binary32_words import (
    EDGES,
    INF,
    LARGEST,
    LEAST,
    MINUS_ONE,
    MINUS_ZERO,
    NAN,
    NEGATIVE_INF,
    ONE,
    canonical,
    floats,
    to_float,
    words,
)

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference.functions import Partial, evaluate, round_to_binary32


def test_dot_of_integers() -> None:
    """Integers below 2^12: the exact sum stays below 2^24 for few terms, so it is its own rounding."""
    random = Random(11)
    for _ in range(300):
        a, b = ([random.randrange(-(2**10), 2**10) for _ in range(random.randrange(1, 9))] for _ in range(2))
        a, b = a[: min(len(a), len(b))], b[: min(len(a), len(b))]
        wa, wb = (canonical(np.array(v, dtype=np.float32)) for v in (a, b))
        exact = sum(x * y for x, y in zip(a, b, strict=True))
        assert reference.dot(wa, wb) == canonical(np.array([exact], dtype=np.float32))[0]


def test_dot_is_the_exact_sum_rounded_once() -> None:
    """Against Fractions, any order giving the same; a sum that is rounded after every term differs for some."""
    random = Random(12)
    differs = 0
    for _ in range(500):
        k = random.randrange(1, 8)
        a, b = ([w for w in words(random.getrandbits(32), 3 * k) if w & INF != INF][:k] for _ in range(2))
        a, b = a[: min(len(a), len(b))], b[: min(len(a), len(b))]
        exact = sum((Fraction(to_float(x)) * Fraction(to_float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))
        result = reference.dot(a, b)
        assert result == round_to_binary32(exact) & (0xFFFFFFFF if abs(exact) > Fraction(2) ** -150 else 0)
        assert reference.dot(a[::-1], b[::-1]) == result
        step = 0
        for x, y in zip(a, b, strict=True):
            step = evaluate(Function.ADD, step, evaluate(Function.MUL, x, y))
        differs += step != result
    assert differs > 20


def test_sum_and_one_hot_sum() -> None:
    random = Random(13)
    for _ in range(300):
        row = [w for w in words(random.getrandbits(32), 8) if w & INF != INF]
        index = [random.randrange(3) for _ in row]
        assert reference.sum_words(row) == round_to_binary32(sum((Fraction(to_float(w)) for w in row), Fraction(0)))
        for m in range(3):
            selected = [w for w, i in zip(row, index, strict=True) if i == m]
            assert reference.one_hot_sum(index, m, row) == reference.sum_words(selected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], [], 0),
        ([MINUS_ZERO], [ONE], 0),  # never -0
        ([ONE, ONE], [ONE, MINUS_ONE], 0),
        ([MINUS_ZERO | LEAST], [LEAST], 0),  # also where a negative sum underflows
        ([INF, ONE], [ONE, ONE], INF),
        ([INF, ONE], [MINUS_ONE, ONE], NEGATIVE_INF),
        ([INF, NEGATIVE_INF], [ONE, MINUS_ONE], INF),
        ([INF, INF], [ONE, MINUS_ONE], NAN),
        ([INF, ONE], [0, ONE], NAN),
        ([MINUS_ZERO, ONE], [INF, ONE], NAN),
        ([NAN, ONE], [0, ONE], NAN),
        ([0xFFC00001, INF], [ONE, ONE], NAN),
        ([LARGEST, LARGEST], [ONE, ONE], INF),
        ([LARGEST, LARGEST, LARGEST], [ONE, ONE, MINUS_ONE], LARGEST),  # overflow is decided only at the end
    ],
)
def test_dot_rules(a: list[int], b: list[int], expected: int) -> None:
    """docs/numerics.md section 1, in any order."""
    for order in permutations(range(len(a))):
        assert reference.dot([a[i] for i in order], [b[i] for i in order]) == expected


def test_terms_that_are_not_selected_are_absent() -> None:
    assert reference.one_hot_sum([1, 2], 1, [ONE, NAN]) == ONE
    assert reference.one_hot_sum([1, 2], 2, [ONE, NAN]) == NAN
    assert reference.one_hot_sum([1, 2], 3, [INF, NAN]) == 0
    assert reference.one_hot_sum([0xFFFFFFFF], 0xFFFFFFFF, [INF]) == INF


def test_partials_encode_and_merge() -> None:
    random = Random(14)
    for _ in range(200):
        a, b = words(random.getrandbits(32), 12), words(random.getrandbits(32), 12)
        whole, cut = reference.partial_dot(a, b), random.randrange(13)
        left, right = reference.partial_dot(a[:cut], b[:cut]), reference.partial_dot(a[cut:], b[cut:])
        assert left.merge(right) == right.merge(left) == reference.merge([left, right]) == whole
        assert whole.round() == reference.dot(a, b)
        assert Partial.decode(whole.encode()) == whole and len(whole.encode()) == 97
    assert Partial(0, -1).encode() == b"\0" + b"\xff" * 96
    assert reference.partial_dot([LEAST], [LEAST]) == Partial(0, 1)
    with pytest.raises(OverflowError):
        Partial(0, 1 << 767).encode()


def test_maxima_equal_numpy() -> None:
    random = Random(15)
    for _ in range(500):
        row = [
            random.choice(EDGES) if random.getrandbits(1) else w
            for w in words(random.getrandbits(32), random.randrange(1, 9))
        ]
        values = floats(row)
        expected = canonical(np.array([values.max()]))[0]
        assert reference.reduce_max(row) == (0 if expected == MINUS_ZERO else expected)
        assert reference.argmax(row) == int(values.argmax())
        assert reference.integer_max(row) == int(values.view(np.int32).max()) & 0xFFFFFFFF

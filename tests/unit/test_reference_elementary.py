"""The reference's elementary functions against the C library's binary64 ones, and settled vectors where those are
undecided."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from binary32_words import (
    EDGES,
    HALF,
    INF,
    LARGEST,
    LEAST,
    MINUS_ONE,
    MINUS_ZERO,
    NAN,
    NEGATIVE_INF,
    ONE,
    to_float,
    words,
)

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.reference.functions import evaluate, round_to_binary32

CLOSEST = Path(__file__).resolve().parents[1] / "vectors" / "elementary_closest.json"


LIBRARY = {
    Function.EXP: math.exp,
    Function.EXPM1: math.expm1,
    Function.LOG: math.log,
    Function.LOG1P: math.log1p,
    Function.TANH: math.tanh,
    Function.ERF: math.erf,
    Function.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Function.SIN: math.sin,
    Function.COS: math.cos,
}


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_elementary_equals_binary64_where_that_is_certain(function: Function) -> None:
    """A binary64 result with an error below 2^-48 (relative) settles the rounding unless a midpoint lies within that
    error."""
    certain = 0
    for word in EDGES + words(int(function), 3_000):
        try:
            value = Fraction(LIBRARY[function](to_float(word)))
        except (ValueError, OverflowError):  # NaN and infinities: the table below
            continue
        low, high = (round_to_binary32(value * (1 + s * Fraction(1, 2**48))) for s in (-1, 1))
        if value and low == high:
            certain += 1
            assert evaluate(function, word) == low, f"{word:08x}"
    assert certain > 500


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_elementary_next_to_midpoints(function: Function) -> None:
    """The inputs of all 2^32 that come closest to a midpoint, with results settled by interval arithmetic."""
    vectors = json.loads(CLOSEST.read_text())[function.name]
    assert vectors
    for pair in vectors:
        assert evaluate(function, int(pair[:8], 16)) == int(pair[8:], 16), pair


SPECIAL = {
    #                  +0         -0          +inf   -inf          1.0 (None: not special)
    Function.EXP: (ONE, ONE, INF, 0, None),
    Function.EXPM1: (0, MINUS_ZERO, INF, MINUS_ONE, None),
    Function.LOG: (NEGATIVE_INF, NEGATIVE_INF, INF, NAN, 0),
    Function.LOG1P: (0, MINUS_ZERO, INF, NAN, None),
    Function.TANH: (0, MINUS_ZERO, ONE, MINUS_ONE, None),
    Function.ERF: (0, MINUS_ZERO, ONE, MINUS_ONE, None),
    Function.SIGMOID: (HALF, HALF, ONE, 0, None),
    Function.SIN: (0, MINUS_ZERO, NAN, NAN, None),
    Function.COS: (ONE, ONE, NAN, NAN, None),
}


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)
def test_elementary_special_values(function: Function) -> None:
    for word, expected in zip((0, MINUS_ZERO, INF, NEGATIVE_INF, ONE), SPECIAL[function], strict=True):
        if expected is not None:
            assert evaluate(function, word) == expected, f"{word:08x}"
    for nan in (NAN, 0x7F800001, 0xFFC00000, 0xFFFFFFFF):
        assert evaluate(function, nan) == NAN


@pytest.mark.parametrize(
    ("function", "word", "expected"),
    [
        (Function.LOG1P, MINUS_ONE, NEGATIVE_INF),
        (Function.LOG1P, MINUS_ONE + 1, NAN),
        (Function.LOG, MINUS_ZERO | LEAST, NAN),
        (Function.EXP, 0x42B17217, 0x7F7FFF84),  # the largest x whose exponential is finite
        (Function.EXP, 0x42B17218, INF),
        (Function.EXP, 0xC2CFF1B4, LEAST),  # the least x whose exponential is not zero
        (Function.EXP, 0xC2CFF1B5, 0),
        (Function.EXPM1, LEAST, LEAST),
        (Function.SIN, LEAST | MINUS_ZERO, LEAST | MINUS_ZERO),
        (Function.ERF, LEAST, LEAST),
        (Function.SIGMOID, LEAST, HALF),
        (Function.SIGMOID, 0xC2CFF1B4, LEAST),
        (Function.COS, LEAST, ONE),
        (Function.SIN, LARGEST, 0xBF0599B3),
        (Function.COS, LARGEST, 0x3F5A5F96),
    ],
)
def test_elementary_borders(function: Function, word: int, expected: int) -> None:
    assert evaluate(function, word) == expected

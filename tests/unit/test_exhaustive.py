"""The exhaustive run: its record still holds for the code, and its reference finds faults."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from mpmath import iv, mp

from vgame.arithmetic.elementary_exceptions import EXCEPTIONS
from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import narrow

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import elementary_tables as generator  # noqa: E402
import exhaustive  # noqa: E402
import exhaustive_panels as panels  # noqa: E402
import exhaustive_reference as exact  # noqa: E402

RECORD = json.loads(exhaustive.RECORD.read_text())
each_function = pytest.mark.parametrize("function", ELEMENTARY, ids=lambda f: f.name)

#: first words of panels: zero, the least and greatest magnitudes, one, the edges of the constant regions, infinities
#: and NaN
EDGES = [
    0x00000,
    0x00001,
    0x00020,
    0x00800,
    0x3B800,
    0x3F7FF,
    0x3F800,
    0x40800,
    0x41200,
    0x41900,
    0x42B20,
    0x42D00,
    0x43000,
]
EDGES += [0x4B000, 0x7F7FF, 0x7F800, 0x7F801, 0x7FFFF]


def panel_words(panel_numbers: list[int]) -> np.ndarray:
    """uint32[panels, PANEL]."""
    first = np.array(panel_numbers, dtype=np.int64) * panels.PANEL
    return (first[:, None] + np.arange(panels.PANEL)).astype(np.uint32)


@each_function
def test_the_record_is_complete(function: Function) -> None:
    record = RECORD[function.name]
    assert (record["inputs"], record["mismatches"], len(record["blocks"])) == (2**32, 0, 256)
    assert record["torch_equal"] is True
    assert record["closest_log2_ulp"] > math.log2(panels.SLACK) - 10  # far above the precision that settled it


@each_function
@pytest.mark.parametrize("engine", [exhaustive.kernel, exhaustive.torch_twin])
def test_blocks_of_the_record_are_reproduced(function: Function, engine) -> None:
    """Two of the 256 blocks of 2^24 words: one where the function bends, one that varies by function."""
    for block in (0x3F, (37 * function + 64) % 256):
        words = exhaustive.block_words(block)
        assert hashlib.sha256(engine(function, words)).hexdigest() == RECORD[function.name]["blocks"][block]


@each_function
def test_a_sample_of_all_panels(function: Function) -> None:
    assert exhaustive.check_sample(function, Fraction(1, 8192)).mismatches == []


@each_function
def test_panels_at_the_edges(function: Function) -> None:
    words = panel_words([panel | sign for panel in EDGES for sign in (0, 0x80000)])
    assert exhaustive.check(function, words).mismatches == []


@each_function
def test_a_wrong_word_is_found(function: Function) -> None:
    """Change one word of every panel by one unit: exactly these must be found wrong."""
    words = panel_words([0x3D123, 0x3E456, 0x3F234, 0x40123, 0x41234, 0x5A000, 0x7F000, 0xBE321])
    claimed = exhaustive.kernel(function, words)
    place = np.arange(len(words)) * 509 % panels.PANEL
    claimed[np.arange(len(words)), place] += np.uint32(1)
    flagged = set(panels.unconfirmed(function, words[:, 0].copy(), claimed).tolist())
    assert set(words[np.arange(len(words)), place].tolist()) <= flagged
    assert len(flagged) <= len(words) + 8


def test_the_exceptions_would_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Function.LOG1P
    empty = np.zeros((2, 0), dtype=np.uint32)
    monkeypatch.setitem(exhaustive.fill.__globals__["PATCHES"], function, empty)
    words = panel_words(sorted({word // panels.PANEL for word, _ in EXCEPTIONS[function]}))
    assert sorted(exhaustive.check(function, words).mismatches) == sorted(EXCEPTIONS[function])


@each_function
def test_enclosures_have_slack(function: Function) -> None:
    """The proof needs an eighth of each error bound: the polynomial stays that close to the function."""
    generator_ = np.random.default_rng(function)
    low = 0x3A000 if function is not Function.LOG else 0x00900
    numbers = generator_.integers(low, 0x40F00 if function is Function.ERF else 0x42F00, 40)
    words = panel_words([int(n) for n in numbers if exact.from_word(int(n) << 12) < 80 or function is Function.LOG])
    enclosure = panels.taylor_panels(function, words[:, 0].copy())
    iv.prec = 160
    for p, row in enumerate(words):
        for word in (row[0], row[1234], row[-1]):
            x = exact.from_word(int(word))
            t = (x - enclosure.centre[p]) * enclosure.scale[p]
            value = mp.make_mpf(exact.INTERVALS[function](x)._mpi_[0])
            polynomial = mp.mpf(float(np.polyval(enclosure.coefficients[p, ::-1], t)))
            assert abs(polynomial - value) <= enclosure.error[p] / 8


@each_function
def test_settle_equals_the_reference(function: Function) -> None:
    words = np.random.default_rng(function).integers(0, 1 << 32, 300).tolist()
    words += [
        0,
        1,
        0x80000000,
        0x80000001,
        0x3F800000,
        0xBF800000,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0x00800000,
        0x7F7FFFFF,
    ]
    assert [exact.settle(function, w)[0] for w in words] == [reference.evaluate(function, w) for w in words]


def test_the_tables_equal_the_generators() -> None:
    assert generator.render() == generator.TARGET.read_text()


def narrow_check(function: Function) -> tuple[list[tuple[int, int]], int]:
    """(wrong words, midpoints) of small words that are midpoints of 8 bits, and a panel."""
    ties = np.array([[0x04008000], [0x20008000]], np.uint32) + (np.arange(100, dtype=np.uint32) << 16)
    ties = ties.ravel()
    words = np.concatenate([ties, panel_words([0x3F000]).ravel()])
    _, wrong, midpoints = exhaustive.check_narrow(function, words, exhaustive.kernel(function, words))
    return wrong, midpoints


@each_function
def test_results_of_eight_bits(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are right; double rounding is detected at midpoints that are nearly fixed points."""
    wrong, midpoints = narrow_check(function)
    near = function in narrow.IDENTITIES
    assert not wrong and (midpoints >= 100) is near
    monkeypatch.setattr(narrow, "pointwise", lambda function, x, operands: narrow.nearest(x))
    assert len(narrow_check(function)[0]) >= 50 * near


def test_the_records_of_eight_bits() -> None:
    found = [RECORD[f.name]["bfloat16"] for f in ELEMENTARY if "bfloat16" in RECORD[f.name]]
    assert found and all((r["inputs"], r["mismatches"]) == (2**32, 0) for r in found)

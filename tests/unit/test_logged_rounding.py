"""RN_b, entries and copies: the compiled loops and the torch passes against integers, on words where rounding is
hard."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference.binary32 import round_to_binary32
from vgame.logged import rounding
from vgame.logged.kernels import Logged
from vgame.logged.rounding import Direction
from vgame.program.program import Program


def hard(bits: int, count: int = 300) -> np.ndarray:
    """binary64 values on, beside and between grid values and midpoints: every binade's ends, subnormals, overflow,
    zeros."""
    dice = np.random.default_rng(bits)
    low = 32 - bits
    words = dice.integers(0, 0x7F800000 >> low, count, dtype=np.uint32)
    ends = np.array([0, 1, 2, 3, 0x00800000 >> low, 0x7F7FFFFF >> low, 0x3F800000 >> low], dtype=np.uint32)
    words = np.concatenate([words, ends, ends[4:] - 1, ends[6:] + 1]).astype(np.uint32)
    floor = (words << np.uint32(low)).view(np.float32).astype(np.float64)
    next_word = ((words + np.uint32(1)) << np.uint32(low)).view(np.float32).astype(np.float64)
    next_word[np.isinf(next_word)] = 2.0**128
    middle = (floor + next_word) / 2
    base = np.concatenate([floor, middle, floor + (next_word - floor) * dice.random(len(words))])
    near = np.concatenate([base, np.nextafter(base, np.inf), np.nextafter(base, -np.inf)])
    extra = [np.inf, 1e300, 2.0**128, 2.0**129, 5e-324, 2.0**-150, 2.0**-1022, np.nan]
    every = np.concatenate([near, extra])
    return np.concatenate([every, -every])


def round_float(x: float, bits: int) -> int:
    """The word RN_b(x) of a binary64 value."""
    if math.isnan(x):
        return 0x7FC00000
    negative = math.copysign(1.0, x) < 0
    return (
        0x7F800000 | negative << 31 if math.isinf(x) else rounding.pack(rounding.grid(Fraction(x), bits)[1], negative)
    )


def midpoint_distance(value: Fraction, bits: int) -> Fraction:
    """Distance of |value| from the midpoint of its cell, in widths of the cell: 1/2 - |x - RN_b(x)| / ulp."""
    lower, _, width = rounding.grid(value, bits)
    return abs(abs(value) - lower - width / 2) / width


def words(x: torch.Tensor) -> list[int]:
    return x.contiguous().view(torch.int32).numpy().view(np.uint32).tolist()


@pytest.mark.parametrize("bits", range(26, 33))
def test_rounding_equals_the_integers(bits: int) -> None:
    x = torch.from_numpy(hard(bits))
    expected = [round_float(v, bits) for v in x.tolist()]
    passes = torch.copysign(rounding.nearest_tensor(x.abs(), bits)[0], x).float()
    for name, found in (("compiled", rounding.round_tensor(x, bits)), ("passes", passes)):
        same = [
            w == e or (w & 0x7FFFFFFF > 0x7F800000 and e == 0x7FC00000)
            for w, e in zip(words(found), expected, strict=True)
        ]
        assert all(same), (name, x[same.index(False)].item())
    finite = [w for w in expected if w & 0x7FFFFFFF < 0x7F800000]
    assert all(w & (1 << 32 - bits) - 1 == 0 for w in finite) and len(finite) > 3000


def test_at_32_bits_it_is_binary32_and_at_fewer_it_rounds_once() -> None:
    for x in hard(32):
        if np.isfinite(x):
            assert round_float(x, 32) & 0x7FFFFFFF == round_to_binary32(abs(Fraction(x)))
    # rounded to 32 bits first, this would become a midpoint of the grid of 26 bits, and then round up to the even
    # neighbour
    twice = 1 + 3 * 2.0**-18 - 2.0**-40
    assert round_float(twice, 26) == 0x3F800000 + (1 << 6)
    assert round_float(float(np.float32(twice)), 26) == 0x3F800000 + (2 << 6)


@pytest.mark.parametrize("bits", (26, 29, 32))
def test_distances_entries_and_copies_equal_the_integers(bits: int) -> None:
    x = np.array([v for v in hard(bits, 60) if abs(v) < 2.0**128]) + 0.0
    value, half, distance = rounding.cells(torch.from_numpy(x), bits)
    up = rounding.copy_entries(torch.from_numpy(x), bits, torch.ones(len(x), dtype=torch.bool))
    down = rounding.copy_entries(torch.from_numpy(x), bits, torch.zeros(len(x), dtype=torch.bool))
    seen = set()
    for i, v in enumerate(map(Fraction, x)):
        assert distance[i].item() == float(midpoint_distance(v, bits) * rounding.ulp(v, bits))
        assert Fraction(half[i].item()) * 2 == rounding.ulp(v, bits)
        plus_zero = [
            w if w != 1 << 31 else 0 for w in (rounding.copy_entry(v, bits, d) for d in (Direction.UP, Direction.DOWN))
        ]
        assert [*words(up[i : i + 1]), *words(down[i : i + 1])] == plus_zero
        entry = rounding.entry_of(v, bits, Fraction(3, 8))
        seen.add(entry)
        nearest = rounding.grid(v, bits)[1]
        assert Fraction(value[i].item()) == nearest
        assert rounding.copy_entry(v, bits, entry) == rounding.pack(nearest, v < 0), "its own entry changes nothing"
        assert (entry is Direction.NONE) == (midpoint_distance(v, bits) >= Fraction(1, 8))
    assert seen == set(Direction)


def test_a_copied_entry_undoes_the_other_devices_rounding() -> None:
    """Two values on both sides of a midpoint round apart; with the entry of one, the other gives its word."""
    middle = Fraction(1) + Fraction(1, 2**24)
    trainer, auditor = middle + Fraction(1, 2**50), middle - Fraction(1, 2**50)
    entry = rounding.entry_of(trainer, 32, Fraction(49, 100))
    assert entry is Direction.UP
    mine, theirs = rounding.round_fraction(auditor, 32), rounding.round_fraction(trainer, 32)
    assert mine != theirs == rounding.copy_entry(auditor, 32, entry)


@pytest.mark.parametrize("bits", (26, 29))
def test_functions_are_rounded_once_to_the_bits(bits: int) -> None:
    """exp and the quotient of words on the grid; the library's are within two units of binary64, and near no midpoint
    here."""
    x = rounding.round_tensor(torch.linspace(-3, 3, 400, dtype=torch.float64), bits)
    kernels = Logged(Program((), (), (), 0, 0, 0), bits, {})
    found = kernels.map(Function.EXP, x), kernels.map(Function.DIV, x, x + 8)
    expected = [math.exp(v) for v in x.tolist()], [v / w for v, w in zip(x.tolist(), (x + 8).tolist(), strict=True)]
    for words_found, values in zip(map(words, found), expected, strict=True):
        assert words_found == [round_float(v, bits) for v in values]

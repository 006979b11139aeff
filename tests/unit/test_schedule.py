"""Tables of scalars: every word is RN of the exact formula, and many steps take little time."""

from __future__ import annotations

import time
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from vgame.arithmetic.reference.binary32 import round_to_binary32
from vgame.errors import ProgramError
from vgame.program.optimizers import Adam
from vgame.program.schedule import Real, Schedule, ends, power, to_binary32

STEPS = (*range(1, 130), 1000, 2047, 4099)
TIE = str(Fraction(2**24 + 1, 2**24).numerator * 5**24) + "e-24"  # 1 + 2^-24, in the middle between two neighbours
BETAS = (0.0, 0.5, 0.9, 0.999, 0.9375, 0.9999999999999999, 1e-60, 0.96)
RATES = ("0", "1e-3", "3e-45", "1.17549435e-38", TIE, f"{TIE.partition('e')[0]}e-25")


def word(value: object) -> int:
    return int(to_binary32(value).view(np.uint32))


def to_mpf(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def rounded(value: mpmath.mpf) -> int:
    sign, mantissa, exponent, _ = value._mpf_
    return round_to_binary32((sign, int(mantissa), exponent))


@pytest.mark.parametrize("beta", BETAS)
def test_every_word_of_adam_is_that_of_the_exact_formula(beta: float) -> None:
    scalars, exact = Adam((beta, beta), 1e-8, 0.01, True).scalars, Fraction(str(beta))
    for step in STEPS:
        left = 1 - exact**step
        for rate in map(Fraction, RATES):
            assert word(scalars["rate"](rate, step)) == round_to_binary32(rate / left)
            assert word(scalars["keep"](rate, step)) == round_to_binary32(1 - rate / 100)
        with mpmath.workprec(400):
            assert word(scalars["root"](Fraction(1), step)) == rounded(mpmath.sqrt(to_mpf(left)))


def test_ties_go_to_even_however_close_the_first_enclosure() -> None:
    """1 + 2^-24 is a tie, and 0.1 (1 + 2^-24) / (1 - 0.9) too; 1 + 2^-24 + 2^-200 is no tie, and is decided in the
    third enclosure."""
    assert word(Fraction(TIE)) == word(Fraction(1)) == 0x3F800000
    assert word(Adam((0.9, 0.9), 0, 0, True).scalars["rate"](Fraction(RATES[-1]), 1)) == 0x3F800000
    calls = []

    def near(bits: int) -> tuple[Fraction, Fraction]:
        calls.append(bits)
        return Fraction(TIE) + Fraction(1, 2**200) - Fraction(1, 2**bits), Fraction(TIE) + Fraction(1, 2**199)

    assert word(Real(near)) == 0x3F800001 and calls == [128, 256]


@pytest.mark.parametrize("schedule", [{"final": "1e-5"}, {"final": "0.3"}, {"final": "0.1"}, {"warmup": 5}])
def test_every_word_of_a_cosine(schedule: dict) -> None:
    """Against 400 bits; at a half and at thirds, where the cosine is rational, against that."""
    cosine, steps = Schedule(kind="cosine", lr="0.1", **schedule), 600
    for step in range(cosine.warmup + 1, steps + 1):
        progress = Fraction(step - cosine.warmup - 1, steps - cosine.warmup)
        with mpmath.workprec(400):
            wave = (1 + mpmath.cospi(to_mpf(progress))) / 2
            final = to_mpf(Fraction(cosine.final))
            value = final + to_mpf(Fraction(cosine.lr) - Fraction(cosine.final)) * wave
        assert word(cosine.rate(step, steps)) == rounded(value)
        assert word(cosine.rate(step, steps) * Fraction(3)) == rounded(3 * value)
    thirds = Schedule(kind="cosine", lr=str(4 * int(TIE[:-4])) + "e-24", final="0")
    assert [word(thirds.rate(step, 2) * Fraction(1, 2)) for step in (1, 2)] == [0x40000000, 0x3F800000]
    assert word(thirds.rate(2, 3) * Fraction(1, 3)) == 0x3F800000  # 4/3 of 3/4


@pytest.mark.parametrize("factor", ["0", "0.1", "0.5", "0.97", "1", "1.01"])
def test_every_word_of_a_staircase(factor: str) -> None:
    steps = Schedule(kind="step", lr="0.3", factor=factor, every=2)
    for step in range(1, 500, 7):
        exact = Fraction("0.3") * Fraction(factor) ** ((step - 1) // 2)
        assert word(steps.rate(step, 500)) == round_to_binary32(exact)


def test_powers_are_enclosed() -> None:
    for base in (Fraction(9, 10), Fraction(999, 1000), Fraction(101, 100), Fraction(1, 2), Fraction(0)):
        for exponent in (0, 1, 2, 31, 1000):
            for bits in (8, 128, 20_000):
                low, high = power(base, exponent, bits)
                assert low <= base**exponent <= high
            assert low == high == base**exponent


def test_values_that_round_to_infinity_are_refused() -> None:
    edge = 2**128 - 2**103
    assert word(Fraction(edge - 1)) == 0x7F7FFFFF
    for value in (Fraction(edge), Schedule(kind="step", lr="1", factor="1e10").rate(99, 99)):
        with pytest.raises(ProgramError, match="exceeds the largest binary32"):
            to_binary32(value)


def test_ten_thousand_steps_take_seconds() -> None:
    """With powers written out, the last thousand alone take more than that."""
    schedule, steps = Schedule(kind="cosine", lr="0.01"), 10_000
    begin = time.process_time()
    for step in range(9_000, steps):
        for formula in Adam((0.9, 0.999), 1e-8, 0.01, True).scalars.values():
            to_binary32(formula(schedule.rate(step, steps), step))
    assert time.process_time() - begin < 2
    assert ends(Fraction(3), 8) == (3, 3)

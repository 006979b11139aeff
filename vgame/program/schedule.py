"""Learning-rate schedules and other values that change per step, as tables of binary32 words.

Decimal strings are read as exact rationals; every entry is RN of the exact formula. The job commits to the table, so
this module need not be trusted: another table is another job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Literal

import mpmath
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from vgame.arithmetic.reference.binary32 import POSITIVE_INFINITY, round_to_binary32
from vgame.errors import ProgramError

BITS = 128  # bits of the first enclosure, which decides nearly every entry

Ends = tuple[Fraction, Fraction]


def decimal(value: object, info: ValidationInfo) -> str:
    """A decimal string whose value is an exact rational, at least 0 and below 2^127, with a decimal exponent of at most
    1000 in absolute value."""
    if type(value) in (int, float):
        name = info.field_name
        raise ValueError(f'{name} = {value!r} is a binary number, not an exact decimal: write {name} = "{value!r}"')
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f'{value!r} is not a decimal string; write for example "0.01"') from None
    if not (number.is_finite() and 0 <= number < 2**127 and abs(number.as_tuple().exponent) <= 1000):
        raise ValueError(f"{value!r} is out of range: a number from 0 to 2^127 is expected")
    return str(value)


Decimals = Annotated[str, BeforeValidator(decimal)]


@dataclass(frozen=True, slots=True)
class Real:
    """A real number x, given by enclosures: enclose(bits) = (low, high) with low <= x <= high.

    The ends converge as the bits grow, and become equal if x is rational.
    """

    enclose: Callable[[int], Ends]

    def __mul__(self, factor: Fraction) -> Real:
        """x * factor, for a factor of at least 0."""
        return Real(lambda bits: tuple(end * factor for end in self.enclose(bits)))


Rate = Fraction | Real


def ends(value: Rate, bits: int) -> Ends:
    """An enclosure; a Fraction encloses itself."""
    return value.enclose(bits) if isinstance(value, Real) else (value, value)


def power(base: Fraction, exponent: int, bits: int) -> Ends:
    """An enclosure of base^exponent, base >= 0: the power itself if it is short, else binary powers in multiples of
    2^-bits, low ones rounded down and high ones rounded up (products of numbers that are not negative keep the
    order)."""
    if exponent * max(base.numerator.bit_length(), base.denominator.bit_length()) <= bits:
        return base**exponent, base**exponent
    low, high = (base.numerator << bits) // base.denominator, -((-base.numerator << bits) // base.denominator)
    lowest = highest = 1 << bits
    for digit in bin(exponent)[2:]:
        lowest, highest = lowest * lowest >> bits, -(-highest * highest >> bits)
        if digit == "1":
            lowest, highest = lowest * low >> bits, -(-highest * high >> bits)
    return Fraction(lowest, 1 << bits), Fraction(highest, 1 << bits)


class Schedule(BaseModel):
    """Learning rate at step t = 1..steps: warm-up from 0 over `warmup` steps, then the shape named by `kind`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["constant", "linear", "cosine", "step"] = "constant"
    lr: Decimals = Field(description="peak learning rate, a decimal string")
    final: Decimals = Field(default="0", description="learning rate that linear and cosine end at")
    warmup: int = Field(default=0, ge=0, strict=True)
    every: int = Field(default=1, ge=1, strict=True, description="steps between two drops of kind `step`")
    factor: Decimals = Field(default="0.1", description="factor of each drop of kind `step`")

    def rate(self, step: int, steps: int) -> Rate:
        """Exact value at a step, at least 0."""
        peak, final = Fraction(self.lr), Fraction(self.final)
        if step <= self.warmup:
            return peak * Fraction(step, self.warmup)
        progress = Fraction(step - self.warmup - 1, max(steps - self.warmup, 1))
        match self.kind:
            case "linear":
                return peak + (final - peak) * progress
            case "step":
                factor, drops = Fraction(self.factor), (step - self.warmup - 1) // self.every
                return Real(lambda bits: power(factor, drops, bits)) * peak
            case "cosine":
                return Real(lambda bits: tuple(sorted(final + (peak - final) * end for end in _wave(progress, bits))))
        return peak


def _wave(progress: Fraction, bits: int) -> Ends:
    """An enclosure of (1 + cos(pi progress)) / 2, progress in [0, 1): rational at 0, 1/3, 1/2 and 2/3 only (Niven's
    theorem).

    Elsewhere 2^-bits is a margin of more than 2^19 units in the last place of mpmath's result, whose error is a few
    units.
    """
    if progress.denominator <= 3:
        wave = {Fraction(0): Fraction(1), Fraction(1, 3): Fraction(3, 4), Fraction(1, 2): Fraction(1, 2)}
        wave = wave.get(progress, Fraction(1, 4))
        return wave, wave
    with mpmath.workprec(bits + 20):
        cosine = mpmath.cospi(mpmath.mpf(progress.numerator) / progress.denominator)
    middle, margin = int(mpmath.ldexp(1 + cosine, bits + 19)), 1 << 20
    scale = 1 << bits + 20
    return Fraction(max(middle - margin, 0), scale), Fraction(min(middle + margin, scale), scale)


def double(value: Rate, bits: int = BITS) -> float:
    """A Python number within 2^-bits of the value, and of half a unit in its last place."""
    return float(ends(value, bits)[0])


def to_binary32(value: Rate) -> np.float32:
    """RN(value), ties to even; ProgramError if it rounds to infinity.

    Equivalent to: round_to_binary32 of the exact value. RN is monotone, so two ends that round to the same word decide
    it; for different words the enclosure is refined. This terminates: the ends of a rational become equal, and RN is
    continuous at irrationals.
    """
    words, bits = [0, 1], BITS
    while words[0] != words[1]:
        low, high = ends(value, bits)
        words, bits = [round_to_binary32(low), round_to_binary32(high)], 2 * bits
    if words[0] & 0x7FFFFFFF == POSITIVE_INFINITY:
        raise ProgramError("a learning rate, or a number computed from it, exceeds the largest binary32, 3.4e38")
    return np.uint32(words[0]).view(np.float32)

"""Learning-rate schedules and other values that change per step, as tables of binary32 words.

Decimal strings are read as exact rationals; every entry is RN of the exact formula. The committed table is what counts: nobody
has to trust this module, a different table is a different job.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Literal

import mpmath
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

PRECISION = 200  # bits; every entry is a smooth function far from any midpoint, and ties of rationals are exact below


def decimal(value: object, info: ValidationInfo) -> str:
    """A decimal string whose value is an exact rational, at least 0 and below 2^127 (and of a size that can be computed with)."""
    if type(value) in (int, float):
        raise ValueError(f'{value!r} is a TOML number, not the decimal itself; write {info.field_name} = "{value!r}"')
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f'{value!r} is no decimal string; write for example "0.01"') from None
    if not (number.is_finite() and 0 <= number < 2**127 and abs(number.as_tuple().exponent) <= 1000):
        raise ValueError(f"{value!r} is out of range: a number from 0 to 2^127 is expected")
    return str(value)


Decimals = Annotated[str, BeforeValidator(decimal)]


class Schedule(BaseModel):
    """Learning rate at step t = 1..steps: warm-up from 0 over `warmup` steps, then the shape named by `kind`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["constant", "linear", "cosine", "step"] = "constant"
    lr: Decimals = Field(description="peak learning rate, a decimal string")
    final: Decimals = Field(default="0", description="learning rate that linear and cosine end at")
    warmup: int = Field(default=0, ge=0, strict=True)
    every: int = Field(default=1, ge=1, strict=True, description="steps between two drops of kind `step`")
    factor: Decimals = Field(default="0.1", description="factor of each drop of kind `step`")

    def rate(self, step: int, steps: int) -> Fraction | mpmath.mpf:
        """Exact value (cosine: to 200 bits) at a step."""
        peak, final = Fraction(self.lr), Fraction(self.final)
        if step <= self.warmup:
            return peak * Fraction(step, self.warmup)
        progress = Fraction(step - self.warmup - 1, max(steps - self.warmup, 1))
        match self.kind:
            case "linear":
                return peak + (final - peak) * progress
            case "step":
                return peak * Fraction(self.factor) ** ((step - self.warmup - 1) // self.every)
            case "cosine":
                with mpmath.workprec(PRECISION):
                    wave = (1 + mpmath.cospi(mpmath.mpf(progress.numerator) / progress.denominator)) / 2
                    return to_mpf(final) + to_mpf(peak - final) * wave
        return peak


def to_mpf(value: Fraction | mpmath.mpf) -> mpmath.mpf:
    """At the working precision."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def to_binary32(value: Fraction | mpmath.mpf) -> np.float32:
    """RN(value): the nearest of the neighbours of the binary64 value, chosen exactly."""
    exact = value if isinstance(value, Fraction) else _exact(value)
    guess = np.float32(float(exact))
    around = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    finite = [c for c in around if np.isfinite(c)]
    return min(finite, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1))


def _exact(value: mpmath.mpf) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent

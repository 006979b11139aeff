"""Random numbers from Philox words: the same on every device, independent of torch's generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.table import lowers

Ints = Sequence[int]


@lowers("bernoulli.p")
def bernoulli(b: Builder, x: Value, p: Number = 0.5, **_: Any) -> Value:
    """1 with probability p: where the word, read as unsigned, is at least floor((1 - p) 2^32); else 0."""
    threshold = math.floor((1 - Fraction(p)) * 2**32)
    if threshold >= 2**32:
        return b.full(x.shape, 0.0, False)
    dropped = b.map(Function.ULT, b.random_words(x.shape), threshold - 2**32 if threshold >> 31 else threshold)
    return b.select(dropped, 0.0, 1.0)


@lowers("bernoulli.Tensor", "bernoulli.default")
def bernoulli_of(b: Builder, x: Value, p: Value | None = None, **_: Any) -> Value:
    """1 where a random number in [0, 1) is below the probability, a tensor."""
    return b.to_float(b.map(Function.LT, rand(b, x.shape), x if p is None else p))


def _top_bits(b: Builder, shape: Ints) -> Value:
    """Integers 0 .. 2^24 - 1 as binary32."""
    return b.map(Function.ITOF, b.map(Function.ISHR, b.random_words(shape), 8))


def half_open(b: Builder, value: Value, low: Number, high: Number) -> Value:
    """Numbers in [low, high) before they are rounded to bfloat16: one that would become `high` becomes `low`, as in
    torch."""
    end = torch.tensor(float(high)).bfloat16()
    below = torch.nextafter(end, torch.tensor(-torch.inf).bfloat16())
    middle = (float(end) + float(below)) / 2  # a tie: rounds to the neighbour whose last bit is 0
    compare = Function.LT if int(end.view(torch.int16)) % 2 == 0 else Function.LE
    return b.select(b.map(compare, value, middle), value, float(torch.tensor(float(low)).bfloat16()))


@lowers("rand.default")
def rand(b: Builder, shape: Ints, **_: Any) -> Value:
    """Multiples of 2^-24 in [0, 1)."""
    return b.map(Function.MUL, _top_bits(b, shape), 2.0**-24)


@lowers("rand_like.default")
def rand_like(b: Builder, x: Value, **_: Any) -> Value:
    return rand(b, x.shape)


@lowers("uniform.default")
def uniform(b: Builder, x: Value, low: Number = 0.0, high: Number = 1.0, **_: Any) -> Value:
    """low + (high - low) u, two roundings."""
    scaled = b.map(Function.MUL, rand(b, x.shape), float(high) - float(low))
    return b.map(Function.ADD, scaled, float(low))


def _above_zero(b: Builder, shape: Ints) -> Value:
    """Multiples of 2^-24 in (0, 1]."""
    return b.map(Function.MUL, b.map(Function.ADD, _top_bits(b, shape), 1.0), 2.0**-24)


@lowers("randn.default")
def randn(b: Builder, shape: Ints, **_: Any) -> Value:
    """Box and Muller: sqrt(-2 log u) cos(2 pi v)."""
    radius = b.map(Function.SQRT, b.map(Function.MUL, b.map(Function.LOG, _above_zero(b, shape)), -2.0))
    turn = b.map(Function.COS, b.map(Function.MUL, rand(b, shape), 2 * math.pi))
    return b.map(Function.MUL, radius, turn)


@lowers("randn_like.default")
def randn_like(b: Builder, x: Value, **_: Any) -> Value:
    return randn(b, x.shape)


@lowers("normal_functional.default")
def normal(b: Builder, x: Value, mean: Number = 0.0, std: Number = 1.0, **_: Any) -> Value:
    """mean + std n, two roundings."""
    return b.map(Function.ADD, b.map(Function.MUL, randn(b, x.shape), float(std)), float(mean))


@lowers("exponential.default")
def exponential(b: Builder, x: Value, rate: Number = 1.0, **_: Any) -> Value:
    """-log(u) / rate."""
    return b.map(Function.DIV, b.map(Function.LOG, _above_zero(b, x.shape)), -float(rate))


@lowers("randint.low")
def randint(b: Builder, low: int, high: int, shape: Ints, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """low + (the word's upper 31 bits modulo high - low)."""
    if not 0 < high - low < 2**31:
        raise ProgramError(f"random integers from {low} to {high} are not supported; a range of 1 to 2^31 - 1 is")
    words = b.map(Function.ISHR, b.random_words(shape), 1)
    result = b.map(Function.IADD, b.map(Function.IMOD, words, high - low), low)
    return b.to_float(result) if dtype and dtype.is_floating_point else result


@lowers("randint.default")
def randint_below(b: Builder, high: int, shape: Ints, **kwargs: Any) -> Value:
    return randint(b, 0, high, shape, **kwargs)


@lowers("randint_like.default")
def randint_like(b: Builder, x: Value, high: int, **_: Any) -> Value:
    return randint(b, 0, high, x.shape, dtype=x.layout.dtype)


@lowers("randint_like.low_dtype")
def randint_like_from(b: Builder, x: Value, low: int, high: int, **_: Any) -> Value:
    return randint(b, low, high, x.shape, dtype=x.layout.dtype)

"""Powers and their inverses: products and roots where the exponent allows them, exact powers of two."""

from __future__ import annotations

import math
from functools import reduce

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import reciprocal
from vgame.program.lowering.table import HANDLERS, lowers


def _whole_power(b: Builder, x: Value, exponent: int) -> Value:
    """x ** exponent by squaring: x x, (x x) x, (x x)(x x), ..."""
    result = None
    while exponent:
        if exponent & 1:
            result = x if result is None else b.map(Function.MUL, x, result)
        exponent >>= 1
        x = b.map(Function.MUL, x, x) if exponent else x
    return result


@lowers("pow.Tensor_Scalar")
def power(b: Builder, x: Value, exponent: Number) -> Value:
    """Multiples of one quarter up to 16 as products and roots, negative ones as their reciprocals; others as exp(y log
    x)."""
    if exponent == 0:
        return b.full(x.shape, 1, x.integer)
    if x.integer and isinstance(exponent, int) and exponent > 0:
        return reduce(lambda y, z: b.map(Function.IMUL, y, z), [x] * exponent)
    if 4 * exponent != int(4 * exponent) or abs(exponent) > 16:
        return HANDLERS[torch.ops.aten.pow.Tensor_Tensor](b, x, b.number(float(exponent), False))
    if exponent == 1:
        return x
    x, quarters = b.to_float(x), int(abs(4 * exponent))
    factors = [_whole_power(b, x, quarters // 4)] if quarters >= 4 else []
    root = b.map(Function.SQRT, x) if quarters % 4 else x
    factors += [root] if quarters & 2 else []
    factors += [b.map(Function.SQRT, root)] if quarters & 1 else []
    result = reduce(lambda y, z: b.map(Function.MUL, y, z), factors)
    return reciprocal(b, result) if exponent < 0 else result


@lowers("pow.Scalar")
def power_of_scalar(b: Builder, base: Number, x: Value) -> Value:
    """base ** x = 2 ** n exp(r) with the integer n nearest to x log2(base) and r = x log(base) - n log 2, in two parts
    unless the base is 2."""
    if base <= 0:
        raise ProgramError(f"a power of the number {base} is not supported; a positive base is expected")
    if base == 1:
        return b.full(x.shape, 1, False)
    if base == 2:
        x = b.map(Function.MAX, b.map(Function.MIN, b.to_float(x), 129.0), -151.0)
        whole = b.map(Function.ROUND, x)
        rest = b.map(Function.EXP, b.map(Function.MUL, b.map(Function.SUB, x, whole), math.log(2)))
        first, second = powers_of_two(b, whole)
        return b.map(Function.MUL, b.map(Function.MUL, rest, first), second)
    low, high = sorted(exponent / math.log2(base) for exponent in (129.0, -151.0))
    x = b.map(Function.MAX, b.map(Function.MIN, b.to_float(x), high), low)
    whole = b.map(Function.ROUND, b.map(Function.MUL, x, math.log2(base)))
    first, second = powers_of_two(b, whole)
    rest = b.map(Function.EXP, _rest_of_exponent(b, x, math.log(base), whole))
    return b.map(Function.MUL, b.map(Function.MUL, rest, first), second)


def _rest_of_exponent(b: Builder, x: Value, factor: float, whole: Value) -> Value:
    """x factor - whole log 2. ROUNDING: the products of leading parts are exact, the others smaller by 2^-11."""
    upper, lower = leading_of_number(factor, 12)
    over, under = leading_of_number(math.log(2), 15)
    head = leading(b, x, 12)
    tail = b.map(Function.MUL, b.map(Function.SUB, x, head), factor)
    large = b.map(Function.SUB, b.map(Function.MUL, head, upper), b.map(Function.MUL, whole, over))
    small = b.map(Function.SUB, b.map(Function.MUL, head, lower), b.map(Function.MUL, whole, under))
    return b.map(Function.ADD, large, b.map(Function.ADD, small, tail))


def leading_of_number(number: float, bits: int) -> tuple[float, float]:
    """A number rounded to `bits` bits, and the rest."""
    part, exponent = math.frexp(number)
    upper = math.ldexp(round(math.ldexp(part, bits)), exponent - bits)
    return upper, number - upper


@lowers("log2.default")
def log2(b: Builder, x: Value) -> Value:
    """n + log(x / 2^n) / log 2 with the nearest integer n."""
    x = b.to_float(x)
    rough = b.map(Function.DIV, b.map(Function.LOG, x), math.log(2))
    whole = b.map(Function.MAX, b.map(Function.MIN, b.map(Function.ROUND, rough), 128.0), -150.0)
    first, second = powers_of_two(b, whole)
    rest = b.map(Function.LOG, b.map(Function.DIV, b.map(Function.DIV, x, first), second))
    return b.map(Function.ADD, whole, b.map(Function.DIV, rest, math.log(2)))


def leading(b: Builder, x: Value, bits: int) -> Value:
    """x rounded to `bits` bits (Veltkamp): c - (c - x) with c = x (2^(24 - bits) + 1)."""
    c = b.map(Function.MUL, x, 2.0 ** (24 - bits) + 1)
    return b.map(Function.SUB, c, b.map(Function.SUB, c, x))


def powers_of_two(b: Builder, whole: Value) -> tuple[Value, Value]:
    """Two exact powers of two with the product 2 ** whole, for integers from -151 to 129: each is an exponential
    rounded to two bits."""
    half = b.map(Function.FLOOR, b.map(Function.MUL, whole, 0.5))
    parts = (half, b.map(Function.SUB, whole, half))
    near = [b.map(Function.EXP, b.map(Function.MUL, part, math.log(2))) for part in parts]
    return leading(b, near[0], 2), leading(b, near[1], 2)


@lowers("exp2.default")
def exp2(b: Builder, x: Value) -> Value:
    return power_of_scalar(b, 2.0, x)

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
    """base ** x = exp(x * log(base)), composed; 2 ** x = 2 ** n exp(f log 2), n the nearest integer, f the rest."""
    if base <= 0:
        raise ProgramError(f"the power of the number {base} is not supported; positive bases are")
    if base == 2:
        x = b.map(Function.MAX, b.map(Function.MIN, b.to_float(x), 129.0), -151.0)
        whole = b.map(Function.ROUND, x)
        rest = b.map(Function.EXP, b.map(Function.MUL, b.map(Function.SUB, x, whole), math.log(2)))
        first, second = powers_of_two(b, whole)
        return b.map(Function.MUL, b.map(Function.MUL, rest, first), second)
    return b.map(Function.EXP, b.map(Function.MUL, b.to_float(x), math.log(base)))


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
    """x rounded to so many bits (Veltkamp): c - (c - x) with c = x (2^(24 - bits) + 1)."""
    c = b.map(Function.MUL, x, 2.0 ** (24 - bits) + 1)
    return b.map(Function.SUB, c, b.map(Function.SUB, c, x))


def powers_of_two(b: Builder, whole: Value) -> tuple[Value, Value]:
    """Exact powers of two, whose product is 2 ** whole, for integers from -151 to 129: the exponential, to two bits."""
    half = b.map(Function.FLOOR, b.map(Function.MUL, whole, 0.5))
    parts = (half, b.map(Function.SUB, whole, half))
    near = [b.map(Function.EXP, b.map(Function.MUL, part, math.log(2))) for part in parts]
    return leading(b, near[0], 2), leading(b, near[1], 2)


@lowers("exp2.default")
def exp2(b: Builder, x: Value) -> Value:
    return power_of_scalar(b, 2.0, x)

"""Functions defined as compositions: inverse trigonometric, hyperbolic, general powers. Each map is correctly rounded;
the whole is within a few units in the last place of the function (the arctangent: of Cephes' atanf, whose polynomial it
uses)."""

from __future__ import annotations

import math

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.pointwise import Operand, both
from vgame.program.lowering.powers import leading
from vgame.program.lowering.table import lowers

ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)

#: Coefficients of erfcc, from the highest power of t.
ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)
ZERO_FROM = 11.0  # from here on erfc is 0 in binary32
FAR = 2.0**60  # beyond it, x^2 + 1 rounds to x^2


def signed_as(b: Builder, x: Value, magnitude: Value) -> Value:
    """magnitude with the sign of x; x itself if it is a zero or NaN."""
    result = b.select(b.map(Function.LT, x, 0.0), b.map(Function.NEG, magnitude), x)
    return b.select(b.map(Function.LT, 0.0, x), magnitude, result)


@lowers("atan.default")
def atan(b: Builder, x: Value) -> Value:
    """Reduced to [-tan(pi/8), tan(pi/8)], then a polynomial of degree 9."""
    x = b.to_float(x)
    size = b.map(Function.ABS, x)
    far, middle = b.map(Function.LT, 2.414213562373095, size), b.map(Function.LT, 0.4142135623730950, size)
    shifted = b.map(Function.DIV, b.map(Function.SUB, size, 1.0), b.map(Function.ADD, size, 1.0))
    y = b.select(far, b.map(Function.DIV, -1.0, size), b.select(middle, shifted, size))
    start = b.select(far, math.pi / 2, b.select(middle, math.pi / 4, 0.0))
    square, series = b.map(Function.MUL, y, y), b.number(ATAN[0], False)
    for coefficient in ATAN[1:]:
        series = b.map(Function.ADD, b.map(Function.MUL, series, square), coefficient)
    series = b.map(Function.ADD, b.map(Function.MUL, b.map(Function.MUL, series, square), y), y)
    return signed_as(b, x, b.map(Function.ADD, start, series))


@lowers("atan2.default")
def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of (x, y); a zero y counts as positive."""
    y, x = b.to_float(y), b.to_float(x)
    angle = atan(b, b.map(Function.DIV, y, x))
    half_turn = b.select(b.map(Function.LT, y, 0.0), -math.pi, math.pi)
    angle = b.select(b.map(Function.LT, x, 0.0), b.map(Function.ADD, angle, half_turn), angle)
    nowhere = b.map(Function.IAND, b.map(Function.EQ, x, 0.0), b.map(Function.EQ, y, 0.0))
    return b.select(nowhere, 0.0, angle)


@lowers("asin.default")
def asin(b: Builder, x: Value) -> Value:
    """atan(x / sqrt((1 - x)(1 + x)))."""
    x = b.to_float(x)
    rest = b.map(Function.MUL, b.map(Function.SUB, 1.0, x), b.map(Function.ADD, 1.0, x))
    return atan(b, b.map(Function.DIV, x, b.map(Function.SQRT, rest)))


@lowers("acos.default")
def acos(b: Builder, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    x = b.to_float(x)
    ratio = b.map(Function.DIV, b.map(Function.SUB, 1.0, x), b.map(Function.ADD, 1.0, x))
    return b.map(Function.MUL, atan(b, b.map(Function.SQRT, ratio)), 2.0)


@lowers("sinh.default")
def sinh(b: Builder, x: Value) -> Value:
    """(e + e / (e + 1)) / 2 with e = expm1(|x|)."""
    x = b.to_float(x)
    e = b.map(Function.EXPM1, b.map(Function.ABS, x))
    rest = b.map(Function.DIV, e, b.map(Function.ADD, e, 1.0))
    rest = b.select(b.map(Function.EQ, e, math.inf), 1.0, rest)
    return signed_as(b, x, b.map(Function.MUL, b.map(Function.ADD, e, rest), 0.5))


@lowers("cosh.default")
def cosh(b: Builder, x: Value) -> Value:
    e = b.map(Function.EXP, b.map(Function.ABS, b.to_float(x)))
    return b.map(Function.MUL, b.map(Function.ADD, e, b.map(Function.DIV, 1.0, e)), 0.5)


@lowers("asinh.default")
def asinh(b: Builder, x: Value) -> Value:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2))); log |x| + log 2 beyond FAR."""
    x = b.to_float(x)
    size, square = b.map(Function.ABS, x), b.map(Function.MUL, x, x)
    root = b.map(Function.SQRT, b.map(Function.ADD, square, 1.0))
    rest = b.map(Function.DIV, square, b.map(Function.ADD, root, 1.0))
    near = b.map(Function.LOG1P, b.map(Function.ADD, size, rest))
    return signed_as(b, x, b.select(b.map(Function.LT, FAR, size), _log_of_double(b, size), near))


def _log_of_double(b: Builder, x: Value) -> Value:
    return b.map(Function.ADD, b.map(Function.LOG, x), math.log(2))


@lowers("acosh.default")
def acosh(b: Builder, x: Value) -> Value:
    """log1p(t + sqrt(t (x + 1))) with t = x - 1; log x + log 2 beyond FAR."""
    x = b.to_float(x)
    rest = b.map(Function.SUB, x, 1.0)
    root = b.map(Function.SQRT, b.map(Function.MUL, rest, b.map(Function.ADD, x, 1.0)))
    near = b.map(Function.LOG1P, b.map(Function.ADD, rest, root))
    return b.select(b.map(Function.LT, FAR, x), _log_of_double(b, x), near)


@lowers("atanh.default")
def atanh(b: Builder, x: Value) -> Value:
    """log1p(2 |x| / (1 - |x|)) / 2 with the sign of x."""
    x = b.to_float(x)
    size = b.map(Function.ABS, x)
    ratio = b.map(Function.DIV, b.map(Function.ADD, size, size), b.map(Function.SUB, 1.0, size))
    return signed_as(b, x, b.map(Function.MUL, b.map(Function.LOG1P, ratio), 0.5))


@lowers("log10.default")
def log10(b: Builder, x: Value) -> Value:
    return b.map(Function.DIV, b.map(Function.LOG, b.to_float(x)), math.log(10))


@lowers("erfc.default")
def erfc(b: Builder, x: Value) -> Value:
    """1 - erf(x) below 1/2; above, t exp(p(t) - x^2) with t = 1 / (1 + x / 2), where x^2 is split as h^2 + (x - h)(x +
    h), h being x to 12 bits (Numerical Recipes, erfcc: within 1.2e-7 of the function)."""
    x = b.to_float(x)
    z = b.map(Function.MIN, b.map(Function.ABS, x), ZERO_FROM)
    t = b.map(Function.DIV, 1.0, b.map(Function.ADD, b.map(Function.MUL, z, 0.5), 1.0))
    series = b.number(ERFC[0], False)
    for coefficient in ERFC[1:]:
        series = b.map(Function.ADD, b.map(Function.MUL, series, t), coefficient)
    high = leading(b, z, 12)
    low = b.map(Function.MUL, b.map(Function.SUB, high, z), b.map(Function.ADD, high, z))
    tail = b.map(Function.MUL, t, b.map(Function.EXP, b.map(Function.ADD, series, low)))
    tail = b.map(Function.MUL, tail, b.map(Function.EXP, b.map(Function.NEG, b.map(Function.MUL, high, high))))
    near = b.map(Function.SUB, 1.0, b.map(Function.ERF, x))
    return b.select(b.map(Function.LT, 0.5, x), tail, near)


@lowers("hypot.default")
def hypot(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2), both scaled by a power of two if their squares would overflow or underflow."""
    x, y = b.to_float(x), b.to_float(y)
    larger = b.map(Function.MAX, b.map(Function.ABS, x), b.map(Function.ABS, y))
    small = b.select(b.map(Function.LT, larger, 2.0**-40), 2.0**100, 1.0)
    scale = b.select(b.map(Function.LT, 2.0**60, larger), 2.0**-68, small)
    squares = (b.map(Function.MUL, v, v) for v in (b.map(Function.MUL, x, scale), b.map(Function.MUL, y, scale)))
    root = b.map(Function.DIV, b.map(Function.SQRT, b.map(Function.ADD, *squares)), scale)
    return b.select(b.map(Function.EQ, larger, math.inf), larger, root)


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(b: Builder, x: Value, y: Operand) -> Value:
    """|x| with the sign of y, also for a zero, by the sign of 1 / y."""
    y = b.to_float(y)
    below = b.map(Function.LT, b.select(b.map(Function.EQ, y, 0.0), b.map(Function.DIV, 1.0, y), y), 0.0)
    size = b.map(Function.ABS, b.to_float(x))
    return b.select(below, b.map(Function.NEG, size), size)


@lowers("fmax.default")
def fmax(b: Builder, x: Value, y: Value) -> Value:
    """The larger one; a NaN is ignored."""
    x, y = b.to_float(x), b.to_float(y)
    return b.select(b.map(Function.EQ, x, x), b.select(b.map(Function.EQ, y, y), b.map(Function.MAX, x, y), x), y)


@lowers("fmin.default")
def fmin(b: Builder, x: Value, y: Value) -> Value:
    """The smaller one; a NaN is ignored."""
    x, y = b.to_float(x), b.to_float(y)
    return b.select(b.map(Function.EQ, x, x), b.select(b.map(Function.EQ, y, y), b.map(Function.MIN, x, y), x), y)


@lowers("pow.Tensor_Tensor")
def power(b: Builder, x: Value, exponent: Value | Number) -> Value:
    """exp(y log |x|); for negative x negative if y is odd, NaN if y is not an integer; 1 for y = 0."""
    if x.integer and (exponent.integer if isinstance(exponent, Value) else isinstance(exponent, int)):
        raise ProgramError(
            "an integer tensor to the power of an integer tensor is not supported; convert one of them to float"
        )
    x, y = b.to_float(x), b.to_float(exponent)
    size = b.map(Function.EXP, b.map(Function.MUL, y, b.map(Function.LOG, b.map(Function.ABS, x))))
    half = b.map(Function.MUL, y, 0.5)
    odd = b.map(Function.NE, b.map(Function.FLOOR, half), half)
    whole = b.map(Function.EQ, b.map(Function.FLOOR, y), y)
    turned = b.select(whole, b.select(odd, b.map(Function.NEG, size), size), math.nan)
    result = b.select(b.map(Function.LT, x, 0.0), turned, size)
    return b.select(both(b, Function.EQ, y, 0.0), 1.0, result)

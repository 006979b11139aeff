"""Pointwise operators. Each is one or a few maps, every one of them correctly rounded."""

from __future__ import annotations

import math

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Number, Value
from vgame.program.lowering.precision import cast
from vgame.program.lowering.table import lowers

Operand = Value | Number
WORD_BITS = 32

FLOAT_TO_INTEGER = {
    Function.ADD: Function.IADD,
    Function.SUB: Function.ISUB,
    Function.MUL: Function.IMUL,
    Function.MAX: Function.IMAX,
    Function.MIN: Function.IMIN,
    Function.EQ: Function.IEQ,
    Function.NE: Function.INE,
    Function.LT: Function.ILT,
    Function.LE: Function.ILE,
}


def is_integer(operand: Operand) -> bool:
    """True for integer and boolean values and numbers."""
    return operand.integer if isinstance(operand, Value) else not isinstance(operand, float)


def both(b: Builder, function: Function, x: Operand, y: Operand) -> Value:
    """A binary function after torch's type promotion: integers stay integers only among themselves."""
    if is_integer(x) and is_integer(y):
        return b.map(FLOAT_TO_INTEGER[function], x, y)
    return b.map(function, b.to_float(x), b.to_float(y))


def scaled(b: Builder, x: Operand, alpha: Number) -> Operand:
    """alpha * x, rounded: torch's add(alpha=) is two operators here."""
    return x if alpha == 1 else both(b, Function.MUL, x, alpha)


@lowers("add.Tensor", "add.Scalar")
def add(b: Builder, x: Value, y: Operand, alpha: Number = 1) -> Value:
    return both(b, Function.ADD, x, scaled(b, y, alpha))


@lowers("sub.Tensor", "sub.Scalar")
def sub(b: Builder, x: Value, y: Operand, alpha: Number = 1) -> Value:
    return both(b, Function.SUB, x, scaled(b, y, alpha))


@lowers("rsub.Scalar", "rsub.Tensor")
def rsub(b: Builder, x: Value, y: Operand, alpha: Number = 1) -> Value:
    return both(b, Function.SUB, y, scaled(b, x, alpha))


@lowers("mul.Tensor", "mul.Scalar")
def mul(b: Builder, x: Value, y: Operand) -> Value:
    return both(b, Function.MUL, x, y)


@lowers("div.Tensor", "div.Scalar")
def div(b: Builder, x: Value, y: Operand) -> Value:
    return b.map(Function.DIV, b.to_float(x), b.to_float(y))


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, x: Value, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(b, x, y)
    if is_integer(x) and is_integer(y):
        return b.map(Function.IDIV, x, y) if rounding_mode == "floor" else _truncated(b, x, y)
    return b.map(Function.FLOOR if rounding_mode == "floor" else Function.TRUNC, div(b, x, y))


def _truncated(b: Builder, x: Operand, y: Operand) -> Value:
    """Integer quotient toward zero: the floor, plus one if it is negative and not exact."""
    negative = b.map(Function.IXOR, b.map(Function.ILT, x, 0), b.map(Function.ILT, y, 0))
    inexact = b.map(Function.INE, b.map(Function.IMOD, x, y), 0)
    return b.map(Function.IADD, b.map(Function.IDIV, x, y), b.map(Function.IAND, negative, inexact))


@lowers("floor_divide.default")
def floor_divide(b: Builder, x: Value, y: Operand) -> Value:
    return div_mode(b, x, y, rounding_mode="floor")


@lowers("remainder.Tensor", "remainder.Scalar")
def remainder(b: Builder, x: Value, y: Operand) -> Value:
    """Integers: floor modulus. Floats: fmod, moved to the divisor's sign."""
    if is_integer(x) and is_integer(y):
        return b.map(Function.IMOD, x, y)
    x, y = b.to_float(x), b.to_float(y)
    rest = b.map(Function.FMOD, x, y)
    signs_differ = b.map(Function.INE, b.map(Function.LT, rest, 0.0), b.map(Function.LT, y, 0.0))
    wrong = b.map(Function.IAND, b.map(Function.NE, rest, 0.0), signs_differ)
    return b.select(wrong, b.map(Function.ADD, rest, y), rest)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(b: Builder, x: Value, y: Operand) -> Value:
    if is_integer(x) and is_integer(y):
        return b.map(Function.ISUB, x, b.map(Function.IMUL, _truncated(b, x, y), y))
    return b.map(Function.FMOD, b.to_float(x), b.to_float(y))


@lowers("maximum.default")
def maximum(b: Builder, x: Value, y: Value) -> Value:
    return both(b, Function.MAX, x, y)


@lowers("minimum.default")
def minimum(b: Builder, x: Value, y: Value) -> Value:
    return both(b, Function.MIN, x, y)


def _unary(name: str, function: Function) -> None:
    @lowers(f"{name}.default")
    def handler(b: Builder, x: Value) -> Value:
        return b.map(function, b.to_float(x))


for _name, _function in {
    "sqrt": Function.SQRT,
    "exp": Function.EXP,
    "expm1": Function.EXPM1,
    "log": Function.LOG,
    "log1p": Function.LOG1P,
    "tanh": Function.TANH,
    "erf": Function.ERF,
    "sigmoid": Function.SIGMOID,
    "sin": Function.SIN,
    "cos": Function.COS,
}.items():
    _unary(_name, _function)


def _keeps_integers(name: str, function: Function) -> None:
    @lowers(f"{name}.default")
    def handler(b: Builder, x: Value) -> Value:
        return x if x.integer else b.map(function, x)


for _name, _function in {
    "floor": Function.FLOOR,
    "ceil": Function.CEIL,
    "trunc": Function.TRUNC,
    "round": Function.ROUND,
}.items():
    _keeps_integers(_name, _function)


@lowers("neg.default")
def neg(b: Builder, x: Value) -> Value:
    return b.map(Function.ISUB, 0, x) if x.integer else b.map(Function.NEG, x)


@lowers("abs.default")
def absolute(b: Builder, x: Value) -> Value:
    return b.map(Function.IMAX, x, b.map(Function.ISUB, 0, x)) if x.integer else b.map(Function.ABS, x)


@lowers("sign.default", "sgn.default")
def sign(b: Builder, x: Value) -> Value:
    """1, -1, or x itself if it is a zero or NaN."""
    if x.integer:
        return b.map(Function.ISUB, b.map(Function.ILT, 0, x), b.map(Function.ILT, x, 0))
    negative = b.select(b.map(Function.LT, x, 0.0), -1.0, x)
    return b.select(b.map(Function.LT, 0.0, x), 1.0, negative)


@lowers("reciprocal.default")
def reciprocal(b: Builder, x: Value) -> Value:
    return b.map(Function.DIV, 1.0, b.to_float(x))


@lowers("rsqrt.default")
def rsqrt(b: Builder, x: Value) -> Value:
    return reciprocal(b, b.map(Function.SQRT, b.to_float(x)))


@lowers("tan.default")
def tan(b: Builder, x: Value) -> Value:
    return b.map(Function.DIV, b.map(Function.SIN, x), b.map(Function.COS, x))


# ---- comparisons and logic ----


def _comparison(name: str, function: Function, swap: bool) -> None:
    @lowers(f"{name}.Tensor", f"{name}.Scalar")
    def handler(b: Builder, x: Value, y: Operand) -> Value:
        return both(b, function, y, x) if swap else both(b, function, x, y)


for _name, (_function, _swap) in {
    "eq": (Function.EQ, False),
    "ne": (Function.NE, False),
    "lt": (Function.LT, False),
    "le": (Function.LE, False),
    "gt": (Function.LT, True),
    "ge": (Function.LE, True),
}.items():
    _comparison(_name, _function, _swap)


def truth(b: Builder, x: Value) -> Value:
    """x != 0 as a truth value."""
    return x if x.boolean else both(b, Function.NE, x, 0)


@lowers("logical_not.default")
def logical_not(b: Builder, x: Value) -> Value:
    return both(b, Function.EQ, x, 0)


@lowers("logical_and.default")
def logical_and(b: Builder, x: Value, y: Value) -> Value:
    return b.map(Function.IAND, truth(b, x), truth(b, y))


@lowers("logical_or.default")
def logical_or(b: Builder, x: Value, y: Value) -> Value:
    return b.map(Function.IOR, truth(b, x), truth(b, y))


@lowers("logical_xor.default")
def logical_xor(b: Builder, x: Value, y: Value) -> Value:
    return b.map(Function.IXOR, truth(b, x), truth(b, y))


@lowers("bitwise_and.Tensor", "bitwise_and.Scalar")
def bitwise_and(b: Builder, x: Value, y: Operand) -> Value:
    return b.map(Function.IAND, x, y)


@lowers("bitwise_or.Tensor", "bitwise_or.Scalar")
def bitwise_or(b: Builder, x: Value, y: Operand) -> Value:
    return b.map(Function.IOR, x, y)


@lowers("bitwise_xor.Tensor", "bitwise_xor.Scalar")
def bitwise_xor(b: Builder, x: Value, y: Operand) -> Value:
    return b.map(Function.IXOR, x, y)


@lowers("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor")
def shift_left(b: Builder, x: Value, places: Operand) -> Value:
    """0 if `places` is negative or at least WORD_BITS."""
    places, within = _places(b, places)
    shifted = b.map(Function.ISHL, x, places)
    return shifted if within is None else b.select(within, shifted, 0)


@lowers("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor")
def shift_right(b: Builder, x: Value, places: Operand) -> Value:
    """Arithmetic shift, by the logical shift of x or of its complement; the sign (0 or -1) if `places` is negative or
    at least WORD_BITS."""
    places, within = _places(b, places)
    places = places if within is None else b.select(within, places, WORD_BITS - 1)
    negative = b.map(Function.ILT, x, 0)
    turned = b.map(Function.ISHR, b.select(negative, b.map(Function.IXOR, x, -1), x), places)
    return b.select(negative, b.map(Function.IXOR, turned, -1), turned)


def _places(b: Builder, places: Operand) -> tuple[Value, Value | None]:
    """The places of a shift, and whether they are in 0..31, the valid range for words; None if they are known to be."""
    if not isinstance(places, Value):
        places = b.number(places if 0 <= places < WORD_BITS else -1, True)
    if b.checked or (places.is_immediate and places.word < WORD_BITS):
        return places, None
    return places, b.map(Function.IEQ, b.map(Function.IAND, places, -WORD_BITS), 0)


@lowers("bitwise_not.default")
def bitwise_not(b: Builder, x: Value) -> Value:
    return logical_not(b, x) if x.boolean else b.map(Function.IXOR, x, -1)


@lowers("isnan.default")
def isnan(b: Builder, x: Value) -> Value:
    return b.map(Function.NE, x, x)


@lowers("isinf.default")
def isinf(b: Builder, x: Value) -> Value:
    return b.map(Function.EQ, b.map(Function.ABS, x), math.inf)


# ---- selections ----


@lowers("where.self")
def where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    if not (is_integer(x) and is_integer(y)):
        x, y = b.to_float(x), b.to_float(y)
    return b.select(condition, x, y)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    value = value if isinstance(value, Value) else b.number(value, x.integer)
    return b.select(mask, value, x)


@lowers("clamp.default", "clamp.Tensor")
def clamp(b: Builder, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    if low is not None:
        x = both(b, Function.MAX, x, low)
    return x if high is None else both(b, Function.MIN, x, high)


@lowers("clamp_min.default", "clamp_min.Tensor")
def clamp_min(b: Builder, x: Value, low: Operand) -> Value:
    return clamp(b, x, low)


@lowers("clamp_max.default", "clamp_max.Tensor")
def clamp_max(b: Builder, x: Value, high: Operand) -> Value:
    return clamp(b, x, None, high)


@lowers("_to_copy.default")
def to_copy(b: Builder, x: Value, dtype: torch.dtype | None = None, **_: object) -> Value:
    """Conversions between the supported types."""
    if dtype is None or (not x.integer and dtype == torch.float32):
        return x
    if dtype in (torch.float16, torch.float64):
        raise ProgramError(f"a conversion to {dtype} is not supported: tensors are float32, bfloat16 or integers")
    if dtype == torch.bfloat16:
        return cast(b, b.to_float(x))
    if dtype == torch.float32:
        return b.to_float(x)
    if dtype == torch.bool:
        return truth(b, x)
    if x.integer:
        return x.retyped(torch.int32) if x.boolean else x
    return b.map(Function.FTOI, x)

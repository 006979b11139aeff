"""The functions of a `map` operator: code, arity, types. Twin: contracts/arithmetic/Functions.sol.

A code is one byte of an operator record, so it is part of every program root: codes are never reused or renumbered.
"""

from __future__ import annotations

from enum import IntEnum


class Function(IntEnum):
    """The function that a `map` computes for one element. f = binary32 word, i = int32 word (two's complement)."""

    # binary32 -> binary32
    NEG = 1
    ABS = 2
    SQRT = 3
    EXP = 4
    EXPM1 = 5
    LOG = 6
    LOG1P = 7
    TANH = 8
    ERF = 9
    SIGMOID = 10
    SIN = 11
    COS = 12
    FLOOR = 13
    CEIL = 14
    TRUNC = 15
    ROUND = 16  # to the nearest integer, ties to even
    CAST = 17  # the operand, rounded to the precision of the output
    # (binary32, binary32) -> binary32
    ADD = 32
    SUB = 33
    MUL = 34
    DIV = 35
    MAX = 36  # NaN wins; a zero result is +0
    MIN = 37  # NaN wins; a zero result is +0
    FMOD = 38  # exact remainder with the sign of the first operand (C's fmod)
    # (binary32, binary32) -> int32, 1 or 0; every comparison with NaN is false, except NE
    EQ = 48
    NE = 49
    LT = 50
    LE = 51
    # (int32, int32) -> int32, modulo 2^32
    IADD = 64
    ISUB = 65
    IMUL = 66
    IDIV = 67  # floor division; by zero: 0
    IMOD = 68  # floor modulus, the sign of the divisor; by zero: 0
    IAND = 69
    IOR = 70
    IXOR = 71
    ISHL = 72  # by (b & 31)
    ISHR = 73  # logical (zero fill), by (b & 31)
    IMAX = 74
    IMIN = 75
    # (int32, int32) -> int32, 1 or 0
    IEQ = 80
    INE = 81
    ILT = 82  # signed
    ILE = 83  # signed
    ULT = 84  # both words read as unsigned
    # conversions
    ITOF = 96  # signed int32 -> binary32, to nearest even
    FTOI = 97  # binary32 -> int32, toward zero; saturates; NaN gives 0
    # (int32, any, any) -> any
    SELECT = 112  # a != 0 ? b : c, words copied


UNARY_F = frozenset(f for f in Function if f < 32)
BINARY_F = frozenset(f for f in Function if 32 <= f < 48)
COMPARE_F = frozenset(f for f in Function if 48 <= f < 64)
BINARY_I = frozenset(f for f in Function if 64 <= f < 80)
COMPARE_I = frozenset(f for f in Function if 80 <= f < 96)

#: Proved by an exhaustive run over all 2^32 inputs (docs/numerics-elementary.md).
ELEMENTARY = (
    Function.EXP,
    Function.EXPM1,
    Function.LOG,
    Function.LOG1P,
    Function.TANH,
    Function.ERF,
    Function.SIGMOID,
    Function.SIN,
    Function.COS,
)


def arity(function: Function) -> int:
    """Number of operands."""
    if function in UNARY_F or function in (Function.ITOF, Function.FTOI):
        return 1
    return 3 if function is Function.SELECT else 2

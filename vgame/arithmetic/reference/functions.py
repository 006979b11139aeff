"""The exact meaning of every function and reduction, in plain Python: the reference of the fast paths and the contract.

In: words (ints 0..2^32-1). Out: words. No double rounding, no dependence on a platform, no tolerance. The parts:
binary32.py (arithmetic, order, integers), elementary.py (exp .. cos), sums.py (sums, maxima).
"""

from __future__ import annotations

from collections.abc import Callable

from vgame.arithmetic.functions import ELEMENTARY, Function, arity
from vgame.arithmetic.reference import binary32
from vgame.arithmetic.reference.binary32 import (
    BFLOAT16_BITS,
    SIGNIFICAND_BITS,
    WORD_MASK,
    compare,
    decode,
    round_to_binary32,
    round_word,
    to_signed,
)
from vgame.arithmetic.reference.elementary import elementary
from vgame.arithmetic.reference.sums import (
    Partial,
    argmax,
    dot,
    integer_max,
    is_partial,
    merge,
    one_hot_sum,
    partial_dot,
    partial_one_hot_sum,
    partial_sum,
    reduce_max,
    sum_words,
)

__all__ = [
    "BFLOAT16_BITS",
    "SIGNIFICAND_BITS",
    "Partial",
    "argmax",
    "decode",
    "dot",
    "evaluate",
    "integer_max",
    "is_partial",
    "merge",
    "one_hot_sum",
    "partial_dot",
    "partial_one_hot_sum",
    "partial_sum",
    "reduce_max",
    "round_to_binary32",
    "sum_words",
]


#: Functions whose value may need more than 24 bits: these are rounded inside, once.
_INEXACT = (Function.ADD, Function.SUB, Function.MUL, Function.DIV, Function.SQRT, Function.ITOF)


def evaluate(function: Function, *words: int, bits: int = SIGNIFICAND_BITS) -> int:
    """The word of `function` for its operands' words; a value that is not an integer is rounded to `bits` bits,
    once."""
    function = Function(function)
    if len(words) != arity(function):
        raise ValueError(f"{function.name} takes {arity(function)} words, not {len(words)}")
    for word in words:
        if not 0 <= word <= WORD_MASK:
            raise ValueError(f"{word} is not a word: 0..{WORD_MASK}")
    if function in ELEMENTARY:
        return elementary(function, words[0], bits)
    if function in _INEXACT:
        return _FUNCTIONS[function](*words, bits)
    word = _FUNCTIONS[function](*words)
    return word if bits == SIGNIFICAND_BITS else round_word(word, bits)


def _wrapped(operation: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """The operation on words, modulo 2^32."""
    return lambda a, b: operation(a, b) & WORD_MASK


def _signed(predicate: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    """1 or 0 of a predicate on the signed values."""
    return lambda a, b: int(predicate(to_signed(a), to_signed(b)))


_FUNCTIONS: dict[Function, Callable[..., int]] = {
    Function.CAST: lambda a: binary32.NAN if binary32.is_nan(a) else a,
    Function.NEG: binary32.negate,
    Function.ABS: binary32.absolute,
    Function.SQRT: binary32.square_root,
    Function.FLOOR: lambda a: binary32.round_to_integer(a, "floor"),
    Function.CEIL: lambda a: binary32.round_to_integer(a, "ceil"),
    Function.TRUNC: lambda a: binary32.round_to_integer(a, "trunc"),
    Function.ROUND: lambda a: binary32.round_to_integer(a, "even"),
    Function.ADD: binary32.add,
    Function.SUB: binary32.subtract,
    Function.MUL: binary32.multiply,
    Function.DIV: binary32.divide,
    Function.MAX: binary32.maximum,
    Function.MIN: binary32.minimum,
    Function.FMOD: binary32.fmod,
    Function.EQ: lambda a, b: int(compare(a, b) == 0),
    Function.NE: lambda a, b: int(compare(a, b) != 0),
    Function.LT: lambda a, b: int(compare(a, b) == -1),
    Function.LE: lambda a, b: int(compare(a, b) in (-1, 0)),
    Function.IADD: _wrapped(lambda a, b: a + b),
    Function.ISUB: _wrapped(lambda a, b: a - b),
    Function.IMUL: _wrapped(lambda a, b: a * b),
    Function.IDIV: binary32.floor_divide,
    Function.IMOD: binary32.floor_modulus,
    Function.IAND: lambda a, b: a & b,
    Function.IOR: lambda a, b: a | b,
    Function.IXOR: lambda a, b: a ^ b,
    Function.ISHL: _wrapped(lambda a, b: a << (b & 31)),
    Function.ISHR: lambda a, b: a >> (b & 31),
    Function.IMAX: lambda a, b: max(a, b, key=to_signed),
    Function.IMIN: lambda a, b: min(a, b, key=to_signed),
    Function.IEQ: lambda a, b: int(a == b),
    Function.INE: lambda a, b: int(a != b),
    Function.ILT: _signed(lambda a, b: a < b),
    Function.ILE: _signed(lambda a, b: a <= b),
    Function.ULT: lambda a, b: int(a < b),
    Function.ITOF: binary32.integer_to_binary32,
    Function.FTOI: binary32.binary32_to_integer,
    Function.SELECT: lambda a, b, c: b if a != 0 else c,
}

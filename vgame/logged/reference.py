"""Any single output element in mode `logged`, slowly and exactly, given the rounding log. Twin: contracts/Logged.sol.

In: an operator, an element, `read(ref, first, count)`, b, the element's log entry. Out: the word; for long sums the
moments of a block. The reads and their order are those of vgame/execute/reference.py.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.reference import functions as pointwise
from vgame.arithmetic.reference.binary32 import NAN, is_infinite, is_nan, is_zero, to_fraction
from vgame.execute import reference
from vgame.execute.reference import Position, Read
from vgame.logged.admissible import Moments, merge_moments, moments_dot, moments_sum
from vgame.logged.rounding import Direction, pack
from vgame.logged.rounding import grid as cell_of
from vgame.program.operators import Contract, Map, Operator, Variant

#: Functions whose binary64 result is rounded to b bits; then those whose binary32 result is.
WIDE = frozenset({Function.ADD, Function.SUB, Function.MUL, Function.DIV, Function.SQRT})
AGAIN = frozenset({Function.ITOF, Function.FMOD})


def reads_log(operator: Operator) -> bool:
    """Whether its elements may have entries."""
    return isinstance(operator, Contract) and operator.k > 1


def evaluate(operator: Operator, at: Position, read: Read, bits: int, entry: Direction) -> int:
    """The word of one output element."""
    if isinstance(operator, Contract):
        blocks = (moments(operator, at.element, j, read) for j in range(operator.blocks))
        return merge_moments(blocks).word(operator.k, bits, entry)
    if isinstance(operator, Map) and bits != 32:
        return _map(operator, at.element, read, bits)
    return reference.evaluate(operator, at, read)


def moments(operator: Contract, element: int, block: int, read: Read) -> Moments:
    """The moments of one block of a contraction."""
    m, a, b = reference.rows(operator, element, block, read)
    if operator.variant is Variant.ONE_HOT:
        return moments_sum([word for position, word in zip(a, b, strict=True) if position == m])
    return moments_sum(a) if operator.variant is Variant.SUM else moments_dot(a, b)


def _map(operator: Map, element: int, read: Read, bits: int) -> int:
    """b < 32: elementary functions have no reference here and cannot be decided on chain."""
    if operator.function in ELEMENTARY:
        raise ValueError(f"{operator.function.name} with {bits} bits is no function of the contract")
    words = reference.operands(operator, element, read)
    plain = pointwise.evaluate(operator.function, *words)
    if operator.function in WIDE:
        return arithmetic(operator.function, words, plain, bits)
    if operator.function in AGAIN and not _special(plain):
        return _round(to_fraction(plain), plain, bits)
    return plain if operator.integer else reference.canonical(plain)


def arithmetic(function: Function, words: list[int], plain: int, bits: int) -> int:
    """RN_b(RN_64(f(words))); `plain` is the word of mode `correct`, which settles the special cases."""
    if any(map(_special, words)) or plain == NAN or (function is Function.DIV and is_zero(words[1])):
        return reference.canonical(plain)
    return _round(round_to_binary64(function, words), plain, bits)


def _round(value: Fraction, plain: int, bits: int) -> int:
    """RN_b of a value; a zero has the sign of `plain`."""
    return pack(cell_of(value, bits)[1], plain >> 31 == 1)


def _special(word: int) -> bool:
    return is_nan(word) or is_infinite(word)


def round_to_binary64(function: Function, words: list[int]) -> Fraction:
    """RN_64 of an exact result; no such result leaves the range of the normal binary64 numbers."""
    x, y = (to_fraction(word) for word in (words * 2)[:2])
    if function is Function.SQRT:
        return _root(x)
    if function is Function.DIV:
        return _nearest(x / y)
    return _nearest({Function.ADD: x + y, Function.SUB: x - y, Function.MUL: x * y}[function])


def _nearest(value: Fraction) -> Fraction:
    """The nearest multiple of 2^(E - 52), ties to even."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(value)
    width = Fraction(2) ** (exponent - 52)
    return round(value / width) * width


def _root(x: Fraction) -> Fraction:
    """RN_64(sqrt(x)): of 300 bits of the root, the last one marked if anything follows."""
    scaled = x * 4**300
    root = isqrt(int(scaled))
    return _nearest(Fraction(2 * root + (root * root != scaled), 2**301))

"""Exact sums: dot products, sums, one-hot sums, their partial sums, and maxima over a row.

In: sequences of words. Out: words, or a `Partial` (docs/formats.md section 4). Twin:
contracts/arithmetic/Accumulator.sol and Reduction.sol. Every binary32 product is a multiple of 2^-298, so a sum is one
integer in that unit, whatever the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from vgame.arithmetic.reference.binary32 import (
    BFLOAT16_BITS,
    NAN,
    NEGATIVE_INFINITY,
    ONE,
    POSITIVE_INFINITY,
    SIGN_BIT,
    SIGNIFICAND_BITS,
    decode,
    is_infinite,
    is_nan,
    is_zero,
    maximum,
    order_key,
    round_to_binary32,
    to_signed,
)

#: Exponent of the unit of a partial sum: the least product is 2^-149 * 2^-149.
UNIT_EXPONENT = -298
VALUE_BITS = 768
ENCODED_BYTES = 1 + VALUE_BITS // 8

FINITE = 0
PLUS_INFINITE = 1
MINUS_INFINITE = 2
NOT_A_NUMBER = PLUS_INFINITE | MINUS_INFINITE  # classes combine by OR: both infinities make a NaN
NARROW = 4  # added to the class of a sum that is rounded to bfloat16


@dataclass(frozen=True, slots=True)
class Partial:
    """An exact partial sum: class, and value in units of 2^-298 (zero unless the class is FINITE). The class has the
    flag NARROW, too."""

    cls: int
    value: int

    def encode(self) -> bytes:
        """class u8 ‖ value i768."""
        return bytes([self.cls]) + self.value.to_bytes(VALUE_BITS // 8, "big", signed=True)

    @classmethod
    def decode(cls, data: bytes) -> Partial:
        """The inverse of `encode`; ValueError for bytes that `encode` cannot return."""
        if not is_partial(data):
            raise ValueError(f"not the encoding of a partial sum: {data.hex()}")
        return cls(data[0], int.from_bytes(data[1:], "big", signed=True))

    def merge(self, other: Partial) -> Partial:
        """The sum of both. Modulo 2^768, which genuine sums (|value| < 2^588) never reach: the twin cannot grow."""
        cls = self.cls | other.cls
        return Partial(cls, 0 if cls & NOT_A_NUMBER else _wrap(self.value + other.value))

    def narrow(self) -> Partial:
        """The same sum, marked for rounding to bfloat16."""
        return Partial(self.cls | NARROW, self.value)

    def round(self) -> int:
        """RN(sum) as a word; a zero result is +0, also where a negative sum underflows."""
        if kind := self.cls & NOT_A_NUMBER:
            return {PLUS_INFINITE: POSITIVE_INFINITY, MINUS_INFINITE: NEGATIVE_INFINITY}.get(kind, NAN)
        bits = BFLOAT16_BITS if self.cls & NARROW else SIGNIFICAND_BITS
        word = round_to_binary32((int(self.value < 0), abs(self.value), UNIT_EXPONENT), bits)
        return 0 if is_zero(word) else word


def is_partial(data: bytes) -> bool:
    """Whether `data` is the encoding of a partial sum."""
    known = len(data) == ENCODED_BYTES and data[0] <= NARROW | NOT_A_NUMBER
    return known and (not data[0] & NOT_A_NUMBER or not any(data[1:]))


def _wrap(value: int) -> int:
    half = 1 << VALUE_BITS - 1
    return (value + half) % (2 * half) - half


ZERO = Partial(FINITE, 0)


def merge(partials: Iterable[Partial]) -> Partial:
    """The sum of all."""
    return reduce(Partial.merge, partials, ZERO)


# --- exact partial sums ---


def partial_dot(a: Sequence[int], b: Sequence[int]) -> Partial:
    """Σ_k a[k]·b[k]."""
    value, kind = 0, FINITE
    for x, y in zip(a, b, strict=True):
        term = _product_class(x, y)
        if term:
            kind |= term
            continue
        (sign_x, mantissa_x, exponent_x), (sign_y, mantissa_y, exponent_y) = decode(x), decode(y)
        product = mantissa_x * mantissa_y << exponent_x + exponent_y - UNIT_EXPONENT
        value += product if sign_x == sign_y else -product
    return Partial(kind, 0 if kind else value)


def _product_class(x: int, y: int) -> int:
    """Class of one product: NaN if either is, or infinity times zero; else the infinity; else finite."""
    if is_nan(x) or is_nan(y):
        return NOT_A_NUMBER
    if not (is_infinite(x) or is_infinite(y)):
        return FINITE
    if is_zero(x) or is_zero(y):
        return NOT_A_NUMBER
    return MINUS_INFINITE if (x ^ y) & SIGN_BIT else PLUS_INFINITE


def partial_sum(words: Sequence[int]) -> Partial:
    """Σ_k words[k]."""
    return partial_dot(words, [ONE] * len(words))


def partial_one_hot_sum(index: Sequence[int], m: int, words: Sequence[int]) -> Partial:
    """Σ_{k: index[k] = m} words[k]; the terms that are not selected are absent, not multiplied by zero."""
    return partial_sum([word for position, word in zip(index, words, strict=True) if position == m])


# --- sums, rounded once ---


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    """RN(Σ_k a[k]·b[k])."""
    return partial_dot(a, b).round()


def sum_words(words: Sequence[int]) -> int:
    """RN(Σ_k words[k])."""
    return partial_sum(words).round()


def one_hot_sum(index: Sequence[int], m: int, words: Sequence[int]) -> int:
    """RN(Σ_{k: index[k] = m} words[k]); +0 if nothing is selected."""
    return partial_one_hot_sum(index, m, words).round()


# --- maxima of a row ---


def reduce_max(words: Sequence[int]) -> int:
    """The largest word; NaN wins; zero gives +0. The row is not empty."""
    return reduce(maximum, words, words[0])


def integer_max(words: Sequence[int]) -> int:
    """The largest int32 word. The row is not empty."""
    return max(words, key=to_signed)


def argmax(words: Sequence[int]) -> int:
    """First position of the maximum, or of the first NaN if there is one. The row is not empty."""
    for position, word in enumerate(words):
        if is_nan(word):
            return position
    keys = [order_key(word) for word in words]
    return keys.index(max(keys))

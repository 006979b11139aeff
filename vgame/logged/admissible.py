"""Admissible entries of a rounding log, and the one word of a sum for its entry, by integers.

In: the words of one sum's operands, its log entry. Out: its word, and the entries that an honest trainer can have. With
v the exact sum and e = K * 2^-53 * (1 + 2^-20) * sum |terms|, K being the length of the sum in the program (e = 0 where
all terms are multiples of some q and sum |terms| <= 2^53 q, because then no order of summation rounds; promises
`classical` and `exact` of vgame/arithmetic/vendor.py):

    no entry       RN_b(v)
    up, down       the named end c of the cell of v, if RN_b(v - e) <= c <= RN_b(v + e);
                   else RN_b(v): such a log is forged

An honest trainer's words are these on every device (docs/paper.md, section 3). A contract computes them from the exact
accumulators of the terms and of their magnitudes, and the lowest bit of their OR: contracts/arithmetic/LoggedSum.sol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from vgame.arithmetic.reference.binary32 import ONE, decode, order_key
from vgame.arithmetic.reference.sums import ENCODED_BYTES, NOT_A_NUMBER, UNIT_EXPONENT, VALUE_BITS, Partial, partial_dot
from vgame.logged.rounding import Direction, copy_entry, round_fraction, ulp

SIGN = 0x80000000
UNIT = Fraction(2) ** UNIT_EXPONENT
NO_TERM = 0xFFFF
MOMENTS_BYTES = ENCODED_BYTES + VALUE_BITS // 8 + 2
RELATIVE = Fraction(1, 1 << 53) * (1 + Fraction(1, 1 << 20))


@dataclass(frozen=True, slots=True)
class Enclosure:
    """The exact sum, and the proven bound on the error of a binary64 sum of the same terms."""

    exact: Fraction
    bound: Fraction
    bits: int

    @property
    def lowest(self) -> int:
        """RN_b(exact - e) as a word."""
        return _positive_zero(round_fraction(self.exact - self.bound, self.bits))

    @property
    def highest(self) -> int:
        """RN_b(exact + e) as a word."""
        return _positive_zero(round_fraction(self.exact + self.bound, self.bits))

    @property
    def free(self) -> bool:
        """Whether more than one word is admissible."""
        return self.lowest != self.highest

    @property
    def chance(self) -> float:
        """The probability that more than one word is admissible, for a sum of this size and bound at a random place of
        its cell: 2 e / ulp, at most 1."""
        return float(min(1, 2 * self.bound / ulp(self.exact, self.bits)))

    def end(self, entry: Direction) -> int:
        """The word named by an entry: RN_b(exact), or an end of the exact sum's cell."""
        return _positive_zero(copy_entry(self.exact, self.bits, entry))

    def admits(self, word: int) -> bool:
        """Whether the word is the RN_b of some value within e of the exact one."""
        on_grid = word & (1 << 32 - self.bits) - 1 == 0
        return on_grid and order_key(self.lowest) <= order_key(word) <= order_key(self.highest)

    def allows(self, entry: Direction) -> bool:
        """Whether an honest trainer can have this entry."""
        return self.admits(self.end(entry))

    def word(self, entry: Direction) -> int:
        """The word of the sum."""
        return self.end(entry if self.allows(entry) else Direction.NONE)


def _positive_zero(word: int) -> int:
    return 0 if word == SIGN else word


@dataclass(frozen=True, slots=True)
class Moments:
    """The data that determine the word of a sum: the exact value; sum |terms| in units of 2^-298; the lowest bit set in
    any term, or NO_TERM.

    All zero unless the value is finite. Twin: struct Moments in contracts/arithmetic/LoggedSum.sol.
    """

    value: Partial
    magnitude: int = 0
    quantum: int = 0

    def encode(self) -> bytes:
        """partial sum ‖ magnitude u768 ‖ quantum u16."""
        return self.value.encode() + self.magnitude.to_bytes(VALUE_BITS // 8, "big") + self.quantum.to_bytes(2, "big")

    @classmethod
    def decode(cls, data: bytes) -> Moments:
        """The inverse of `encode`; ValueError for bytes that `encode` cannot return."""
        if len(data) != MOMENTS_BYTES:
            raise ValueError(f"not the encoding of moments: {data.hex()}")
        value, rest = Partial.decode(data[:ENCODED_BYTES]), data[ENCODED_BYTES:]
        if value.cls > NOT_A_NUMBER or (value.cls and any(rest)):
            raise ValueError(f"not the encoding of moments: {data.hex()}")
        return cls(value, int.from_bytes(rest[:-2], "big"), int.from_bytes(rest[-2:], "big"))

    def merge(self, other: Moments) -> Moments:
        """The moments of both sums together, modulo 2^768, which genuine moments never reach."""
        value = self.value.merge(other.value)
        if value.cls:
            return Moments(value)
        return Moments(value, (self.magnitude + other.magnitude) % (1 << VALUE_BITS), min(self.quantum, other.quantum))

    def enclosure(self, terms: int, bits: int) -> Enclosure | None:
        """The enclosure of a sum of K = `terms` terms; None if one is not finite (such a sum has only one admissible
        word)."""
        if self.value.cls:
            return None
        exact = terms == 1 or self.magnitude <= 1 << self.quantum + 53
        bound = 0 if exact else terms * RELATIVE * self.magnitude * UNIT
        return Enclosure(self.value.value * UNIT, Fraction(bound), bits)

    def word(self, terms: int, bits: int, entry: Direction) -> int:
        """The word of the sum, given its entry."""
        enclosure = self.enclosure(terms, bits)
        return self.value.round() if enclosure is None else enclosure.word(entry)


def moments_dot(a: Sequence[int], b: Sequence[int]) -> Moments:
    """The moments of sum_k a[k] b[k]."""
    total = partial_dot(a, b)
    if total.cls:
        return Moments(total)
    magnitude = ored = 0
    for x, y in zip(a, b, strict=True):
        (_, m, i), (_, n, j) = decode(x), decode(y)
        term = m * n << i + j - UNIT_EXPONENT
        magnitude, ored = magnitude + term, ored | term
    return Moments(total, magnitude, (ored & -ored).bit_length() - 1 if ored else NO_TERM)


def moments_sum(words: Sequence[int]) -> Moments:
    """The moments of sum_k words[k]."""
    return moments_dot(words, [ONE] * len(words))


def merge_moments(moments: Iterable[Moments]) -> Moments:
    """The moments of all sums together."""
    return reduce(Moments.merge, moments, moments_sum(()))

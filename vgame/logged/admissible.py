"""What a rounding log may say: a claimed word is admissible only if RN_b(exact - e) <= claimed <= RN_b(exact + e). In integers.

In: the words of one sum's operands, a claimed word, its log entry. Out: whether both agree with the proven bound
e = K * 2^-53 * (1 + 2^-20) * sum |terms|, K being the length of the sum in the program; e = 0 where all terms are multiples of some q
and sum |terms| <= 2^53 q, because then no order of summation rounds (promises `classical` and `exact` of vgame/arithmetic/vendor.py).
An honest trainer's word is admissible whatever its device did; what else is admissible is the freedom of a cheating one. The predicate
needs two exact accumulators, of positive and of negative terms, and the OR of the terms: a contract can compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from vgame.arithmetic.reference_binary32 import ONE, decode, order_key, to_fraction
from vgame.arithmetic.reference_sums import UNIT_EXPONENT, partial_dot
from vgame.logged.rounding import Direction, round_fraction, ulp

SIGN = 0x80000000
LARGEST = Fraction(2) ** 128
UNIT = Fraction(2) ** UNIT_EXPONENT
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
        """How likely that is for a sum of this size and bound, wherever in its cell it lies: 2 e / ulp, at most 1."""
        return float(min(1, 2 * self.bound / ulp(self.exact, self.bits)))

    def admits(self, word: int) -> bool:
        """The predicate without the entry; the word must lie on the grid of b bits."""
        on_grid = word & (1 << 32 - self.bits) - 1 == 0
        return on_grid and order_key(self.lowest) <= order_key(word) <= order_key(self.highest)

    def agrees(self, word: int, entry: Direction) -> bool:
        """Whether an entry goes with the word too: some value within e of the exact one lies in the cell whose end the entry names."""
        if not self.admits(word):
            return False
        if entry is Direction.NONE:
            return True
        end = LARGEST if word & ~SIGN == 0x7F800000 else abs(to_fraction(word))
        below = ulp(end * (1 - Fraction(1, 1 << 40)), self.bits)
        cell = (end - below, end) if entry is Direction.UP else (end, end + ulp(end, self.bits))
        signs = (1, -1) if end == 0 else (-1 if word & SIGN else 1,)
        return end + (entry is Direction.DOWN) > 0 and any(self._meets(sign, *cell) for sign in signs)

    def _meets(self, sign: int, low: Fraction, high: Fraction) -> bool:
        """Whether a value within e of the exact one has this sign and a magnitude in low..high, high left out."""
        return sign * self.exact - self.bound < high and sign * self.exact + self.bound >= low


def _positive_zero(word: int) -> int:
    return 0 if word == SIGN else word


def enclose_dot(a: Sequence[int], b: Sequence[int], bits: int) -> Enclosure | None:
    """Of sum_k a[k] b[k]; None if a term is not finite (such a sum has no freedom)."""
    total = partial_dot(a, b)
    if total.cls:
        return None
    magnitude = ored = 0
    for x, y in zip(a, b, strict=True):
        (_, m, i), (_, n, j) = decode(x), decode(y)
        term = m * n << i + j - UNIT_EXPONENT
        magnitude, ored = magnitude + term, ored | term
    exact = magnitude <= (ored & -ored) << 53
    bound = 0 if exact or len(a) == 1 else len(a) * RELATIVE * magnitude * UNIT
    return Enclosure(total.value * UNIT, Fraction(bound), bits)


def enclose_sum(words: Sequence[int], bits: int, length: int | None = None) -> Enclosure | None:
    """Of sum_k words[k]; `length`: K in the program, where only some terms were selected."""
    padding = [0] * ((length or 0) - len(words))
    return enclose_dot([*words, *padding], [ONE] * (len(words) + len(padding)), bits)

"""binary32 in plain integers: decode, round, and every function of a `map` without a series.

In: words, Python ints 0..2^32-1 (IEEE-754 binary32, or int32 in two's complement). Out: words.
Slow and exact; twin: contracts/arithmetic/Binary32.sol. A NaN result is always 0x7fc00000.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, isqrt, trunc

WORD_MASK = 0xFFFFFFFF
SIGN_BIT = 0x80000000
POSITIVE_INFINITY = 0x7F800000
NEGATIVE_INFINITY = 0xFF800000
NAN = 0x7FC00000
ONE = 0x3F800000
#: Exponent of the lowest bit of a subnormal: every finite binary32 is a multiple of 2^-149.
LEAST_EXPONENT = -149
SIGNIFICAND_BITS = 24
#: A bfloat16 value is a binary32 word whose low half is zero: 8 significant bits, the exponents of binary32.
BFLOAT16_BITS = 8

#: (sign, mantissa, exponent) means (-1)^sign * mantissa * 2^exponent, mantissa >= 0.
Triple = tuple[int, int, int]


def is_nan(word: int) -> bool:
    return word & 0x7FFFFFFF > POSITIVE_INFINITY


def is_infinite(word: int) -> bool:
    return word & 0x7FFFFFFF == POSITIVE_INFINITY


def is_zero(word: int) -> bool:
    return word & 0x7FFFFFFF == 0


def decode(word: int) -> Triple:
    """(sign, mantissa, exponent) of a finite word; 0 <= mantissa < 2^24, -149 <= exponent <= 104."""
    field = word >> 23 & 0xFF
    if field == 255:
        raise ValueError(f"{word:#010x} is not finite")
    mantissa = word & 0x7FFFFF
    if field:
        mantissa |= 0x800000
    return word >> 31, mantissa, max(field, 1) - 150


def to_fraction(word: int) -> Fraction:
    """The exact value of a finite word (both zeros give 0)."""
    sign, mantissa, exponent = decode(word)
    return (-1) ** sign * mantissa * Fraction(2) ** exponent


def round_to_binary32(value: Fraction | Triple, bits: int = SIGNIFICAND_BITS) -> int:
    """RN to `bits` bits, ties to even, subnormals kept, overflow to infinity. A zero keeps the triple's sign;
    Fraction(0) gives +0."""
    if isinstance(value, Fraction):
        value = _enclose(value)
    sign, mantissa, exponent = value
    if mantissa == 0:
        return sign << 31
    cut = SIGNIFICAND_BITS - bits
    quantum = max(mantissa.bit_length() + exponent - bits, LEAST_EXPONENT + cut)
    kept = _shift_to_nearest_even(mantissa, quantum - exponent) << cut
    # kept carries its leading bit: adding it to the field below is the packing, and a carry to 2^24 comes out right.
    packed = kept + (quantum - LEAST_EXPONENT - cut << 23)
    return sign << 31 | min(packed, POSITIVE_INFINITY)


def _enclose(value: Fraction) -> Triple:
    """A dyadic triple that rounds like `value`: 64 quotient bits and a sticky bit below them."""
    numerator, denominator = abs(value.numerator), value.denominator
    shift = max(0, 64 + denominator.bit_length() - numerator.bit_length())
    quotient, rest = divmod(numerator << shift, denominator)
    return int(value < 0), quotient << 1 | (rest != 0), -shift - 1


def _shift_to_nearest_even(mantissa: int, shift: int) -> int:
    """RN(mantissa / 2^shift), ties to even."""
    if shift <= 0:
        return mantissa << -shift
    kept, rest = mantissa >> shift, mantissa & (1 << shift) - 1
    half = 1 << shift - 1
    return kept + (rest > half or (rest == half and kept & 1))


def round_word(word: int, bits: int) -> int:
    """RN of a word's value; infinities stay."""
    if is_nan(word):
        return NAN
    return word if is_infinite(word) else round_to_binary32(decode(word), bits)


# --- signs ---


def negate(a: int) -> int:
    return NAN if is_nan(a) else a ^ SIGN_BIT


def absolute(a: int) -> int:
    return NAN if is_nan(a) else a & 0x7FFFFFFF


# --- arithmetic ---


def add(a: int, b: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(a + b). Opposite infinities give NaN; x + (-x) = +0; (-0) + (-0) = -0."""
    if is_nan(a) or is_nan(b):
        return NAN
    if is_infinite(a) or is_infinite(b):
        if is_infinite(a) and is_infinite(b) and a != b:
            return NAN
        return a if is_infinite(a) else b
    exact = to_fraction(a) + to_fraction(b)
    if exact == 0:
        return a & b & SIGN_BIT if is_zero(a) and is_zero(b) else 0
    return round_to_binary32(exact, bits)


def subtract(a: int, b: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(a - b) = RN(a + (-b))."""
    return add(a, negate(b), bits)


def multiply(a: int, b: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(a * b). Infinity times zero gives NaN."""
    sign = (a ^ b) & SIGN_BIT
    if is_nan(a) or is_nan(b):
        return NAN
    if is_infinite(a) or is_infinite(b):
        return NAN if is_zero(a) or is_zero(b) else sign | POSITIVE_INFINITY
    (_, mantissa_a, exponent_a), (_, mantissa_b, exponent_b) = decode(a), decode(b)
    return round_to_binary32((sign >> 31, mantissa_a * mantissa_b, exponent_a + exponent_b), bits)


def divide(a: int, b: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(a / b). 0/0 and inf/inf give NaN, x/0 an infinity with the sign of the quotient."""
    sign = (a ^ b) & SIGN_BIT
    if is_nan(a) or is_nan(b) or (is_zero(a) and is_zero(b)) or (is_infinite(a) and is_infinite(b)):
        return NAN
    if is_infinite(a) or is_zero(b):
        return sign | POSITIVE_INFINITY
    if is_zero(a) or is_infinite(b):
        return sign
    return sign | round_to_binary32(abs(to_fraction(a) / to_fraction(b)), bits)


def square_root(a: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN(sqrt(a)). sqrt(-0) = -0; a negative number gives NaN."""
    if is_nan(a) or is_zero(a) or a == POSITIVE_INFINITY:
        return NAN if is_nan(a) else a
    if a & SIGN_BIT:
        return NAN
    _, mantissa, exponent = decode(a)
    shift = 80 + (exponent & 1)  # an even exponent, and more than 26 bits of root
    root = isqrt(mantissa << shift)
    inexact = root * root != mantissa << shift
    return round_to_binary32((0, root << 1 | inexact, (exponent - shift) // 2 - 1), bits)


def fmod(a: int, b: int) -> int:
    """a - b * trunc(a / b), exact, with the sign of a (also where it is zero)."""
    if is_nan(a) or is_nan(b) or is_infinite(a) or is_zero(b):
        return NAN
    if is_infinite(b):
        return a
    return a & SIGN_BIT | round_to_binary32(abs(to_fraction(a)) % abs(to_fraction(b)))


# --- order ---


def compare(a: int, b: int) -> int | None:
    """-1, 0 or 1 as a < b, a = b, a > b; None if either is NaN. Zeros are equal."""
    if is_nan(a) or is_nan(b):
        return None
    left, right = order_key(a), order_key(b)
    return (left > right) - (left < right)


def order_key(word: int) -> int:
    """A signed integer in the order of the values (NaN excluded); both zeros give 0."""
    magnitude = word & 0x7FFFFFFF
    return -magnitude if word & SIGN_BIT else magnitude


def maximum(a: int, b: int) -> int:
    """The larger; NaN wins; a zero result is +0."""
    return _select_extreme(a, b, 1)


def minimum(a: int, b: int) -> int:
    """The smaller; NaN wins; a zero result is +0."""
    return _select_extreme(a, b, -1)


def _select_extreme(a: int, b: int, direction: int) -> int:
    order = compare(a, b)
    if order is None:
        return NAN
    chosen = b if order == -direction else a
    return 0 if is_zero(chosen) else chosen


# --- rounding to integers ---


def round_to_integer(a: int, mode: str) -> int:
    """The nearest integer in the direction of `mode` (floor, ceil, trunc, even); a zero keeps the sign of a."""
    if is_nan(a):
        return NAN
    if is_infinite(a):
        return a
    value = to_fraction(a)
    integer = {"floor": floor, "ceil": ceil, "trunc": trunc, "even": round}[mode](value)
    return a & SIGN_BIT | round_to_binary32(Fraction(abs(integer)))


# --- int32 ---


def to_signed(word: int) -> int:
    return word - (1 << 32) if word & SIGN_BIT else word


def integer_to_binary32(a: int, bits: int = SIGNIFICAND_BITS) -> int:
    """RN of the signed integer; 0 gives +0."""
    return round_to_binary32(Fraction(to_signed(a)), bits)


def binary32_to_integer(a: int) -> int:
    """trunc(a), saturated to -2^31..2^31-1; NaN gives 0."""
    if is_nan(a):
        return 0
    if is_infinite(a):
        return 0x80000000 if a & SIGN_BIT else 0x7FFFFFFF
    return min(max(trunc(to_fraction(a)), -(1 << 31)), (1 << 31) - 1) & WORD_MASK


def floor_divide(a: int, b: int) -> int:
    """floor(a / b) modulo 2^32; by zero: 0."""
    return to_signed(a) // to_signed(b) & WORD_MASK if b else 0


def floor_modulus(a: int, b: int) -> int:
    """a - b * floor(a / b), with the sign of b; by zero: 0."""
    return to_signed(a) % to_signed(b) & WORD_MASK if b else 0

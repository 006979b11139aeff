"""The exact sum of one output element's terms, inside a kernel. Twin: numba/exact.py and exact_sum.py (`_exact`,
`settle`, `integer_sum`).

In: places of the element's terms, a bound of the sum of their magnitudes. Out: the word of RN32(exact sum), zero as +0.
Method and proof: docs/numerics-products.md, sections 5 and 10: one level of error-free extraction in binary64; if the
result is not certain, the products of the significands as integers in limbs. The result does not depend on the order of
summation, and so not on the launch shape.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vgame.arithmetic.certificate import SLACK, UNIT

#: Source of the terms: rows of two matrices; one row; the terms of one row with the wanted index.
PRODUCTS, ROWS, SELECTED = 0, 1, 2
#: Terms after which 64-bit limbs could overflow: 3 * 2^32 * 2^28 < 2^62.
MOST_TERMS = 1 << 28

_PRODUCTS, _SELECTED = tl.constexpr(PRODUCTS), tl.constexpr(SELECTED)
_WEIGHT = tl.constexpr(UNIT * SLACK)
#: 32-bit limbs from 2^-298 upwards, and a power of two that holds them as lanes.
_LIMBS, _LANES = tl.constexpr(20), tl.constexpr(32)
_LOW = tl.constexpr(0xFFFFFFFF)
_ONE = tl.constexpr(0x3F800000)


@triton.jit
def power_of_two(exponent):
    """2^exponent in binary64, exponents -1022..1023."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def round_word(value):
    """The word of RN32(value) with zero as +0 and the one NaN."""
    narrow = value.to(tl.float32)
    word = tl.where(narrow == 0.0, 0, narrow.to(tl.int32, bitcast=True))
    return tl.where(narrow != narrow, 0x7FC00000, word)


@triton.jit
def _factors(
    a, a_step, a_places, b, b_step, b_places, wanted, k, length,
    KIND: tl.constexpr, PLACED_A: tl.constexpr, PLACED_B: tl.constexpr,
):  # fmt: skip
    """The words (int32) of the two factors of the terms k; zeros beyond the row, and for other indices than the wanted
    one."""
    inside = k < length
    at_a, at_b = k * a_step, k * b_step
    if PLACED_A:
        at_a = tl.load(a_places + k, mask=inside, other=0)
    if PLACED_B:
        at_b = tl.load(b_places + k, mask=inside, other=0)
    if KIND == _SELECTED:
        inside = inside & (tl.load(b + at_b, mask=inside, other=0) == wanted)
    left = tl.load(a + at_a, mask=inside, other=0)
    right = tl.full(k.shape, _ONE, tl.int32)
    if KIND == _PRODUCTS:
        right = tl.load(b + at_b, mask=inside, other=0)
    return left, right


@triton.jit
def _certain(head, tail, error):
    """Twin: torch/exact._is_certain."""
    no_midpoint = (head.to(tl.int64, bitcast=True) & ((1 << 28) - 1)) != 0
    near = no_midpoint & (tail == 0.0) & (error < tl.abs(head) * 2.0**-54)
    return (error == 0.0) | (tl.abs(tail) > 4.0 * error) | near


@triton.jit
def _round_to_odd(head, tail):
    """Twin: torch/exact.round_to_odd."""
    bits = head.to(tl.int64, bitcast=True)
    step = tl.where((head < 0.0) == (tail < 0.0), 1, -1).to(tl.int64)
    move = (tail != 0.0) & ((bits & 1) == 0)
    return tl.where(move, bits + step, bits).to(tl.float64, bitcast=True)


@triton.jit
def _settle(digit, rest, left, sigma, length):
    """(value, whether it is certain). Twin: numba/exact_sum.settle."""
    grid = 0.75 * sigma
    carry = (rest + grid) - grid
    rest = rest - carry
    digit = digit + carry
    head = digit + rest
    rounded = head - digit
    tail = (digit - (head - rounded)) + (rest - rounded)
    error = left * (length.to(tl.float64) * _WEIGHT)
    return _round_to_odd(head, tail), _certain(head, tail, error)


@triton.jit
def _limbs_of(left, right, lane):
    """The sums that the products of the significands add to each limb (int64 [lanes]). left, right: words [terms, 1];
    lane: [1, lanes]."""
    e, f = (left >> 23) & 255, (right >> 23) & 255
    a = ((left & 0x7FFFFF) | tl.where(e > 0, 1 << 23, 0)).to(tl.int64)
    b = ((right & 0x7FFFFF) | tl.where(f > 0, 1 << 23, 0)).to(tl.int64)
    shift = tl.maximum(e, 1) + tl.maximum(f, 1) - 2
    limb, r = shift >> 5, (shift & 31).to(tl.int64)
    product = a * b
    low, high = (product & _LOW) << r, (product >> 32) << r
    sign = tl.where((left ^ right) < 0, -1, 1).to(tl.int64)
    zero = tl.zeros_like(product)
    parts = tl.where(lane == limb, low & _LOW, zero)
    parts += tl.where(lane == limb + 1, (low >> 32) + (high & _LOW), zero)
    parts += tl.where(lane == limb + 2, high >> 32, zero)
    return tl.sum(parts * sign, 0)


@triton.jit
def _read_limbs(limbs, lane):
    """(sign bit, top 33 to 53 bits rounded to odd in binary64) of the sum in these limbs, which is >= 0."""
    carry = tl.zeros((), tl.int64)
    before = tl.zeros((), tl.int64)
    below = tl.zeros((), tl.int64)
    value = tl.zeros((), tl.int64)
    sticky = tl.zeros((), tl.int64)
    exponent = tl.zeros((), tl.int32)
    for l in tl.static_range(_LIMBS):
        total = tl.sum(tl.where(lane == l, limbs, 0), 0) + carry
        digit = total & _LOW
        carry = total >> 32
        here = digit != 0
        value = tl.where(here, (digit << 32) | before, value)
        sticky = tl.where(here, below, sticky)
        exponent = tl.where(here, 32 * (l - 1) - 298, exponent)
        below = below | (before != 0).to(tl.int64)
        before = digit
    top = value.to(tl.uint64, bitcast=True)
    long = (top >> 53) != 0
    cut = (long & ((value & 0x7FF) != 0)).to(tl.int64)
    value = tl.where(long, (top >> 11).to(tl.int64, bitcast=True), value) | sticky | cut
    exponent = tl.where(long, exponent + 11, exponent)
    return carry < 0, value.to(tl.float64) * power_of_two(exponent)


@triton.jit
def _integer_sum(
    a, a_step, a_places, b, b_step, b_places, wanted, length,
    KIND: tl.constexpr, PLACED_A: tl.constexpr, PLACED_B: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The exact sum, rounded to odd. Twin: numba/exact_sum.integer_sum."""
    lane = tl.arange(0, _LANES)
    limbs = tl.zeros((_LANES,), tl.int64)
    for start in range(0, length, BLOCK):
        k = start + tl.arange(0, BLOCK).to(tl.int64)
        left, right = _factors(a, a_step, a_places, b, b_step, b_places, wanted, k, length, KIND, PLACED_A, PLACED_B)
        limbs += _limbs_of(left[:, None], right[:, None], lane[None, :])
    negative, _ = _read_limbs(limbs, lane)
    _, magnitude = _read_limbs(tl.where(negative, -limbs, limbs), lane)
    return tl.where(negative, -magnitude, magnitude)


@triton.jit
def exact_word(
    a, a_step, a_places, b, b_step, b_places, wanted, length, bound,
    KIND: tl.constexpr, PLACED_A: tl.constexpr, PLACED_B: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """RN32 of the exact sum of the terms k = 0..length-1 as a word; bound: at least the sum of their magnitudes.

    a, b: pointers (int32) to the first words of rows; for SELECTED b is the row of indices, and the terms are those
    with index `wanted`. Term k is k steps from there, or at `places` (int64). BLOCK terms at a time are extracted, FEW
    at a time added up as integers.
    """
    above = ((bound.to(tl.int64, bitcast=True) >> 52) + 1) << 52  # twin: torch/exact.power_above
    sigma = above.to(tl.float64, bitcast=True) * 2.0
    digits = tl.zeros((BLOCK,), tl.float64)
    rests = tl.zeros((BLOCK,), tl.float64)
    lefts = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, length, BLOCK):
        k = start + tl.arange(0, BLOCK).to(tl.int64)
        left, right = _factors(a, a_step, a_places, b, b_step, b_places, wanted, k, length, KIND, PLACED_A, PLACED_B)
        x, y = left.to(tl.float32, bitcast=True), right.to(tl.float32, bitcast=True)
        term = x.to(tl.float64) * y.to(tl.float64)
        high = (term + sigma) - sigma
        low = term - high
        digits += high
        rests += low
        lefts += tl.abs(low)
    value, certain = _settle(tl.sum(digits, 0), tl.sum(rests, 0), tl.sum(lefts, 0), sigma, length)
    if not certain:
        value = _integer_sum(a, a_step, a_places, b, b_step, b_places, wanted, length, KIND, PLACED_A, PLACED_B, FEW)
    return round_word(value)


@triton.jit
def collect(is_open, position, counter, found):
    """Append the open positions to the list `found` and their number to `counter`: one atomic addition, no host."""
    number = tl.sum(is_open.to(tl.int32), 0)
    if number > 0:
        place = tl.atomic_add(counter, number) + tl.cumsum(is_open.to(tl.int32), 0) - 1
        tl.store(found + place, position.to(tl.int32), mask=is_open)

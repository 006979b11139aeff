"""Compiled loops for one sum of the exact tier: its value from its digits, from the few terms that are not 0, or as an
integer. Twin: torch/exact.py."""

from __future__ import annotations

import math

import numpy as np

from vgame.arithmetic.numba.compiled import compile_loop, real

#: Rows in which one term of so many is not 0 are listed, for so many sums at least.
SPARSE, WORTH_LISTING = 8, 4
#: 32-bit limbs of a sum of products, from 2^-298 up to 2^342.
LIMBS = 20
#: Number of terms after which the limbs' carries are propagated, before a limb overflows.
CARRY = 1 << 24
assert math.log2(CARRY) + 34 < 63, "limbs hold what CARRY terms add"

_ZERO = np.float32(0.0)


@compile_loop
def _round_to_odd(head, tail):
    """Twin: torch/exact.round_to_odd."""
    bits = np.float64(head).view(np.int64)
    if tail != 0.0 and bits & 1 == 0:
        bits += 1 if (head < 0.0) == (tail < 0.0) else -1
    return np.int64(bits).view(np.float64)


@compile_loop
def _two_sum(x, y):
    """(RN(x + y), its rounding error x + y - RN(x + y))."""
    total = x + y
    rounded = total - x
    return total, (x - (total - rounded)) + (y - rounded)


@compile_loop
def settle(digit, second, rest, left, sigma, finer, error_per_left):
    """(value, whether it is certain) from one or two digits (finer = 0: no second digit), a rounded rest, and the sum
    of the magnitudes of the rest's terms."""
    if finer > 0.0:
        grid = 0.75 * finer
        carry = (rest + grid) - grid
        rest -= carry
        second += carry
    else:
        second, rest = rest, 0.0
    grid = 0.75 * sigma
    carry = (second + grid) - grid
    second -= carry
    head, tail = _two_sum(digit + carry, second)
    if tail == 0.0:
        head, tail = _two_sum(head, rest)
    error = error_per_left * left
    no_midpoint = np.float64(head).view(np.int64) & ((1 << 28) - 1) != 0
    certain = error == 0.0 or abs(tail) > 4.0 * error
    certain = certain or (no_midpoint and tail == 0.0 and error < abs(head) * 2.0**-54)
    return _round_to_odd(head, tail), certain


@compile_loop
def power_above(x):
    """Twin: torch/exact.power_above."""
    return np.int64((np.float64(x).view(np.int64) >> 52) + 1 << 52).view(np.float64)


@compile_loop
def _pass_on(limbs):
    """Propagate carries: every limb but the last becomes 0..2^32-1; the last keeps the sign."""
    for l in range(LIMBS - 1):
        limbs[l + 1] += limbs[l] >> 32
        limbs[l] &= 0xFFFFFFFF


@compile_loop
def integer_sum(x, i, x_columns, y, j, y_columns, limbs):
    """The exact sum of products as a multiple of 2^-298, rounded to odd to between 33 and 53 bits (or exact)."""
    limbs[:] = 0
    for k in range(x_columns.size):
        a = np.int64(np.float32(real(x[i + x_columns[k]])).view(np.int32))
        b = np.int64(np.float32(real(y[j + y_columns[k]])).view(np.int32))
        e, f = (a >> 23) & 255, (b >> 23) & 255
        p = ((a & 0x7FFFFF) | (np.int64(e > 0) << 23)) * ((b & 0x7FFFFF) | (np.int64(f > 0) << 23))
        shift = max(e, 1) + max(f, 1) - 2
        l, r = shift >> 5, shift & 31
        low, high = (p & 0xFFFFFFFF) << r, (p >> 32) << r
        sign = -1 if a ^ b < 0 else 1
        limbs[l] += sign * (low & 0xFFFFFFFF)
        limbs[l + 1] += sign * ((low >> 32) + (high & 0xFFFFFFFF))
        limbs[l + 2] += sign * (high >> 32)
        if k % CARRY == CARRY - 1:
            _pass_on(limbs)
    _pass_on(limbs)
    sign = -1.0 if limbs[LIMBS - 1] < 0 else 1.0
    if sign < 0:
        for l in range(LIMBS):
            limbs[l] = -limbs[l]
        _pass_on(limbs)
    top = LIMBS - 1
    while top > 1 and limbs[top] == 0:
        top -= 1
    value, exponent = np.uint64(limbs[top]) << np.uint64(32) | np.uint64(limbs[top - 1]), 32 * (top - 1) - 298
    sticky = np.uint64(0)
    for l in range(top - 1):
        sticky |= np.uint64(limbs[l] != 0)
    if value >> np.uint64(53):
        sticky |= np.uint64(value & np.uint64(0x7FF) != 0)
        value >>= np.uint64(11)
        exponent += 11
    return sign * np.float64(np.int64(value | sticky)) * np.int64(exponent + 1023 << 52).view(np.float64)


@compile_loop
def place_of(position, shape, shared, strides):
    """(row of a, row of b, place in the result) of a flat position."""
    rows, columns = shape
    u, n = position // columns, position % columns
    batch, m = u // rows, u % rows
    return m if shared[0] else u, n if shared[1] else batch * columns + n, batch * strides[0] + m * strides[1] + n


@compile_loop
def _list_others(x, begin, columns, spots):
    """The terms of a row that are not 0, listed in `spots`; returns their number, or -1 if they are too many."""
    number, source = 0, x[begin:]
    for k in range(columns.size):
        if number == spots.size:
            return -1
        spots[number] = k
        number += np.int64(real(source[columns[k]]) != _ZERO)
    return number


@compile_loop
def exact_sparse(positions, shape, a, b, shared, by_right, error, out, strides, rest):
    """As exact.py's `_exact`, with one digit, where a row has few terms that are not 0: rows of b, by which the
    positions are sorted, or of a (not by_right). Other positions, and those that stay open, are written to `rest`;
    returns their number. A term of 0 adds 0 to each part of a sum."""
    x, x_rows, x_columns, bound_a = a
    y, y_rows, y_columns, bound_b = b
    side = 1 if by_right else 0
    spots, number, known, kept = np.empty(x_columns.size // SPARSE, np.int64), -1, -1, 0
    for p in range(positions.size):
        i, j, place = place_of(positions[p], shape, shared, strides)
        row = j if by_right else i
        if row != known:
            known, number, later = row, -1, p + WORTH_LISTING - 1
            if later < positions.size and place_of(positions[later], shape, shared, strides)[side] == row:
                if by_right:
                    number = _list_others(y, y_rows[j], y_columns, spots)
                else:
                    number = _list_others(x, x_rows[i], x_columns, spots)
        certain = False
        if number >= 0:
            sigma = 2.0 * power_above(bound_a[i] * bound_b[j])
            left, right = x[x_rows[i] :], y[y_rows[j] :]
            digit = low_ones = remains = 0.0
            for q in range(number):
                k = spots[q]
                term = np.float64(real(left[x_columns[k]])) * np.float64(real(right[y_columns[k]]))
                high = (term + sigma) - sigma
                low = term - high
                digit, low_ones, remains = digit + high, low_ones + low, remains + abs(low)
            value, certain = settle(digit, 0.0, low_ones, remains, sigma, 0.0, error)
        if certain:
            out[place] = np.float32(value) + _ZERO
        else:
            rest[kept] = positions[p]
            kept += 1
    return kept

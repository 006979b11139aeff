"""Compiled loops of the exact tier of products. Twin: torch/exact.py, which makes further sweeps for the sums that stay
open; here they are computed as integers."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import add, compile_loop, flat
from vgame.arithmetic.numba.operands import run_of
from vgame.system.threads import share

#: Elements and terms collected at a time if rows are not contiguous: the second cache holds them twice.
LANES, TERMS = 256, 256
#: Least number of terms beside each other that are collected row by row.
LEAST_RUN = 4
#: Padding words between collected rows, to avoid cache-set conflicts.
APART = 16
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
def _settle(digit, second, rest, left, sigma, finer, error_per_left):
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
def _power_above(x):
    """Twin: torch/exact.power_above."""
    return np.int64((np.float64(x).view(np.int64) >> 52) + 1 << 52).view(np.float64)


@compile_loop
def _sum_terms(x, y, sigma):
    """(digit, rest, left) of the products of two rows: one level of extraction."""
    digit = rest = left = 0.0
    for k in range(x.size):
        term = np.float64(x[k]) * np.float64(y[k])
        high = (term + sigma) - sigma
        low = term - high
        digit, rest, left = add(digit, high), add(rest, low), add(left, abs(low))
    return digit, rest, left


@compile_loop
def _sum_terms_twice(x, y, sigma, finer):
    """(digit, second digit, rest, left): two levels."""
    digit = second = rest = left = 0.0
    for k in range(x.size):
        term = np.float64(x[k]) * np.float64(y[k])
        high = (term + sigma) - sigma
        low = term - high
        middle = (low + finer) - finer
        low -= middle
        digit, second, rest, left = add(digit, high), add(second, middle), add(rest, low), add(left, abs(low))
    return digit, second, rest, left


@compile_loop
def _pass_on(limbs):
    """Propagate carries: every limb but the last becomes 0..2^32-1; the last keeps the sign."""
    for l in range(LIMBS - 1):
        limbs[l + 1] += limbs[l] >> 32
        limbs[l] &= 0xFFFFFFFF


@compile_loop
def _integer_sum(x, i, x_columns, y, j, y_columns, limbs):
    """The exact sum of products as a multiple of 2^-298, rounded to odd to between 33 and 53 bits (or exact)."""
    limbs[:] = 0
    for k in range(x_columns.size):
        a = np.int64(np.float32(x[i + x_columns[k]]).view(np.int32))
        b = np.int64(np.float32(y[j + y_columns[k]]).view(np.int32))
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
def _collect(x, begins, columns, out):
    """out[e, k] = x[begins[e] + columns[k]]: row by row where terms lie beside each other, else term by term, because
    neighbouring rows are often adjacent in memory."""
    first = 0
    while first < columns.size:
        last = first + 1
        while last < columns.size and columns[last] == columns[last - 1] + 1:
            last += 1
        if last - first >= LEAST_RUN:
            for e in range(begins.size):
                at = begins[e] + np.uint64(columns[first])
                source, target = x[at : at + np.uint64(last - first)], out[e, first:last]
                for k in range(target.size):
                    target[k] = source[k]
        else:
            for k in range(first, last):
                source = x[columns[k] :]
                for e in range(begins.size):
                    out[e, k] = source[begins[e]]
        first = last


@compile_loop
def _once(begins, places):
    """The rows at `begins` without consecutive duplicates; places[e]: the index of row e among them."""
    distinct, number = np.empty_like(begins), 0
    for e in range(begins.size):
        if e == 0 or begins[e] != begins[e - 1]:
            distinct[number] = begins[e]
            number += 1
        places[e] = number - 1
    return distinct[:number]


@compile_loop
def _sweep(x, left, x_columns, y, right, y_columns, in_line, sigma, ratio, sums, memory, places):
    """sums [4, e] = (digit, second digit, rest, left) of the products of the rows at left[e], right[e]; ratio: finer /
    sigma, or 0."""
    length = x_columns.size
    step = length if in_line[0] and in_line[1] else TERMS
    lefts, rights = _once(left, places[0]), _once(right, places[1])
    sums[:] = 0.0
    for k in range(0, length, step):
        size = min(step, length - k)
        if not in_line[0]:
            _collect(x, lefts, x_columns[k : k + size], memory[0])
        if not in_line[1]:
            _collect(y, rights, y_columns[k : k + size], memory[1])
        for e in range(left.size):
            i, j = np.int64(left[e]) + k, np.int64(right[e]) + k
            a = x[i : i + size] if in_line[0] else memory[0, places[0, e], :size]
            b = y[j : j + size] if in_line[1] else memory[1, places[1, e], :size]
            if ratio > 0.0:
                part = _sum_terms_twice(a, b, sigma[e], ratio * sigma[e])
            else:
                digit, rest, remains = _sum_terms(a, b, sigma[e])
                part = digit, 0.0, rest, remains
            for l in range(4):
                sums[l, e] += part[l]


@compile_loop
def _exact(positions, shape, a, b, shared, in_line, ratio, error, out, strides, first, last):
    """out = RN32 of the exact sums at positions first..last-1. a, b: (memory, rows, columns, bounds of the rows'
    norms).

    Term k of row i is memory[rows[i] + columns[k]]; shared: whether one batch of a (of b) serves all batches. in_line:
    whether the terms of every row of x (of y) are contiguous; other rows are collected, some terms at a time. Sums that
    one digit leaves open get two digits, with scales of this ratio; those still open are computed as integers.
    """
    rows, columns = shape
    x, x_rows, x_columns, bound_a = a
    y, y_rows, y_columns, bound_b = b
    limbs, sums = np.empty(LIMBS, np.int64), np.empty((4, LANES))
    memory = np.empty((2, LANES, TERMS + APART), np.float32)
    left, right = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)  # not signed: no index counts from the end
    places = np.empty((2, LANES), np.int64)
    sigma, place = np.empty(LANES), np.empty(LANES, np.int64)
    for start in range(first, last, LANES):
        still_open = min(LANES, last - start)
        for e in range(still_open):
            u, n = positions[start + e] // columns, positions[start + e] % columns
            batch, m = u // rows, u % rows
            i, j = m if shared[0] else u, n if shared[1] else batch * columns + n
            left[e], right[e], bound = x_rows[i], y_rows[j], bound_a[i] * bound_b[j]
            sigma[e], place[e] = 2.0 * _power_above(bound), batch * strides[0] + m * strides[1] + n
        for scale in (0.0, ratio):
            count, still_open = still_open, 0
            _sweep(x, left[:count], x_columns, y, right[:count], y_columns, in_line, sigma, scale, sums, memory, places)
            for e in range(count):
                digit, second, rest, remains = sums[0, e], sums[1, e], sums[2, e], sums[3, e]
                value, certain = _settle(digit, second, rest, remains, sigma[e], scale * sigma[e], error)
                if certain:
                    out[place[e]] = np.float32(value) + _ZERO
                else:
                    left[still_open], right[still_open] = left[e], right[e]
                    sigma[still_open], place[still_open] = sigma[e], place[e]
                    still_open += 1
        for e in range(still_open):
            value = _integer_sum(x, np.int64(left[e]), x_columns, y, np.int64(right[e]), y_columns, limbs)
            out[place[e]] = np.float32(value) + _ZERO


def rows_of(x: Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """(memory, the begin of each row of x [B, R, K], step from term to term)."""
    batch, rows = (np.arange(x.shape[d]) * x.stride(d) for d in range(2))
    return flat(x), (batch[:, None] + rows).reshape(-1), x.stride(2)


def exact_products(positions: Tensor, a: tuple, b: tuple, bounds: tuple, error: float, out: Tensor) -> None:
    """out [B, M, N] = RN32 of the exact products at the flat positions (int32). Twin: products.Tile._sum_gathered.

    a, b: (memory, begins of the Ba * M or Bb * N rows, offsets of their terms from there); bounds: at least the rows'
    norms, binary64 [Ba, M], [Bb, N]; error: bound of a rounded sum, per sum of magnitudes.
    """
    run = ExactProducts(a, b, bounds, error, out)
    given = run.in_order(positions.numpy())
    share(given.size, a[2].size, partial(run, given))


class ExactProducts:
    """A function that computes `exact_products` for the positions first..last-1 of those given."""

    def __init__(self, a: tuple, b: tuple, bounds: tuple, error: float, out: Tensor) -> None:
        norms = [bound.reshape(-1).numpy() for bound in bounds]
        self.shape, shared = tuple(out.shape[1:]), tuple(bound.shape[0] == 1 for bound in bounds)
        self.in_line = tuple(columns[0] == 0 and run_of(columns) == columns.size for _, _, columns in (a, b))
        ratio = 2.0 ** (1 + (a[2].size - 1).bit_length() - 53)
        self.target = flat(out)
        self.rest = (*a, norms[0]), (*b, norms[1]), shared, self.in_line, ratio, error, self.target, out.stride()[:2]

    def in_order(self, given: np.ndarray) -> np.ndarray:
        """The positions; sorted if only rows of b are collected, so that each row is collected once."""
        if self.in_line != (True, False):
            return given
        batch, column = given // (self.shape[0] * self.shape[1]), given % self.shape[1]
        return given[np.lexsort((column, batch))]

    def __call__(self, given: np.ndarray, first: int, last: int) -> None:
        _exact(given, self.shape, *self.rest, first, last)


@compile_loop
def _digits(positions, shape, x, x_rows, x_columns, y, y_rows, y_columns, in_line, sigma, ratio, out, first, last):
    """out [4, e]: _sweep's sums of the products at positions first..last-1; every batch has its own operands."""
    rows, columns = shape
    sums, memory = np.empty((4, LANES)), np.empty((2, LANES, TERMS + APART), np.float32)
    left, right = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    places = np.empty((2, LANES), np.int64)
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        for e in range(count):
            u, n = positions[start + e] // columns, positions[start + e] % columns
            left[e], right[e] = x_rows[u], y_rows[u // rows * columns + n]
        scale = sigma[start : start + count]
        _sweep(x, left[:count], x_columns, y, right[:count], y_columns, in_line, scale, ratio, sums, memory, places)
        for level in range(4):
            for e in range(count):
                out[level, start + e] = sums[level, e]


def product_digits(positions: Tensor, shape: tuple[int, int], a: tuple, b: tuple, scales: Tensor) -> Tensor:
    """(digit, second digit, rest, the rest's magnitudes) [4, sums] of the products at flat positions (int64) of
    [B, M, N]; shape: (M, N). Twin: torch/exact.py, digits_of with two scales. a, b: as for exact_products, of B batches
    each."""
    out, sigma = np.zeros((4, positions.numel())), scales[0].numpy()
    ratio = float(scales[1, 0] / scales[0, 0]) if positions.numel() else 1.0
    in_line = tuple(columns[0] == 0 and run_of(columns) == columns.size for _, _, columns in (a, b))

    def run(first: int, last: int) -> None:
        _digits(positions.numpy(), shape, *a, *b, in_line, sigma, ratio, out, first, last)

    share(positions.numel(), a[2].size, run)
    return torch.from_numpy(out)

"""Compiled loops of the exact tier of products. Twin: torch/exact.py, which makes further sweeps for the sums that stay
open; here they are computed as integers."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from vgame.arithmetic.numba.compiled import add, compile_loop, flat, real
from vgame.arithmetic.numba.exact_sum import LIMBS, exact_sparse, integer_sum, place_of, power_above, settle
from vgame.arithmetic.numba.operands import run_of
from vgame.system.threads import share

#: Elements and terms collected at a time if rows are not contiguous: the second cache holds them twice.
LANES, TERMS = 256, 256
#: Least number of adjacent terms that are collected row by row.
LEAST_RUN = 4
#: Least number of sums, of as many terms, for which sparse rows are looked for.
LEAST_LISTED, LEAST_LENGTH = 64, 256
#: Padding words between collected rows, to avoid cache-set conflicts.
APART = 16
_ZERO = np.float32(0.0)


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
def _collect(x, begins, columns, out):
    """out[e, k] = x[begins[e] + columns[k]]: row by row where terms are adjacent, else term by term, because
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
                    target[k] = real(source[k])
        else:
            for k in range(first, last):
                source = x[columns[k] :]
                for e in range(begins.size):
                    out[e, k] = real(source[begins[e]])
        first = last


def _line(x, first, size):
    """Adjacent words; of halves, which are always collected, none."""


@overload(_line)
def _line_of(x, first, size):
    if isinstance(x.dtype, types.Float):
        return lambda x, first, size: x[first : first + size]
    return lambda x, first, size: np.empty(0, np.float32)


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
            a = _line(x, i, size) if in_line[0] else memory[0, places[0, e], :size]
            b = _line(y, j, size) if in_line[1] else memory[1, places[1, e], :size]
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
            i, j, place[e] = place_of(positions[start + e], shape, shared, strides)
            left[e], right[e], sigma[e] = x_rows[i], y_rows[j], 2.0 * power_above(bound_a[i] * bound_b[j])
        for scale in (0.0, ratio):
            count, still_open = still_open, 0
            _sweep(x, left[:count], x_columns, y, right[:count], y_columns, in_line, sigma, scale, sums, memory, places)
            for e in range(count):
                digit, second, rest, remains = sums[0, e], sums[1, e], sums[2, e], sums[3, e]
                value, certain = settle(digit, second, rest, remains, sigma[e], scale * sigma[e], error)
                if certain:
                    out[place[e]] = np.float32(value) + _ZERO
                else:
                    left[still_open], right[still_open] = left[e], right[e]
                    sigma[still_open], place[still_open] = sigma[e], place[e]
                    still_open += 1
        for e in range(still_open):
            value = integer_sum(x, np.int64(left[e]), x_columns, y, np.int64(right[e]), y_columns, limbs)
            out[place[e]] = np.float32(value) + _ZERO


@compile_loop
def _by_columns(positions, size, columns, ends):
    """The positions, of batches of this size, sorted by batch and column; ends: zeros, one more than columns in all."""
    ordered = np.empty_like(positions)
    for p in range(positions.size):
        ends[positions[p] // size * columns + positions[p] % columns + 1] += 1
    for c in range(1, ends.size):
        ends[c] += ends[c - 1]
    for p in range(positions.size):
        column = positions[p] // size * columns + positions[p] % columns
        ordered[ends[column]] = positions[p]
        ends[column] += 1
    return ordered


def rows_of(x: Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """(memory as of `flat`, the begin of each row of x [B, R, K], step from term to term)."""
    batch, rows = (np.arange(x.shape[d]) * x.stride(d) for d in range(2))
    return flat(x), (batch[:, None] + rows).reshape(-1), x.stride(2)


def _is_in_line(memory: np.ndarray, _: np.ndarray, columns: np.ndarray) -> bool:
    """Whether the terms of a row are adjacent binary32 words."""
    return memory.dtype == np.float32 and columns[0] == 0 and run_of(columns) == columns.size


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
        self.in_line = tuple(_is_in_line(*side) for side in (a, b))
        self.length, self.columns, self.target = a[2].size, len(out) * self.shape[1], flat(out)
        ratio = 2.0 ** (1 + (self.length - 1).bit_length() - 53)
        self.rest = (*a, norms[0]), (*b, norms[1]), shared, self.in_line, ratio, error, self.target, out.stride()[:2]

    def in_order(self, given: np.ndarray) -> np.ndarray:
        """The positions; sorted if only rows of b are collected, so that each row is collected once."""
        return self._by_columns(given) if self.in_line == (True, False) else given

    def _by_columns(self, given: np.ndarray) -> np.ndarray:
        rows, columns = self.shape
        return _by_columns(given, rows * columns, columns, np.zeros(self.columns + 1, np.int64))

    def __call__(self, given: np.ndarray, first: int, last: int) -> None:
        if last - first >= LEAST_LISTED and self.length >= LEAST_LENGTH:
            given = self._without_sparse(given[first:last])
            first, last = 0, given.size
        _exact(given, self.shape, *self.rest, first, last)

    def _without_sparse(self, given: np.ndarray) -> np.ndarray:
        """Those of the positions that are left to `_exact`, in its order."""
        a, b, shared, _, _, *rest = self.rest
        for by_right in (True, False):
            given, left = self._by_columns(given) if by_right else np.sort(given), np.empty_like(given)
            given = left[: exact_sparse(given, self.shape, a, b, shared, by_right, *rest, left)]
        return self.in_order(given)


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
    in_line = tuple(_is_in_line(*side) for side in (a, b))

    def run(first: int, last: int) -> None:
        _digits(positions.numpy(), shape, *a, *b, in_line, sigma, ratio, out, first, last)

    share(positions.numel(), a[2].size, run)
    return torch.from_numpy(out)

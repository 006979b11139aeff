"""Products by exact sums of digits, on a processor that multiplies tiles of bytes: binary32 rows to binary64 sums of
products with a bound of their errors.

In: operands as (memory, where rows begin, where their terms lie from there). Out: sums [B, M, N], the rows' sums of
squares, and for each row a factor: a sum errs by no more than the product of its row's and its column's. A row has a
scale, and each of its words SLICES (or EARLY) digits of 8 bits. Products of digits are added up exactly; those of the
last ones are left out. Proof: docs/numerics-products.md, section 14. Twin: numba/products.py, which takes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.certificate import SLACK, UNIT
from vgame.arithmetic.numba.compiled import compile_loop, flat, real
from vgame.arithmetic.numba.digit_tile import (
    BYTES,
    DEPTH,
    SIDE,
    begin_tiles,
    cut_words,
    digit_tile,
    end_tiles,
    join_levels,
    largest_words,
    levels,
    move_words,
    permitted,
    round_tile,
)
from vgame.arithmetic.numba.fused_tile import begin_modes, end_modes, keep_apart
from vgame.arithmetic.numba.products import Places
from vgame.arithmetic.numba.rounding_test import round_narrow, round_sums
from vgame.arithmetic.workspace import scratch

#: Digits of a word: for sums that are rounded to 24 bits, to 8 bits.
SLICES, EARLY = 5, 3
#: Largest number of terms between two conversions of exact sums.
CHUNK = 1024
#: Bytes of a's tiles that are used again and again: half of a second cache of 2 MiB.
NEAR = 1 << 20
#: Steps of 64 terms whose tiles of both sides stay in a first cache of 48 KiB.
AT_A_TIME = 4
#: Rows with a largest word outside 2^-100 .. 2^100 are not suited.
LEAST, MOST = np.uint32(27 << 23), np.uint32(227 << 23)

#: One number per row of a and of b, [Ba, M] and [Bb, N].
Squares = tuple[Tensor, Tensor]

_ROOM = np.float32(1 + 2.0**-7)


def chunk_of(length: int) -> int:
    """Terms of a chunk: K in ceil(K / CHUNK) equal ones."""
    return -(-length // -(-length // CHUNK))


@compile_loop
def _lined(columns, first, terms, lined):
    """lined[k]: whether the 16 words from first + 16 k on are adjacent."""
    for k in range(terms // SIDE):
        lined[k] = True
        for j in range(1, SIDE):
            at = first + k * SIDE + j
            lined[k] = lined[k] and columns[at] == columns[at - 1] + 1


@cache
def _packing(slices: int, left: bool) -> Callable[..., bool]:
    """The loop that cuts rows into tiles of digits, for the left or the right side of a product."""
    shift, unit = (16, 2.0**-16) if slices == 5 else (24, 2.0**-24)
    last_unit, right = 2.0 ** (-8 * slices), not left
    spread = 2.0**47 if slices == 5 else 2.0**28

    @compile_loop
    def pack(x, rows, columns, first, terms, y, scales, squares, defects, words, lined):
        """y: of each panel of 16 rows the tiles of the chunk; scales: of the rows. Returns whether all rows are suited.

        squares, defects: of each row, added up over the chunks.
        """
        steps = (terms + DEPTH - 1) // DEPTH
        padded, panel = steps * DEPTH, steps * slices * BYTES
        apart = padded + SIDE if left else SIDE
        line, step = (apart, 1) if left else (1, SIDE)  # from row to row, from word to word of the buffer
        _lined(columns, first, terms, lined)
        scale, most = np.empty(SIDE, np.float32), np.zeros(SIDE, np.int32)
        sums, rests, norms = np.zeros(SIDE), np.zeros(SIDE, np.float32), np.zeros(3 * SIDE, np.int32)
        bits = scale.view(np.uint32)
        words[:] = np.float32(0.0)
        for p in range(0, rows.size, SIDE):
            count = min(SIDE, rows.size - p)
            beside = count == SIDE
            for i in range(1, count):
                beside = beside and rows[p + i] == rows[p + i - 1] + 1
            for k in range(0, terms, SIDE):
                at = first + k
                whole = count == SIDE and k + SIDE <= terms
                if whole and lined[k // SIDE]:
                    move_words(right, x, rows, p, columns[at], words, k * step, apart)
                    continue
                if whole and beside:
                    move_words(left, x, columns, at, rows[p], words, k * step, apart)
                    continue
                for i in range(SIDE):
                    row = rows[min(p + i, rows.size - 1)]
                    for j in range(min(SIDE, terms - k)):
                        words[i * line + (k + j) * step] = real(x[row + columns[at + j]])
            if not left:
                largest_words(words, 0, SIDE, padded, most)
                for i in range(SIDE):
                    found = _exponent(most[i])
                    if found < 0:
                        return False
                    bits[i] = np.uint32((254 - 2 + shift - found) << 23)
                sums[:], rests[:], norms[:] = 0.0, np.float32(0.0), 0
                for depth in range(0, padded, DEPTH):
                    to = p // SIDE * panel + depth // DEPTH * slices * BYTES
                    cut_words(
                        slices,
                        words,
                        depth * SIDE,
                        SIDE,
                        SIDE * SIDE,
                        scale,
                        y,
                        to,
                        DEPTH,
                        SIDE,
                        sums,
                        rests,
                        norms,
                    )
            for i in range(count):
                row = p + i
                if left:
                    largest_words(words, i * apart, SIDE, padded // SIDE, most)
                    found = _exponent(most.max())
                    if found < 0:
                        return False
                    bits[:] = np.uint32((254 - 2 + shift - found) << 23)
                    sums[:], rests[:], norms[:] = 0.0, np.float32(0.0), 0
                    to = p // SIDE * panel + i * DEPTH
                    cut_words(
                        slices, words, i * apart, DEPTH, SIDE, scale, y, to, slices * BYTES, steps, sums, rests, norms
                    )
                    square, rest = sums.sum(), np.float64(rests.sum())
                    third, fourth, fifth = norms[:SIDE].sum(), norms[SIDE : 2 * SIDE].sum(), norms[2 * SIDE :].sum()
                else:
                    square, rest = sums[i], np.float64(rests[i])
                    third, fourth, fifth = norms[i], norms[SIDE + i], norms[2 * SIDE + i]
                power = 2.0**shift / np.float64(scale[i])
                scales[row] = power * 2.0 ** (-4 * (slices + 2))
                rest = (rest * (1 + 2.0**-11) + 2.0**-59) * last_unit**2 if square else 0.0
                if slices == 5:
                    defect = (2.0**-17 * 2.0**-48) * third + ((1 + 2.0**-8) * 2.0**-64) * fourth
                    defect += ((2.0**17 + 2.0**8 + 1) * 2.0**-80) * fifth
                else:
                    defect = 2.0**-48 * third
                defect = power * power * (defect + (spread + 1) * rest)
                square *= power * power * unit * unit
                squares[row] = square + (squares[row] if first else 0.0)
                defects[row] = defect + (defects[row] if first else 0.0)
        return True

    return pack


@compile_loop
def _exponent(most):
    """E + 127 for 2^E <= (1 + 2^-7) most < 2^(E + 1); 127 for zero; -1 outside of the range."""
    word = np.uint32(most)
    if word == 0:
        return np.int64(127)
    if word < LEAST or word >= MOST:
        return np.int64(-1)
    return np.int64(np.float32(word.view(np.float32) * _ROOM).view(np.uint32) >> np.uint32(23))


@compile_loop
def _mean_bound(squares, defects, own):
    """The mean of the rows' bounds per norm."""
    total = 0.0
    for i in range(squares.size):
        total += np.sqrt(own + defects[i] / squares[i] if squares[i] else 0.0)
    return total / squares.size


@compile_loop
def _set_bounds(squares, defects, own, factor, bounds):
    """The rows' bounds; those beyond the last row stay zeros."""
    for i in range(squares.size):
        bounds[i] = factor * np.sqrt(defects[i] + own * squares[i])


@cache
def _loop_of(slices: int) -> Callable[..., int]:
    """The loop of all products with words of so many digits."""
    pack_a, pack_b, words = _packing(slices, True), _packing(slices, False), levels(slices) * SIDE * SIDE
    narrow = slices == EARLY
    round_rows = round_narrow if narrow else round_sums

    @compile_loop
    def add_tile(corner, sums, at, columns, height, width, keep):
        """corner += the sums from sums[at] on; these = corner, if they are to be kept."""
        for i in range(height):
            line, there = corner[i * SIDE : i * SIDE + width], sums[at + i * columns : at + i * columns + width]
            if keep:
                for j in range(width):
                    there[j] = line[j]
            else:
                for j in range(width):
                    line[j] += there[j]

    @compile_loop
    def multiply_panels(panels, scales, shape, steps, level, sums, start, first_chunk, last_chunk, rounding, number):
        """The products of two operands' panels: into sums[start ..], or rounded. Returns the number of open ones so
        far."""
        a, b = panels
        out, strides, to, bounds_a, bounds_b, found, limit = rounding
        rows, columns = shape
        near = max(level.size // words, 1) * SIDE
        step, rounds = slices * BYTES, last_chunk and out.size > 0
        panel = steps * step
        corner, line, places = np.empty(SIDE * SIDE), np.empty(SIDE * SIDE, np.float32), np.empty(SIDE * SIDE, np.int32)
        for top in range(0, rows, near):
            for n in range(0, columns, SIDE):
                last, width = min(top + near, rows), min(SIDE, columns - n)
                for first in range(0, steps, AT_A_TIME):
                    count = min(AT_A_TIME, steps - first)
                    for m in range(top, last, SIDE):
                        at, bt = m // SIDE * panel + first * step, n // SIDE * panel + first * step
                        digit_tile(slices, a, at, b, bt, count, level, (m - top) // SIDE * words, first > 0)
                for m in range(top, last, SIDE):
                    height = min(SIDE, rows - m)
                    join_levels(slices, level, (m - top) // SIDE * words, scales[0], m, scales[1], n, corner)
                    if not first_chunk:
                        add_tile(corner, sums, start + m * columns + n, columns, height, width, False)
                    if not rounds:
                        add_tile(corner, sums, start + m * columns + n, columns, height, width, True)
                        continue
                    target, whole = to + m * strides[1] + n, height == width == SIDE
                    if whole and not round_tile(narrow, corner, bounds_a, m, bounds_b, n, out, target, strides[1]):
                        continue
                    known = bounds_a[m : m + SIDE], bounds_b[n : n + SIDE], 0, line, (0, SIDE), places
                    some = round_rows(corner, (SIDE, SIDE), *known, SIDE * SIDE, 0, height)
                    for i in range(height if not whole else 0):
                        for j in range(width):
                            out[target + i * strides[1] + j] = line[i * SIDE + j]
                    for j in range(some):
                        if places[j] % SIDE < width:
                            found[number] = start + (m + places[j] // SIDE) * columns + n + places[j] % SIDE
                            number += 1
                if number > limit:
                    return -1
        return number

    @compile_loop
    def multiply_all(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer, rounding):
        keep_apart()
        x, x_rows, x_columns = a
        y, y_rows, y_columns = b
        out, strides, found, limit = rounding
        batch, rows, columns = shape
        lined = np.empty(chunk // SIDE + 1, np.bool_)
        scales = np.ones(rows + SIDE), np.ones(columns + SIDE)
        bounds = np.zeros(rows + SIDE), np.zeros(columns + SIDE)
        number = 0
        for i in range(batch):
            own_a, own_b = i == 0 or x_rows.size > rows, i == 0 or y_rows.size > columns
            u, v = i * rows if x_rows.size > rows else 0, i * columns if y_rows.size > columns else 0
            known_a = squares[0][u : u + rows], defects[0][u : u + rows]
            known_b = squares[1][v : v + columns], defects[1][v : v + columns]
            for first in range(0, x_columns.size, chunk):
                terms = min(chunk, x_columns.size - first)
                if own_a or terms < x_columns.size:  # else the panels hold it
                    part = x_rows[u : u + rows], x_columns, first, terms, panels[0], scales[0]
                    if not pack_a(x, *part, *known_a, buffer, lined):
                        return -1
                if own_b or terms < x_columns.size:
                    part = y_rows[v : v + columns], y_columns, first, terms, panels[1], scales[1]
                    if not pack_b(y, *part, *known_b, buffer, lined):
                        return -1
                if i == first == 0 and _mean_bound(*known_a, own) * _mean_bound(*known_b, own) > most:
                    return -1
                last = first + terms == x_columns.size
                if last:
                    _set_bounds(*known_a, own, SLACK, bounds[0])
                    _set_bounds(*known_b, own, 1.0, bounds[1])
                place = level, sums, i * rows * columns, first == 0, last
                steps, rest = (terms + DEPTH - 1) // DEPTH, (out, strides, i * strides[0], *bounds, found, limit)
                number = multiply_panels(panels, scales, (rows, columns), steps, *place, rest, number)
                if number < 0:
                    return -1
        return number

    @compile_loop
    def multiply(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer, rounding):
        """The sums [B, M, N] of the products of the rows a and b, or if there is an `out` their words; squares and
        defects of the rows. Returns the number of open words; -1 if not all rows are suited, the first ones' bounds per
        norms are above `most` on average, or more words than the limit are open."""
        modes = begin_modes()
        begin_tiles()
        number = multiply_all(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer, rounding)
        end_tiles()
        end_modes(modes)
        return number

    return multiply


_NOTHING = np.empty(0, np.float32), (0, 0), np.empty(0, np.int32), 0


def _multiply(
    a: Places, b: Places, sums: np.ndarray, squares: Squares, early: bool, most: float, rounding: tuple
) -> tuple[int, Squares, float]:
    """(the loop's result: number of open words or -1; the rows' defects; relative error of a bound: own)."""
    assert permitted(), "a process that may use tiles of bytes"
    slices, length, device = EARLY if early else SLICES, a[2].size, squares[0].device
    shape = (max(map(len, squares)), *(x.shape[1] for x in squares))
    chunk = chunk_of(length)
    steps = -(-chunk // DEPTH)
    panels = tuple(
        scratch(f"digits {side}", (-(-count // SIDE) * steps * slices * BYTES // 8,), torch.float64, device)
        for side, count in zip("ab", shape[1:], strict=True)
    )
    buffer = scratch("digits", (SIDE * (steps * DEPTH + SIDE),), torch.float32, device)
    near = min(-(-shape[1] // SIDE), max(1, NEAR // (BYTES * (steps * slices + levels(slices)))))
    level = scratch("levels", (near * levels(slices) * SIDE * SIDE,), torch.int32, device)
    defects = torch.empty_like(squares[0]), torch.empty_like(squares[1])
    own = (2.0**-47 if slices == SLICES else 2.0**-28) + (-(-length // chunk) + 3) * (1 + 2.0**-12) * UNIT
    known = [tuple(x.view(-1).numpy() for x in pair) for pair in (squares, defects)]
    memory = tuple(x.view(torch.int8).numpy() for x in panels), level.numpy(), buffer.numpy()
    number = _loop_of(slices)(a, b, shape, chunk, own, most, sums, *known, *memory, rounding)
    return number, defects, own


def multiply(
    a: Places, b: Places, sums: Tensor, squares: Squares, early: bool = False, most: float = np.inf
) -> Squares | None:
    """sums [B, M, N], binary64 and contiguous, and squares [Ba, M] and [Bb, N] of the rows; (left [Ba, M], right [Bb,
    N]): left * right bounds a sum's error, with room for a rounding. None if a row is not suited, or the bounds per
    norms are above `most`.

    early: for sums that are rounded to 8 bits.
    """
    number, defects, own = _multiply(a, b, sums.view(-1).numpy(), squares, early, most, _NOTHING)
    if number < 0:
        return None
    left, right = (x.add_(square, alpha=own).sqrt_() for x, square in zip(defects, squares, strict=True))
    return left.mul_(SLACK), right


def round_products(
    a: Places, b: Places, out: Tensor, squares: Squares, early: bool, most: float, limit: int
) -> Tensor | None:
    """out [B, M, N] = the sums, rounded to 24 bits or, if `early`, to 8; squares as above. Returns the flat positions
    (int32) that are still open; None if there are more than `limit`, or as above."""
    found = scratch("found", (out.numel(),), torch.int32, out.device)
    size = out.numel() if a[2].size > CHUNK else 0
    sums = scratch("sums", (size,), torch.float64, out.device).numpy()
    number, *_ = _multiply(a, b, sums, squares, early, most, (flat(out), out.stride()[:2], found.numpy(), limit))
    return None if number < 0 else found[:number].sort().values

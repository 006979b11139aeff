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
from vgame.arithmetic.numba.compiled import compile_loop
from vgame.arithmetic.numba.digit_tile import (
    BYTES,
    DEPTH,
    SIDE,
    begin_tiles,
    cut_words,
    digit_tile,
    end_tiles,
    fetch_lines,
    join_levels,
    largest_words,
    levels,
    move_words,
)
from vgame.arithmetic.numba.fused_tile import begin_modes, end_modes, keep_apart
from vgame.arithmetic.numba.products import Places
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

_ROOM = np.float32(1 + 2.0**-7)


def chunk_of(length: int) -> int:
    """Terms of a chunk: K in ceil(K / CHUNK) equal ones."""
    return -(-length // -(-length // CHUNK))


@compile_loop
def _lined(columns, first, terms, lined):
    """lined[k]: whether the 16 words from first + 16 k on lie beside each other."""
    for k in range(terms // SIDE):
        lined[k] = True
        for j in range(1, SIDE):
            at = first + k * SIDE + j
            lined[k] = lined[k] and columns[at] == columns[at - 1] + 1


@cache
def _packing(slices: int, left: bool) -> Callable[..., bool]:
    """What cuts rows into tiles of digits, for the left or the right side of a product."""
    shift, unit = (16, 2.0**-16) if slices == 5 else (24, 2.0**-24)
    last_unit = 2.0 ** (-8 * slices)
    spread = 2.0**47 if slices == 5 else 2.0**28

    @compile_loop
    def pack(x, rows, columns, first, terms, y, scales, squares, defects, words, lined):
        """y: of each panel of 16 rows the tiles of the chunk; scales: of the rows. Whether all rows are suited.

        squares, defects: of each row, added up over the chunks.
        """
        steps = (terms + DEPTH - 1) // DEPTH
        padded, panel = steps * DEPTH, steps * slices * BYTES
        apart = padded + SIDE if left else SIDE
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
                if left:
                    if whole and lined[k // SIDE]:
                        move_words(False, x, rows, p, columns[at], words, k, apart)
                        continue
                    if whole and beside:
                        move_words(True, x, columns, at, rows[p], words, k, apart)
                        continue
                    for i in range(SIDE):
                        row = rows[min(p + i, rows.size - 1)]
                        for j in range(min(SIDE, terms - k)):
                            words[i * apart + k + j] = x[row + columns[at + j]]
                else:
                    if whole and beside:
                        move_words(False, x, columns, at, rows[p], words, k * SIDE, SIDE)
                        continue
                    if whole and lined[k // SIDE]:
                        move_words(True, x, rows, p, columns[at], words, k * SIDE, SIDE)
                        continue
                    for i in range(SIDE):
                        row = rows[min(p + i, rows.size - 1)]
                        for j in range(min(SIDE, terms - k)):
                            words[(k + j) * SIDE + i] = x[row + columns[at + j]]
            if not left:
                largest_words(words, 0, SIDE, padded, most)
                for i in range(SIDE):
                    found = _exponent(most[i])
                    if found < 0:
                        return False
                    bits[i] = np.uint32((254 - 2 + shift - found) << 23)
                sums[:], rests[:], norms[:] = 0.0, np.float32(0.0), 0
                for step in range(steps):
                    to = p // SIDE * panel + step * slices * BYTES
                    cut_words(
                        slices,
                        words,
                        step * DEPTH * SIDE,
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


@cache
def _loop_of(slices: int) -> Callable[..., bool]:
    """The loop of all products with words of so many digits."""
    pack_a, pack_b, words = _packing(slices, True), _packing(slices, False), levels(slices) * SIDE * SIDE

    @compile_loop
    def multiply_panels(a, b, scale_a, scale_b, shape, steps, more, level, corner, sums, start):
        near = level.size // words * SIDE
        rows, columns = shape
        step = slices * BYTES
        panel = steps * step
        for top in range(0, rows, near):
            for n in range(0, columns, SIDE):
                last = min(top + near, rows)
                for first in range(0, steps, AT_A_TIME):
                    count = min(AT_A_TIME, steps - first)
                    for m in range(top, last, SIDE):
                        if first + count == steps and m + SIDE <= rows and n + SIDE <= columns:
                            fetch_lines(sums, start + m * columns + n, columns)
                        at, bt = m // SIDE * panel + first * step, n // SIDE * panel + first * step
                        digit_tile(slices, a, at, b, bt, count, level, (m - top) // SIDE * words, first > 0)
                for m in range(top, last, SIDE):
                    lt = (m - top) // SIDE * words
                    at = start + m * columns + n
                    if m + SIDE <= rows and n + SIDE <= columns:
                        join_levels(slices, level, lt, scale_a, m, scale_b, n, sums, at, columns, more)
                        continue
                    join_levels(slices, level, lt, scale_a, m, scale_b, n, corner, 0, SIDE, False)
                    for i in range(min(SIDE, rows - m)):
                        for j in range(min(SIDE, columns - n)):
                            to, value = at + i * columns + j, corner[i * SIDE + j]
                            sums[to] = sums[to] + value if more else value

    @compile_loop
    def mean_bound(squares, defects, own):
        """Of the rows' bounds per norm."""
        total = 0.0
        for i in range(squares.size):
            total += np.sqrt(own + defects[i] / squares[i] if squares[i] else 0.0)
        return total / squares.size

    @compile_loop
    def multiply_all(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer):
        keep_apart()
        x, x_rows, x_columns = a
        y, y_rows, y_columns = b
        batch, rows, columns = shape
        corner = np.empty(SIDE * SIDE)
        lined = np.empty(chunk // SIDE + 1, np.bool_)
        scale_a, scale_b = np.ones(rows + SIDE), np.ones(columns + SIDE)
        for i in range(batch):
            own_a, own_b = i == 0 or x_rows.size > rows, i == 0 or y_rows.size > columns
            u, v = i * rows if x_rows.size > rows else 0, i * columns if y_rows.size > columns else 0
            for first in range(0, x_columns.size, chunk):
                terms = min(chunk, x_columns.size - first)
                steps = (terms + DEPTH - 1) // DEPTH
                if own_a or terms < x_columns.size:  # else it is there
                    part = x_rows[u : u + rows], x_columns, first, terms, panels[0], scale_a
                    known = squares[0][u : u + rows], defects[0][u : u + rows]
                    if not pack_a(x, *part, *known, buffer, lined):
                        return False
                if own_b or terms < x_columns.size:
                    part = y_rows[v : v + columns], y_columns, first, terms, panels[1], scale_b
                    known = squares[1][v : v + columns], defects[1][v : v + columns]
                    if not pack_b(y, *part, *known, buffer, lined):
                        return False
                if i == first == 0:
                    means = [mean_bound(squares[j][: shape[1 + j]], defects[j][: shape[1 + j]], own) for j in range(2)]
                    if means[0] * means[1] > most:
                        return False
                to = level, corner, sums, i * rows * columns
                multiply_panels(*panels, scale_a, scale_b, (rows, columns), steps, first > 0, *to)
        return True

    @compile_loop
    def multiply(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer):
        """sums [B, M, N] of the products of the rows a and b; squares and defects of the rows. Whether all are
        suited, and the first rows' bounds per norms at `most` on average."""
        modes = begin_modes()
        begin_tiles()
        suited = multiply_all(a, b, shape, chunk, own, most, sums, squares, defects, panels, level, buffer)
        end_tiles()
        end_modes(modes)
        return suited

    return multiply


def multiply(
    a: Places, b: Places, sums: Tensor, squares: tuple[Tensor, Tensor], early: bool, most: float
) -> tuple[Tensor, Tensor] | None:
    """sums [B, M, N], binary64 and contiguous, and squares [Ba, M] and [Bb, N] of the rows; (left [Ba, M], right [Bb,
    N]): left * right bounds a sum's error, with room for a rounding. None where a row is not suited, or the bounds per
    norms are above `most`.

    early: for sums that are rounded to 8 bits.
    """
    slices, length = EARLY if early else SLICES, a[2].size
    chunk = chunk_of(length)
    steps = -(-chunk // DEPTH)
    panels = tuple(
        scratch(f"digits {side}", (-(-count // SIDE) * steps * slices * BYTES // 8,), torch.float64, sums.device)
        for side, count in zip("ab", sums.shape[1:], strict=True)
    )
    buffer = scratch("digits", (SIDE * (steps * DEPTH + SIDE),), torch.float32, sums.device)
    near = min(-(-sums.shape[1] // SIDE), max(1, NEAR // (BYTES * (steps * slices + levels(slices)))))
    level = scratch("levels", (near * levels(slices) * SIDE * SIDE,), torch.int32, sums.device)
    defects = tuple(torch.empty_like(x) for x in squares)
    own = (2.0**-47 if slices == SLICES else 2.0**-28) + (-(-length // chunk) + 3) * (1 + 2.0**-12) * UNIT
    flat = [tuple(x.view(-1).numpy() for x in pair) for pair in (squares, defects)]
    memory = tuple(x.view(torch.int8).numpy() for x in panels), level.numpy(), buffer.numpy()
    if not _loop_of(slices)(a, b, tuple(sums.shape), chunk, own, most, sums.view(-1).numpy(), *flat, *memory):
        return None
    left, right = (x.add_(square, alpha=own).sqrt_() for x, square in zip(defects, squares, strict=True))
    return left.mul_(SLACK), right

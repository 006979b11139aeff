"""Compiled loops over rows with no or few additions: look-ups, maxima, sums selected by an index.

They replace their twins for contiguous words: vgame/execute/ordinary.py (gather), torch/maxima.py, torch/one_hot.py.
The arrays are flat and contiguous.
"""

from __future__ import annotations

import numpy as np

from vgame.arithmetic.numba.compiled import compile_loop

_ZERO, _NAN = np.float32(0.0), np.float32(np.nan)
_SIGN, _MAGNITUDE, _LEAST = np.int32(31), np.int32(0x7FFFFFFF), np.int64(-(1 << 63))


@compile_loop
def gather(index, table, rows, width, fill, out):
    """out[i, r] = table[index[i], r], or fill where index[i] is not a row of the table; words."""
    if width == 1:
        for i in range(index.size):
            row = np.int64(index[i])
            out[i] = table[row] if 0 <= row < rows else fill
        return
    for i in range(index.size):
        target, row = out[i * width : (i + 1) * width], np.int64(index[i])
        if 0 <= row < rows:
            source = table[row * width : (row + 1) * width]
            for k in range(target.size):
                target[k] = source[k]
        else:
            for k in range(target.size):
                target[k] = fill


@compile_loop
def largest(a, length, block, out):
    """As maxima.reduce_max, of rows of `length` binary32 values."""
    blocks = (length + block - 1) // block
    for row in range(out.size // blocks):
        for e in range(blocks):
            first, last = row * length + e * block, row * length + min((e + 1) * block, length)
            best = a[first]
            for k in range(first + 1, last):
                best = a[k] if (a[k] > best) | (a[k] != a[k]) else best
            out[row * blocks + e] = best + _ZERO if best == best else _NAN


@compile_loop
def largest_integer(a, length, block, out):
    """As kernels.integer_max, of int32."""
    blocks = (length + block - 1) // block
    for row in range(out.size // blocks):
        for e in range(blocks):
            first, last = row * length + e * block, row * length + min((e + 1) * block, length)
            best = a[first]
            for k in range(first + 1, last):
                best = max(best, a[k])
            out[row * blocks + e] = best


@compile_loop
def place_of_largest(a, length, out, first, last):
    """As maxima.argmax, of rows first..last-1 of `length` < 2^31 binary32 values.

    Numbers compare as the integers of their words, the magnitude inverted for negative ones; a NaN is above them all.
    Below it stands the place, inverted: the first of equal values is the largest of these numbers of 64 bits.
    """
    for row in range(first, last):
        words, best = a[row * length : (row + 1) * length], _LEAST
        for k in range(words.size):
            value = words[k] + _ZERO
            word = np.float32(value).view(np.int32)
            word = np.int32(word ^ (word >> _SIGN & _MAGNITUDE))
            word = word if value == value else _MAGNITUDE
            best = max(best, np.int64(word) << 32 | (_MAGNITUDE - k))
        out[row] = _MAGNITUDE - (best & _MAGNITUDE)


@compile_loop
def select(index, b, shape, strides, unit, memory, counts, out):
    """As one_hot.one_hot_sum; returns the number of sums that the rounding test leaves open. The words of these are
    undefined.

    shape: (batches, m, n, k); strides: of a batch of the index, and of b's three dimensions; unit: error of a sum per
    term and sum of magnitudes; memory [3, m] binary64 and counts [m]: scratch. Sums of few terms are mostly exact; if
    the remainder of each addition (2Sum) is 0, the bound is 0.
    """
    (batches, m, n, length), still_open = shape, 0
    sums, sizes, lost = memory[0], memory[1], memory[2]
    for i in range(batches):
        chosen = index[i * strides[0] : i * strides[0] + length]
        for column in range(n):
            sums[:], sizes[:], lost[:], counts[:] = 0.0, 0.0, 0.0, 0
            at = i * strides[1] + column * strides[2]
            for k in range(length):
                j = np.int64(chosen[k])
                if 0 <= j < m:
                    value = np.float64(b[at + k * strides[3]])
                    before, sums[j] = sums[j], sums[j] + value
                    added = sums[j] - before
                    lost[j] += abs((before - (sums[j] - added)) + (value - added))
                    sizes[j] += abs(value)
                    counts[j] += 1
            for j in range(m):
                bound = counts[j] * unit * sizes[j] if lost[j] > 0.0 and sizes[j] < np.inf else 0.0
                upper = np.float32(sums[j] + bound)
                still_open += np.int64(np.float32(sums[j] - bound) < upper)
                out[(i * m + j) * n + column] = upper + _ZERO if upper == upper else _NAN
    return still_open


@compile_loop
def all_finite(words, found, place):
    """found[place] = whether none of the binary32 words, int32, is infinite or NaN."""
    special, wrong = np.int32(0x7F800000), np.int32(0)
    for i in range(words.size):
        wrong |= np.int32((words[i] & special) == special)
    found[place] = wrong == 0

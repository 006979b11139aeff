"""Compiled loops of the rounding test: over a product's sums, again over the sums left open, and over sums of rows,
which are computed here too.

Twins: the torch passes of products.py and sums.py. One pass over memory each.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import add, bits, compile_loop, flat, real
from vgame.system.threads import share

#: Words of short runs that are added side by side, and stay in the first cache.
BESIDE = 512
#: Elements that share one mark, which shows whether one of them is open.
SPAN = 256

_ZERO = np.float32(0.0)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_HALF, _LOW, _HIGH, _ONE = np.int32(0x8000), np.int32(0xFFFF), np.int32(-0x10000), np.int32(1)


@compile_loop
def round_sums(s, shape, left, right, right_stride, out, strides, found, limit, first, last):
    """out = RN32(s + e) + 0 with e = left * right, in rows first..last-1 of B * M; found: positions with a smaller
    RN32(s - e).

    The mark compares bits: it may be set without an open element (zeros of both signs), but is never missing for one.
    """
    rows, columns = shape
    number = 0
    for u in range(first, last):
        scale, side, to = left[u], u // rows * right_stride, u // rows * strides[0] + u % rows * strides[1]
        for start in range(0, columns, SPAN):
            stop = min(start + SPAN, columns)
            sums, bounds = s[u * columns + start : u * columns + stop], right[side + start : side + stop]
            target = out[to + start : to + stop]
            mark = np.int32(0)
            for j in range(sums.size):
                bound = scale * bounds[j]
                upper, lower = np.float32(sums[j] + bound), np.float32(sums[j] - bound)
                target[j] = upper + _ZERO
                mark |= upper.view(np.int32) ^ lower.view(np.int32)
            if mark:
                for j in range(sums.size):
                    bound = scale * bounds[j]
                    if np.float32(sums[j] - bound) < np.float32(sums[j] + bound):
                        found[number] = u * columns + start + j
                        number += 1
        if number > limit:
            break
    return number


@compile_loop
def _narrow(word):
    """RN8 of a binary32 number's word, ties to even."""
    return np.int32((word + (_HALF - _ONE) + (word >> 16 & _ONE)) & _HIGH)


@compile_loop
def round_narrow(s, shape, left, right, right_stride, out, strides, found, limit, first, last):
    """out = RN8(s + e) + 0 in rows first..last-1; found: positions where RN8(s - e) differs, or where RN32(s + e) or
    RN32(s - e) is a midpoint of 8 bits."""
    rows, columns = shape
    number = 0
    for u in range(first, last):
        scale, side, to = left[u], u // rows * right_stride, u // rows * strides[0] + u % rows * strides[1]
        for start in range(0, columns, SPAN):
            stop = min(start + SPAN, columns)
            sums, bounds = s[u * columns + start : u * columns + stop], right[side + start : side + stop]
            target = out[to + start : to + stop]
            mark = np.int32(0)
            for j in range(sums.size):
                bound = scale * bounds[j]
                upper = np.float32(sums[j] + bound).view(np.int32)
                lower = np.float32(sums[j] - bound).view(np.int32)
                target[j] = np.int32(_narrow(upper)).view(np.float32) + _ZERO
                ties = np.int32((upper & _LOW) == _HALF) | np.int32((lower & _LOW) == _HALF)
                mark |= (_narrow(upper) ^ _narrow(lower)) | ties
            if mark:
                for j in range(sums.size):
                    bound = scale * bounds[j]
                    upper = np.float32(sums[j] + bound).view(np.int32)
                    lower = np.float32(sums[j] - bound).view(np.int32)
                    unequal = np.int32(_narrow(lower)).view(np.float32) < np.int32(_narrow(upper)).view(np.float32)
                    if unequal or (upper & _LOW) == _HALF or (lower & _LOW) == _HALF:
                        found[number] = u * columns + start + j
                        number += 1
        if number > limit:
            break
    return number


def round_pass(
    s: Tensor, left: Tensor, right: Tensor, out: Tensor, found: Tensor, limit: int, narrow: bool = False
) -> Tensor | None:
    """RN32(s + left * right) into out [B, M, N]; returns the flat positions (int32, in `found`) still open, None if
    more than `limit`.

    narrow: RN8 instead of RN32, for finite rows; the words of open positions are meaningless.

    s: binary64 [B, M, N], contiguous; left [B, M, 1] and right [1 or B, 1, N]: binary64. found: int32 [B * M * N].
    If None is returned, a part of `out` is not written. Twin: enclose_products in torch/rounding_test.py.
    """
    batch, rows, columns = s.shape
    left = left.expand(batch, rows, 1).reshape(-1).numpy()
    sums, bounds, target, positions = s.view(-1).numpy(), right.reshape(-1).numpy(), flat(out), found.numpy()
    right_stride = columns if right.shape[0] > 1 else 0
    assert columns == 1 or out.stride(2) == 1, "rows of a result are contiguous"

    def run(first: int, last: int) -> tuple[int, int]:
        part = positions[first * columns :]
        strides = out.stride()[:2]
        return first, (round_narrow if narrow else round_sums)(
            sums, (rows, columns), left, bounds, right_stride, target, strides, part, limit, first, last
        )

    parts = share(batch * rows, columns, run)
    if sum(number for _, number in parts) > limit:
        return None
    return torch.cat([found[first * columns :][:number] for first, number in parts])


@compile_loop
def first_look(squares, weight, slack, bounds, shape, shared, s, out, strides, found, limit, narrow):
    """Compute the rows' norms from their sums of squares, in place; then `round_sums` or `round_narrow` of all rows.
    Returns the number of open sums, or -1 if a norm is not finite.

    squares: of a and of b; bounds: binary64, of a (slack * norm) and of every row of the result (weight * norm).
    """
    norm_a, norm_b = squares
    bound_a, left = bounds
    rows, columns = shape
    size = 0.0
    for i in range(norm_a.size):
        norm_a[i] = np.sqrt(norm_a[i])
        bound_a[i] = norm_a[i] * slack
        size += norm_a[i]
    for j in range(norm_b.size):
        norm_b[j] = np.sqrt(norm_b[j])
        size += norm_b[j]
    if not size < np.inf:
        return -1
    for u in range(left.size):
        left[u] = norm_a[u % rows if shared[0] else u] * weight
    right_stride = 0 if shared[1] else columns
    if narrow:
        return round_narrow(s, shape, left, norm_b, right_stride, out, strides, found, limit, 0, left.size)
    return round_sums(s, shape, left, norm_b, right_stride, out, strides, found, limit, 0, left.size)


@compile_loop
def _look(given, keep, shape, s, facts_a, facts_b, shared, terms, unit, slack, out, strides, first, last):
    """The rounding test with the rows' facts at positions first..last-1: the positions still open are written to
    `keep`, from `first` on."""
    rows, columns = shape
    norm_a, count_a, quantum_a = facts_a
    norm_b, count_b, quantum_b = facts_b
    open_ones = exact_ones = 0
    for e in range(first, last):
        position = given[e]
        u, n = position // columns, position % columns
        b, m = u // rows, u % rows
        i = m if shared[0] else u
        j = n if shared[1] else b * columns + n
        size = norm_a[i] * norm_b[j]
        number = min(count_a[i], count_b[j], terms)
        bound = number * unit * size if number > 1 else 0.0
        if size * slack <= 2.0**53 * (quantum_a[i] * quantum_b[j]):
            bound = 0.0
            exact_ones += 1
        upper = np.float32(s[position] + bound)
        out[b * strides[0] + m * strides[1] + n] = upper + _ZERO
        if np.float32(s[position] - bound) < upper:
            keep[first + open_ones] = position
            open_ones += 1
    return open_ones, exact_ones


def look_again(
    positions: Tensor, s: Tensor, facts: tuple, weights: tuple[int, float, float], out: Tensor
) -> tuple[Tensor, int]:
    """(positions still open, number decided by exactness). Twin: products.Tile._look_again.

    facts: (norm, non-zeros, quantum) of a and of b; weights: most terms of a sum, e / S per term, slack of a bound.
    """
    given, keep = positions.numpy(), torch.empty_like(positions)
    kept, sums, target, strides = keep.numpy(), s.view(-1).numpy(), flat(out), out.stride()[:2]
    known = [tuple(x.reshape(-1).numpy() for x in side) for side in facts]
    shared = tuple(side[0].shape[0] == 1 for side in facts)

    def run(first: int, last: int) -> tuple[int, int, int]:
        found = _look(given, kept, tuple(s.shape[1:]), sums, *known, shared, *weights, target, strides, first, last)
        return first, *found

    parts = share(given.size, 8, run)
    return torch.cat([keep[first : first + number] for first, number, _ in parts]), sum(part[2] for part in parts)


# --- sums of rows ---


@compile_loop
def _sum_block(x):
    """(sum, sum of the magnitudes, least magnitude) of contiguous values, added in any order."""
    total, magnitude, least = 0.0, 0.0, _INFINITY
    for k in range(x.size):
        value = np.float64(real(x[k]))
        total, magnitude = add(total, value), add(magnitude, abs(value))
        least = np.uint32(min(np.uint32(bits(x[k]) & _MAGNITUDE), least))
    return total, magnitude, np.float64(np.uint32(least).view(np.float32))


@compile_loop
def _add_run(x, at, run, step, block, memory, total, magnitude, least):
    """Add the three numbers of `_sum_block`, for a run at x[at], x[at + step], .. in blocks, to those given."""
    for start in range(0, run, block):
        size, begin = min(block, run - start), at + start * step
        if step == 1:
            part = _sum_block(x[begin : begin + size])
        else:
            for k in range(size):
                memory[k] = real(x[begin + k * step])
            part = _sum_block(memory[:size])
        total, magnitude, least = total + part[0], magnitude + part[1], min(least, part[2])
    return total, magnitude, least


@compile_loop
def _add_beside(x, begin, starts, block, totals, magnitudes, leasts, total, magnitude):
    """Add word i of each of the runs at x[begin + starts] into totals[i], magnitudes[i] and leasts[i]: first the runs
    of a block, in total[i], then the blocks."""
    totals[:], magnitudes[:], leasts[:] = 0.0, 0.0, _INFINITY
    for first in range(0, starts.size, block):
        total[:], magnitude[:] = 0.0, 0.0
        for j in range(first, min(first + block, starts.size)):
            at = begin + starts[j]
            source = x[at : at + leasts.size]
            for i in range(source.size):
                value = np.float64(real(source[i]))
                total[i] += value
                magnitude[i] += abs(value)
                leasts[i] = np.uint32(min(np.uint32(bits(source[i]) & _MAGNITUDE), leasts[i]))
        for i in range(totals.size):
            totals[i] += total[i]
            magnitudes[i] += magnitude[i]


@compile_loop
def _collect(totals, magnitudes, leasts):
    """The three numbers of one row, from the words of its runs."""
    total, magnitude, least = 0.0, 0.0, _INFINITY
    for i in range(totals.size):
        total, magnitude = add(total, totals[i]), add(magnitude, magnitudes[i])
        least = np.uint32(min(leasts[i], least))
    return total, magnitude, np.float64(np.uint32(least).view(np.float32))


@compile_loop
def sum_rows_between(x, rows, starts, run, step, block, weight, spread, out, sums, sizes, found, first, last):
    """The sums of the rows first..last-1 and the rounding test; found: the rows still open. See sum_rows.

    Short runs of adjacent rows (each begins where the one before ends) are read together, with a sum for each word
    until the last run.
    """
    number, together = 0, BESIDE // run if step == 1 and starts.size > 1 else 0
    memory = np.empty(block if step != 1 else 0, np.float32)
    totals, magnitudes = np.empty(together * run), np.empty(together * run)
    total_of_block, magnitude_of_block = np.empty(together * run), np.empty(together * run)
    leasts = np.empty(together * run, np.uint32)
    for begin in range(first, last, max(together, 1)):
        end = min(begin + max(together, 1), last)
        beside = together > 0
        for u in range(begin + 1, end):
            beside = beside and rows[u] - rows[u - 1] == run
        if beside:
            words = (end - begin) * run
            block_of = total_of_block[:words], magnitude_of_block[:words]
            _add_beside(x, rows[begin], starts, block, totals[:words], magnitudes[:words], leasts[:words], *block_of)
        for u in range(begin, end):
            total, magnitude, least = 0.0, 0.0, np.inf
            if beside:
                low, high = (u - begin) * run, (u - begin + 1) * run
                total, magnitude, least = _collect(totals[low:high], magnitudes[low:high], leasts[low:high])
            else:
                for j in range(starts.size):
                    at = rows[u] + starts[j]
                    total, magnitude, least = _add_run(x, at, run, step, block, memory, total, magnitude, least)
            sums[u], sizes[u] = total, magnitude
            bound = weight * magnitude if magnitude < np.inf and magnitude > spread * least else 0.0
            upper = np.float32(total + bound)
            if np.float32(total - bound) < upper:
                found[first + number] = u
                number += 1
            out[u] = upper + _ZERO if upper == upper else np.float32(np.nan)
    return number


def sum_rows(source: tuple, block: int, weight: float, spread: float, out: Tensor) -> tuple:
    """out [R] = RN32(s + e) of the rows' sums; (rows still open int64, s, sums of magnitudes S binary64). Twin:
    sums._sum_tile.

    source: (memory, begins of the rows, begins of their runs, length of a run, step): word k of run j of row r is
    memory[rows[r] + runs[j] + k * step]. Blocks of runs are summed first, then the blocks; e = weight * S, and 0 if S
    <= spread * the least magnitude. Or the runs' words are added side by side first, in blocks of runs, then the words
    of a row (docs/numerics-products.md, section 10).
    """
    x, begins, starts, run, step = source
    rows = begins.size
    sums, sizes = torch.empty(2, rows, dtype=torch.float64).unbind()
    found = torch.empty(rows, dtype=torch.int64)
    arrays = out.numpy(), sums.numpy(), sizes.numpy(), found.numpy()

    def run_rows(first: int, last: int) -> Tensor:
        number = sum_rows_between(x, begins, starts, run, step, block, weight, spread, *arrays, first, last)
        return found[first : first + number]

    return torch.cat(share(rows, starts.size * run, run_rows)), sums, sizes

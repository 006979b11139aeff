"""Compiled loops for products of binary32 rows on a CPU. Twins: the torch passes of products.py, exact_tier.py and row_facts.py.

In: the storage of tensors as flat arrays, with strides. Out: the words that the torch passes give, by the same tests
(docs/numerics-products.md, sections 3 to 5) in one pass each; the exact tier ends in an integer instead of further sweeps.

The library's own threads idle meanwhile, so large loops are shared by threads of our own; none of them holds the interpreter's lock.
`fastmath` is on for `_add` only, and there only `reassoc`: sums that any order gives exactly, or whose bound holds in any order.
This file imports no constant, so the compiler's cache notices every change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

from vgame.arithmetic.gpu import gate

#: Elements that are worth a thread.
SHARE = 1 << 17
#: Elements between two looks at the mark that says whether one of them is open.
SPAN = 256
#: Elements that the exact tier sums side by side where rows are not contiguous.
LANES = 512
#: 32-bit limbs of a sum of products, from 2^-298 up to 2^342.
LIMBS = 20
#: Terms after which limbs pass on what they cannot hold for ever.
CARRY = 1 << 24

_ZERO = np.float32(0.0)
_ONE, _FRACTION, _MAGNITUDE, _INFINITY = (np.uint32(word) for word in (1, 0x7FFFFF, 0x7FFFFFFF, 0x7F800000))
_NO_COUNT, _NO_QUANTUM = np.empty(0, np.int64), np.empty(0, np.float64)
compile_loop = njit(cache=True, nogil=True, error_model="numpy")
_add = njit(cache=True, nogil=True, fastmath={"reassoc"})(lambda x, y: x + y)

_allowed: ContextVar[bool] = ContextVar("compiled", default=True)


@contextmanager
def compiled(allowed: bool) -> Iterator[None]:
    """Within the block, whether these loops or the torch passes compute on a CPU. The bits are the same."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def in_use(device: torch.device) -> bool:
    """Whether tensors of this device go through the compiled loops."""
    return device.type == "cpu" and _allowed.get() and not gate.in_use(device)


# --- arrays and threads ---


def flat_tensor(x: Tensor) -> Tensor:
    """The memory from a tensor's first element to its last, as a flat tensor; the tensor's strides lead through it."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().as_strided((extent,), (1,))


def flat(x: Tensor) -> np.ndarray:
    """The same as an array."""
    return flat_tensor(x).numpy()


def batch_stride(x: Tensor) -> int:
    """Stride of the batch, 0 if one batch serves all."""
    return x.stride(0) if x.shape[0] > 1 else 0


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="vgame")


def share(count: int, each: int, run: Callable[[int, int], object]) -> list:
    """[run(first, last), ...] over 0..count-1 in order, by as many threads as `each` elements per item are worth."""
    parts = max(1, min(torch.get_num_threads(), count, count * each // SHARE))
    edges = [count * i // parts for i in range(parts + 1)]
    others = [_pool(parts - 1).submit(run, *edges[i : i + 2]) for i in range(1, parts)] if parts > 1 else []
    return [run(*edges[:2]), *(other.result() for other in others)]


# --- operands ---


@compile_loop
def _row_facts(x):
    """(non-zeros, quantum) of one row: the least of the elements' lowest bits, infinity if there is none. Finite elements.

    A value less the value without its lowest fraction bit is that bit; positive numbers compare like their words.
    """
    number, lowest, words = np.uint32(0), _INFINITY, x.view(np.uint32)
    for k in range(words.size):
        word = np.uint32(words[k] & _MAGNITUDE)
        rest = np.uint32(word & np.uint32(word - _ONE))
        bit = np.float32(np.uint32(word).view(np.float32) - np.uint32(rest).view(np.float32)).view(np.uint32)
        low = bit if word & _FRACTION else word
        lowest = np.uint32(min(low if word else _INFINITY, lowest))
        number = np.uint32(number + np.uint32(word != 0))
    return np.int64(number), np.float64(np.uint32(lowest).view(np.float32))


@compile_loop
def _widen(x, strides, shape, y, by_rows, squares, count, quantum, first, last):
    """y = x in binary64, [B, R, K] or [B, K, R]; squares[row] += its sum of squares. Rows first..last-1 of B * R.

    Where `count` and `quantum` are not empty, they take in the rows' facts.
    """
    batch, row, step = strides
    rows, length = shape
    if by_rows:
        for u in range(first, last):
            at, to, total = u // rows * batch + u % rows * row, u * length, 0.0
            if step == 1:  # slices start at no negative index, which lets the compiler use vectors
                source, target = x[at : at + length], y[to : to + length]
                for k in range(length):
                    value = np.float64(source[k])
                    target[k] = value
                    total = _add(total, value * value)
                if count.size:
                    number, least = _row_facts(source)
                    count[u] += number
                    quantum[u] = min(quantum[u], least)
            else:
                for k in range(length):
                    value = np.float64(x[at + k * step])
                    y[to + k] = value
                    total = _add(total, value * value)
            squares[u] += total
        return
    for b in range(first // rows, (last + rows - 1) // rows):
        low, high = max(first - b * rows, 0), min(last - b * rows, rows)
        sums = squares[b * rows + low : b * rows + high]
        for k in range(length):
            at, to = b * batch + k * step + low * row, (b * length + k) * rows + low
            target = y[to : to + sums.size]
            if row == 1:
                source = x[at : at + sums.size]
                for r in range(sums.size):
                    value = np.float64(source[r])
                    target[r] = value
                    sums[r] += value * value
            else:
                for r in range(sums.size):
                    value = np.float64(x[at + r * row])
                    target[r] = value
                    sums[r] += value * value


def widen(x: Tensor, out: Tensor, squares: Tensor, facts: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """x [B, R, K] in binary64, in the memory `out` [B, R, K] (its own order); squares [B, R] += the rows' sums of squares.

    facts: the rows' (non-zeros, quantum) so far, [B, R], which take in x; for contiguous rows only.
    """
    by_rows, shape = out.is_contiguous(), tuple(x.shape[1:])
    memory = (out if by_rows else out.mT).view(-1).numpy()
    source, strides, sums = flat(x), (batch_stride(x), x.stride(1), x.stride(2)), squares.view(-1).numpy()
    known = [fact.view(-1).numpy() for fact in facts] if facts else (_NO_COUNT, _NO_QUANTUM)
    share(sums.size, shape[1], lambda *part: _widen(source, strides, shape, memory, by_rows, sums, *known, *part))
    return out


@compile_loop
def _widen_folded(x, rows, columns, y, squares, first, last):
    """y[u, k] = x[rows[u] + columns[k]] in binary64; squares[u] += the row's sum of squares. Rows first..last-1."""
    for u in range(first, last):
        source, target, total = x[rows[u] :], y[u * columns.size : (u + 1) * columns.size], 0.0
        for k in range(columns.size):
            target[k] = source[columns[k]]
        for k in range(columns.size):
            total = _add(total, target[k] * target[k])
        squares[u] += total


def widen_folded(memory: Tensor, rows: np.ndarray, columns: np.ndarray, out: Tensor, squares: Tensor) -> Tensor:
    """`widen` for a matrix that lies scattered (folded.py). out: contiguous [B, R, K]."""
    x, y, sums = memory.numpy(), out.view(-1).numpy(), squares.view(-1).numpy()
    table, places = rows.reshape(-1), columns.astype(np.uint64)  # not signed: no index counts from the end
    share(table.size, columns.size, lambda *part: _widen_folded(x, table, places, y, sums, *part))
    return out


@compile_loop
def _gather(x, rows, columns, y, first, last):
    """y[u, k] = x[rows[u] + columns[k]]."""
    for u in range(first, last):
        source, target = x[rows[u] :], y[u * columns.size : (u + 1) * columns.size]
        for k in range(columns.size):
            target[k] = source[columns[k]]


def gather_rows(memory: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """binary32 [rows, columns]: memory[rows[u] + columns[k]]."""
    out = torch.empty(rows.size, columns.size)
    x, y, places = memory.numpy(), out.view(-1).numpy(), columns.astype(np.uint64)
    share(rows.size, columns.size, lambda *part: _gather(x, rows, places, y, *part))
    return out


@compile_loop
def _facts(x, strides, shape, count, quantum, first, last):
    """_row_facts of the rows first..last-1 of B * R."""
    batch, row, step = strides
    rows, length = shape
    memory = np.empty(length if step != 1 else 0, np.float32)
    for u in range(first, last):
        at = u // rows * batch + u % rows * row
        if step == 1:
            count[u], quantum[u] = _row_facts(x[at : at + length])
        else:
            for k in range(length):
                memory[k] = x[at + k * step]
            count[u], quantum[u] = _row_facts(memory)


def row_facts(x: Tensor) -> tuple[Tensor, Tensor]:
    """(non-zeros int64, quantum binary64) of the rows of x [B, R, K]. Twin: row_facts.row_facts."""
    count, quantum = (torch.empty(x.shape[:2], dtype=dtype) for dtype in (torch.int64, torch.float64))
    source, strides, shape = flat(x), (batch_stride(x), x.stride(1), x.stride(2)), tuple(x.shape[1:])
    numbers, quanta = count.view(-1).numpy(), quantum.view(-1).numpy()
    share(numbers.size, x.shape[2], lambda first, last: _facts(source, strides, shape, numbers, quanta, first, last))
    return count, quantum


# --- the rounding test ---


@compile_loop
def _round(s, shape, left, right, right_stride, out, strides, found, limit, first, last):
    """out = RN32(s + e) + 0 with e = left * right, in rows first..last-1 of B * M; found: where RN32(s - e) is less.

    The mark compares bits: it may be set without need (zeros of both signs), never the other way round.
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


def round_pass(s: Tensor, left: Tensor, right: Tensor, out: Tensor, found: Tensor, limit: int) -> Tensor | None:
    """RN32(s + left * right) into out [B, M, N]; flat positions (int32, in `found`) still open, None if more than `limit`.

    s: binary64 [B, M, N], contiguous; left [B, M, 1] and right [1 or B, 1, N]: binary64. found: int32 [B * M * N].
    Where the answer is None, some of `out` is not written. Twin: products._round_pass.
    """
    batch, rows, columns = s.shape
    left = left.expand(batch, rows, 1).reshape(-1).numpy()
    sums, bounds, target, positions = s.view(-1).numpy(), right.reshape(-1).numpy(), flat(out), found.numpy()
    right_stride = columns if right.shape[0] > 1 else 0
    assert columns == 1 or out.stride(2) == 1, "rows of a result are contiguous"

    def run(first: int, last: int) -> tuple[int, int]:
        part = positions[first * columns :]
        strides = out.stride()[:2]
        return first, _round(
            sums, (rows, columns), left, bounds, right_stride, target, strides, part, limit, first, last
        )

    parts = share(batch * rows, columns, run)
    if sum(number for _, number in parts) > limit:
        return None
    return torch.cat([found[first * columns :][:number] for first, number in parts])


@compile_loop
def _look(given, keep, shape, s, facts_a, facts_b, shared, terms, unit, slack, out, strides, first, last):
    """The rounding test with the rows' facts at positions first..last-1: those still open come first in `keep`."""
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


# --- the exact tier ---


@compile_loop
def _round_to_odd(head, tail):
    """Twin: exact_tier.round_to_odd."""
    bits = np.float64(head).view(np.int64)
    if tail != 0.0 and bits & 1 == 0:
        bits += 1 if (head < 0.0) == (tail < 0.0) else -1
    return np.int64(bits).view(np.float64)


@compile_loop
def _settle(digit, rest, left, sigma, error_per_left):
    """(value, whether it is certain) of one digit, a rounded rest, and what the rest's terms sum to in magnitude."""
    grid = 0.75 * sigma
    carry = (rest + grid) - grid
    rest -= carry
    digit += carry
    head = digit + rest
    rounded = head - digit
    tail = (digit - (head - rounded)) + (rest - rounded)
    error = error_per_left * left
    no_midpoint = np.float64(head).view(np.int64) & ((1 << 28) - 1) != 0
    certain = error == 0.0 or abs(tail) > 4.0 * error
    certain = certain or (no_midpoint and tail == 0.0 and error < abs(head) * 2.0**-54)
    return _round_to_odd(head, tail), certain


@compile_loop
def _power_above(x):
    """Twin: exact_tier.power_above."""
    return np.int64((np.float64(x).view(np.int64) >> 52) + 1 << 52).view(np.float64)


@compile_loop
def _sum_terms(x, y, sigma):
    """(digit, rest, left) of the products of two rows: one level of extraction."""
    digit = rest = left = 0.0
    for k in range(x.size):
        term = np.float64(x[k]) * np.float64(y[k])
        high = (term + sigma) - sigma
        low = term - high
        digit, rest, left = _add(digit, high), _add(rest, low), _add(left, abs(low))
    return digit, rest, left


@compile_loop
def _pass_on(limbs):
    """Every limb but the last into 0..2^32-1; the last keeps the sign."""
    for l in range(LIMBS - 1):
        limbs[l + 1] += limbs[l] >> 32
        limbs[l] &= 0xFFFFFFFF


@compile_loop
def _integer_sum(x, i, x_step, y, j, y_step, length, limbs):
    """The exact sum of products as a multiple of 2^-298, rounded to odd to between 33 and 53 bits (or exact)."""
    limbs[:] = 0
    for k in range(length):
        a = np.int64(np.float32(x[i + k * x_step]).view(np.int32))
        b = np.int64(np.float32(y[j + k * y_step]).view(np.int32))
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
def _exact(
    positions, shape, x, x_rows, x_step, bound_a, y, y_rows, y_step, bound_b, shared, error, out, strides, first, last
):
    """out = RN32 of the exact sums at positions first..last-1. x, y: binary32; rows: where they begin; step: from term to term."""
    rows, columns, length = shape
    limbs = np.empty(LIMBS, np.int64)
    together = x_step == 1 and y_step == 1
    left, right = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)  # not signed: no index counts from the end
    sigma, terms = np.empty(LANES), np.empty(LANES)
    digit, rest, remains = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for start in range(first, last, LANES):
        lanes = min(LANES, last - start)
        for e in range(lanes):
            u, n = positions[start + e] // columns, positions[start + e] % columns
            b, m = u // rows, u % rows
            i, j = m if shared[0] else u, n if shared[1] else b * columns + n
            left[e], right[e], bound = x_rows[i], y_rows[j], bound_a[i] * bound_b[j]
            sigma[e] = 2.0 * _power_above(bound)
            digit[e] = rest[e] = remains[e] = 0.0
            if together:
                i, j = np.int64(left[e]), np.int64(right[e])
                digit[e], rest[e], remains[e] = _sum_terms(x[i : i + length], y[j : j + length], sigma[e])
        for k in range(0 if together else length):
            a, b = x[k * x_step :], y[k * y_step :]
            for e in range(lanes):  # in a loop of its own: the next one is a vector loop
                terms[e] = np.float64(a[left[e]]) * np.float64(b[right[e]])
            for e in range(lanes):
                high = (terms[e] + sigma[e]) - sigma[e]
                low = terms[e] - high
                digit[e] += high
                rest[e] += low
                remains[e] += abs(low)
        for e in range(lanes):
            value, certain = _settle(digit[e], rest[e], remains[e], sigma[e], error)
            if not certain:
                i, j = np.int64(left[e]), np.int64(right[e])
                value = _integer_sum(x, i, x_step, y, j, y_step, length, limbs)
            u, n = positions[start + e] // columns, positions[start + e] % columns
            out[u // rows * strides[0] + u % rows * strides[1] + n] = np.float32(value) + _ZERO


def rows_of(x: Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """(memory, where each row of x [B, R, K] begins, step from term to term)."""
    batch, rows = (np.arange(x.shape[d]) * x.stride(d) for d in range(2))
    return flat(x), (batch[:, None] + rows).reshape(-1), x.stride(2)


def exact_products(
    positions: Tensor, a: tuple, b: tuple, length: int, bounds: tuple, error: float, out: Tensor
) -> None:
    """out [B, M, N] = RN32 of the exact products at the flat positions (int32). Twin: products.Tile._sum_gathered.

    a, b: (memory, beginnings, step) of Ba * M and Bb * N rows; bounds: at least their norms, binary64 [Ba, M], [Bb, N];
    error: bound of a rounded sum, per sum of magnitudes.
    """
    target, given, to = flat(out), positions.numpy(), out.stride()[:2]
    norms = [bound.reshape(-1).numpy() for bound in bounds]
    shape, shared = (out.shape[1], out.shape[2], length), tuple(bound.shape[0] == 1 for bound in bounds)

    def run(first: int, last: int) -> None:
        _exact(given, shape, *a, norms[0], *b, norms[1], shared, error, target, to, first, last)

    share(given.size, length, run)


# --- sums of rows ---


@compile_loop
def _sum_block(x):
    """(sum, sum of the magnitudes, least magnitude) of contiguous binary32 values, in some order."""
    total, magnitude, least, words = 0.0, 0.0, _INFINITY, x.view(np.uint32)
    for k in range(x.size):
        value = np.float64(x[k])
        total, magnitude = _add(total, value), _add(magnitude, abs(value))
        least = np.uint32(min(np.uint32(words[k] & _MAGNITUDE), least))
    return total, magnitude, np.float64(np.uint32(least).view(np.float32))


@compile_loop
def _sum_rows(x, rows, columns, step, length, block, weight, spread, out, sums, sizes, found, first, last):
    """The sums of the rows first..last-1 and the rounding test; found: which stay open. See sum_rows."""
    memory, number = np.empty(block, np.float32), 0
    for u in range(first, last):
        total, magnitude, least = 0.0, 0.0, np.inf
        for start in range(0, length, block):
            size = min(block, length - start)
            if columns.size:
                source, places = x[rows[u] :], columns[start : start + size]
                for k in range(size):
                    memory[k] = source[places[k]]
            elif step == 1:
                memory = x[rows[u] + start : rows[u] + start + size]
            else:
                for k in range(size):
                    memory[k] = x[rows[u] + (start + k) * step]
            part = _sum_block(memory[:size])
            total, magnitude, least = total + part[0], magnitude + part[1], min(least, part[2])
        sums[u], sizes[u] = total, magnitude
        bound = weight * magnitude if magnitude < np.inf and magnitude > spread * least else 0.0
        upper = np.float32(total + bound)
        if np.float32(total - bound) < upper:
            found[first + number] = u
            number += 1
        out[u] = upper + _ZERO if upper == upper else np.float32(np.nan)
    return number


def sum_rows(source: tuple, shape: tuple[int, int], block: int, weight: float, spread: float, out: Tensor) -> tuple:
    """out [R] = RN32(s + e) of the rows' sums; (rows still open int64, s, sums of magnitudes S binary64). Twin: sums._sum_tile.

    source: (memory, beginnings, columns, step): word k of row r is memory[beginnings[r] + columns[k]], or + k * step where there
    are no columns. Sums are of blocks first, then of these; e = weight * S, and 0 where S <= spread * the least magnitude.
    """
    rows, length = shape
    x, begins, columns, step = source
    places = columns.astype(np.uint64)  # not signed: no index counts from the end
    sums, sizes = torch.empty(2, rows, dtype=torch.float64).unbind()
    found = torch.empty(rows, dtype=torch.int64)
    arrays = out.numpy(), sums.numpy(), sizes.numpy(), found.numpy()

    def run(first: int, last: int) -> Tensor:
        number = _sum_rows(x, begins, places, step, length, block, weight, spread, *arrays, first, last)
        return found[first : first + number]

    return torch.cat(share(rows, length, run)), sums, sizes


assert math.log2(CARRY) + 34 < 63, "limbs hold what CARRY terms add"

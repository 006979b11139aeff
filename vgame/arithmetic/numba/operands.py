"""Compiled loops over operands: binary32 rows to binary64 with their norms, rows of folded operands, and facts about
the rows' bits.

Twins: the torch passes of torch/products.py, indexed_matrix.py and row_facts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import add, batch_stride, compile_loop, flat, real
from vgame.arithmetic.workspace import lines
from vgame.system.threads import share

#: Least length of runs of words that are read as runs.
LEAST_RUN = 8
#: Rows whose sums of squares stay in the nearest cache.
GROUP = 2048

_ONE, _FRACTION, _MAGNITUDE, _INFINITY = (np.uint32(word) for word in (1, 0x7FFFFF, 0x7FFFFFFF, 0x7F800000))
_NO_COUNT, _NO_QUANTUM = np.empty(0, np.int64), np.empty(0, np.float64)


@compile_loop
def _row_facts(x):
    """(non-zeros, quantum) of one row of finite elements; quantum: the least of the elements' lowest bits, infinity if
    all are zero.

    A value minus the value without its lowest fraction bit is this bit; positive numbers compare like their words.
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
def _widen(x, strides, shape, y, apart, by_rows, squares, count, quantum, first, last):
    """y = x in binary64, [B, R, K] or [B, K, R]; squares[row] += its sum of squares. Rows first..last-1 of B * R.

    apart: words from line to line of y. `count` and `quantum`, if not empty, are updated with the rows' facts.
    """
    batch, row, step = strides
    rows, length = shape
    if by_rows:
        for u in range(first, last):
            at, to, total = u // rows * batch + u % rows * row, u * apart, 0.0
            if step == 1:  # slices start at no negative index, which lets the compiler use vectors
                source, target = x[at : at + length], y[to : to + length]
                for k in range(length):
                    value = np.float64(source[k])
                    target[k] = value
                    total = add(total, value * value)
                if count.size:
                    number, least = _row_facts(source)
                    count[u] += number
                    quantum[u] = min(quantum[u], least)
            else:
                for k in range(length):
                    value = np.float64(x[at + k * step])
                    y[to + k] = value
                    total = add(total, value * value)
            squares[u] += total
        return
    for b in range(first // rows, (last + rows - 1) // rows):
        low, high = max(first - b * rows, 0), min(last - b * rows, rows)
        sums = squares[b * rows + low : b * rows + high]
        for k in range(length):
            at, to = b * batch + k * step + low * row, (b * length + k) * apart + low
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
    """x [B, R, K] in binary64, in the memory `out` [B, R, K] (its own order); squares [B, R] += the rows' sums of
    squares.

    facts: the rows' (non-zeros, quantum) so far, [B, R], updated with x; for contiguous rows only.
    """
    run = bind_widen(x, out, squares, facts)
    share(squares.numel(), x.shape[2], run)
    return out


def bind_widen(
    x: Tensor, out: Tensor, squares: Tensor, facts: tuple[Tensor, Tensor] | None = None
) -> Callable[[int, int], None]:
    """A function that computes `widen` for the rows first..last-1 of B * R."""
    by_rows, shape = out.stride(2) == 1, tuple(x.shape[1:])
    assert by_rows or facts is None, "facts of rows that are read in order"
    memory, apart = flat(out), out.stride(1 if by_rows else 2)
    source, strides, sums = flat(x), (batch_stride(x), x.stride(1), x.stride(2)), squares.view(-1).numpy()
    known = [fact.view(-1).numpy() for fact in facts] if facts else (_NO_COUNT, _NO_QUANTUM)
    return partial(_widen, source, strides, shape, memory, apart, by_rows, sums, *known)


@compile_loop
def run_of(table):
    """Length of the equal runs of consecutive numbers that make up the table (int64); 1 if there are none."""
    run = 1
    while run < table.size and table[run] == table[run - 1] + 1:
        run += 1
    if run == 1 or table.size % run:
        return 1
    for k in range(run, table.size):
        if k % run and table[k] != table[k - 1] + 1:
            return 1
    return run


@compile_loop
def _widen_gathered(x, rows, columns, y, apart, squares, first, last):
    """y[u, k] = x[rows[u] + columns[k]] in binary64; squares[u] += the row's sum of squares. Rows first..last-1."""
    for u in range(first, last):
        source, target, total = x[rows[u] :], y[u * apart : u * apart + columns.size], 0.0
        for k in range(columns.size):
            target[k] = source[columns[k]]
        for k in range(columns.size):
            total = add(total, target[k] * target[k])
        squares[u] += total


@compile_loop
def _widen_runs(x, rows, starts, run, y, apart, squares, first, last):
    """As `_widen_gathered`, for columns that are runs and begin at `starts`."""
    for u in range(first, last):
        total = 0.0
        for j in range(starts.size):
            at, to = rows[u] + starts[j], u * apart + j * run
            source, target = x[at : at + run], y[to : to + run]
            for i in range(run):
                value = np.float64(source[i])
                target[i] = value
                total = add(total, value * value)
        squares[u] += total


@compile_loop
def _widen_across(x, starts, run, columns, y, apart, squares, first, last):
    """As `_widen_gathered`, into y[k, u], for rows that are runs and begin at `starts`. Runs first..last-1, in
    groups."""
    group = max(1, GROUP // run)
    for begin in range(first, last, group):
        end = min(begin + group, last)
        for k in range(columns.size):
            for j in range(begin, end):
                at, to = starts[j] + columns[k], k * apart + j * run
                source, target, sums = x[at : at + run], y[to : to + run], squares[j * run : (j + 1) * run]
                for i in range(run):
                    value = np.float64(source[i])
                    target[i] = value
                    sums[i] += value * value


def widen_folded(memory: Tensor, rows: np.ndarray, columns: np.ndarray, slot: str, squares: Tensor) -> Tensor:
    """`widen` for a matrix scattered in memory (indexed_matrix.py), into scratch memory, in the order with the longer
    runs."""
    out, count, size, run = bind_widen_folded(memory, rows, columns, squares, partial(lines, slot))
    share(count, size, run)
    return out


def bind_widen_folded(
    memory: Tensor, rows: np.ndarray, columns: np.ndarray, squares: Tensor, lines_of: Callable[..., Tensor]
) -> tuple[Tensor, int, int, Callable[[int, int], None]]:
    """(the binary64 memory from `lines_of`, number of parts, words of each, function that fills the parts
    first..last-1)."""
    x, table, sums, shape = memory.numpy(), rows.reshape(-1), squares.view(-1).numpy(), (*rows.shape, columns.size)
    run, across = run_of(columns), run_of(table) if len(rows) == 1 else 1
    if across > run and across >= LEAST_RUN:
        out, starts = lines_of((1, shape[2], shape[1]), memory.device).mT, table[::across]
        fill = partial(_widen_across, x, starts, across, columns, flat(out), out.stride(2), sums)
        return out, starts.size, across * shape[2], fill
    out = lines_of(shape, memory.device)
    to = flat(out), out.stride(1), sums
    if run >= LEAST_RUN:
        return out, table.size, shape[2], partial(_widen_runs, x, table, columns[::run], run, *to)
    places = columns.view(np.uint64)  # not signed: no index counts from the end
    return out, table.size, shape[2], partial(_widen_gathered, x, table, places, *to)


@compile_loop
def _gather(x, rows, columns, y, first, last):
    """y[u, k] = x[rows[u] + columns[k]]."""
    for u in range(first, last):
        source, target = x[rows[u] :], y[u * columns.size : (u + 1) * columns.size]
        for k in range(columns.size):
            target[k] = real(source[columns[k]])


def gather_rows(memory: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """binary32 [rows, columns]: memory[rows[u] + columns[k]]."""
    out = torch.empty(rows.size, columns.size)
    x, y, places = flat(memory), out.view(-1).numpy(), columns.view(np.uint64)
    share(rows.size, columns.size, lambda *part: _gather(x, rows, places, y, *part))
    return out


@compile_loop
def _facts_across(x, batch, step, length, count, lowest, first, last):
    """_row_facts of the rows first..last-1 of each [B, R], which are adjacent; lowest: the quanta's words."""
    for b in range(count.shape[0]):
        numbers, words_so_far = count[b, first:last], lowest[b, first:last]
        numbers[:], words_so_far[:] = 0, _INFINITY
        for k in range(length):
            at = b * batch + k * step + first
            words = x[at : at + numbers.size].view(np.uint32)
            for r in range(words.size):
                word = np.uint32(words[r] & _MAGNITUDE)
                rest = np.uint32(word & np.uint32(word - _ONE))
                bit = np.float32(np.uint32(word).view(np.float32) - np.uint32(rest).view(np.float32)).view(np.uint32)
                low = bit if word & _FRACTION else word
                words_so_far[r] = np.uint32(min(low if word else _INFINITY, words_so_far[r]))
                numbers[r] += np.int64(word != 0)


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
    if x.stride(1) == 1 != x.stride(2):
        lowest = torch.empty(x.shape[:2], dtype=torch.float32)
        to = count.numpy(), lowest.view(torch.int32).numpy().view(np.uint32)
        share(
            shape[0],
            len(x) * shape[1],
            lambda *part: _facts_across(source, strides[0], strides[2], shape[1], *to, *part),
        )
        return count, lowest.double()
    numbers, quanta = count.view(-1).numpy(), quantum.view(-1).numpy()
    share(numbers.size, x.shape[2], lambda first, last: _facts(source, strides, shape, numbers, quanta, first, last))
    return count, quantum

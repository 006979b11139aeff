"""Sums of rows and one-hot sums on a GPU, with no host round trip.

In: binary32 rows, or terms with an index. Out: the words of sums.sum_rows and one_hot.one_hot_sum, their twins. First
pass: every sum, the sum of its magnitudes and its lowest bit, in pieces of rows or by atomic additions (in any order:
the bound does not depend on it). Second: the rounding test (docs/numerics-products.md, section 7). Third: the exact
tier for the sums on the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic.certificate import SLACK, UNIT, is_counted, tally
from vgame.arithmetic.gate import programs
from vgame.arithmetic.indexed_matrix import PlacedMatrix
from vgame.arithmetic.triton.exact import MOST_TERMS, ROWS, SELECTED, collect, exact_word, round_word
from vgame.arithmetic.triton.products import PROGRAMS, fineness, is_exact, strides_of, zeroed
from vgame.arithmetic.workspace import batch_of, spans

#: Terms of a piece of a row, which one instance of the kernel adds up; adjacent rows are added side by side, in about
#: as many pieces as a piece has steps.
PIECE, BESIDE = 1 << 13, 32
#: One-hot sums that are accumulated at a time (20 bytes each).
DENSE = 1 << 24

_SLACK, _WEIGHT = tl.constexpr(SLACK), tl.constexpr(UNIT * SLACK)
_ROWS, _SELECTED = tl.constexpr(ROWS), tl.constexpr(SELECTED)


@triton.jit(do_not_specialize=["rows", "length"])
def _add_rows(
    x, x_row, x_step, begins, places, sums, sizes, fines, counter, rows, length,
    PLACED: tl.constexpr, PIECE: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Per row and piece: the sum, the sum of the magnitudes, the largest fineness. Outputs [pieces, rows]. counter
    becomes 0."""
    piece = tl.program_id(1)
    if (piece == 0) & (tl.program_id(0) == 0):
        tl.store(counter, 0)
    r = tl.program_id(0) * LINES + tl.arange(0, LINES)
    source = x + r.to(tl.int64)[:, None] * x_row
    if PLACED:
        source = x + tl.load(begins + r, mask=r < rows, other=0)[:, None]
    total = tl.zeros((LINES, BLOCK), tl.float64)
    size = tl.zeros((LINES, BLOCK), tl.float64)
    fine = tl.zeros((LINES, BLOCK), tl.int32)
    for start in range(0, PIECE, BLOCK):
        k = (piece * PIECE + start + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
        inside = (r < rows)[:, None] & (k < length)
        at = k * x_step
        if PLACED:
            at = tl.load(places + k, mask=k < length, other=0)
        word = tl.load(source + at, mask=inside, other=0)
        value = word.to(tl.float32, bitcast=True).to(tl.float64)
        total += value
        size += tl.abs(value)
        fine = tl.maximum(fine, fineness(word))
    place, mask = piece.to(tl.int64) * rows + r, r < rows
    tl.store(sums + place, tl.sum(total, 1), mask=mask)
    tl.store(sizes + place, tl.sum(size, 1), mask=mask)
    tl.store(fines + place, tl.max(fine, 1), mask=mask)


@triton.jit(do_not_specialize=["index_batch", "x_batch", "m", "columns", "length"])
def _scatter(
    index, index_batch, x, x_batch, x_row, x_step, sums, sizes, fines, counts, m, columns, length,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add every term [B, n, K] to the sum of its index: the sum, its magnitudes, its largest fineness, its number of
    terms."""
    across, along = tl.cdiv(columns, COLUMNS), tl.cdiv(length, BLOCK)
    first, part = tl.program_id(0) % across, tl.program_id(0) // across
    batch, row = part // along, first * COLUMNS + tl.arange(0, COLUMNS)
    k = (part % along * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    target = tl.load(index + batch.to(tl.int64) * index_batch + k, mask=k < length, other=-1)
    chosen = (target >= 0) & (target < m)
    inside = chosen[None, :] & (row < columns)[:, None]
    source = x + batch.to(tl.int64) * x_batch + row.to(tl.int64)[:, None] * x_row
    word = tl.load(source + k[None, :] * x_step, mask=inside, other=0)
    value = word.to(tl.float32, bitcast=True).to(tl.float64)
    name = batch.to(tl.int64) * m + target
    at = name[None, :] * columns + row[:, None]
    tl.atomic_add(sums + at, value, mask=inside)
    tl.atomic_add(sizes + at, tl.abs(value), mask=inside)
    tl.atomic_max(fines + at, fineness(word), mask=inside)
    if first == 0:
        tl.atomic_add(counts + name, tl.full((BLOCK,), 1, tl.int32), mask=chosen)


@triton.jit(do_not_specialize=["rows", "terms", "pieces"])
def _round(
    sums, sizes, fines, counts, out, out_row, counter, found, rows, columns, pieces, terms,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [rows, columns] = RN32(s + e) as words of the sums over the pieces; sizes[0] becomes the sum of all
    magnitudes."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    elements = rows.to(tl.int64) * columns
    inside = position < elements
    s = tl.load(sums + position, mask=inside, other=0.0)
    size = tl.load(sizes + position, mask=inside, other=0.0)
    fine = tl.load(fines + position, mask=inside, other=0)
    for piece in tl.range(1, pieces, loop_unroll_factor=4):  # their loads wait for memory together
        at = piece * elements + position
        s += tl.load(sums + at, mask=inside, other=0.0)
        size += tl.load(sizes + at, mask=inside, other=0.0)
        fine = tl.maximum(fine, tl.load(fines + at, mask=inside, other=0))
    tl.store(sizes + position, size, mask=inside)
    number = tl.full((BLOCK,), 0, tl.int32) + terms
    if COUNTED:
        number = tl.load(counts + position // columns, mask=inside, other=0)
    certain = is_exact(size, fine) | (number <= 1) | (size != size) | (size == float("inf"))
    bound = tl.where(certain, 0.0, number.to(tl.float64) * _WEIGHT * size)
    upper, lower = s + bound, s - bound
    target = out + position // columns * out_row + position % columns
    tl.store(target, round_word(upper), mask=inside)
    collect(inside & (lower.to(tl.float32) < upper.to(tl.float32)), position, counter, found)


@triton.jit(do_not_specialize=["x_row", "length"])
def _exact_rows(
    x, x_row, x_step, begins, places, sizes, out, counter, found, length,
    PLACED: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """out = RN32 of the exact sums of the rows found[0 .. counter-1]."""
    number = tl.load(counter)
    for e in range(tl.program_id(0), number, PROGRAMS):
        row = tl.load(found + e)
        source = x + row.to(tl.int64) * x_row
        if PLACED:
            source = x + tl.load(begins + row)
        bound = tl.load(sizes + row) * _SLACK
        word = exact_word(source, x_step, places, source, 0, source, 0, length, bound, _ROWS, PLACED, False, BLOCK, FEW)
        tl.store(out + row, word)


@triton.jit(do_not_specialize=["index_batch", "x_batch", "x_row", "out_row", "m", "columns", "length"])
def _exact_selected(
    index, index_batch, x, x_batch, x_row, x_step, sizes, out, out_row, counter, found, m, columns, length,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """out = RN32 of the exact one-hot sums at the positions found[0 .. counter-1] of [B * m, columns]."""
    number = tl.load(counter)
    for e in range(tl.program_id(0), number, PROGRAMS):
        position = tl.load(found + e)
        name, column = position // columns, position % columns
        batch, wanted = name // m, name % m
        source = x + batch.to(tl.int64) * x_batch + column.to(tl.int64) * x_row
        names = index + batch.to(tl.int64) * index_batch
        bound = tl.load(sizes + position) * _SLACK
        word = exact_word(
            source, x_step, source, names, 1, names, wanted, length, bound, _SELECTED, False, False, BLOCK, FEW
        )
        tl.store(out + name.to(tl.int64) * out_row + column, word)


class _Sums:
    """s, magnitudes and finenesses of sums [pieces, rows, columns], and the list of the sums that stay open.

    memory: binary64 twice and int32, with as many elements; int32 [1], which is zero when the list begins.
    """

    def __init__(self, shape: tuple[int, int, int], memory: Sequence[Tensor]):
        self.shape = shape
        self.sums, self.sizes, self.fines, self.counter = memory
        self.found = torch.empty(shape[1] * shape[2], dtype=torch.int32, device=self.sums.device)

    def round(self, out: Tensor, terms: int, counts: Tensor | None = None) -> None:
        """The rounding test into `out` [rows, columns] (int32), rows of any stride; counts: terms per row, else
        `terms`."""
        pieces, rows, columns = self.shape
        _round[(triton.cdiv(rows * columns, 256),)](
            self.sums,
            self.sizes,
            self.fines,
            self.counter if counts is None else counts,
            out,
            out.stride(0),
            self.counter,
            self.found,
            rows,
            columns,
            pieces,
            terms,
            COUNTED=counts is not None,
            BLOCK=256,
            enable_fp_fusion=False,
        )

    def settle(self, exact: Callable[[int, int], None], length: int) -> None:
        """exact(instances, block) starts the exact tier for rows of `length` terms; then the numbers are recorded, if
        counting is on."""
        exact(programs(self.sums.device, PROGRAMS), min(1024, triton.next_power_of_2(length)))
        if is_counted():
            tally(self.found.numel(), 0, int(self.counter))


def sum_rows(a: Tensor | PlacedMatrix) -> Tensor:
    """out[..] = RN(sum_k a[.., k]); a: binary32 [.., K], any strides. Twin: vgame.arithmetic.torch.sums.sum_rows."""
    number, length = math.prod(a.shape[:-1]), a.shape[-1]
    assert 1 <= length <= MOST_TERMS, "limbs hold 2^28 terms"
    out = torch.empty(number, dtype=torch.int32, device=a.device)
    placed = isinstance(a, PlacedMatrix)
    if placed:
        beside, where = a.mirrored, (a.memory.view(torch.int32), 0, 0, a.rows.view(-1), a.columns)
    else:
        rows = a.reshape(-1, length).view(torch.int32)
        row, step = rows.stride()
        beside, where = number > 1 and step > row, (rows, row, step, rows, rows)
    block = min(triton.next_power_of_2(length), BESIDE if beside else 1024)
    lines = max(1, 1024 // block)
    piece = BESIDE * triton.next_power_of_2(math.isqrt(length // BESIDE) or 1) if beside else PIECE
    pieces = triton.cdiv(length, piece)
    wide, narrow = (
        torch.empty(pieces * number, dtype=dtype, device=a.device) for dtype in (torch.float64, torch.int32)
    )
    found = _Sums((pieces, number, 1), (wide, torch.empty_like(wide), narrow, torch.empty_like(narrow[:1])))
    _add_rows[(triton.cdiv(number, lines), pieces)](
        *where,
        found.sums,
        found.sizes,
        found.fines,
        found.counter,
        number,
        length,
        PLACED=placed,
        PIECE=min(piece, triton.cdiv(length, block) * block),
        LINES=lines,
        BLOCK=block,
        enable_fp_fusion=False,
    )
    found.round(out.unsqueeze(1), min(length, piece + pieces - 1))
    found.settle(
        lambda count, block: _exact_rows[(count,)](
            *where, found.sizes, out, found.counter, found.found, length,
            PLACED=placed, PROGRAMS=count, BLOCK=block, FEW=64, enable_fp_fusion=False,
        ),
        length,
    )  # fmt: skip
    return out.view(torch.float32).view(a.shape[:-1])


def one_hot_sum(index: Tensor, b: Tensor, m: int) -> Tensor:
    """Twin: vgame.arithmetic.torch.one_hot.one_hot_sum. index: int32 [Ba, K]; b: binary32 [Bb, n, K]. Returns binary32
    [B, m, n]."""
    assert index.shape[1] <= MOST_TERMS, "limbs hold 2^28 terms"
    batch, n = max(len(index), len(b)), b.shape[1]
    out = torch.empty(batch, m, n, dtype=torch.int32, device=b.device)
    names, terms = index.contiguous(), b.view(torch.int32)
    width = max(1, min(n, DENSE // m))
    for i in spans(batch, max(1, DENSE // (m * width))):
        for columns in spans(n, width):
            part = out[i].view(-1, n)[:, columns]
            _sum_selected(batch_of(names, i), batch_of(terms, i)[:, columns], m, i.stop - i.start, part)
    return out.view(torch.float32)


def _sum_selected(index: Tensor, x: Tensor, m: int, batch: int, out: Tensor) -> None:
    """out [batch * m, n] = the words of the sums of x [1 or batch, n, K] by index [1 or batch, K]."""
    n, length = x.shape[1:]
    size = batch * m * n
    *memory, counts = zeroed([size, size], [size, 1, batch * m], x.device)
    found = _Sums((1, batch * m, n), memory)
    block = min(128, triton.next_power_of_2(length))
    lines = min(1024 // block, triton.next_power_of_2(n))
    where = (index, index.stride(0) if len(index) > 1 else 0, x, *strides_of(x))
    _scatter[(batch * triton.cdiv(length, block) * triton.cdiv(n, lines),)](
        *where,
        found.sums,
        found.sizes,
        found.fines,
        counts,
        m,
        n,
        length,
        COLUMNS=lines,
        BLOCK=block,
        enable_fp_fusion=False,
    )
    found.round(out, 0, counts)
    found.settle(
        lambda count, block: _exact_selected[(count,)](
            *where, found.sizes, out, out.stride(0), found.counter, found.found, m, n, length,
            PROGRAMS=count, BLOCK=block, FEW=64, enable_fp_fusion=False,
        ),
        length,
    )  # fmt: skip

"""One tile of a product on a GPU: widen, vendor product, rounding test and conversion, exact tier, with no host round
trip.

In: binary32 operands with any strides or folded, a view of the result. Out: the words of products.dot. Twin:
products.Tile, with the same tests (docs/numerics-products.md, sections 3 to 5) in this order: every row's facts are
computed with its widening, so one pass applies both the bound and the exactness test; positions that stay open are
appended to a list, which the exact tier reads on the device.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic.certificate import OF_ZERO, SLACK, UNIT, is_counted, tally
from vgame.arithmetic.gate import programs
from vgame.arithmetic.indexed_matrix import PlacedMatrix
from vgame.arithmetic.triton.exact import MOST_TERMS, PRODUCTS, collect, exact_word, power_of_two, round_word
from vgame.arithmetic.vendor import vendor
from vgame.arithmetic.workspace import spans

#: Elements of a tile of the result or of an operand's block: large enough to fill a GPU with one vendor product.
TILE = 1 << 24
#: Blocks of K that are multiplied at a time, so that a product of few elements and many terms also fills a GPU.
BLOCKS = 64
#: Steps of an instance that widens: their loads wait for memory together.
TIMES = 4
#: Instances of the exact tier's kernel.
PROGRAMS = 1056

_SLACK, _WEIGHT = tl.constexpr(SLACK), tl.constexpr(UNIT * SLACK)
_OF_ZERO, _PRODUCTS = tl.constexpr(OF_ZERO), tl.constexpr(PRODUCTS)
_TOP, _BITS = tl.constexpr(OF_ZERO + 127 + 150), tl.constexpr(OF_ZERO + 53)


@triton.jit
def fineness(word):
    """1024 - exponent of the lowest set bit of each finite binary32 word (int32); 0 for zero. Twin:
    row_facts.lowest_bit."""
    exponent = (word >> 23) & 255
    significand = (word & 0x7FFFFF) | tl.where(exponent > 0, 1 << 23, 0)
    bit = (significand & -significand).to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return tl.where(significand == 0, 0, -(tl.maximum(exponent, 1) + bit) + _TOP)


@triton.jit
def is_exact(size, fine):
    """Whether sums are exact in binary64; size: bound of their magnitudes; all terms are multiples of
    2^(1024 - fine)."""
    return size * _SLACK <= power_of_two(tl.minimum(-fine + _BITS, 1023))


@triton.jit(
    do_not_specialize=["x_batch", "begins_batch", "y_block", "y_batch", "batches", "rows", "start", "length", "width"]
)
def _widen(
    x, x_batch, x_row, x_step, begins, begins_batch, places, y, y_block, y_batch, y_row, y_step, squares, counts, fines,
    batches, rows, start, length, width, PLACED: tl.constexpr, MIRRORED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """y[c, b, r, i] = x[b, r, k] in binary64, k = start + c * width + i, 0 from k = length on; updates the rows' facts.

    Instance: some rows of one batch, TIMES * BLOCK terms of one block c. The facts: sums of squares, numbers of
    non-zeros, the largest fineness; initially zero.
    """
    groups, pieces = tl.cdiv(rows, ROWS), tl.cdiv(width, TIMES * BLOCK)
    part = tl.program_id(0) // groups
    batch, begin = part % batches, part // batches % pieces * (TIMES * BLOCK)
    block = part // batches // pieces
    row, i = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    if MIRRORED:  # the rows' words are adjacent
        r, i = row[None, :], i[:, None]
    else:
        r, i = row[:, None], i[None, :]
    if PLACED:
        source = x + tl.load(begins + batch.to(tl.int64) * begins_batch + r, mask=r < rows, other=0)
    else:
        source = x + batch.to(tl.int64) * x_batch + r.to(tl.int64) * x_row
    target = y + block.to(tl.int64) * y_block + batch.to(tl.int64) * y_batch + r.to(tl.int64) * y_row
    square = (r + i).to(tl.float64) * 0.0
    count, fine = (r + i) * 0, (r + i) * 0
    for time in tl.static_range(TIMES):
        place = begin + time * BLOCK + i
        k = (start + block * width + place).to(tl.int64)
        own = (r < rows) & (place < width)
        inside = own & (k < length)
        if PLACED:
            word = tl.load(source + tl.load(places + k, mask=k < length, other=0), mask=inside, other=0)
        else:
            word = tl.load(source + k * x_step, mask=inside, other=0)
        value = word.to(tl.float32, bitcast=True).to(tl.float64)
        tl.store(target + place.to(tl.int64) * y_step, value, mask=own)
        square += value * value
        count += ((word & 0x7FFFFFFF) != 0).to(tl.int32)
        fine = tl.maximum(fine, fineness(word))
    at, mask = batch * rows + row, row < rows
    axis: tl.constexpr = 0 if MIRRORED else 1
    tl.atomic_add(squares + at, tl.sum(square, axis), mask=mask)
    tl.atomic_add(counts + at, tl.sum(count, axis), mask=mask)
    tl.atomic_max(fines + at, tl.max(fine, axis), mask=mask)


class Rows:
    """One operand [B, R, K], its rows' facts (`_widen`), its blocks in binary64.

    facts: binary64 [n], int32 [n] twice, n >= B * R, initially zero.
    """

    def __init__(self, x: Tensor | PlacedMatrix, facts: tuple[Tensor, Tensor, Tensor]):
        self.shape, self.facts, self.shared = x.shape, facts, x.shape[0] == 1
        if isinstance(x, PlacedMatrix):
            self.words, self.strides = x.memory.view(torch.int32), (0, 0, 0)
            self.tables, self.mirrored = (x.rows, x.rows.stride(0), x.columns), x.mirrored
        else:
            self.words, self.strides = x.view(torch.int32), strides_of(x)
            self.tables, self.mirrored = (facts[1], 0, facts[1]), x.shape[1] > 1 and x.stride(2) > max(1, x.stride(1))
        self.placed = isinstance(x, PlacedMatrix)

    def widen(self, start: int, blocks: int, width: int) -> Tensor:
        """Blocks of `width` terms from term `start` on: binary64 [blocks, B, R, width], in the operand's own order,
        then zeros."""
        batch, rows, length = self.shape
        inner = (width, rows) if self.mirrored else (rows, width)
        y = torch.empty(blocks, batch, *inner, dtype=torch.float64, device=self.words.device)
        y = y.mT if self.mirrored else y
        block = 32 if self.mirrored else min(1024, triton.next_power_of_2(width))
        lines = min(1024 // block, triton.next_power_of_2(rows))
        times = min(TIMES, triton.cdiv(width, block))
        _widen[(triton.cdiv(rows, lines) * batch * triton.cdiv(width, times * block) * blocks,)](
            self.words, *self.strides, *self.tables, y, *y.stride(), *self.facts, batch, rows, start, length, width,
            PLACED=self.placed, MIRRORED=self.mirrored, ROWS=lines, BLOCK=block, TIMES=times, enable_fp_fusion=False,
        )  # fmt: skip
        return y


@triton.jit(do_not_specialize=["parts", "batches", "rows", "out_batch", "terms"])
def _round(
    sums,
    parts,
    squares_a,
    counts_a,
    fines_a,
    squares_b,
    counts_b,
    fines_b,
    out,
    out_batch,
    out_row,
    out_step,
    counter,
    found,
    batches,
    rows,
    columns,
    terms,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = RN32(s + e) as words, where s is the sum of the parts and e = 0 if it is exact; positions with a smaller
    RN32(s - e) are collected."""
    across, down = tl.cdiv(columns, COLUMNS), tl.cdiv(rows, ROWS)
    part = tl.program_id(0) // across
    batch = part // down
    m = (part % down * ROWS + tl.arange(0, ROWS))[:, None]
    n = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (m < rows) & (n < columns)
    i, j = m, n
    if not SHARED_A:
        i = batch * rows + m
    if not SHARED_B:
        j = batch * columns + n
    size = tl.sqrt(tl.load(squares_a + i, mask=m < rows, other=0.0)) * tl.sqrt(
        tl.load(squares_b + j, mask=n < columns, other=0.0)
    )
    known = tl.minimum(tl.load(counts_a + i, mask=m < rows, other=0), tl.load(counts_b + j, mask=n < columns, other=0))
    fine_a, fine_b = tl.load(fines_a + i, mask=m < rows, other=0), tl.load(fines_b + j, mask=n < columns, other=0)
    number = tl.minimum(known, terms)
    certain = is_exact(size, fine_a + fine_b - _OF_ZERO) | (number <= 1) | (size != size) | (size == float("inf"))
    bound = tl.where(certain, 0.0, number.to(tl.float64) * _WEIGHT * size)
    position = (batch * rows + m).to(tl.int64) * columns + n
    elements = (batches * rows).to(tl.int64) * columns
    s = tl.load(sums + position, mask=inside, other=0.0)
    for p in tl.range(1, parts, loop_unroll_factor=4):  # their loads wait for memory together
        s += tl.load(sums + p * elements + position, mask=inside, other=0.0)
    upper, lower = s + bound, s - bound
    target = out + batch.to(tl.int64) * out_batch + m.to(tl.int64) * out_row + n.to(tl.int64) * out_step
    tl.store(target, round_word(upper), mask=inside)
    is_open = inside & (lower.to(tl.float32) < upper.to(tl.float32))
    collect(tl.ravel(is_open), tl.ravel(position), counter, found)


@triton.jit(
    do_not_specialize=[
        "a_batch", "a_row", "a_begins_batch", "b_batch", "b_row", "b_begins_batch", "out_batch", "out_row", "out_step",
        "rows", "columns", "length",
    ]
)  # fmt: skip
def _exact(
    a,
    a_batch,
    a_row,
    a_step,
    a_begins,
    a_begins_batch,
    a_places,
    squares_a,
    b,
    b_batch,
    b_row,
    b_step,
    b_begins,
    b_begins_batch,
    b_places,
    squares_b,
    out,
    out_batch,
    out_row,
    out_step,
    counter,
    found,
    rows,
    columns,
    length,
    SHARED_A: tl.constexpr,
    SHARED_B: tl.constexpr,
    PLACED_A: tl.constexpr,
    PLACED_B: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    """out = RN32 of the exact sums at the positions found[0 .. counter-1]."""
    number = tl.load(counter)
    for e in range(tl.program_id(0), number, PROGRAMS):
        position = tl.load(found + e)
        u, n = position // columns, position % columns
        batch, m = (u // rows).to(tl.int64), u % rows
        i, j = u, batch * columns + n
        batch_a, batch_b = batch, batch
        if SHARED_A:
            i, batch_a = m, batch * 0
        if SHARED_B:
            j, batch_b = n.to(tl.int64), batch * 0
        bound = tl.sqrt(tl.load(squares_a + i)) * tl.sqrt(tl.load(squares_b + j)) * _SLACK
        left = a + batch * a_batch + m.to(tl.int64) * a_row
        right = b + batch * b_batch + n.to(tl.int64) * b_row
        if PLACED_A:
            left = a + tl.load(a_begins + batch_a * a_begins_batch + m)
        if PLACED_B:
            right = b + tl.load(b_begins + batch_b * b_begins_batch + n)
        word = exact_word(
            left, a_step, a_places, right, b_step, b_places, 0, length, bound, _PRODUCTS, PLACED_A, PLACED_B, BLOCK, FEW
        )
        tl.store(out + batch * out_batch + m.to(tl.int64) * out_row + n.to(tl.int64) * out_step, word)


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Strides of [B, R, K]; 0 for the batch if it is shared."""
    return (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1), x.stride(2))


def zeroed(wide: list[int], narrow: list[int], device: torch.device) -> list[Tensor]:
    """Zeros by one kernel: binary64 tensors of the sizes `wide`, int32 tensors of the sizes `narrow`, each on a
    multiple of 16 bytes."""
    sizes = [n + n % 2 for n in wide] + [-(-n // 4) * 2 for n in narrow]
    pieces = torch.zeros(sum(sizes), dtype=torch.float64, device=device).split(sizes)
    pieces = [*pieces[: len(wide)], *(piece.view(torch.int32) for piece in pieces[len(wide) :])]
    return [piece[:n] for piece, n in zip(pieces, (*wide, *narrow), strict=True)]


def dot_tile(a: Tensor | PlacedMatrix, b: Tensor | PlacedMatrix, out: Tensor, block: int) -> None:
    """out [B, M, N] = RN(sum_k a*b), a view of the result; a [Ba, M, K], b [Bb, N, K]; K in blocks of `block`."""
    assert a.shape[2] <= MOST_TERMS, "limbs hold 2^28 terms"
    counts = [math.prod(x.shape[:2]) for x in (a, b)]
    squares_a, squares_b, *narrow, counter = zeroed(counts, [n for n in counts for _ in range(2)] + [1], out.device)
    left, right = Rows(a, (squares_a, *narrow[:2])), Rows(b, (squares_b, *narrow[2:]))
    found, words = torch.empty(out.numel(), dtype=torch.int32, device=out.device), out.view(torch.int32)
    starts, sums = spans(a.shape[2], block), None
    for some in spans(len(starts), BLOCKS):
        size = some.stop - some.start
        product = torch.empty(size, *out.shape, dtype=torch.float64, device=out.device)
        wide = [x.widen(starts[some.start].start, size, block) for x in (left, right)]
        _multiply(*wide, product)
        if sums is None:
            sums = product
        else:
            sums[:size] += product
    _test(sums, left, right, words, counter, found, block + len(starts) - 1)
    _sum_open(left, right, words, counter, found)
    if is_counted():  # measurements may wait for the device
        tally(out.numel(), 0, int(counter))


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out [C, B, M, N] = sum_k a*b; a [C, Ba, M, K], b [C, Bb, N, K]: blocks as batches if there is one batch."""
    if out.shape[1] == 1:
        a, b, out = (x.transpose(0, 1) for x in (a, b, out))
    for each in zip(a, b, out, strict=True):
        vendor().product(*each)


def _test(sums: Tensor, a: Rows, b: Rows, out: Tensor, counter: Tensor, found: Tensor, terms: int) -> None:
    """The rounding test of a tile; every term of its sums passes through at most `terms` inexact steps."""
    batch, rows, columns = out.shape
    height, width = (1, 1024) if columns > 512 else (4, 256) if columns > 128 else (16, 64)
    grid = (triton.cdiv(columns, width) * triton.cdiv(rows, height) * batch,)
    _round[grid](
        sums, len(sums), *a.facts, *b.facts, out, *out.stride(), counter, found, batch, rows, columns, terms,
        SHARED_A=a.shared, SHARED_B=b.shared, ROWS=height, COLUMNS=width, enable_fp_fusion=False,
    )  # fmt: skip


def _sum_open(a: Rows, b: Rows, out: Tensor, counter: Tensor, found: Tensor) -> None:
    """The exact tier for the positions in the list."""
    count, length = programs(out.device, PROGRAMS), a.shape[2]
    _exact[(count,)](
        a.words,
        *a.strides,
        *a.tables,
        a.facts[0],
        b.words,
        *b.strides,
        *b.tables,
        b.facts[0],
        out,
        *out.stride(),
        counter,
        found,
        out.shape[1],
        out.shape[2],
        length,
        SHARED_A=a.shared,
        SHARED_B=b.shared,
        PLACED_A=a.placed,
        PLACED_B=b.placed,
        PROGRAMS=count,
        BLOCK=min(1024, triton.next_power_of_2(length)),
        FEW=64,
        enable_fp_fusion=False,
    )

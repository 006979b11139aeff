"""One tile of a product on a GPU: widen, vendor product, rounding test and conversion, exact tier, with no host round trip.

In: binary32 operands with any strides, a view of the result. Out: the words of products.dot. Twin: products.Tile, whose tests these
are (docs/numerics-products.md, sections 3 to 5), in this order: every row's facts come with its widening, so one look decides all that
the bound or the exactness test decides; positions that stay open are appended to a list, which the exact tier reads on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic.acceptance import SLACK, UNIT, is_counted, tally
from vgame.arithmetic.gpu.exact import MOST_TERMS, PRODUCTS, collect, exact_word, power_of_two, round_word
from vgame.arithmetic.gpu.gate import programs
from vgame.arithmetic.row_facts import OF_ZERO
from vgame.arithmetic.vendor import vendor
from vgame.arithmetic.workspace import spans, wide_memory

#: Elements of a tile of the result or of an operand's block: large enough to fill a GPU with one vendor product.
TILE = 1 << 24
#: Instances of the exact tier's kernel.
PROGRAMS = 1056

_SLACK, _WEIGHT = tl.constexpr(SLACK), tl.constexpr(UNIT * SLACK)
_OF_ZERO, _PRODUCTS = tl.constexpr(OF_ZERO), tl.constexpr(PRODUCTS)


@triton.jit
def lowest_bit(word):
    """Exponent (int32) of the lowest set bit of each finite binary32 word; 1024 for zero. Twin: row_facts.lowest_bit."""
    exponent = (word >> 23) & 255
    significand = (word & 0x7FFFFF) | tl.where(exponent > 0, 1 << 23, 0)
    bit = (significand & -significand).to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return tl.where(significand == 0, _OF_ZERO, tl.maximum(exponent, 1) + bit - (127 + 150))


@triton.jit
def _widen(
    x, x_batch, x_row, x_step, y, y_batch, y_row, y_step, squares, counts, lows, rows, length,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x in binary64, [B, R, K]; the rows' sums of squares, non-zeros and lowest bits take in the block."""
    groups = tl.cdiv(rows, ROWS)
    batch = tl.program_id(0) // groups
    r = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    source = x + batch.to(tl.int64) * x_batch + r.to(tl.int64)[:, None] * x_row
    target = y + batch.to(tl.int64) * y_batch + r.to(tl.int64)[:, None] * y_row
    square = tl.zeros((ROWS, BLOCK), tl.float64)
    count = tl.zeros((ROWS, BLOCK), tl.int32)
    low = tl.full((ROWS, BLOCK), _OF_ZERO, tl.int32)
    for start in range(0, length, BLOCK):
        k = (start + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
        inside = (r < rows)[:, None] & (k < length)
        word = tl.load(source + k * x_step, mask=inside, other=0)
        value = word.to(tl.float32, bitcast=True).to(tl.float64)
        tl.store(target + k * y_step, value, mask=inside)
        square += value * value
        count += ((word & 0x7FFFFFFF) != 0).to(tl.int32)
        low = tl.minimum(low, lowest_bit(word))
    at, mask = batch * rows + r, r < rows
    tl.store(squares + at, tl.load(squares + at, mask=mask, other=0.0) + tl.sum(square, 1), mask=mask)
    tl.store(counts + at, tl.load(counts + at, mask=mask, other=0) + tl.sum(count, 1), mask=mask)
    tl.store(lows + at, tl.minimum(tl.load(lows + at, mask=mask, other=_OF_ZERO), tl.min(low, 1)), mask=mask)


class Rows:
    """One operand [B, R, K]: its rows' norms, non-zeros and lowest bits (exponents), and its blocks in binary64."""

    def __init__(self, x: Tensor, side: str):
        self.x, self.side, shape = x.view(torch.int32), side, x.shape[:2]
        self.norm = torch.zeros(shape, dtype=torch.float64, device=x.device)
        self.count = torch.zeros(shape, dtype=torch.int32, device=x.device)
        self.low = torch.full(shape, OF_ZERO, dtype=torch.int32, device=x.device)

    def widen(self, k: slice) -> Tensor:
        """Block k in binary64; the norms, which are sums of squares so far, and the facts take it in."""
        x = self.x[..., k]
        y, (batch, rows, length) = wide_memory(x, self.side), x.shape
        lines, block = (1, 1024) if x.stride(2) <= x.stride(1) else (32, 32)
        grid = (triton.cdiv(rows, lines) * batch,)
        facts = self.norm, self.count, self.low
        _widen[grid](
            x, *x.stride(), y, *y.stride(), *facts, rows, length, ROWS=lines, BLOCK=block, enable_fp_fusion=False
        )
        return y


@triton.jit(do_not_specialize=["terms"])
def _round(
    sums, norm_a, count_a, low_a, norm_b, count_b, low_b, out, out_batch, out_row, out_step, counter, found,
    rows, columns, terms, SHARED_A: tl.constexpr, SHARED_B: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = RN32(s + e) as words, where e = 0 if the sum is exact; the positions where RN32(s - e) is less are collected."""
    across, down = tl.cdiv(columns, COLUMNS), tl.cdiv(rows, ROWS)
    part, flat = tl.program_id(0) // across, tl.arange(0, ROWS * COLUMNS)
    batch = part // down
    m, n = part % down * ROWS + flat // COLUMNS, tl.program_id(0) % across * COLUMNS + flat % COLUMNS
    inside = (m < rows) & (n < columns)
    i, j = m, n
    if not SHARED_A:
        i = batch * rows + m
    if not SHARED_B:
        j = batch * columns + n
    size = tl.load(norm_a + i, mask=inside, other=0.0) * tl.load(norm_b + j, mask=inside, other=0.0)
    known = tl.minimum(tl.load(count_a + i, mask=inside, other=0), tl.load(count_b + j, mask=inside, other=0))
    quantum = tl.load(low_a + i, mask=inside, other=0) + tl.load(low_b + j, mask=inside, other=0)
    number = tl.minimum(known, terms)
    exact = size * _SLACK <= power_of_two(tl.minimum(quantum + 53, 1023))
    certain = exact | (number <= 1) | (size != size) | (size == float("inf"))
    bound = tl.where(certain, 0.0, number.to(tl.float64) * _WEIGHT * size)
    position = (batch * rows + m).to(tl.int64) * columns + n
    s = tl.load(sums + position, mask=inside, other=0.0)
    upper, lower = s + bound, s - bound
    target = out + batch.to(tl.int64) * out_batch + m.to(tl.int64) * out_row + n.to(tl.int64) * out_step
    tl.store(target, round_word(upper), mask=inside)
    collect(inside & (lower.to(tl.float32) < upper.to(tl.float32)), position, counter, found)


@triton.jit(do_not_specialize=["length"])
def _exact(
    a, a_batch, a_row, a_step, norm_a, b, b_batch, b_row, b_step, norm_b, out, out_batch, out_row, out_step,
    counter, found, rows, columns, length, SHARED_A: tl.constexpr, SHARED_B: tl.constexpr,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """out = RN32 of the exact sums at the positions found[0 .. counter-1]."""
    number = tl.load(counter)
    for e in range(tl.program_id(0), number, PROGRAMS):
        position = tl.load(found + e)
        u, n = position // columns, position % columns
        batch, m = u // rows, u % rows
        i, j = u, batch * columns + n
        if SHARED_A:
            i = m
        if SHARED_B:
            j = n
        bound = tl.load(norm_a + i) * tl.load(norm_b + j) * _SLACK
        left = a + batch.to(tl.int64) * a_batch + m.to(tl.int64) * a_row
        right = b + batch.to(tl.int64) * b_batch + n.to(tl.int64) * b_row
        word = exact_word(left, a_step, right, b_step, 0, length, bound, _PRODUCTS, BLOCK, FEW)
        tl.store(out + batch.to(tl.int64) * out_batch + m.to(tl.int64) * out_row + n.to(tl.int64) * out_step, word)


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Strides of [B, R, K], the batch's 0 if one batch serves all."""
    return (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1), x.stride(2))


def dot_tile(a: Tensor, b: Tensor, out: Tensor, block: int) -> None:
    """out [B, M, N] = RN(sum_k a*b), a view of the result; a [Ba, M, K], b [Bb, N, K]; K in blocks of `block`."""
    assert a.shape[2] <= MOST_TERMS, "limbs hold 2^28 terms"
    left, right = Rows(a, "a"), Rows(b, "b")
    sums, blocks = torch.empty(out.shape, dtype=torch.float64, device=out.device), spans(a.shape[2], block)
    for k in blocks:
        product = sums if k.start == 0 else torch.empty_like(sums)
        vendor().product(left.widen(k), right.widen(k), product)
        if k.start:
            sums += product
    left.norm.sqrt_(), right.norm.sqrt_()
    counter = torch.zeros(1, dtype=torch.int32, device=out.device)
    found = torch.empty(out.numel(), dtype=torch.int32, device=out.device)
    _test(sums, left, right, out.view(torch.int32), counter, found, block + len(blocks) - 1)
    _sum_open(left, right, out.view(torch.int32), counter, found)
    if is_counted():  # measurements may wait for the device
        tally(out.numel(), 0, int(counter))


def _test(sums: Tensor, a: Rows, b: Rows, out: Tensor, counter: Tensor, found: Tensor, terms: int) -> None:
    """The rounding test of a tile; no sum of it has more than `terms` inexact steps per term."""
    batch, rows, columns = out.shape
    height, width = (1, 1024) if columns > 512 else (4, 256) if columns > 128 else (16, 64)
    grid = (triton.cdiv(columns, width) * triton.cdiv(rows, height) * batch,)
    facts = a.norm, a.count, a.low, b.norm, b.count, b.low
    shared = {"SHARED_A": len(a.x) == 1, "SHARED_B": len(b.x) == 1}
    _round[grid](
        sums, *facts, out, *out.stride(), counter, found, rows, columns, terms,
        **shared, ROWS=height, COLUMNS=width, enable_fp_fusion=False,
    )  # fmt: skip


def _sum_open(a: Rows, b: Rows, out: Tensor, counter: Tensor, found: Tensor) -> None:
    """The exact tier for the positions in the list."""
    shared = {"SHARED_A": len(a.x) == 1, "SHARED_B": len(b.x) == 1}
    count, length = programs(out.device, PROGRAMS), a.x.shape[2]
    _exact[(count,)](
        a.x, *strides_of(a.x), a.norm, b.x, *strides_of(b.x), b.norm, out, *out.stride(), counter, found,
        out.shape[1], out.shape[2], length, **shared, PROGRAMS=count, BLOCK=min(1024, triton.next_power_of_2(length)), FEW=64,
        enable_fp_fusion=False,
    )  # fmt: skip

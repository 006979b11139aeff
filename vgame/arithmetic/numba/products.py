"""Products by vgame's own kernels, on a CPU: binary32 rows, anywhere in memory, to binary64 sums of products.

In: operands as (memory, begins of the rows, offsets of their terms). Out: sums [B, M, N] and the rows' sums of squares.
K is divided into equal blocks of at most CHAIN terms; in a block x = RN64(a * b + x), term after term, then the blocks'
sums are added, one after the other. Proof: docs/numerics-products.md, section 13. Twin: the library's products
(arithmetic/vendor.py), which `own_kernels(False)` selects.

The panels of some rows of a are widened for a block and stay in the second cache, a panel of b in the first one, and a
tile of sums in registers (fused_tile.py). A panel of b is widened where it is needed first. Words beyond the last row
or column are computed and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial

import numpy as np
import torch
from numba.core.registry import cpu_target
from torch import Tensor

from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba.compiled import compile_loop
from vgame.arithmetic.numba.fused_tile import (
    Form,
    begin_modes,
    end_modes,
    form_of,
    fused_tile,
    keep_apart,
    widen_across,
    widen_panel,
)
from vgame.arithmetic.workspace import scratch

#: Largest number of terms in a chain of multiply-adds.
CHAIN = 256
#: Words of a's panels that are reused together, at least: half of a second cache of 512 KiB.
NEAR = 1 << 15
#: Terms that are transposed at a time; rows that are read together where they are adjacent.
ALONG, FEW = 8, 4

#: (memory, begins of its rows (int64), offsets of the terms of a row (int64)).
Places = tuple[np.ndarray, np.ndarray, np.ndarray]

_allowed: ContextVar[bool] = ContextVar("own kernels", default=True)


@contextmanager
def own_kernels(allowed: bool) -> Iterator[None]:
    """Context that selects these kernels or the library's for products on a CPU. The bits are the same."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


@cache
def form() -> Form | None:
    """The form of this processor's tiles, as numba compiles for it; None if it has no fused multiply-adds."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return form_of(triple, features)


def in_use(device: torch.device) -> bool:
    """Whether these kernels compute the products on this device."""
    return _allowed.get() and compiled.in_use(device) and form() is not None


def chain_of(length: int) -> int:
    """Terms of a chain for rows of this length: K terms in ceil(K / CHAIN) equal blocks."""
    return -(-length // -(-length // CHAIN))


def terms_of(length: int) -> int:
    """Theorem 2's t: no term passes through more than t - 1 inexact additions."""
    chain = chain_of(length)
    return chain + -(-length // chain) - 1


@cache
def _packing(size: int) -> Callable[..., None]:
    """The loop that widens rows into panels of `size` rows."""
    few = FEW if size % FEW == 0 else 1

    @compile_loop
    def lie_beside(rows, first, last, together):
        """Whether the rows first..last are runs of `together` adjacent rows."""
        beside = (last + 1 - first) % together == 0
        for i in range(first, last):
            beside = beside and (rows[i + 1] == rows[i] + 1 or (i + 1 - first) % together == 0)
        return beside

    @compile_loop
    def pack(x, rows, columns, ahead, first, terms, span, y, to, squares, counted, sums):
        """y from y[to] on: for each panel of the rows in span and k = 0 .. terms-1, word first + k of all its rows,
        side by side. `counted`: whether the rows' squares are added up, starting at first = 0."""
        begin, end = span
        for p in range(begin, min(end, rows.size), size):
            last = min(p + size, rows.size) - 1
            sums[:size] = 0.0
            if last - p == size - 1 and lie_beside(rows, p, last, size):
                widen_panel(size, size, x, rows, p, last, columns, first, terms, y, to, sums)
            elif last - p == size - 1 and lie_beside(rows, p, last, few):
                widen_panel(size, few, x, rows, p, last, columns, first, terms, y, to, sums)
            else:
                k = 0
                while k < terms:
                    blocks, after = ahead[k] // ALONG, k
                    if blocks:
                        after += blocks * ALONG
                        widen_across(size, ALONG, x, rows, p, last, columns, first + k, blocks, y, to + k * size, sums)
                    else:
                        while after < terms and ahead[after] < ALONG:
                            after += 1
                        widen_panel(size, 1, x, rows, p, last, columns, first + k, after - k, y, to + k * size, sums)
                    k = after
            if counted:
                for i in range(p, last + 1):
                    squares[i] = sums[i - p] if first == 0 else squares[i] + sums[i - p]
            to += size * terms

    return pack


@compile_loop
def _look_ahead(columns, first, terms, ahead):
    """ahead[k]: the number of adjacent terms from first + k on, up to first + terms - 1 at most."""
    for k in range(terms - 1, -1, -1):
        goes_on = k + 1 < terms and columns[first + k + 1] == columns[first + k] + 1
        ahead[k] = ahead[k + 1] + 1 if goes_on else 1


@cache
def loop_of(form: Form) -> Callable[..., None]:
    """The loop of all products, with tiles of a form."""
    height, vectors, lanes, width = form.rows, form.vectors, form.lanes, form.columns
    assert height % 3 == 0, "thirds of a tile"
    pack_a, pack_b, part, two = _packing(height), _packing(width), height // 3, height // 3 * 2

    @compile_loop
    def multiply_panels(a, b, rows, columns, terms, more, sums, start, apart, corner):
        """sums [rows, columns] from sums[start] on, lines `apart` words apart, = (their old values if `more`, plus) the
        chains of panels of a, which begin at a[0], and of one panel of b."""
        for m in range(0, rows, height):
            at, left, place = start + m * apart, rows - m, m * terms
            used = min(height, -(-left // part) * part)
            whole = used <= left and columns == width
            c, ct, line = (sums, at, apart) if whole else (corner, 0, width)
            if used == height:
                fused_tile(height, height, vectors, lanes, a, place, b, 0, c, ct, line, terms, more and whole)
            elif used == part:
                fused_tile(part, height, vectors, lanes, a, place, b, 0, c, ct, line, terms, more and whole)
            else:
                fused_tile(two, height, vectors, lanes, a, place, b, 0, c, ct, line, terms, more and whole)
            for i in range(0 if whole else min(height, left)):
                for j in range(columns):
                    to, value = at + i * apart + j, corner[i * width + j]
                    sums[to] = sums[to] + value if more else value

    @compile_loop
    def multiply_all(a, b, shape, chain, sums, squares, panels, near, kept):
        keep_apart()
        x, x_rows, x_columns = a
        y, y_rows, y_columns = b
        batch, rows, columns = shape
        beside, corner = np.empty(max(height, width)), np.empty(height * width)
        ahead_a, ahead_b = np.empty(chain, np.int64), np.empty(chain, np.int64)
        for i in range(batch):
            own_a, own_b = i == 0 or x_rows.size > rows, i == 0 or y_rows.size > columns
            u, v = i * rows if x_rows.size > rows else 0, i * columns if y_rows.size > columns else 0
            part_a, part_b = x_rows[u : u + rows], y_rows[v : v + columns]
            squares_a, squares_b = squares[0][u : u + rows], squares[1][v : v + columns]
            for first in range(0, x_columns.size, chain):
                terms = min(chain, x_columns.size - first)
                _look_ahead(x_columns, first, terms, ahead_a)
                _look_ahead(y_columns, first, terms, ahead_b)
                for top in range(0, rows, near):
                    at_a = top * terms if kept[0] else 0
                    if own_a or not kept[0]:  # else the panels still hold it
                        span = top, top + near
                        pack_a(
                            x, part_a, x_columns, ahead_a, first, terms, span, panels[0], at_a, squares_a, own_a, beside
                        )
                    for n in range(0, columns, width):
                        at_b = n * terms if kept[1] else 0
                        if top == 0 and (own_b or not kept[1] or terms < x_columns.size):
                            span = n, n + width
                            pack_b(
                                y, part_b, y_columns, ahead_b, first, terms, span, panels[1], at_b, squares_b, own_b,
                                beside,
                            )  # fmt: skip
                        at, more = (i * rows + top) * columns + n, first > 0
                        height_here, width_here = min(near, rows - top), min(width, columns - n)
                        multiply_panels(
                            panels[0][at_a:], panels[1][at_b:], height_here, width_here, terms, more, sums, at, columns,
                            corner,
                        )  # fmt: skip

    @compile_loop
    def multiply(a, b, shape, chain, sums, squares, panels, near, kept):
        """sums [B, M, N] of the products of the rows of a and b, in chains; the sum of squares of each row of a and
        b."""
        modes = begin_modes()
        multiply_all(a, b, shape, chain, sums, squares, panels, near, kept)
        end_modes(modes)

    return multiply


def bind(
    a: Places,
    b: Places,
    sums: Tensor,
    squares: tuple[Tensor, Tensor],
    take: Callable[..., Tensor] = scratch,
    tiles: Form | None = None,
) -> Callable[[], None]:
    """A function that computes `multiply` into sums [B, M, N], binary64 and contiguous, and squares [Ba, M] and [Bb, N]
    of the rows of a and b, where Ba and Bb are B or 1. `take` provides the memory of its panels."""
    tiles = tiles or form()
    assert tiles is not None, "a processor with fused multiply-adds"
    batch, rows, columns = sums.shape
    length = a[2].size
    chain = chain_of(length)
    near = -(-NEAR // (chain * tiles.rows)) * tiles.rows
    again = batch > 1 and length <= chain  # then a shared operand's panels serve all batches
    kept = again and a[1].size == rows, rows > near or (again and b[1].size == columns)
    sizes = (tiles.rows, rows if kept[0] else min(rows, near)), (tiles.columns, columns if kept[1] else 1)
    panels = tuple(
        take(f"panels {side}", (-(-count // size) * size * chain,), torch.float64, sums.device).numpy()
        for side, (size, count) in zip("ab", sizes, strict=True)
    )
    flat = tuple(x.view(-1).numpy() for x in squares)
    return partial(loop_of(tiles), a, b, tuple(sums.shape), chain, sums.view(-1).numpy(), flat, panels, near, kept)


def multiply(a: Places, b: Places, sums: Tensor, squares: tuple[Tensor, Tensor]) -> None:
    """Compute the sums and squares of `bind` immediately."""
    bind(a, b, sums, squares)()

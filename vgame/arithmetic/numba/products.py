"""Products by vgame's own kernels, on a CPU: binary32 rows, anywhere in memory, to binary64 sums of products.

In: operands as (memory, begins of the rows, offsets of their terms). Out: sums [B, M, N] and the rows' sums of squares.
K is divided into equal blocks of at most CHAIN terms; in a block x = RN64(a * b + x), term after term, then the blocks'
sums are added, one after the other. Proof: docs/numerics-products.md, section 13. Twin: the library's products
(arithmetic/vendor.py), which `own_kernels(False)` selects.

The panels of both operands are widened once for a block and stay in the second cache, a panel of b in the first one,
and a tile of sums in registers (fused_tile.py). Words beyond the last row or column are computed and discarded.
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
    widen_panel,
)
from vgame.arithmetic.workspace import scratch

#: Largest number of terms in a chain of multiply-adds.
CHAIN = 256
#: Words of a's panels that are reused together: half of a second cache of 512 KiB.
NEAR = 1 << 15

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

    @compile_loop
    def pack(x, rows, columns, first, terms, y, squares, counted, sums):
        """y: for each panel and k = 0 .. terms-1, word first + k of all its rows, side by side. `counted`: whether the
        rows' squares are added up, starting at first = 0."""
        for p in range(0, rows.size, size):
            last = min(p + size, rows.size) - 1
            beside = last - p == size - 1
            for i in range(p, last):
                beside = beside and rows[i + 1] == rows[i] + 1
            if beside:
                widen_panel(size, True, x, rows, p, last, columns, first, terms, y, p * terms, sums, 0)
            else:
                widen_panel(size, False, x, rows, p, last, columns, first, terms, y, p * terms, sums, 0)
            if counted:
                for i in range(p, last + 1):
                    squares[i] = sums[i - p] if first == 0 else squares[i] + sums[i - p]

    return pack


@cache
def loop_of(form: Form) -> Callable[..., None]:
    """The loop of all products, with tiles of a form."""
    height, vectors, lanes, width = form.rows, form.vectors, form.lanes, form.columns
    pack_a, pack_b = _packing(height), _packing(width)

    @compile_loop
    def multiply_panels(a, b, shape, terms, more, sums, start, near):
        """sums [rows, columns] from sums[start] on = (their old values if `more`, plus) the chains of two operands'
        panels, `near` rows of a at a time."""
        rows, columns = shape
        corner = np.empty(height * width)
        for top in range(0, rows, near):
            for n in range(0, columns, width):
                for m in range(top, min(top + near, rows), height):
                    at = start + m * columns + n
                    if m + height <= rows and n + width <= columns:
                        fused_tile(height, vectors, lanes, a, m * terms, b, n * terms, sums, at, columns, terms, more)
                        continue
                    fused_tile(height, vectors, lanes, a, m * terms, b, n * terms, corner, 0, width, terms, False)
                    for i in range(min(height, rows - m)):
                        for j in range(min(width, columns - n)):
                            to, value = at + i * columns + j, corner[i * width + j]
                            sums[to] = sums[to] + value if more else value

    @compile_loop
    def multiply_all(a, b, shape, chain, sums, squares, panels):
        keep_apart()
        x, x_rows, x_columns = a
        y, y_rows, y_columns = b
        batch, rows, columns = shape
        beside = np.empty(max(height, width))
        near = max(1, NEAR // (chain * height)) * height
        for i in range(batch):
            own_a, own_b = i == 0 or x_rows.size > rows, i == 0 or y_rows.size > columns
            u, v = i * rows if x_rows.size > rows else 0, i * columns if y_rows.size > columns else 0
            for first in range(0, x_columns.size, chain):
                terms = min(chain, x_columns.size - first)
                if own_a or terms < x_columns.size:  # else the panels still hold it
                    part, squares_a = x_rows[u : u + rows], squares[0][u : u + rows]
                    pack_a(x, part, x_columns, first, terms, panels[0], squares_a, own_a, beside)
                if own_b or terms < x_columns.size:
                    part, squares_b = y_rows[v : v + columns], squares[1][v : v + columns]
                    pack_b(y, part, y_columns, first, terms, panels[1], squares_b, own_b, beside)
                multiply_panels(*panels, (rows, columns), terms, first > 0, sums, i * rows * columns, near)

    @compile_loop
    def multiply(a, b, shape, chain, sums, squares, panels):
        """sums [B, M, N] of the products of the rows of a and b, in chains; the sum of squares of each row of a and
        b."""
        modes = begin_modes()
        multiply_all(a, b, shape, chain, sums, squares, panels)
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
    chain = chain_of(a[2].size)
    panels = [
        take(f"panels {side}", (-(-count // size) * size * chain,), torch.float64, sums.device).numpy()
        for side, count, size in zip("ab", sums.shape[1:], (tiles.rows, tiles.columns), strict=True)
    ]
    flat = tuple(x.view(-1).numpy() for x in squares)
    return partial(loop_of(tiles), a, b, tuple(sums.shape), chain, sums.view(-1).numpy(), flat, tuple(panels))


def multiply(a: Places, b: Places, sums: Tensor, squares: tuple[Tensor, Tensor]) -> None:
    """Compute the sums and squares of `bind` immediately."""
    bind(a, b, sums, squares)()

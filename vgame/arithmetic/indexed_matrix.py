"""Matrices read in place: the patches of a convolution as rows, without a copy of every patch.

In: a strided view of any rank. Out: a matrix [B, R, K] whose element is memory[rows[b, r] + columns[k]], for
products.dot; strides separate, so two short tables suffice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic import gate
from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.numba.exact import rows_of
from vgame.arithmetic.vendor import NATIVE, vendor
from vgame.arithmetic.workspace import WORDS, in_words

Dimension = tuple[int, int, bool]  # size, stride, whether it runs backwards

#: Number of words of a matrix from which on its tables cost less than a copy.
LEAST = 1 << 17
#: Number of words of the largest cached tables: 256 of them are a GiB.
MOST_KEPT = 1 << 19


@dataclass(frozen=True, slots=True)
class Patches:
    """Rows of a matrix that are the patches of 3 x 3 words around all pixels of pictures, an even number of lines and
    of words each.

    Row (picture, line, word), column (channel, 3, 3); word after word in memory. strides: of picture, channel, line.
    backwards: whether a patch's last word comes first.
    """

    channels: int
    lines: int
    width: int
    strides: tuple[int, int, int]
    backwards: bool


class _Folded:
    """The interface of a tensor [B, R, K] for a folded matrix."""

    __slots__ = ()
    memory: Tensor
    rows: np.ndarray | Tensor
    columns: np.ndarray | Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.rows.shape, len(self.columns))

    @property
    def device(self) -> torch.device:
        return self.memory.device

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype


@dataclass(frozen=True, slots=True)
class IndexedMatrix(_Folded):
    """Element [b, r, k] = memory[rows[b, r] + columns[k]]. memory: binary32 or bfloat16, flat; the tables: int64 [B, R]
    and [K].

    patches: if the whole matrix consists of patches of pictures.
    """

    memory: Tensor
    rows: np.ndarray
    columns: np.ndarray
    patches: Patches | None = None

    def tile(self, batch: slice, rows: slice) -> IndexedMatrix:
        """Some batches (or the shared one) and rows."""
        chosen = self.rows if len(self.rows) == 1 else self.rows[batch]
        return IndexedMatrix(self.memory, np.ascontiguousarray(chosen[:, rows]), self.columns)

    def block(self, k: slice) -> IndexedMatrix:
        """Some columns."""
        return IndexedMatrix(self.memory, self.rows, self.columns[k])

    def some(self, rows: np.ndarray) -> Tensor:
        """Copies of some rows of [B * R], contiguous words."""
        return compiled_operands.gather_rows(self.memory, self.rows.reshape(-1)[rows], self.columns)

    def whole(self) -> Tensor:
        """A contiguous copy."""
        return self.some(np.arange(self.rows.size)).view(self.shape)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A view with dimensions that run backwards, which torch's strides cannot express; `tensor` makes the copy."""

    view: Tensor
    backwards: tuple[int, ...]

    def tensor(self) -> Tensor:
        return self.view.flip(self.backwards) if self.backwards else self.view


@dataclass(frozen=True, slots=True)
class PlacedMatrix(_Folded):
    """A folded matrix for the GPU's kernels, its tables (int64) beside the words: element [b, r, k] = memory[rows[b, r]
    + columns[k]].

    mirrored: whether neighbouring words belong to neighbouring rows rather than to neighbouring columns.
    """

    memory: Tensor
    rows: Tensor
    columns: Tensor
    mirrored: bool

    def tile(self, batch: slice, rows: slice) -> PlacedMatrix:
        """Some batches (or the shared one) and rows."""
        chosen = self.rows if len(self.rows) == 1 else self.rows[batch]
        return PlacedMatrix(self.memory, chosen[:, rows], self.columns, self.mirrored)

    def whole(self) -> Tensor:
        """A contiguous copy."""
        return self.memory[self.rows.unsqueeze(2) + self.columns]


#: An operand of a product or a sum.
Matrix = Tensor | IndexedMatrix | PlacedMatrix


def places_of(x: Tensor | IndexedMatrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(memory as of `flat`, offsets of the rows, offsets of their terms) of an operand [B, R, K]."""
    if isinstance(x, IndexedMatrix):
        return compiled.flat(x.memory), x.rows.reshape(-1), x.columns
    memory, begins, step = rows_of(x)
    return memory, begins, np.arange(x.shape[2]) * step


def matrix_in_words(x: Matrix) -> Matrix:
    """The matrix of binary32 words, if those in memory are bfloat16. A view that reads words more than once stays a
    view: its memory is widened."""
    if not isinstance(x, Tensor):
        return replace(x, memory=in_words(x.memory))
    if x.dtype == torch.bfloat16 and x.numel() > (memory := compiled.flat_tensor(x)).numel():
        return in_words(memory).as_strided(x.shape, x.stride())
    return in_words(x)


def fold(source: Tensor | Mirrored, shape: tuple[int, int, int]) -> Matrix:
    """`source` as a matrix: a view if strides can express it, else folded if it is large, else a copy."""
    found = in_place(source, shape, LEAST)
    if found is not None:
        return found
    return (source.tensor() if isinstance(source, Mirrored) else source).reshape(shape)


def in_place(source: Tensor | Mirrored, shape: tuple[int, int, int], least: int, least_run: int = 1) -> Matrix | None:
    """`source` as a matrix that reads its memory: a view, or folded if it has `least` words and runs of so many; else
    None."""
    mirrored = source if isinstance(source, Mirrored) else Mirrored(source, ())
    view = mirrored.view
    if not mirrored.backwards and _is_view(tuple(view.shape), view.stride(), shape):
        return view.view(shape)
    ends = _ends(tuple(view.shape), shape)
    by_kernels = gate.in_use(view.device)
    usable = by_kernels or (compiled.in_use(view.device) and vendor().norm is NATIVE.norm)
    if ends is None or not usable or view.dtype not in WORDS or view.numel() < least:
        return None
    backwards = (d in mirrored.backwards for d in range(view.dim()))
    dims = tuple(zip(view.shape, view.stride(), backwards, strict=True))
    if by_kernels:
        return PlacedMatrix(compiled.flat_tensor(view), *_placed(dims, tuple(ends), view.device))
    tables = _tables(dims, tuple(ends))
    if least_run > 1 and compiled_operands.run_of(tables[1]) < least_run:
        return None
    return IndexedMatrix(compiled.flat_tensor(view), *tables)


@lru_cache(maxsize=1 << 12)
def _is_view(sizes: tuple[int, ...], strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether strides can express a tensor in another shape. Cached: every step needs it, and torch's refusal is
    slow."""
    try:
        torch.empty_strided(sizes, strides, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def _ends(sizes: tuple[int, ...], shape: tuple[int, int, int]) -> list[tuple[int, int]] | None:
    """The dimensions of batch, rows and columns; None if one would have to be split."""
    starts, product, wanted = [0], 1, [shape[0], shape[0] * shape[1]]
    for dimension, size in enumerate([*sizes, 0]):
        while len(starts) < 3 and product == wanted[len(starts) - 1]:
            starts.append(dimension)
        product *= size
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True)) if len(starts) == 3 else None


def _tables(dimensions: tuple[Dimension, ...], ends: tuple[tuple[int, int], ...]) -> tuple:
    """(rows, columns, patches) of an IndexedMatrix; large ones are not cached: they take little of their product's
    time."""
    batch, rows, columns = (prod(size for size, *_ in dimensions[first:last]) for first, last in ends)
    return (_kept if batch * rows + columns <= MOST_KEPT else _made)(dimensions, ends)


def _made(dimensions: tuple[Dimension, ...], ends: tuple[tuple[int, int], ...]) -> tuple:
    batch, rows, columns = (_offsets(dimensions[first:last]) for first, last in ends)
    return batch[:, None] + rows, columns, _patches(*(dimensions[first:last] for first, last in ends))


_kept = lru_cache(maxsize=256)(_made)


@cache  # never freed: a recorded step continues to read them
def _placed(
    dimensions: tuple[Dimension, ...], ends: tuple[tuple[int, int], ...], device: torch.device
) -> tuple[Tensor, Tensor, bool]:
    """(rows, columns, mirrored) of a PlacedMatrix; on the device before a step is recorded there."""
    rows, columns, _ = _tables(dimensions, ends)
    tables = (torch.from_numpy(table).to(device) for table in (rows, columns))
    return (*tables, _evenly(rows.reshape(-1)) > _evenly(columns))


def _evenly(places: np.ndarray) -> int:
    """Length of the first run of evenly spaced places."""
    return int(np.argmin(np.append(np.diff(places) == 1, False)))


def _patches(
    batch: tuple[Dimension, ...], rows: tuple[Dimension, ...], columns: tuple[Dimension, ...]
) -> Patches | None:
    """The patches given by the dimensions of batch, rows and columns, or None; a part of a batch has additional
    dimensions of size one."""
    pictures = [d for d in rows[:-2] if d[0] != 1] or list(rows[-3:-2])
    if len(rows) < 3 or len(columns) != 3 or len(pictures) != 1 or any(size != 1 for size, *_ in batch):
        return None
    (_, picture, _), (lines, line, _), (width, word, _) = *pictures, *rows[-2:]
    (channels, channel, _), (*high, upwards), (*wide, backwards) = columns
    fits = high == [3, line] and wide == [3, word] and word == 1 and lines % 2 == width % 2 == 0
    if not fits or upwards != backwards or any(reverse for *_, reverse in (*rows, columns[0])):
        return None
    return Patches(channels, lines, width, (picture, channel, line), backwards)


def _offsets(dimensions: tuple[Dimension, ...]) -> np.ndarray:
    """int64 offsets of the words of dimensions from the first word of the memory."""
    total = np.zeros(1, np.int64)
    for size, stride, backwards in dimensions:
        places = np.arange(size) * stride
        total = (total[:, None] + (places[::-1] if backwards else places)).reshape(-1)
    return total

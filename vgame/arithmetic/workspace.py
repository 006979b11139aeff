"""Memory for intermediate results: bounded, and on a CPU reused between calls.

New pages cost a CPU several times the arithmetic on them. A CUDA allocator reuses blocks by itself and must know their
uses by stream; there every buffer is a new tensor.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vgame.system.threads import share

#: Elements of one tile of a result or operand block (binary64: 32 MiB). A thread has at most about seven such buffers
#: at a time.
TILE = 1 << 22
#: On a CPU, in the order of its caches: elements of one pointwise pass, terms gathered at a time by the exact tier,
#: elements of a tile of sums, of a product's tile or of its operands' blocks. Elsewhere all of them are a tile.
PASS, GATHER, SUMS, PRODUCTS = ({"cpu": 1 << size} for size in (16, 17, 18, 20))

#: Lines whose length is a multiple of the first number of binary64 words are padded by the second, to avoid cache-set
#: conflicts.
FALLS_TOGETHER, APART = 64, 8

#: Least length of the dimension that threads split for a copy.
SHARERS = 16

#: Elements from which a tensor is large, and a multiple of the elements of a line of any cache.
LARGE, LINE = 1 << 14, 16
NUMPY = {torch.float32: np.float32, torch.int32: np.int32, torch.float64: np.float64, torch.bfloat16: np.int16}

#: Types of floating-point words in memory.
WORDS = torch.float32, torch.bfloat16
#: Options of GNU's mallopt (malloc.h).
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


class _Kept(threading.local):
    """A thread's buffers."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_kept = _Kept()


def keep_pages() -> None:
    """Let this process keep freed pages: new pages for every result cost a tenth of a step's time. Only with GNU's C
    library."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return
    for option, value in ((TRIM_THRESHOLD, 2**31 - 1), (MMAP_THRESHOLD, 2**25)):  # the largest allowed value of each
        set_option(option, value)


def pass_size(device: torch.device) -> int:
    """Elements per pointwise pass on `device`."""
    return PASS.get(device.type, TILE)


def sum_size(device: torch.device) -> int:
    """Elements per tile of sums on `device`."""
    return SUMS.get(device.type, TILE)


def product_size(device: torch.device) -> int:
    """Elements per tile of a product on `device`, and of its operands' blocks."""
    return PRODUCTS.get(device.type, TILE)


def gather_size(device: torch.device) -> int:
    """Terms per step of the exact tier on `device`."""
    return GATHER.get(device.type, TILE)


def scratch(slot: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised contiguous tensor; on a CPU it is this thread's memory of that slot, valid until its next
    use."""
    size = math.prod(shape)
    if device.type != "cpu" or size > TILE:
        return torch.empty(shape, dtype=dtype, device=device)
    buffer = _kept.buffers.get((slot, dtype))
    if buffer is None or buffer.numel() < size:
        buffer = _kept.buffers[slot, dtype] = torch.empty(size, dtype=dtype)
    return buffer[:size].view(shape)


def new(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised contiguous tensor. On a CPU a large one is from `malloc`: GNU's `posix_memalign`, which torch
    calls, seldom reuses freed memory of the same size, which made a step take up to 1.4 times the memory."""
    size = math.prod(shape)
    if torch.device(device).type != "cpu" or size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    words = np.empty(size + LINE, NUMPY[dtype])
    first = -words.ctypes.data % (LINE * words.itemsize) // words.itemsize
    return torch.from_numpy(words[first : first + size]).view(dtype).view(tuple(shape))


class Workspace:
    """Scratch memory of one owner, with fixed addresses: a slot always has the same memory."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def scratch(self, slot: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """As `scratch`, on a CPU."""
        size, key = math.prod(shape), (slot, dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


def wide_memory(x: Tensor, slot: str, take: Callable[..., Tensor] = scratch) -> Tensor:
    """Scratch memory for a binary64 copy of x [.., R, K], in x's own order; a single or expanded row is contiguous."""
    if x.shape[-2] > 1 and x.stride(-1) > max(1, x.stride(-2)):
        return lines(slot, (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.device, take).mT
    return lines(slot, tuple(x.shape), x.device, take)


def lines(slot: str, shape: tuple[int, ...], device: torch.device, take: Callable[..., Tensor] = scratch) -> Tensor:
    """Binary64 scratch memory, its lines (the last dimension) padded to avoid cache-set conflicts."""
    length = shape[-1]
    apart = length + APART if device.type == "cpu" and length % FALLS_TOGETHER == 0 else length
    return take(slot, (*shape[:-1], apart), torch.float64, device)[..., :length]


def widen(x: Tensor, slot: str) -> Tensor:
    """binary64 copy of x [.., R, K] in scratch memory, in x's own order of rows and columns."""
    return wide_memory(x, slot).copy_(x)


def in_words(x: Tensor) -> Tensor:
    """binary32 words of bfloat16 numbers; other tensors as they are."""
    return copy_shared(new(x.shape, torch.float32, x.device), x) if x.dtype == torch.bfloat16 else x


def copy_shared(target: Tensor, source: Tensor) -> Tensor:
    """target.copy_(source), of one shape; on a CPU by several threads if it is large."""
    if target.device.type != "cpu" or not target.dim():
        return target.copy_(source)
    shared = outermost(target.shape)
    size = target.shape[shared]

    def run(first: int, last: int) -> None:
        target.narrow(shared, first, last - first).copy_(source.narrow(shared, first, last - first))

    share(size, target.numel() // max(size, 1), run)
    return target


def outermost(shape: Sequence[int]) -> int:
    """The first dimension that is long enough for all threads, or the first of all."""
    return next((d for d, size in enumerate(shape) if size >= SHARERS), 0)


def spans(extent: int, step: int) -> list[slice]:
    """0..extent-1 in slices of at most `step`."""
    return [slice(i, min(i + step, extent)) for i in range(0, extent, step)]


def batch_of(x: Tensor, i: slice) -> Tensor:
    """x[i], or the shared batch."""
    return x if x.shape[0] == 1 else x[i]

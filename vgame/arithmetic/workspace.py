"""Memory for intermediate results: bounded, and on a CPU kept between calls.

Fresh pages cost a CPU several times the arithmetic that is done on them. A CUDA allocator keeps its blocks by itself and has to
know their uses, stream by stream; there every buffer is a new tensor.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

#: Elements of one tile of a result or operand block (binary64: 32 MiB). At most about seven such buffers live at a time.
TILE = 1 << 22
#: Elements that one pointwise pass works on, that a tile of sums has, and terms that the exact tier gathers at a time:
#: on a CPU about what its second-level cache holds, elsewhere a tile.
PASS, SUMS, GATHER = {"cpu": 1 << 16}, {"cpu": 1 << 18}, {"cpu": 1 << 17}

_kept = threading.local()


def pass_size(device: torch.device) -> int:
    """Elements per pointwise pass on `device`."""
    return PASS.get(device.type, TILE)


def sum_size(device: torch.device) -> int:
    """Elements per tile of sums on `device`."""
    return SUMS.get(device.type, TILE)


def gather_size(device: torch.device) -> int:
    """Terms per step of the exact tier on `device`."""
    return GATHER.get(device.type, TILE)


def scratch(slot: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised contiguous tensor; on a CPU it is this thread's memory of that slot, valid until taken again."""
    size = math.prod(shape)
    if device.type != "cpu" or size > TILE:
        return torch.empty(shape, dtype=dtype, device=device)
    key = f"{slot}/{dtype}"
    buffer = _kept.__dict__.get(key)
    if buffer is None or buffer.numel() < size:
        buffer = _kept.__dict__[key] = torch.empty(size, dtype=dtype)
    return buffer[:size].view(shape)


def wide_memory(x: Tensor, slot: str) -> Tensor:
    """Scratch memory for a binary64 copy of x [.., R, K], in x's own order of rows and columns."""
    if x.stride(-1) > x.stride(-2):
        return scratch(slot, (*x.shape[:-2], x.shape[-1], x.shape[-2]), torch.float64, x.device).mT
    return scratch(slot, tuple(x.shape), torch.float64, x.device)


def widen(x: Tensor, slot: str) -> Tensor:
    """binary64 copy of x [.., R, K] in scratch memory, in x's own order of rows and columns."""
    return wide_memory(x, slot).copy_(x)


def spans(extent: int, step: int) -> list[slice]:
    """0..extent-1 in slices of at most `step`."""
    return [slice(i, min(i + step, extent)) for i in range(0, extent, step)]


def batch_of(x: Tensor, i: slice) -> Tensor:
    """x[i], or the one batch that serves all."""
    return x if x.shape[0] == 1 else x[i]

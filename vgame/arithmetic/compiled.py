"""Compiled loops on a CPU: the switch, memory as arrays, threads. The loops themselves: compiled_operands.py, compiled_rounding.py,
compiled_exact.py.

In: the storage of tensors as flat arrays, with strides. Out: the words that the torch passes give, by the same tests
(docs/numerics-products.md, sections 3 to 5).

The library's own threads idle meanwhile, so large loops are shared by threads of our own; none of them holds the interpreter's lock.
`fastmath` is on for `add` only, and there only `reassoc`: sums that any order gives exactly, or whose bound holds in any order.
A loop takes no constant from another file, so the compiler's cache notices every change.
"""

from __future__ import annotations

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

compile_loop = njit(cache=True, nogil=True, error_model="numpy")
add = njit(cache=True, nogil=True, fastmath={"reassoc"})(lambda x, y: x + y)

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

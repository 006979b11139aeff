"""Compiled loops on a CPU: the switch, and memory as arrays. The loops themselves are in numba/operands.py,
numba/rounding_test.py, numba/exact.py and numba/filtering.py.

In: the storage of tensors as flat arrays, with strides. Out: the words of the torch passes, by the same tests
(docs/numerics-products.md, sections 3 to 5).

Threads share large loops (vgame/system/threads.py); no loop holds the interpreter's lock. `fastmath` is on for `add`
only, and there only `reassoc`: for sums that are exact in any order, or whose bound holds in any order. Loops import
only from vgame/arithmetic, so the compiler's cache detects every change (vgame/system/jit.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from vgame.arithmetic import gate
from vgame.system.jit import compiled_loop

compile_loop = compiled_loop(error_model="numpy")
add = compiled_loop(fastmath={"reassoc"})(lambda x, y: x + y)

_allowed: ContextVar[bool] = ContextVar("compiled", default=True)


@contextmanager
def compiled(allowed: bool) -> Iterator[None]:
    """Context that selects these loops or the torch passes on a CPU. The bits are the same."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def in_use(device: torch.device) -> bool:
    """Whether the compiled loops compute on this device."""
    return device.type == "cpu" and _allowed.get() and not gate.in_use(device)


# --- words in memory: binary32, or the high halves of bfloat16 words, uint16 ---


def real(word):
    """The number of a word in memory; a binary64 one stays as it is."""


def bits(word):
    """The 32 bits of a word in memory, uint32."""


@overload(real)
def _real(word):
    if isinstance(word, types.Float):
        return lambda word: word
    return lambda word: np.uint32(np.uint32(word) << np.uint32(16)).view(np.float32)


@overload(bits)
def _bits(word):
    if isinstance(word, types.Float):
        return lambda word: np.float32(word).view(np.uint32)
    return lambda word: np.uint32(np.uint32(word) << np.uint32(16))


# --- tensors as arrays ---


def flat_tensor(x: Tensor) -> Tensor:
    """The memory from a tensor's first element to its last, as a flat tensor; the tensor's strides index it."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().as_strided((extent,), (1,))


def flat(x: Tensor) -> np.ndarray:
    """`flat_tensor`, as an array; bfloat16 as uint16, the high halves of words."""
    memory = flat_tensor(x)
    return memory.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else memory.numpy()


def batch_stride(x: Tensor) -> int:
    """Stride of the batch; 0 if there is only one, shared by all."""
    return x.stride(0) if x.shape[0] > 1 else 0

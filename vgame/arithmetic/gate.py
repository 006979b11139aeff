"""Where the Triton kernels compute: on CUDA tensors if triton is installed, elsewhere only in Triton's interpreter.

In: a torch device. Out: whether its tensors go through the kernels of this folder. Their twins are the torch passes,
which give the same bits on any device (tests/gpu compares them). This file imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Protocol

#: What triton reads when its kernels are defined: compute with numpy instead of a GPU.
INTERPRETER_SWITCH = "TRITON_INTERPRET"
_chosen: ContextVar[bool | None] = ContextVar("gpu kernels", default=None)


class HasType(Protocol):
    """torch.device, as far as it matters here."""

    @property
    def type(self) -> str: ...


@cache
def installed() -> bool:
    """Whether triton can be imported."""
    return find_spec("triton") is not None


@contextmanager
def kernels(wanted: bool) -> Iterator[None]:
    """Within the block, whether the Triton kernels compute: True on any device (a CPU's tensors: interpreted), False on
    none."""
    token = _chosen.set(wanted)
    try:
        yield
    finally:
        _chosen.reset(token)


def in_use(device: HasType) -> bool:
    """Whether tensors of this device go through the Triton kernels."""
    chosen = _chosen.get()
    return chosen if chosen is not None else device.type == "cuda" and installed()


def programs(device: HasType, wanted: int) -> int:
    """So many instances of a kernel that takes work from a list: enough to fill a GPU, few in the interpreter."""
    return wanted if device.type == "cuda" else 2

"""Select the Triton kernels: on CUDA tensors if triton is installed, elsewhere only in Triton's interpreter.

In: a torch device. Out: whether its tensors are computed by the kernels in triton/. Their twins are the torch passes,
which give the same bits on any device (tests/gpu compares them). This file imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Protocol

#: Read by triton when its kernels are defined: compute with numpy instead of a GPU.
INTERPRETER_SWITCH = "TRITON_INTERPRET"
_chosen: ContextVar[bool | None] = ContextVar("gpu kernels", default=None)


class HasType(Protocol):
    """The used part of torch.device."""

    @property
    def type(self) -> str: ...


@cache
def installed() -> bool:
    """Whether triton can be imported."""
    return find_spec("triton") is not None


@contextmanager
def kernels(wanted: bool) -> Iterator[None]:
    """Context that switches the Triton kernels: True on every device (a CPU's tensors: interpreted), False on none."""
    token = _chosen.set(wanted)
    try:
        yield
    finally:
        _chosen.reset(token)


def in_use(device: HasType) -> bool:
    """Whether the Triton kernels compute on this device."""
    chosen = _chosen.get()
    return chosen if chosen is not None else device.type == "cuda" and installed()


def programs(device: HasType, wanted: int) -> int:
    """Number of instances of a kernel that takes work from a list: enough to fill a GPU, few in the interpreter."""
    return wanted if device.type == "cuda" else 2

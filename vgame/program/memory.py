"""Memory of tensors, arrays and buffers.

In: values. Out: the addresses of each, the object that owns them, and pairs that share some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from vgame.tasks.fingerprint import BUFFERS

Named = tuple[str, Any]


def span(value: Any) -> tuple[int, int] | None:
    """The addresses of the first byte of a tensor, an array or a buffer, and of the byte after its last; None if it has
    no strided memory on the CPU, and for other values."""
    if isinstance(value, torch.Tensor):
        traced = isinstance(value, FakeTensor)
        if traced or value.layout is not torch.strided or value.device.type != "cpu" or not value.numel():
            return None
        size = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        return value.data_ptr(), value.data_ptr() + size * value.element_size()
    if isinstance(value, BUFFERS):
        value = _array_of(value)
    return np.lib.array_utils.byte_bounds(value) if isinstance(value, np.ndarray) and value.size else None


def _array_of(buffer: Any) -> np.ndarray | None:
    """The words of a buffer; None if it has none, or is closed or released."""
    try:
        view = memoryview(buffer)
        return (np.frombuffer(view, np.uint8) if view.c_contiguous else np.asarray(view)) if view.nbytes else None
    except ValueError:
        return None


def overlaps(value: Any, places: Iterable[tuple[int, int]]) -> bool:
    """Whether a value lies in some of these addresses."""
    own = span(value)
    return own is not None and any(start < own[1] and own[0] < end for start, end in places)


def root_of(array: np.ndarray) -> int:
    """A number of the object in whose memory an array lies, the same for all its views; of a tensor, its storage's."""
    held: Any = array
    while (inner := held.obj if isinstance(held, memoryview) else getattr(held, "base", None)) is not None:
        held = inner
    return held.untyped_storage()._cdata if isinstance(held, torch.Tensor) else id(held)


def sharing(values: Iterable[Named]) -> Iterator[tuple[Named, Named]]:
    """Pairs of values that share memory: each value with the one before it, by address, that reaches farthest."""
    spans = ((span(value), name, value) for name, value in values)
    found = sorted(((*place, name, value) for place, name, value in spans if place), key=lambda each: each[:3])
    reach, last = 0, ("", None)
    for start, end, name, value in found:
        if start < reach:
            yield last, (name, value)
        reach, last = max((reach, last), (end, (name, value)), key=lambda each: each[0])

"""Comparable forms of values that the user's code can change in place, without a call of their own code.

In: a value. Out: numbers and hashes that are equal before and after a pass unless the value has changed; None for a
value whose parts are compared instead.
"""

from __future__ import annotations

import ctypes
import random
import re
import struct
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from io import BytesIO, StringIO
from mmap import mmap
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import torch

from vgame.tasks.opened import PLAIN, held_by

LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: Iterators of C that do not show their position.
OPAQUE = (type(re.compile("").scanner("")), type(struct.iter_unpack("b", b"")), type(iter(memoryview(b""))))
NUMBERS = (np.generic, Decimal, Fraction, date, timedelta)
BUFFERS = (bytearray, memoryview, array, mmap, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
CONTAINERS = (list, tuple, set, frozenset, deque)
MOST_PARTS = 1_000  # of a container; a larger one is compared by one hash of its parts
SMALL = 4_096  # bytes of an array in a large container that is compared by its values


def state(value: Any) -> Any:
    """A comparable form of a value that can change in place; None if its parts are compared instead."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else hash(value.getstate())
    if isinstance(value, np.random.Generator):
        return state(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        return hash(str(value.state)), state(value.seed_seq)
    if isinstance(value, np.random.SeedSequence):
        return str(value.state)
    if isinstance(value, np.random.RandomState):
        return hash(str([part.tobytes() if hasattr(part, "tobytes") else part for part in value.get_state()]))
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, np.ndarray):
        return value.shape, words(value.ravel().tolist()) if value.dtype.hasobject else _numbers(value)
    if isinstance(value, GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, NUMBERS):
        return type(value), repr(value)
    if isinstance(value, BUFFERS):
        return _bytes(value)
    if isinstance(value, StringIO | BytesIO):
        return None if value.closed else (value.getvalue(), value.tell())
    if isinstance(value, LOCKS):
        return repr(value).partition(" at ")[0]  # with the count of an RLock
    if isinstance(value, OPAQUE):
        return object()  # differs from itself
    if isinstance(value, dict):
        keys = OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)
        parts = dict.values(value) if size(value) > MOST_PARTS else ()
        return words([*keys, *parts])
    if isinstance(value, CONTAINERS) and size(value) > MOST_PARTS:
        return words(value)
    return None


def kind_of(value: Any) -> Any:
    """The size of a container, the code of a function, the class of another object: compared besides its parts."""
    if isinstance(value, CONTAINERS):
        return size(value)
    if isinstance(value, FunctionType | MethodType):
        return id(getattr(getattr(value, "__func__", value), "__code__", None))
    return id(value if isinstance(value, type) else type(value))


def words(parts: Iterable[Any]) -> int:
    """A hash of many parts: of numbers and texts by value; of containers, small arrays and objects with attributes by
    what they hold; of others by identity."""
    return hash(tuple(_word(part) for part in parts))


def _word(part: Any, depth: int = 2) -> Any:
    if type(part) in PLAIN:
        return part
    if isinstance(part, np.ndarray):
        return id(part) if part.dtype.hasobject or part.nbytes > SMALL else _numbers(part)
    if isinstance(part, torch.Tensor):
        return id(part), part._version
    if depth == 0 or isinstance(part, type | ModuleType | FunctionType | MethodType):
        return id(part)
    inner: list[Any] = [*held_by(part).values()]
    with suppress(Exception):  # a class decides what its own __iter__ does
        if isinstance(part, dict):
            inner += [*dict.keys(part), *dict.values(part)]
        elif isinstance(part, CONTAINERS):
            inner += list(part) if size(part) <= MOST_PARTS else [size(part)]
    own = () if type(part) in (list, tuple, set, dict) else (id(part),)
    return (*own, *(_word(each, depth - 1) for each in inner))


def _numbers(value: np.ndarray) -> int:
    """A checksum of an array's words. Of repeated ones (strides of 0) only one is read."""
    once = value[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.strides)]
    return crc32(np.ascontiguousarray(once).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _bytes(value: Any) -> int | None:
    try:
        view = memoryview(value)
        return crc32(view if view.c_contiguous else view.tobytes())
    except (ValueError, BufferError):  # closed, or released
        return None


def size(value: Any) -> int:
    """The size of a container, without a call of its own code."""
    return dict.__len__(value) if isinstance(value, dict) else len(value)

"""Parts of objects of libraries, in which the user's code may keep numbers.

In: an object of Python's own library, of torch or NumPy. Out: (name, part) pairs. Only `reduced` calls a method of the
object, the one by which Python copies it.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import logging
import multiprocessing.process
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import cached_property, partial, partialmethod
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any
from unittest.mock import NonCallableMock
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler

from vgame.system.installed import is_made_by_user

LEAVES = (int, float, complex, str, bytes, torch.Tensor, type(None))
PLAIN = {int, bool, float, complex, str, bytes, type(None)}
#: Objects that change by themselves, or by what a loss prints. Only numbers and texts in their attributes are parts.
SINKS = (
    logging.Logger, logging.Handler, logging.Filter, logging.LoggerAdapter, logging.Manager, io.IOBase,
    threading.Thread, threading.Condition, Executor, Future, multiprocessing.process.BaseProcess, subprocess.Popen,
    socket.socket, asyncio.AbstractEventLoop, cProfile.Profile, NonCallableMock,
)  # fmt: skip
HOLDERS = (logging.Logger, logging.LoggerAdapter, Future)
TRAINING = (torch.optim.Optimizer, LRScheduler)
COLLECTIONS = (list, dict, set)
FUNCTIONS = (FunctionType, MethodType, partial)
#: No parts: from these, all code and all modules of the process can be reached.
EXCLUDED = (type, ModuleType, CodeType, FrameType, TracebackType)


def held_by(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, without a call of its class's code (`__getattr__` may raise anything)."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or a property of this name raises
        return {}
    return held if isinstance(held, dict) else {}


def has_attributes(value: Any) -> bool:
    """Whether an object can have attributes of its own."""
    return bool(type(value).__dictoffset__)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Attributes that the user has set on a number, a text, a tensor, a container or a function of a library."""
    held = held_by(value)
    if isinstance(value, torch.Tensor):
        own = {k: v for k, v in held.items() if v is not None and k != "_is_param" and "_memo" not in k}
        return [(k, v) for k, v in own.items() if is_kept(v)]
    return [(k, v) for k, v in held.items() if k != "__wrapped__"]


def is_kept(value: Any) -> bool:
    """Whether a value on an object of a library may be the user's: a number, a text, a container, an object of the
    user's class."""
    return type(value) in PLAIN or isinstance(value, (*COLLECTIONS, deque)) or is_made_by_user(type(value).__module__)


def of_library(value: Any) -> list[tuple[Any, Any]]:
    """The parts of an object of a library's class."""
    room = str(type(value).__module__).partition(".")[0]
    if room == "vgame":
        return []
    held = held_by(value)
    if isinstance(value, SINKS):
        kinds = (*PLAIN, *COLLECTIONS) if isinstance(value, HOLDERS) else PLAIN
        return [(k, v) for k, v in held.items() if type(v) in kinds]
    if isinstance(value, TRAINING):
        return list(held.items())
    if room in sys.stdlib_module_names:
        return list(held.items()) or referents(value) or reduced(value)
    return [(k, v) for k, v in held.items() if is_kept(v) or isinstance(v, FUNCTIONS)]


def referents(value: Any) -> list[tuple[int, Any]]:
    """What an object of C refers to."""
    return list(enumerate(part for part in gc.get_referents(value) if not isinstance(part, EXCLUDED)))


def wrapped(function: FunctionType) -> list[tuple[str, Any]]:
    """What a function of a library holds that the user has given it, as a decorator does. A weak dictionary is a cache
    of the library's."""
    found = [*vars(function).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            found.append(cell.cell_contents)
    caches = [v for v in found if isinstance(v.__self__ if isinstance(v, MethodType) else v, WeakKeyDictionary)]
    return [("", v) for v in found if not (isinstance(v, (*LEAVES, *EXCLUDED)) or any(v is each for each in caches))]


def functions_of(descriptor: Any) -> list[Any]:
    """The functions by which an attribute of a class is read, set or deleted; else the value itself."""
    if isinstance(descriptor, property):
        return [f for f in (descriptor.fget, descriptor.fset, descriptor.fdel) if f is not None]
    if isinstance(descriptor, staticmethod | classmethod):
        return functions_of(descriptor.__func__)
    if isinstance(descriptor, cached_property):
        return [descriptor.func]
    if isinstance(descriptor, partialmethod):
        return [descriptor.func, *descriptor.args, *descriptor.keywords.values()]
    return [descriptor]


def position(value: Iterator[Any]) -> list[tuple[int, Any]]:
    """The parts of an iterator without attributes, which give its position."""
    if parts := reduced(value):
        return parts
    numbers = []
    for name in ("index", "iterindex", "line_num"):
        with suppress(Exception):  # it has no such attribute, or not now
            numbers.append(getattr(value, name))
    return [*enumerate(numbers), *referents(value)]


def reduced(value: Any) -> list[tuple[int, Any]]:
    """The parts from which Python makes a copy of an object (`__reduce_ex__`); none if it cannot be copied."""
    try:
        return list(enumerate(value.__reduce_ex__(4)[1:]))
    except Exception:  # a class decides what it raises
        return []

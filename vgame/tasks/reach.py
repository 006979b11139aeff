"""Values that the user's functions and objects can reach: attributes, slots, class attributes, closures, globals, parts
of containers, the position of iterators.

In: a loss, a module or a data set. Out: (name, value) of everything reachable from it, each object once. A name reached
through a function ends with the line where the function uses it.
"""

from __future__ import annotations

import builtins
import ctypes
import dis
import functools
import gc
import random
import re
import struct
import sys
import threading
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from importlib.util import resolve_name
from io import BytesIO, StringIO
from mmap import mmap
from multiprocessing.sharedctypes import SynchronizedBase
from pathlib import Path
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn

from vgame.system.installed import is_installed, is_of_user, is_own_module
from vgame.tasks.by_name import named_at_run_time, of_code, of_library_class, set_by_the_user
from vgame.tasks.opened import LEAVES, PLAIN, attributes, functions_of, of_library, position, referents, wrapped

LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: Iterators of C that do not show their position.
OPAQUE = (type(re.compile("").scanner("")), type(struct.iter_unpack("b", b"")), type(iter(memoryview(b""))))
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
CACHED = functools._lru_cache_wrapper
NUMBERS = (np.generic, Decimal, Fraction, date, timedelta)
BUFFERS = (bytearray, memoryview, array, mmap, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
CONTAINERS = (list, tuple, set, frozenset, deque)
MOST_PARTS = 1_000  # of a container; a larger one is compared by the identities of its parts only
#: Python's own modules whose objects hold values of the user.
_HOLDERS = {"__main__", "types", "argparse", "collections", "queue", "weakref"}
_LIBRARIES = {"torch", "numpy", "vgame", *sys.stdlib_module_names} - _HOLDERS
_INSIDE = {"training", "_parameters", "_buffers"}


def reached(
    roots: Iterable[tuple[str, Any]], also: Callable[[Any], Iterable[Any]] | None = None
) -> Iterator[tuple[str, Any]]:
    """(name, value) of the roots and everything reachable from them that belongs to the user or holds such values.
    `also`: gives further parts of a value."""
    todo, seen = [(name, "", value) for name, value in roots], set[int]()
    while todo:
        name, where, value = todo.pop()
        if isinstance(value, LEAVES):
            yield name + where, value
            if type(value) not in PLAIN and id(value) not in seen:
                seen.add(id(value))
                inner = attributes(value) + ([] if isinstance(value, torch.Tensor) else _classes(type(value)))
                todo += [(_joined(name, key), where, part) for key, part in inner]
                todo += [(name, where, part) for part in also(value)] if also else []
        elif id(value) not in seen:
            seen.add(id(value))
            yield name + where, value
            todo += [(name, where, part) for part in also(value)] if also else []
            if isinstance(value, FunctionType):
                todo += _of_function(value)
            else:
                todo += [(_joined(name, key), where, part) for key, part in parts(value)]


def _joined(name: str, key: Any) -> str:
    """A path; a key that is no number or text by its class: its own text may be long, and change."""
    return ".".join(filter(None, (name, str(key) if type(key) in PLAIN else type(key).__name__)))


def state(value: Any) -> Any:
    """A comparable form of a value that can change in place; None if its parts are compared instead."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else hash(value.getstate())
    if isinstance(value, np.random.Generator):
        return hash(str(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return hash(str([part.tobytes() if hasattr(part, "tobytes") else part for part in value.get_state()]))
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, np.ndarray):
        return value.shape, hash(value.tobytes()) if value.dtype != object else words(value.ravel().tolist())
    if isinstance(value, GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, NUMBERS):
        return type(value), repr(value)
    if isinstance(value, BUFFERS):
        return _bytes(value)
    if isinstance(value, StringIO | BytesIO):
        return value.getvalue()
    if isinstance(value, LOCKS):
        return repr(value).partition(" at ")[0]  # with the count of an RLock
    if isinstance(value, OPAQUE):
        return object()  # differs from itself
    if isinstance(value, dict):
        keys = OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)
        parts = dict.values(value) if _size(value) > MOST_PARTS else ()
        return words([*keys, *parts])
    if isinstance(value, CONTAINERS) and _size(value) > MOST_PARTS:
        return words(value)
    return None


def kind_of(value: Any) -> Any:
    """The size of a container, the code of a function, the class of another object: compared besides its parts."""
    if isinstance(value, CONTAINERS):
        return _size(value)
    if isinstance(value, FunctionType | MethodType):
        return id(getattr(getattr(value, "__func__", value), "__code__", None))
    return id(value if isinstance(value, type) else type(value))


def words(parts: Iterable[Any]) -> int:
    """A hash of many parts: of numbers and texts by value, of containers by their own parts, of others by identity."""
    return hash(tuple(_word(part) for part in parts))


def _word(part: Any) -> Any:
    if type(part) in (list, tuple, set, dict):
        inner = [*part, *part.values()] if isinstance(part, dict) else part
        return tuple(each if type(each) in PLAIN else id(each) for each in inner)
    return part if type(part) in PLAIN else id(part)


def _of_context(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:  # it has no value
        return None


def _bytes(value: Any) -> bytes | None:
    try:
        return bytes(memoryview(value))
    except ValueError:  # a closed mmap
        return None


def _size(value: Any) -> int:
    """The size of a container, without a call of its own code."""
    return dict.__len__(value) if isinstance(value, dict) else len(value)


def parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of an object that is not a function."""
    if isinstance(value, (*CONTAINERS, dict)) and _size(value) > MOST_PARTS:
        return []
    if isinstance(value, dict):
        made = [("default_factory", value.default_factory)] if isinstance(value, defaultdict) else []
        return [*dict.items(value), *made, *attributes(value), *_classes(type(value))]
    if isinstance(value, CONTAINERS) and not hasattr(value, "__dict__"):
        return list(enumerate(value))
    if isinstance(value, MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, BuiltinMethodType | MethodWrapperType):
        return [("", value.__self__)]
    if isinstance(value, MappingProxyType):
        return list(value.items())
    if isinstance(value, ContextVar):
        return [("", _of_context(value))]
    if isinstance(value, threading.local):
        return list(vars(value).items())
    if isinstance(value, SynchronizedBase):
        return [("", value.get_obj())]
    if isinstance(value, CACHED):
        return [("", value.__wrapped__), *_results(value), *attributes(value)]
    if isinstance(value, partial):
        return [("", value.func), *enumerate(value.args), *value.keywords.items(), *attributes(value)]
    if isinstance(value, GeneratorType):
        return [*value.gi_frame.f_locals.items(), *referents(value)] if value.gi_frame else []
    if isinstance(value, type):
        return [*of_class(value), *_classes(type(value))] if is_own_class(value) else of_library_class(value)
    if isinstance(value, weakref.ref):
        return [("", value())]
    if isinstance(value, np.ndarray):
        few = value.ravel().tolist() if value.dtype == object and value.size <= MOST_PARTS else []
        return [*enumerate(few), *attributes(value)]
    if isinstance(value, GENERATORS):
        return [(name, part) for name, part in attributes(value) if name != "gauss_next"]
    if isinstance(value, ModuleType):
        return [] if sys.modules.get(value.__name__) is value else list(vars(value).items())
    if isinstance(value, Iterator) and not hasattr(value, "__dict__"):
        return position(value)
    return _of_object(value)


def _of_object(value: Any) -> list[tuple[Any, Any]]:
    kind = type(value)
    if not isinstance(value, nn.Module) and is_library_class(kind):
        return of_library(value)
    held = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in _INSIDE}
    if isinstance(value, nn.Module):
        held |= held.pop("_modules", {})
    parts = list(enumerate(value)) if isinstance(value, CONTAINERS) else []
    for each in kind.__mro__:
        for name, slot in vars(each).items():
            if isinstance(slot, MemberDescriptorType) and name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):
                    held[name] = slot.__get__(value)
    classes = [("", each) for each in kind.__mro__ if is_own_class(each) or issubclass(each, nn.Module)]
    return [*parts, *held.items(), *classes] or referents(value)  # of C, in another library


def _classes(kind: type) -> list[tuple[str, type]]:
    """The user's classes from which a class is derived, itself included."""
    return [("", each) for each in kind.__mro__ if is_own_class(each)]


def of_class(kind: type) -> list[tuple[str, Any]]:
    """Attributes and functions of a user's class."""
    inner = [(name, value) for name, held in vars(kind).items() for value in functions_of(held)]
    return [(name, value) for name, value in inner if isinstance(value, FunctionType) or not name.startswith("__")]


def _results(cached: Any) -> list[tuple[str, Any]]:
    """The results that a cached function keeps."""
    kept = [
        v for each in gc.get_referents(cached) if type(each) is dict and each is not vars(cached) for v in each.values()
    ]
    ends = [gc.get_referents(v) if type(v).__name__ == "_lru_list_elem" else [v] for v in kept]
    return [("result", v) for each in ends for v in each if not isinstance(v, type)]


def _of_function(function: FunctionType) -> list[tuple[str, str, Any]]:
    """Closure, defaults and globals of a function, with the places where it uses them."""
    code = function.__code__
    if (function.__module__ or "").startswith("vgame.program"):
        return []
    if is_installed(code.co_filename):
        return [(name, "", part) for name, part in wrapped(function)]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    read = {}
    for name, cell in cells:
        with suppress(ValueError):  # the cell is empty
            read[name] = cell.cell_contents
    used, named = _names(code), _attributes(code)
    read |= {n: function.__globals__[n] for n in used.keys() & function.__globals__.keys() - set(code.co_freevars)}
    read |= {n: v for n in used if n not in read and type(v := vars(builtins).get(n)) in PLAIN}
    for name, value, line in imported(code, function.__globals__.get("__package__") or ""):
        read[name] = value
        used = used | {name: line}
    for name, value in list(read.items()):
        read |= _parts_named(name, value, named) | of_code(name, value, named)
    read |= named_at_run_time(used, named, function.__globals__, read)
    file, own_place = Path(code.co_filename).name, getattr(function, "place", None)  # of an adapter's function
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    lines = {n: f" ({file} line {used.get(n.split('.')[0], code.co_firstlineno)})" for n in read}
    places = [(n, own_place or lines[n], v) for n, v in read.items()]
    first = f" ({file} line {code.co_firstlineno})"
    own = [(f"{function.__name__}.{n}", first, v) for n, v in vars(function).items()]
    return places + own + [(f"a default of {function.__name__}", first, v) for v in defaults]


@cache
def _names(code: CodeType) -> dict[str, int]:
    """The globals and free variables that a function and its inner functions use, with the first line of each use."""
    found: dict[str, int] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "STORE_GLOBAL", "STORE_DEREF"):
            found.setdefault(instruction.argval, line)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found = _names(inner) | found
    return found


def imported(code: CodeType, package: str) -> Iterator[tuple[str, Any, int]]:
    """(name, object, line) of the user's modules, and of their objects, that a function and its inner functions
    import."""
    for path, level, name, line in _imports(code):
        with suppress(ImportError):  # a relative import without a package
            full = resolve_name("." * level + path, package)
            module = sys.modules.get(full)  # a module that is not imported yet has no state yet
            found = vars(module).get(name) or sys.modules.get(f"{full}.{name}") if name and module else module
            if found is not None and module is not None and is_own_module(module):
                yield name or path.rpartition(".")[2], found, line


@cache
def _imports(code: CodeType) -> list[tuple[str, int, str, int]]:
    """(module, level of a relative import, name or empty, line)."""
    found, path, level, line = list[tuple[str, int, str, int]](), "", 0, code.co_firstlineno
    arguments: deque[Any] = deque([0, None], maxlen=2)
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname == "IMPORT_NAME":
            path, level = instruction.argval, arguments[0] or 0
            found.append((path, level, "", line))
        elif instruction.opname == "IMPORT_FROM":
            found.append((path, level, instruction.argval, line))
        arguments.append(instruction.argval)
    return found + [each for inner in code.co_consts if isinstance(inner, CodeType) for each in _imports(inner)]


def _parts_named(name: str, value: Any, names: frozenset[str], depth: int = 2) -> dict[str, Any]:
    """The attributes of a module, or of a class of a library, that code may read, by these names; of what is not the
    user's, only what the user may have put there."""
    if isinstance(value, CACHED) and "cache_info" in names:
        return {f"{name}.cache_info()": value.cache_info()}
    if not isinstance(value, ModuleType | type) or (isinstance(value, type) and is_own_class(value)):
        return {}
    found, own = dict[str, Any](), isinstance(value, ModuleType) and is_own_module(value)
    held = vars(value)
    for each in [name for name in names if name in held]:
        part = held[each]
        if own or set_by_the_user(value, part):
            found[f"{name}.{each}"] = part
        if depth > 1 and isinstance(part, ModuleType | type) and not _is_own(part):
            found |= _parts_named(f"{name}.{each}", part, names, depth - 1)
    return found


def _is_own(value: Any) -> bool:
    return is_own_class(value) if isinstance(value, type) else is_own_module(value)


@cache
def _attributes(code: CodeType) -> frozenset[str]:
    inner = (_attributes(c) for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(code.co_names).union(*inner)


def is_own_class(kind: type) -> bool:
    """Whether a class is the user's."""
    module = sys.modules.get(kind.__module__)
    return not is_library_class(kind) and module is not None and (is_own_module(module) or _is_executed(kind))


def _is_executed(kind: type) -> bool:
    """Whether a class was made by `exec` without the name of a module."""
    return kind.__module__ == "builtins" and bool(kind.__flags__ & 1 << 9)  # a heap type; Python's own are static


def is_library_class(kind: type) -> bool:
    """Whether a class belongs to torch, NumPy, vgame or Python. `of_library` gives the parts of its objects."""
    name = str(kind.__module__)
    file = getattr(sys.modules.get(name), "__file__", None)
    if (file and is_of_user(file)) or _is_executed(kind):
        return False  # also of a user's file with the name of a module of Python, such as sched.py
    return name.partition(".")[0] in _LIBRARIES and not name.startswith("torch.utils.data")

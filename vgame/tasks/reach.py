"""Values that the user's functions and objects can reach: attributes, slots, class attributes, closures, globals, parts
of containers, the position of iterators.

In: a loss, a module or a data set. Out: (name, value) of everything reachable from it, each object once. A name reached
through a function ends with the line where the function uses it.
"""

from __future__ import annotations

import builtins
import dis
import functools
import gc
import random
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial, singledispatchmethod
from importlib.util import resolve_name
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

from vgame.system.installed import is_installed, is_made_by_user, is_of_user, is_own_module
from vgame.tasks.by_name import can_count, named_at_run_time, of_code, of_library_class, set_by_the_user
from vgame.tasks.fingerprint import CONTAINERS, MOST_PARTS, size
from vgame.tasks.opened import (
    LEAVES,
    PLAIN,
    attributes,
    functions_of,
    has_attributes,
    held_by,
    of_library,
    position,
    referents,
    wrapped,
)

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
CACHED = functools._lru_cache_wrapper
#: Python's own modules whose objects hold values of the user.
_HOLDERS = {"__main__", "types", "argparse", "collections", "queue", "weakref"}
_LIBRARIES = {"torch", "numpy", "vgame", *sys.stdlib_module_names} - _HOLDERS
_INSIDE = {"training", "_parameters", "_buffers"}  # of a module of torch; these are compared elsewhere
#: Attributes of a class that Python and libraries set.
_STANDARD = {
    "__abstractmethods__", "__annotations__", "__attrs_attrs__", "__dataclass_fields__", "__dataclass_params__",
    "__dict__", "__firstlineno__", "__members__", "__orig_bases__", "__parameters__", "__signature__",
    "__slotnames__", "__slots__", "__static_attributes__", "__weakref__",
}  # fmt: skip
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)


class Again(str):
    """The path by which an object was reached first, at a second path: a reference can move from object to object."""


class _Named:
    """A module of which only the attributes that code names are parts."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module


def reached(
    roots: Iterable[tuple[str, Any]], also: Callable[[Any], Iterable[Any]] | None = None
) -> Iterator[tuple[str, Any]]:
    """(name, value) of the roots and everything reachable from them that belongs to the user or holds such values.
    `also`: gives further parts of a value. At further paths to an object the value is `Again`."""
    todo = [(name, "", value) for name, value in roots]
    seen = dict[int, tuple[Any, Again]]()  # the objects too: another one would get the identity of one that is gone
    while todo:
        name, where, value = todo.pop()
        if type(value) is _Named:
            yield name + where, value.module
        elif type(value) in _PROXIES:
            todo += [(name, where, part) for part in behind(value)]
        elif isinstance(value, LEAVES):
            yield name + where, value
            if type(value) not in PLAIN and id(value) not in seen:
                seen[id(value)] = value, Again(name)
                inner = attributes(value) + ([] if isinstance(value, torch.Tensor) else _classes(type(value)))
                todo += [(_joined(name, key), where, part) for key, part in inner]
                todo += [(name, where, part) for part in also(value)] if also else []
        elif id(value) in seen:
            if not isinstance(value, type | ModuleType):
                yield name + where, seen[id(value)][1]
        else:
            seen[id(value)] = value, Again(name)
            yield name + where, value
            todo += [(name, where, part) for part in also(value)] if also else []
            if isinstance(value, FunctionType):
                todo += _of_function(value)
            else:
                todo += [(_joined(name, key), where, part) for key, part in parts(value)]


def _joined(name: str, key: Any) -> str:
    """A path; a key that is no number or text by its class: its own text may be long, and change."""
    return ".".join(filter(None, (name, str(key) if type(key) in PLAIN else type(key).__name__)))


def _of_context(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:  # it has no value
        return None


def behind(proxy: Any) -> list[Any]:
    """The object of a weak proxy, unless it is gone."""
    with suppress(ReferenceError, AttributeError):
        return [proxy.__init__.__self__]
    return []


def parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of an object that is not a function."""
    if isinstance(value, dict):
        few = dict.items(value) if size(value) <= MOST_PARTS else ()
        made = [("default_factory", value.default_factory)] if isinstance(value, defaultdict) else []
        return [*few, *made, *attributes(value), *_classes(type(value))]
    if isinstance(value, CONTAINERS) and size(value) > MOST_PARTS:
        return [*attributes(value), *_classes(type(value))]
    if isinstance(value, CONTAINERS) and not has_attributes(value):
        return [*enumerate(value), *_classes(type(value))]
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
        return _of_module(value)
    if isinstance(value, Iterator) and not has_attributes(value):
        return position(value)
    return _of_object(value)


def _of_module(module: ModuleType) -> list[tuple[str, Any]]:
    """What a module of the user holds that can count; all of one that is not imported by its name."""
    held = [(name, value) for name, value in vars(module).items() if not name.startswith("__")]
    if sys.modules.get(module.__name__) is not module:
        return held
    if not is_made_by_user(module.__name__):
        return []
    return [(name, v) for name, v in held if can_count(v) or type(v) in PLAIN or _is_plain(v)]


def _of_object(value: Any) -> list[tuple[Any, Any]]:
    kind, held = type(value), dict(held_by(value))
    if isinstance(value, nn.Module):
        held = {k: v for k, v in held.items() if k not in _INSIDE}
        held |= held.pop("_modules", {})
    elif is_library_class(kind):
        return of_library(value)
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
    return [(name, value) for name, value in inner if not name.startswith("__") or _is_of_user(name, value)]


def _is_of_user(name: str, value: Any) -> bool:
    """Whether an attribute of a class with __ before its name may be the user's."""
    kept = isinstance(value, int | float | list | set | deque | dict | singledispatchmethod)
    return isinstance(value, FunctionType) or (name not in _STANDARD and (kept or is_own_class(type(value))))


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
    named = named.union(*(_attributes(f.__code__) for f in map(function.__globals__.get, used) if _is_plain(f)))
    read |= {n: function.__globals__[n] for n in used.keys() & function.__globals__.keys() - set(code.co_freevars)}
    read |= {n: v for n in used if n not in read and set_by_the_user(builtins, v := vars(builtins).get(n))}
    for name, value, line in imported(code, function.__globals__.get("__package__") or ""):
        read[name] = value
        used = used | {name: line}
    for name, value in list(read.items()):
        read |= _parts_named(name, value, named) | of_code(name, value, named)
    read |= named_at_run_time(used, named, function.__globals__, read)
    file, own_place = Path(code.co_filename).name, getattr(function, "place", None)  # of an adapter's function
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    lines = {n: f" ({file} line {used.get(n.split('.')[0], code.co_firstlineno)})" for n in read}
    read = {n: _Named(v) if isinstance(v, ModuleType) else v for n, v in read.items()}
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


def _is_plain(value: Any) -> bool:
    """Whether it is a function of the user's code, which may get a module as its argument."""
    return isinstance(value, FunctionType) and is_of_user(value.__code__.co_filename)


def _parts_named(name: str, value: Any, names: frozenset[str], depth: int = 2) -> dict[str, Any]:
    """The attributes of a module, or of a class of a library, that code may read, by these names; of what is not the
    user's, only what the user may have put there."""
    if isinstance(value, CACHED) and "cache_info" in names:
        return {f"{name}.cache_info()": value.cache_info()}
    if not isinstance(value, ModuleType | type) or (isinstance(value, type) and is_own_class(value)):
        return {}  # a class of the user is opened as a whole
    found, own = dict[str, Any](), isinstance(value, ModuleType) and is_own_module(value)
    held = vars(value)
    for each in [name for name in names if name in held]:
        part = held[each]
        if own or set_by_the_user(value, part):
            found[f"{name}.{each}"] = part
        if depth > 1 and part is not value and isinstance(part, ModuleType | type):
            found |= _parts_named(f"{name}.{each}", part, names, depth if own and is_inside(part, value) else depth - 1)
    return found


def is_inside(part: Any, module: Any) -> bool:
    """Whether a module is one of a package's."""
    return isinstance(part, ModuleType) and part.__name__.startswith(f"{module.__name__}.")


@cache
def _attributes(code: CodeType) -> frozenset[str]:
    inner = (_attributes(c) for c in code.co_consts if isinstance(c, CodeType))
    return frozenset(code.co_names).union(*inner)


def is_own_class(kind: type) -> bool:
    """Whether a class is the user's."""
    if is_library_class(kind):
        return False
    module = sys.modules.get(kind.__module__)
    if module is None:  # a file that was executed, not imported
        return any(_is_plain(value) for held in vars(kind).values() for value in functions_of(held))
    return is_own_module(module) or _is_executed(kind)


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

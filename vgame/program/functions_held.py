"""The values that functions of an optimizer and its schedulers read: a copy of an optimizer shares them with the
original.

In: functions. Out: what they read besides their arguments, by path, in a comparable form; ProgramError for one that
reads an optimizer, a module or a parameter itself.
"""

from __future__ import annotations

import argparse
import dis
import pickle
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from multiprocessing.sharedctypes import SynchronizedBase
from pathlib import Path
from types import BuiltinMethodType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.named import ABSENT, CALLED, WHOLE, Names, names_read, part_at
from vgame.tasks.fingerprint import state
from vgame.tasks.reach import CACHED, imported, is_library_class, is_own_class, of_class
from vgame.tasks.reach import parts as attributes

LIVE = (torch.optim.Optimizer, LRScheduler, nn.Module, nn.Parameter)
LEAVES = (int, float, complex, str, bytes, type(None))
HOLDERS = (ContextVar, MappingProxyType, SynchronizedBase)
FOLLOWED = (FunctionType, MethodType, BuiltinMethodType, partial, CACHED, ModuleType, type)
NOTHING: Mapping[str, Any] = MappingProxyType({})
STANDARD = (dict, list, tuple, set, frozenset, deque, SimpleNamespace, argparse.Namespace)


class Reader:
    """The values that functions read besides their arguments."""

    def __init__(self, model: nn.Module | None, apart: Iterable[Any] = ()) -> None:
        """`apart`: objects that may not be read as a whole."""
        self.places, self.apart = {*tensors_of(model)}, {id(each) for each in apart}
        self.found: dict[str, tuple[Any, ...]] = {}
        self.seen: dict[int, Any] = {}  # objects that were read as a whole, by `id`, which this keeps alive
        self.opened: dict[int, Any] = {}  # objects of which an attribute was read
        self.calls: dict[tuple[Any, ...], Any] = {}
        self.todo: list[tuple[str, str, Any, Names]] = []

    def read(self, *roots: tuple[str, str, Any, Names]) -> None:
        """Read roots (path, where, value, attributes read of it): `found` has the values by path and place."""
        self.todo += roots
        while self.todo:
            path, where, value, names = self.todo.pop()
            if names == CALLED and isinstance(value, FunctionType | MethodType | partial):
                self._called(path, where, value)
            elif names in (WHOLE, CALLED):
                self._whole(path, where, value)
            else:
                self._part(path, where, value, names)

    def objects(self) -> dict[int, Any]:
        """The objects, by `id`, of which something was read."""
        fixed = FunctionType | ModuleType | type
        return {key: v for key, v in (self.opened | self.seen).items() if not isinstance(v, fixed)}

    def _part(self, path: str, where: str, value: Any, names: Names) -> None:
        try:
            part, rest = part_at(value, names)
        except LookupError:
            return self._whole(path, where, value)
        self.opened[id(value)] = value
        self.todo.append((f"{path}.{names[0]}", where, part, rest))
        return None

    def _whole(self, path: str, where: str, value: Any) -> None:
        inside = isinstance(value, torch.Tensor) and place_of(value) in self.places
        if isinstance(value, LIVE) or inside or id(value) in self.apart:
            kind = "tensor of the model" if inside and not isinstance(value, LIVE) else type(value).__name__
            raise ProgramError(
                f"a function of the optimizer or of its schedulers reads {path}{where}, a {kind}, but a "
                "capture works on copies of these objects; let the function read numbers instead"
            )
        if isinstance(value, LEAVES) or value is ABSENT:
            self._note(path + where, value)
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            self._note(path + where, _words(path + where, value))
            if isinstance(value, FunctionType):
                self._called(path, where, value)
            else:
                self.todo += [(inner, where, part, WHOLE) for inner, part in (*parts(path, value), *_code(path, value))]

    def _note(self, path: str, word: Any) -> None:
        self.found[path] = (*self.found.get(path, ()), word)

    def _called(
        self, path: str, where: str, called: Any, given: tuple[Any, ...] = (), named: Mapping[str, Any] = NOTHING
    ) -> None:
        """A function, method or partial that is called with these arguments and others."""
        if isinstance(called, partial):
            return self._called(path, where, called.func, (*called.args, *given), {**called.keywords, **named})
        if isinstance(called, MethodType):
            return self._called(path, where, called.__func__, (called.__self__, *given), named)
        key = (id(called), *map(id, given), *((name, id(value)) for name, value in named.items()))
        if key not in self.calls:
            self.calls[key] = called, given, named
            if isinstance(called, FunctionType) and (called.__module__ or "").split(".")[0] != "torch":
                self._function(called, given, named)
            else:
                self.todo += [(path, where, value, WHOLE) for value in (called, *given, *named.values())]
        return None

    def _function(self, function: FunctionType, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        code, where = function.__code__, f" in {_place(function)}"
        paths = names_read(code)
        for path, name, value in _values_of(function, given, named):
            self.todo += [(path, where, value, names) for names in ({WHOLE} if not name else paths.get(name, ()))]


def _values_of(
    function: FunctionType, given: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """(path, name, value) of the names of a function: closure, globals, arguments, defaults; without a name the values
    that its code reaches in other ways."""
    code = function.__code__
    count = code.co_argcount
    names, own = code.co_varnames[:count], code.co_varnames[: count + code.co_kwonlyargcount]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, name, cell.cell_contents) for name, cell in cells if _is_full(cell))
    globals_read = _globals(code) & function.__globals__.keys()
    yield from ((name, name, function.__globals__[name]) for name in sorted(globals_read))
    yield from ((name, name, value) for name, value in zip(names, given, strict=False))
    yield from ((name, name if name in own else "", value) for name, value in named.items())
    yield from (("an argument", "", value) for value in given[count:])
    defaults = zip(reversed(names), reversed(function.__defaults__ or ()), strict=False)
    for name, value in (*defaults, *(function.__kwdefaults__ or {}).items()):
        yield f"a default ({name})", name, value
    yield from ((f"{function.__name__}.{name}", "", value) for name, value in vars(function).items())
    yield from ((name, "", value) for name, value, _ in imported(code, function.__globals__.get("__package__") or ""))


def _code(path: str, value: Any) -> list[tuple[str, Any]]:
    """(path, part) of the parts of the user's classes of an object; for a cache its function, for a built-in method its
    object."""
    if isinstance(value, CACHED):
        return [(path, value.__wrapped__)]
    if isinstance(value, BuiltinMethodType):
        return [(path, value.__self__)]
    kinds = (value if isinstance(value, type) else type(value)).__mro__
    own = [kind for kind in kinds if is_own_class(kind) and not issubclass(kind, LIVE)]
    return [(f"{path}.{name}", part) for kind in own for name, part in of_class(kind)]


def place_of(tensor: torch.Tensor) -> Any:
    """The memory of a tensor, which its views share; None without one (a sparse tensor)."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def tensors_of(model: nn.Module | None) -> dict[Any, tuple[str, torch.Tensor]]:
    """The parameters and buffers of a model, with their names, by their memory."""
    tensors = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
    return {place: pair for pair in tensors if (place := place_of(pair[1])) is not None}


def _place(function: FunctionType) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({Path(code.co_filename).name} line {code.co_firstlineno})"


def _words(path: str, value: Any) -> Any:
    """A comparable form of a value itself, without its parts."""
    if isinstance(value, torch.Tensor):
        return value, value._version
    if isinstance(value, Iterator | random.Random | np.ndarray | np.random.Generator | np.random.RandomState):
        try:
            return pickle.dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError):
            raise ProgramError(
                f"a function of the optimizer or of its schedulers reads {path}, a {type(value).__name__}, which "
                "cannot be compared; let it read a list of numbers instead"
            ) from None
    words = len(value) if isinstance(value, STANDARD[:6]) else state(value)
    words = _pickled(value) if words is None and _is_of_python(value) else words
    return type(value), value.__code__ if isinstance(value, FunctionType) else None, words


def _is_of_python(value: Any) -> bool:
    """Whether a value is an object of Python's own library, such as a ConfigParser, whose parts are not read
    otherwise."""
    kind = type(value)
    if isinstance(value, (*STANDARD, *HOLDERS, *FOLLOWED)):
        return False
    return is_library_class(kind) and kind.__module__.split(".")[0] in sys.stdlib_module_names


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # a class decides what it raises
        return None


def parts(path: str, value: Any) -> list[tuple[str, Any]]:
    """(path, part) of the parts of an object outside torch."""
    if isinstance(value, FunctionType):
        return _of_function(path, value)
    if isinstance(value, MethodType):
        return [(path, value.__func__), (path, value.__self__)]
    if isinstance(value, partial):
        return [(path, value.func), (path, value.args), (path, value.keywords)]
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, STANDARD[1:6]):
        return [(f"{path}[{n}]", part) for n, part in enumerate(value)]
    if isinstance(value, ModuleType | type | Iterator):
        return []
    if isinstance(value, weakref.ref):  # torch's schedulers have one to their optimizer
        return [(path, value())] if not isinstance(value(), LIVE) else []
    if isinstance(value, HOLDERS):
        return [(f"{path}.{name}", part) for name, part in attributes(value)]
    if is_library_class(type(value)) and not isinstance(value, STANDARD):
        opened = _is_of_python(value) and _pickled(value) is None
        return [(f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items() if opened]
    return [(f"{path}.{name}", part) for name, part in attributes(value) if not isinstance(part, type)]


def _of_function(path: str, function: FunctionType) -> list[tuple[str, Any]]:
    """Closure, defaults and globals of a function outside torch."""
    if (function.__module__ or "").split(".")[0] == "torch":
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    read = {name: cell.cell_contents for name, cell in cells if _is_full(cell)}
    read |= {name: function.__globals__[name] for name in _globals(function.__code__) if name in function.__globals__}
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [(f"{name} in {path}", v) for name, v in read.items()] + [(f"a default of {path}", v) for v in defaults]


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _globals(code: CodeType) -> set[str]:
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType)))

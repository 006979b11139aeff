"""Check the values that functions of an optimizer and its schedulers read: a copy of an optimizer shares them with the
original.

In: an optimizer and its schedulers, while a copy of them is played. Out: nothing, or a ProgramError: a function that
reads the optimizer itself, a module or a parameter would read the original, not the copy; a function that changes these
values would find them changed at the next capture.
"""

from __future__ import annotations

import argparse
import dis
import pickle
import random
from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.hidden_state import differing, values_outside
from vgame.tasks.reach import is_library_class, is_own_class, state
from vgame.tasks.reach import parts as attributes

LIVE = (torch.optim.Optimizer, LRScheduler, nn.Module, nn.Parameter)
LEAVES = (int, float, complex, str, bytes, type(None))
STANDARD = (dict, list, tuple, set, frozenset, deque, SimpleNamespace, argparse.Namespace)


@contextmanager
def unchanged_outside(owners: Sequence[torch.optim.Optimizer | LRScheduler], model: nn.Module | None) -> Iterator[None]:
    """Context that raises ProgramError if functions of optimizers or schedulers read values outside the copies, or
    change values that they read, or random numbers are drawn."""
    name = " and ".join(type(each).__name__ for each in owners if isinstance(each, torch.optim.Optimizer))
    held = [value for owner in owners for value in _held(vars(owner))]
    functions = [f for owner in owners for f in _own_functions(type(owner))]
    functions += [value for value in held if isinstance(value, FunctionType)]
    kinds = {*map(type, owners), *(kind for kind in map(type, held) if is_own_class(kind))}
    places = {*tensors_of(model)}
    before, chance, outside = _read(functions, kinds, places), _chance(), values_outside()
    yield
    if chance != _chance():
        raise ProgramError(
            f"the optimizer {name} or its schedulers draw random numbers on the host, so every "
            "capture gets other numbers; draw them with torch.rand_like(p)"
        )
    after = _read(functions, kinds, places)
    other = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    if changed := [*sorted(other), *differing(values_outside(), outside)]:
        raise ProgramError(
            f"the optimizer {name} or its schedulers change {changed[0].split(' in ')[0]} while "
            "they step, so a second capture would start from the changed value; keep it in the optimizer or in an "
            "object of the scheduler"
        )


def _own_classes(kind: type) -> list[type]:
    """The classes outside torch."""
    return [each for each in kind.__mro__ if each.__module__.split(".")[0] not in ("torch", "builtins")]


def _own_functions(kind: type) -> list[FunctionType]:
    return [f for each in _own_classes(kind) for f in vars(each).values() if isinstance(f, FunctionType)]


def _class_attributes(kind: type) -> list[tuple[str, Any]]:
    """(path, value) of numbers, texts and containers of the classes outside torch, which a copy shares."""
    held = [(f"{each.__name__}.{name}", value) for each in _own_classes(kind) for name, value in vars(each).items()]
    return [(path, value) for path, value in held if ".__" not in path and isinstance(value, (*LEAVES, *STANDARD))]


def _held(value: Any) -> list[Any]:
    """Functions, which a copy shares, and plain objects, which are copied: in attributes and containers."""
    found, seen, todo = [], set(), [value]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (*LEAVES, *LIVE, torch.Tensor, ModuleType, type)):
            continue
        seen.add(id(value))
        found.append(value)
        if isinstance(value, MethodType):
            todo += [value.__func__, value.__self__]
        elif not isinstance(value, FunctionType):
            todo += [part for _, part in parts("", value)]
    return found


def _read(functions: Sequence[Any], kinds: Set[type], places: Set[Any]) -> dict[str, Any]:
    """The values that functions read besides their arguments, and those of classes, in a comparable form, by path.
    `places`: the memory of the model's tensors."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    todo = [(_place(f), f) for f in functions] + [part for kind in kinds for part in _class_attributes(kind)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, LIVE) or (isinstance(value, torch.Tensor) and place_of(value) in places):
            kind = type(value).__name__ if isinstance(value, LIVE) else "tensor of the model"
            raise ProgramError(
                f"a function of the optimizer or of its schedulers reads {path}, a {kind}, but a "
                "capture works on copies of these objects; let the function read numbers instead"
            )
        if isinstance(value, LEAVES):
            found[path] = value
        elif id(value) not in seen:
            seen.add(id(value))
            found[path] = _words(path, value)
            todo += parts(path, value)
    return found


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
        return value._version
    if isinstance(value, Iterator | random.Random | np.ndarray | np.random.Generator | np.random.RandomState):
        try:
            return pickle.dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError):
            raise ProgramError(
                f"a function of the optimizer or of its schedulers reads {path}, a {type(value).__name__}, which "
                "cannot be compared; let it read a list of numbers instead"
            ) from None
    return len(value) if isinstance(value, STANDARD[:6]) else state(value)


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
    if isinstance(value, type) and is_own_class(value):
        return _class_attributes(value)
    if isinstance(value, ModuleType | type | Iterator):
        return []
    if is_library_class(type(value)) and not isinstance(value, STANDARD):
        return []
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


def _chance() -> tuple[Any, ...]:
    _, words, *place = np.random.get_state()
    return random.getstate(), words.tobytes(), place, torch.get_rng_state().numpy().tobytes()

"""`type(x)` in the user's code: the class that a traced tensor has in a loop, torch.Tensor or nn.Parameter, and that of
a number read from it, float, int or bool.

In: the functions that run while a step is traced. Out: a context in which the name `type` of their modules, and of all
modules that are neither installed nor vgame's, gives that class; another context, in which isinstance takes unknown
numbers for Python's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from vgame.program.hidden_state import is_library_file
from vgame.program.traps import Changing, class_of, is_called_by_library
from vgame.system.installed import is_installed

NUMBERS: dict[type, type] = {torch.SymFloat: float, torch.SymInt: int, torch.SymBool: bool}  # of a trace, of Python
UNKNOWN = tuple(NUMBERS)
ARITHMETIC = torch.__file__, f"{Path(torch.__file__).parent / 'fx' / 'experimental' / 'sym_node.py'}"


class _Python(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, type)


class Shown(type, metaclass=_Python):
    """Python's `type`, except for traced tensors, unknown numbers and changing values."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        kind = type(*args, **kwargs)
        if len(args) == 1 and (number := next((n for k, n in NUMBERS.items() if issubclass(kind, k)), None)):
            return number
        if len(args) == 1 and issubclass(kind, Changing):
            return class_of(args[0])
        if len(args) != 1 or not issubclass(kind, FakeTensor):
            return Shown if kind is type else kind
        if kind is not FakeTensor:  # a parameter of a class of the user's
            return args[0].__class__
        return nn.Parameter if getattr(args[0], "_is_param", False) else torch.Tensor


@contextmanager
def shown_types(*functions: Any) -> Iterator[None]:
    """Context of the user's code, with the modules of these functions and of the model's classes."""
    places = [vars(sys.modules["__main__"]), *(getattr(f, "__globals__", {}) for f in functions)]
    places += [vars(module) for module in list(sys.modules.values()) if _is_own(getattr(module, "__file__", None))]
    changed = [place for place in {id(place): place for place in places}.values() if "type" not in place]
    for place in changed:
        place["type"] = Shown
    try:
        yield
    finally:
        for place in changed:
            place.pop("type", None)


def _is_own(file: str | None) -> bool:
    return bool(file) and not (is_installed(file) or is_library_file(file))


@contextmanager
def numbers_shown() -> Iterator[None]:
    """Context in which unknown numbers that the user's code computes are shown as Python's."""
    with ExitStack() as stack:
        for kind in NUMBERS:
            stack.enter_context(patch.object(kind, "__init__", _made(kind.__init__)))
        yield


def _made(begin: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if not is_called_by_library(sys._getframe(1), ARITHMETIC):
            shown_number(self)

    return made


def shown_number(value: Any) -> Any:
    """An unknown number, which isinstance takes for one of Python's except in library code; other values unchanged."""
    if type(value) in NUMBERS:
        object.__setattr__(value, "__class__", POSING[type(value)])
    return value


def _posing(kind: Any, number: type) -> type:
    def shown(_: Any) -> type:
        return kind if is_called_by_library(sys._getframe(1)) else number

    return type(kind.__name__, (kind,), {"__class__": property(shown), "__module__": "torch"})


POSING = {kind: _posing(kind, number) for kind, number in NUMBERS.items()}

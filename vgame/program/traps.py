"""Values that change from step to step, as a loss may hold and print but not read: any use of one raises ProgramError.

In: a value of a later step and its name. Out: a stand-in of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.hidden_state import own_line

ABSENT = object()


def refused(what: str) -> ProgramError:
    """The error for a loss that reads a value which changes."""
    return ProgramError(
        f"the loss reads {what}{own_line(traceback.extract_stack())}, which changes from step to step, but the loss of "
        "a program is the same in all steps; remove it"
    )


def _refusing(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise refused(object.__getattribute__(self, "what"))


def _trap(*names: str) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(names, _refusing)


DICT = "getitem setitem delitem len iter contains"
TEXT = "add radd mul rmul mod rmod lt le gt ge eq ne hash len iter contains getitem"
_Text = type("str", (str,), _trap(*(f"__{name}__" for name in TEXT.split()), *(n for n in dir(str) if n[0] != "_")))
_State = type("dict", (dict,), _trap(*(f"__{name}__" for name in DICT.split()), *(n for n in dir(dict) if n[0] != "_")))

#: Methods that Python, or a print, calls of every object. (`__next__` would make an iterator of it.)
_PLAIN = {
    "__class__", "__delattr__", "__dict__", "__dir__", "__doc__", "__format__", "__getattribute__", "__getstate__",
    "__init__", "__init_subclass__", "__module__", "__new__", "__next__", "__repr__", "__setattr__", "__str__",
    "__sizeof__", "__slots__", "__subclasshook__", "__torch_function__", "__weakref__", "__class_getitem__",
}  # fmt: skip
_KINDS = (int, float, complex, str, bytes, list, dict, set, np.ndarray, torch.Tensor)
_ALL = {n for kind in _KINDS for n in dir(kind) if n.startswith("__") and n.endswith("__")} - _PLAIN


class _Read:
    """Anything that changes: to hold it, or to print it, is allowed."""

    __slots__ = ("text", "what")

    def __init__(self, value: Any, what: str) -> None:
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "text", f"<{type(value).__name__}>")

    def __getattribute__(self, name: str) -> Any:
        return type(self) if name == "__class__" else _refusing(self)

    def __setattr__(self, name: str, value: Any) -> None:
        _refusing(self)

    def __repr__(self) -> str:
        return object.__getattribute__(self, "text")  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _refusing(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_shown((args, kwargs or {}))

    vars().update(_trap(*_ALL))


def _number(kind: type) -> Any:
    """A number of which nothing can be read, apart from what prints it."""
    parts = {n: getattr(kind, n) for n in {*dir(kind)} - _PLAIN - {"__getnewargs__", "__getformat__"}}
    traps = {n: _refusing if callable(part) else property(_refusing) for n, part in parts.items()}
    return type(kind.__name__, (kind,), traps)


_Int, _Float = _number(int), _number(float)


def shown(value: Any, what: str) -> Any:
    """A number that can only be printed; other values as they are."""
    if isinstance(value, tuple):
        return tuple(shown(part, what) for part in value)
    kind = _Int if type(value) is int else _Float if isinstance(value, float) else None
    return value if kind is None else _named(kind(value), what)


def trapped(value: Any, what: str) -> Any:
    """A stand-in of any value, also of a flag, a text or None; no value at all stays none."""
    if value is ABSENT:
        return value
    if isinstance(value, str):
        return _named(_Text(value), what)
    value = int(value) if isinstance(value, bool) else value
    return shown(value, what) if is_number(value) else _Read(value, what)


def is_number(value: Any) -> bool:
    """Whether `shown` gives a stand-in of it: a number, or a tuple of numbers."""
    if isinstance(value, tuple):
        return bool(value) and all(map(is_number, value))
    return type(value) is int or isinstance(value, float)


def state_of(what: str) -> Any:
    """An optimizer's state, which may not be read."""
    return _named(_State(), what)


def _named(made: Any, what: str) -> Any:
    vars(made)["what"] = what
    return made


def refuse_shown(arguments: Any) -> None:
    """Raise ProgramError if a stand-in is an argument of a function of torch, which reads it without a call."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, _Int | _Float | _Text | _Read):
            raise refused(object.__getattribute__(leaf, "what"))

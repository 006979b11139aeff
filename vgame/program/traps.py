"""Stand-ins for values that change from step to step: a loss may hold and print one, any other use raises ProgramError.

In: a value of a later step and its name. Out: a stand-in of it. It belongs to no class of Python's numbers or texts,
whose values Python's own code (`table[n]`, `range(n)`, `math.gcd`) reads without a call that could refuse it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.hidden_state import is_library_file, own_line

ABSENT = object()
#: Methods that Python calls on every object, or to make a class. (`__next__` would make an iterator of a stand-in.)
_PLAIN = {
    "__class__", "__class_getitem__", "__del__", "__delete__", "__doc__", "__get__", "__getattr__", "__getattribute__",
    "__init__", "__init_subclass__", "__module__", "__mro_entries__", "__name__", "__new__", "__next__",
    "__prepare__", "__qualname__", "__set__", "__set_name__", "__subclasshook__", "__torch_function__",
}  # fmt: skip
#: Methods by which Python shows a value: `printed.py` lets a statement that prints call them.
SHOWING = ("__str__", "__repr__", "__format__", "__float__", "__int__")
#: Classes of a value that has several in the steps of a job.
_KINDS = (int, float, complex, str, bytes, list, dict, set, np.ndarray, torch.Tensor)


def refused(what: str) -> ProgramError:
    """The error for a loss that reads a value which changes."""
    return ProgramError(
        f"the loss reads {what}{own_line(traceback.extract_stack())}, which changes from step to step, but the loss of "
        "a program is the same in all steps; remove it"
    )


def _refusing(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise refused(object.__getattribute__(self, "what"))


class Changing:
    """A value that changes. `kind`: its class in all steps, if it has one."""

    __slots__ = ("kind", "what")

    def __init__(self, what: str, kind: type | None) -> None:
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "kind", kind)

    def __getattribute__(self, name: str) -> Any:
        if name == "__torch_function__":  # torch reads it from every argument
            return object.__getattribute__(self, name)
        if name != "__class__":
            _refusing(self)
        return type(self) if is_called_by_library(sys._getframe(1)) else class_of(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_changing((args, kwargs or {}))

    vars().update(dict.fromkeys((*SHOWING, "__hash__", "__setattr__", "__delattr__"), _refusing))


def class_of(value: Changing) -> type:
    """The class that the user's code finds."""
    kind: type | None = object.__getattribute__(value, "kind")
    return _refusing(value) if kind is None else kind  # type: ignore[no-any-return]


def is_called_by_library(frame: FrameType | None, between: tuple[str, ...] = ("<frozen abc>",)) -> bool:
    """Whether torch, Python or vgame is the caller; frames of the files `between` are skipped (by default that of
    `isinstance` of numbers.Number)."""
    while frame is not None and frame.f_code.co_filename in between:
        frame = frame.f_back
    return frame is None or is_library_file(frame.f_code.co_filename)


@cache
def _refusing_all(*kinds: type) -> type[Changing]:
    """The class of stand-ins with the methods of these classes."""
    methods = {n for kind in kinds for n in dir(kind) if n.startswith("__") and callable(getattr(kind, n, None))}
    names = methods - _PLAIN - {*SHOWING}
    made: type[Changing] = type("Changing", (Changing,), {"__slots__": (), **dict.fromkeys(names, _refusing)})
    for pattern in (Sequence, Mapping):  # of a `match`
        if issubclass(kinds[0], pattern):
            pattern.register(made)
    return made


def trapped(value: Any, what: str, before: Any = ABSENT) -> Any:
    """A stand-in of any value; of a tuple of numbers, a tuple of stand-ins; ABSENT stays ABSENT. `before`: the value of
    another step."""
    if value is ABSENT:
        return value
    if isinstance(value, tuple) and is_number(value, before):
        return tuple(trapped(part, what) for part in value)
    kind = type(value) if before is ABSENT or type(before) is type(value) else None
    return _refusing_all(*(_KINDS if kind is None else [kind]))(what, kind)


def shown(value: Any, what: str, before: Any = ABSENT) -> Any:
    """A stand-in of a number; other values unchanged."""
    return trapped(value, what, before) if is_number(value, before) else value


def is_number(value: Any, before: Any = ABSENT) -> bool:
    """Whether `shown` gives a stand-in of it: a number, or a tuple of numbers, as long as the one `before`."""
    if not isinstance(value, tuple):
        return type(value) is int or isinstance(value, float)
    same = before is ABSENT or (isinstance(before, tuple) and len(before) == len(value))
    return same and bool(value) and all(map(is_number, value))


def is_trap(value: Any) -> bool:
    """Whether this is the stand-in of a number that `shown` returns."""
    return isinstance(value, Changing) or (isinstance(value, tuple) and any(map(is_trap, value)))


def refuse_changing(arguments: Any) -> None:
    """Raise ProgramError if a stand-in is an argument of a function of torch, which reads it without a call."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Changing):
            raise refused(object.__getattribute__(leaf, "what"))

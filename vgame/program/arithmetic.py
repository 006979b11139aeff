"""Python's arithmetic on unknown numbers that a loss reads from tensors: comparisons, and operations that fail for some
numbers. torch treats an unknown float as a real number: it decides `v != v` without the value, and divides by any
number without an error.

In: the methods of torch's numbers. Out: methods that raise ProgramError where a result would depend on values, or where
the user's code could catch the error of an operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from vgame.program.catching import Kinds
from vgame.program.printing import refuse_tried_numbers

COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
DIVISION, POWER = (ZeroDivisionError, OverflowError), (ZeroDivisionError, OverflowError)
ROUNDING, SHIFT = (ValueError, OverflowError), (ValueError, OverflowError)
#: Methods that fail for some numbers, and their errors.
FAILING: dict[str, Kinds] = {
    **{f"__{r}{name}__": DIVISION for name in ("truediv", "floordiv", "mod", "divmod") for r in ("", "r")},
    **{f"__{r}pow__": POWER for r in ("", "r")},
    **{f"__{r}{name}__": SHIFT for name in ("lshift", "rshift") for r in ("", "r")},
    **{f"__{name}__": ROUNDING for name in ("round", "trunc", "floor", "ceil")},
}
SHOWN = {"truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lshift": "<<", "rshift": ">>"}
SAFE = (0.5, 1, 2, 3)  # exponents for which no number of a tensor is too large


class Reads(Protocol):
    """`printed.Printed`."""

    checks: Any

    def is_read(self, frame: FrameType, compares: bool = False) -> bool: ...


def compared(printed: Reads, original: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison of an unknown number, as a Python bool, because `is True` calls no method."""

    def compare(self: Any, *others: Any) -> Any:
        found, frame = original(self, *others), sys._getframe(1)
        if found is NotImplemented or not printed.is_read(frame, compares=True):
            return found
        return printed.checks.truth(found, frame)

    return compare


def failing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on an unknown number, refused where the user's code could catch its error."""
    kinds, plain = FAILING[name], name.strip("_")
    shown = SHOWN.get(plain) or SHOWN.get(plain[1:], plain)

    def operate(self: Any, *others: Any) -> Any:
        if not _is_safe(name, *others):
            refuse_tried_numbers(f"the operation {shown}", kinds, sys._getframe(1))
        return original(self, *others)

    return operate


def _is_safe(name: str, other: Any = None, *_: Any) -> bool:
    """Whether an operation cannot fail for any value of the unknown number, given the other operand."""
    if type(other) not in (int, float) or other == 0:
        return False
    return other in SAFE if name == "__pow__" else FAILING[name] is DIVISION and name[2] != "r"

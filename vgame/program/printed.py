"""Numbers that a loss reads from tensors only to print them. They are unknown while a step is traced: texts have ???
in their place (nan or 0 where only a number can stand), and one warning names the lines.

In: nothing. Out: contexts in which formats and the functions of `math` accept such numbers. All other reads stay
refused: a number that decides something, or that enters the program.
"""

from __future__ import annotations

import dis
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, partialmethod
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import torch

from vgame.errors import some_of
from vgame.program.hidden_state import DEEP, own_line

FUNCTIONS = ("cbrt", "cos", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "pow", "sin", "sqrt", "tanh")
UNKNOWN = (torch.SymFloat, torch.SymInt)


class Printed:
    """The lines of the user's code that print numbers."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def text(self, spec: str) -> str:
        """An unknown number, formatted."""
        self.lines[own_line(traceback.extract_stack(limit=DEEP)).removeprefix(", ")] = None
        try:
            return format(math.nan, spec).replace("nan", "???")
        except ValueError:  # a format of integers
            return "???"

    def number(self, frame: FrameType, integer: bool = False) -> float | int | None:
        """What stands for a number that the code of a frame only prints, else None."""
        if not _prints(frame.f_code, frame.f_lasti):
            return None
        self.text("")
        return 0 if integer else math.nan

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Context in which such numbers can be printed. It begins when the tracer is loaded: modules that are loaded
        inside it could keep the replaced functions."""
        with ExitStack() as stack:
            for kind in UNKNOWN:
                stack.enter_context(patch.object(kind, "__format__", lambda _, spec: self.text(spec)))
                for name in ("__float__", "__int__"):
                    read = _read(self, getattr(kind, name, lambda number: float(number.__int__())), name == "__int__")
                    stack.enter_context(patch.object(kind, name, read, create=True))
            for name in FUNCTIONS:
                function = partial(_function, getattr(math, name))
                stack.enter_context(patch.object(math, name, function))
                for kind in UNKNOWN:  # NumPy's function calls the method of its name
                    stack.enter_context(patch.object(kind, name, partialmethod(function), create=True))
            yield

    def warn(self) -> None:
        if self.lines:
            warnings.warn(
                f"numbers that the loss prints ({some_of([*self.lines])}) are unknown while it is captured: its "
                "texts have ???, nan or 0 in their place; a run prints nothing: metrics= and callbacks= get its losses",
                stacklevel=2,
            )


@cache
def _prints(code: CodeType, place: int) -> bool:
    """Whether the instruction at `place` formats a number ("%.3f" % x), or calls a function (float) whose result is
    formatted at once. Python calls `__float__` for neither operand of a remainder."""
    rest = [i for i in dis.get_instructions(code) if i.offset >= place][:3]
    if rest[0].opname == "BINARY_OP":
        return rest[0].argrepr == "%"
    names = [i.opname for i in rest[1:]]
    return rest[0].opname.startswith("CALL") and (
        names[:1] in (["FORMAT_VALUE"], ["FORMAT_SIMPLE"])
        or names in (["LOAD_CONST", "FORMAT_VALUE"], ["LOAD_CONST", "FORMAT_WITH_SPEC"])
    )


def _read(printed: Printed, original: Callable[[Any], Any], integer: bool) -> Callable[[Any], Any]:
    """A conversion of an unknown number to one of Python, which only a format may make."""

    def read(self: Any) -> Any:
        number = printed.number(sys._getframe(1), integer)
        return original(self) if number is None else number

    return read


def _function(original: Callable[..., Any], *args: Any) -> Any:
    """A function of `math`; of an unknown number another unknown number, whichever."""
    for a in args:
        if isinstance(a, int | float):
            a.__float__()  # refused for a number of the optimizer: vgame/program/later_step.py
    args = tuple(a.item() if isinstance(a, torch.Tensor) else a for a in args)
    unknown = [a for a in args if isinstance(a, UNKNOWN)]
    return torch.full((), unknown[0]).exp().item() if unknown else original(*args)

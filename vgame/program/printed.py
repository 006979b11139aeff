"""Numbers that a loss reads from tensors only to print them. They are unknown while a step is traced: texts have ???
in their place (nan or 0 where only a number can stand), and one warning names the lines.

In: nothing. Out: a context in which statements that only print accept such numbers: `print(...)`, a call of a logger,
or a local name that only such statements read. All other reads stay refused: a number or its text may decide something,
or enter the program.
"""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from vgame.errors import some_of
from vgame.program.arithmetic import COMPARISONS, FAILING, compared, failing
from vgame.program.bars import bars_still
from vgame.program.finite import Checks
from vgame.program.hidden_state import DEEP, TORCHS, calls_loss, is_library_file, line_above, own_line
from vgame.program.printing import chooses, prints, refuse_tried_numbers
from vgame.program.refusals import decides_by_values
from vgame.program.shown_types import ARITHMETIC, NUMBERS, numbers_shown
from vgame.program.shown_values import is_of_logging
from vgame.program.traps import SHOWING, Changing
from vgame.system.installed import VGAME, is_installed, is_of_python

REAL = (torch.SymFloat, torch.SymInt)
#: Attributes of Python's numbers for which an unknown number gets no refusing method.
SILENT = {"__getformat__", "__getnewargs__", "from_bytes", "fromhex"}


class Printed:
    """The lines of the user's code that print numbers."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}
        self.checks = Checks()
        self.streams = sys.stdout, sys.stderr

    def text(self, spec: str) -> str:
        """An unknown number, formatted. ProgramError where it is not only printed."""
        if not self._notes(sys._getframe(1)):
            raise decides_by_values(f"a text of a number{own_line(traceback.extract_stack(limit=DEEP))}")
        return _unknown(spec)

    def of_changing(self, name: str, spec: str = "") -> Any:
        """The stand-in of a value that changes from step to step, as the result of one of its methods; None if it is
        not only printed."""
        if not self._notes(sys._getframe(1)):
            return None
        return {"__float__": math.nan, "__int__": 0}.get(name, _unknown(spec))

    def number(self, frame: FrameType, integer: bool = False) -> float | int | None:
        """The stand-in of a number that the code of a frame only prints or checks, else None."""
        if not self._notes(frame):
            number = self.checks.number(frame)
            return 0 if integer and number is not None else number
        if integer:
            refuse_tried_numbers("an integer of a number", (ValueError, OverflowError), frame)
        return 0 if integer else math.nan

    def truth(self, number: Any, frame: FrameType) -> bool:
        """The bool of a truth value by which `max` or `min` chooses a number that is only printed, or which a check
        reads."""
        if chooses(frame) and self._notes(frame, compares=True):
            return False
        return self.checks.truth(number, frame)

    def is_read(self, frame: FrameType, compares: bool = False) -> bool:
        """Whether the user's code reads a value that torch has computed, in a statement that does not only print.
        `compares`: the statement may first compare it."""
        return not is_torchs(frame) and not self._notes(frame, compares)

    def _notes(self, frame: FrameType | None, compares: bool = False) -> bool:
        """Whether the user's statement that runs only prints; if so, its line is recorded."""
        if (sys.stdout, sys.stderr) != self.streams:  # a loss that replaces them may read the text
            return False
        while frame is not None and not calls_loss(frame):
            file = frame.f_code.co_filename
            if not is_library_file(file) and prints(frame, compares):
                self.lines[f"{Path(file).name} line {frame.f_lineno}"] = None
                return True
            inside = is_library_file(file) or is_installed(file) or is_of_logging(frame)  # such as rich, or a handler
            frame = frame.f_back if inside else None
        return False

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Context in which such numbers can be printed."""
        with ExitStack() as stack:
            stack.enter_context(numbers_shown())
            stack.enter_context(bars_still())
            for kind, name, method in self._methods():
                stack.enter_context(patch.object(kind, name, method, create=True))
            yield

    def _methods(self) -> Iterator[tuple[type, str, Any]]:
        """(class, name, replacement) of the methods of unknown numbers that are replaced."""
        yield torch.SymBool, "__bool__", _truth(self, torch.SymBool.__bool__)
        yield torch.SymBool, "__eq__", _equals(torch.SymBool.__eq__)
        yield torch.SymFloat, "hex", _hex(self)
        yield torch.SymFloat, "is_integer", compared(self, torch.SymFloat.is_integer)
        yield torch.SymInt, "__index__", _index(self, torch.SymInt.__index__)
        for name in SHOWING:
            yield Changing, name, _of_changing(self, name, getattr(Changing, name))
        for kind, number in NUMBERS.items():
            for name in {*dir(number)} - {*dir(kind)} - SILENT:
                yield kind, name, _asked(name)
            for name in ("__hash__", "__reduce_ex__"):
                yield kind, name, _asked(name, getattr(kind, name))
        for kind in REAL:
            yield kind, "__format__", lambda _, spec: self.text(spec)
            for name in ("__float__", "__int__"):
                original = getattr(kind, name, lambda number: float(number.__int__()))
                yield kind, name, _read(self, original, name == "__int__")
            yield kind, "__array__", _array(self)
            for name in ("__str__", "__repr__"):
                yield kind, name, _shown(self, getattr(kind, name))
            for name in COMPARISONS:
                yield kind, name, compared(self, getattr(kind, name))
            for name in FAILING:
                if hasattr(kind, name):
                    yield kind, name, failing(name, getattr(kind, name))

    def warn(self) -> None:
        self.checks.warn()
        if lines := {**self.lines, **self.checks.shown}:
            warnings.warn(
                f"numbers that the loss prints ({some_of([*lines])}) are unknown while it is captured: its "
                "texts have ???, nan or 0 in their place; a run prints nothing: metrics= and callbacks= get its losses",
                stacklevel=2,
            )


def _unknown(spec: str) -> str:
    """The text of an unknown number."""
    try:
        return format(math.nan, spec).replace("nan", "???")
    except ValueError:  # a format of integers
        return "???"


def is_torchs(frame: FrameType | None) -> bool:
    """Whether a frame runs code of torch or vgame, apart from the methods of unknown numbers."""
    while frame is not None and frame.f_code.co_filename in ARITHMETIC:
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith((*TORCHS, *VGAME))


def _read(printed: Printed, original: Callable[[Any], Any], integer: bool) -> Callable[[Any], Any]:
    """A conversion of an unknown number to one of Python, which only a statement that prints may make."""

    def read(self: Any) -> Any:
        frame = sys._getframe(1)
        number = printed.number(frame, integer)
        if number is None and not is_torchs(frame):
            raise decides_by_values(f"a number{line_above(frame)}")
        return original(self) if number is None else number

    return read


def _of_changing(printed: Printed, name: str, refusing: Callable[[Any], Any]) -> Callable[..., Any]:
    """The text or number of a value that changes from step to step."""

    def show(self: Any, spec: str = "") -> Any:
        text = printed.of_changing(name, spec)
        return refusing(self) if text is None else text

    return show


def _asked(name: str, original: Callable[..., Any] | None = None) -> Any:
    """A method or an attribute of Python's numbers that an unknown number lacks or has otherwise: refused in the user's
    code."""

    def asked(self: Any, *others: Any) -> Any:
        frame = sys._getframe(1)
        while frame is not None and is_of_python(frame.f_code.co_filename):  # such as copy and pickle
            frame = frame.f_back  # type: ignore[assignment]
        if not is_torchs(frame):
            raise decides_by_values(f"{name} of a number{line_above(frame)}")
        if original is None:
            raise (TypeError if name.startswith("__") else AttributeError)(f"{type(self).__name__} has no {name}")
        return original(self, *others)

    return asked if name.startswith("__") else property(asked)


def _hex(printed: Printed) -> Callable[[Any], str]:
    def hexadecimal(self: Any) -> str:
        return printed.text("")

    return hexadecimal


def _index(printed: Printed, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An unknown number as an index or a length."""

    def index(self: Any) -> Any:
        frame = sys._getframe(1)
        if not is_torchs(frame):
            raise decides_by_values(f"an index{line_above(frame)}")
        return original(self)

    return index


def _truth(printed: Printed, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An unknown truth value, which only a check of finite numbers may read."""

    def truth(self: Any) -> bool:
        frame = sys._getframe(1)
        return original(self) if is_torchs(frame) else printed.truth(self, frame)

    return truth


def _equals(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An unknown truth value compared with a number: torch would compare them by identity."""

    def equals(self: Any, other: Any) -> Any:
        plain = isinstance(other, int | float) and not isinstance(other, bool)
        return bool(self) == other if plain and not is_torchs(sys._getframe(1)) else original(self, other)

    return equals


def _array(printed: Printed) -> Callable[..., np.ndarray]:
    """An unknown number as an array of NumPy: its stand-in if it has one, else an array of objects, as without this
    method."""

    def array(self: Any, *_: Any, **__: Any) -> np.ndarray:
        made = np.empty((), object)
        number = printed.number(sys._getframe(1))
        made[()] = self
        return made if number is None else np.asarray(number)

    return array


def _shown(printed: Printed, original: Callable[[Any], str]) -> Callable[[Any], str]:
    """The text of an unknown number: for a library its symbolic name, for the user's code as in `format`."""

    def show(self: Any) -> str:
        return original(self) if is_library_file(sys._getframe(1).f_code.co_filename) else printed.text("")

    return show

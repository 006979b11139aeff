"""Numbers that a loss reads from tensors only to print them. They are unknown while a step is traced: texts have ???
in their place (nan or 0 where only a number can stand), and one warning names the lines.

In: nothing. Out: a context in which statements that only print accept such numbers, `print(...)` or a call of a logger.
All other reads stay refused: a number or its text may decide something, or enter the program.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

from vgame.errors import some_of
from vgame.program.hidden_state import DEEP, is_library_file, own_line
from vgame.program.refusals import decides_by_values

UNKNOWN = (torch.SymFloat, torch.SymInt)
DECIDE = ast.Call | ast.Lambda | ast.Compare | ast.IfExp | ast.BoolOp
PLAIN = {"abs", "float", "format", "int", "repr", "round", "str"}
LOGS = {"debug", "info", "warning", "error", "critical", "exception", "log"}


class Printed:
    """The lines of the user's code that print numbers."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def text(self, spec: str) -> str:
        """An unknown number, formatted. ProgramError where it is not only printed."""
        if not self._notes(sys._getframe(1)):
            raise decides_by_values(f"a text of a number{own_line(traceback.extract_stack(limit=DEEP))}")
        try:
            return format(math.nan, spec).replace("nan", "???")
        except ValueError:  # a format of integers
            return "???"

    def number(self, frame: FrameType, integer: bool = False) -> float | int | None:
        """What stands for a number that the code of a frame only prints, else None."""
        if not self._notes(frame):
            return None
        return 0 if integer else math.nan

    def _notes(self, frame: FrameType | None) -> bool:
        """Does the user's statement that runs only print? Then its line is noted."""
        while frame is not None and is_library_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or not _prints(frame):
            return False
        self.lines[f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"] = None
        return True

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Context in which such numbers can be printed."""
        with ExitStack() as stack:
            for kind in UNKNOWN:
                stack.enter_context(patch.object(kind, "__format__", lambda _, spec: self.text(spec)))
                for name in ("__float__", "__int__"):
                    read = _read(self, getattr(kind, name, lambda number: float(number.__int__())), name == "__int__")
                    stack.enter_context(patch.object(kind, name, read, create=True))
                for name in ("__str__", "__repr__"):
                    stack.enter_context(patch.object(kind, name, _shown(self, getattr(kind, name))))
            yield

    def warn(self) -> None:
        if self.lines:
            warnings.warn(
                f"numbers that the loss prints ({some_of([*self.lines])}) are unknown while it is captured: its "
                "texts have ???, nan or 0 in their place; a run prints nothing: metrics= and callbacks= get its losses",
                stacklevel=2,
            )


def _read(printed: Printed, original: Callable[[Any], Any], integer: bool) -> Callable[[Any], Any]:
    """A conversion of an unknown number to one of Python, which only a statement that prints may make."""

    def read(self: Any) -> Any:
        number = printed.number(sys._getframe(1), integer)
        return original(self) if number is None else number

    return read


def _shown(printed: Printed, original: Callable[[Any], str]) -> Callable[[Any], str]:
    """The text of an unknown number: for torch its name, for the user's code as in a format."""

    def show(self: Any) -> str:
        return original(self) if is_library_file(sys._getframe(1).f_code.co_filename) else printed.text("")

    return show


@cache
def _statements(file: str) -> tuple[ast.stmt, ...]:
    """The statements of a file or a notebook's cell; of two that contain a place the inner one comes last."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (ValueError, SyntaxError):
        return ()
    return tuple(sorted((n for n in ast.walk(tree) if isinstance(n, ast.stmt)), key=lambda n: (n.lineno, n.col_offset)))


def _prints(frame: FrameType) -> bool:
    """Whether the statement that a frame runs is a call of `print` or of a logger, where the number that the frame
    reads, and its text, go through texts and numbers only: to no other function, name, condition or file."""
    line, end, column, last = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    begin, stop = (line or 0, column or 0), (end or 0, last or 0)
    here = [n for n in _statements(frame.f_code.co_filename) if _begin(n) <= begin < _end(n)]
    if not here or not isinstance(here[-1], ast.Expr) or not isinstance(call := here[-1].value, ast.Call):
        return False
    inner = [n for n in ast.walk(call) if n is not call]
    around = [n for n in inner if isinstance(n, DECIDE) and _begin(n) <= begin and stop <= _end(n)]
    named = any(isinstance(n, ast.NamedExpr) for n in inner)
    return not named and all(map(_is_plain, around)) and _is_output(call, frame)


def _begin(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _is_plain(node: ast.AST) -> bool:
    """`"{:.3f}".format(...)`, `str(...)`, `float(...)`."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Name):
        return function.id in PLAIN
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)


def _is_output(call: ast.Call, frame: FrameType) -> bool:
    """Whether this calls Python's `print` to a stream of the process, `sys.stdout.write`, or a method of a logger."""
    names, function = {**vars(builtins), **frame.f_globals, **frame.f_locals}, call.func
    if isinstance(function, ast.Name):
        files = [_object(k.value, names) for k in call.keywords if k.arg in ("file", None)]
        return names.get(function.id) is print and all(f is sys.stdout or f is sys.stderr for f in files)
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    if isinstance(owner, ast.Call):  # logging.getLogger(...).info(...)
        return function.attr in LOGS and _object(owner.func, names) is logging.getLogger
    found = _object(owner, names)
    logger = found is logging or isinstance(found, logging.Logger | logging.LoggerAdapter)
    return (logger and function.attr in LOGS) or (
        function.attr == "write" and (found is sys.stdout or found is sys.stderr)
    )


def _object(place: ast.expr, names: dict[str, Any]) -> Any:
    """The object at `name.attribute...`; None if it is none of these."""
    path: list[str] = []
    while isinstance(place, ast.Attribute):
        path, place = [place.attr, *path], place.value
    found = names.get(place.id) if isinstance(place, ast.Name) else None
    for name in path:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found

"""Numbers that a loss reads from tensors only to print them. They are unknown while a step is traced: texts have ???
in their place (nan or 0 where only a number can stand), and one warning names the lines.

In: nothing. Out: a context in which statements that only print accept such numbers: `print(...)`, a call of a logger,
or a local name that only such statements read. All other reads stay refused: a number or its text may decide something,
or enter the program.
"""

from __future__ import annotations

import ast
import builtins
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
from vgame.program.finite import Checks
from vgame.program.hidden_state import DEEP, PASSES, is_library_file, own_line
from vgame.program.refusals import decides_by_values
from vgame.program.shown_types import numbers_shown
from vgame.program.statements import (
    SCOPES,
    Place,
    begin_of,
    end_of,
    holds,
    is_output,
    names_of,
    nodes_of,
    object_at,
    place_in,
)
from vgame.system.installed import is_installed

UNKNOWN = (torch.SymFloat, torch.SymInt)
DECIDE = ast.Call | ast.Lambda | ast.Compare | ast.IfExp | ast.BoolOp | ast.Yield | ast.YieldFrom | ast.Await
PLAIN = {"abs", "float", "format", "int", "repr", "round", "str"}
CURVES = (math.exp, math.expm1, math.log, math.log1p, math.log2, math.log10, math.sqrt)
READS_ALL = {"locals", "vars", "eval", "exec", "_getframe", "currentframe"}  # functions that read names by texts


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
        try:
            return format(math.nan, spec).replace("nan", "???")
        except ValueError:  # a format of integers
            return "???"

    def number(self, frame: FrameType, integer: bool = False) -> float | int | None:
        """What stands for a number that the code of a frame only prints or checks, else None."""
        if not self._notes(frame):
            return self.checks.number(frame)
        return 0 if integer else math.nan

    def _notes(self, frame: FrameType | None) -> bool:
        """Does the user's statement that runs only print? Then its line is noted."""
        if (sys.stdout, sys.stderr) != self.streams:  # a loss that replaces them may read the text
            return False
        while frame is not None and (file := frame.f_code.co_filename) != PASSES:
            if not is_library_file(file) and _prints(frame):
                self.lines[f"{Path(file).name} line {frame.f_lineno}"] = None
                return True
            inside = is_library_file(file) or is_installed(file)  # as rich, which the user's statement calls
            frame = frame.f_back if inside else None
        return False

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Context in which such numbers can be printed."""
        with ExitStack() as stack:
            stack.enter_context(numbers_shown())
            stack.enter_context(patch.object(torch.SymBool, "__bool__", _truth(self, torch.SymBool.__bool__)))
            for kind in UNKNOWN:
                stack.enter_context(patch.object(kind, "__format__", lambda _, spec: self.text(spec)))
                for name in ("__float__", "__int__"):
                    read = _read(self, getattr(kind, name, lambda number: float(number.__int__())), name == "__int__")
                    stack.enter_context(patch.object(kind, name, read, create=True))
                stack.enter_context(patch.object(kind, "__array__", _array(self), create=True))
                for name in ("__str__", "__repr__"):
                    stack.enter_context(patch.object(kind, name, _shown(self, getattr(kind, name))))
            yield

    def warn(self) -> None:
        self.checks.warn()
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


def _truth(printed: Printed, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An unknown truth value, which only a check of finite numbers may read."""

    def truth(self: Any) -> bool:
        found = printed.checks.truth(self, sys._getframe(1))
        return original(self) if found is None else found

    return truth


def _array(printed: Printed) -> Callable[..., np.ndarray]:
    """An unknown number for a function of NumPy: what stands for it, else an object, as without this method."""

    def array(self: Any, *_: Any, **__: Any) -> np.ndarray:
        made = np.empty((), object)
        number = printed.number(sys._getframe(1))
        made[()] = self
        return made if number is None else np.asarray(number)

    return array


def _shown(printed: Printed, original: Callable[[Any], str]) -> Callable[[Any], str]:
    """The text of an unknown number: for torch its name, for the user's code as in a format."""

    def show(self: Any) -> str:
        return original(self) if is_library_file(sys._getframe(1).f_code.co_filename) else printed.text("")

    return show


def _prints(frame: FrameType) -> bool:
    """Whether the statement that a frame runs only prints the number that it reads, or gives its text to a local name
    which is only printed."""
    begin, stop = place_in(frame)
    around = [n for n in nodes_of(frame.f_code.co_filename) if begin_of(n) <= begin < end_of(n)]
    statements = [n for n in around if isinstance(n, ast.stmt)]
    if not statements:
        return False
    if _is_printed(statements[-1], begin, stop, frame):
        return True
    functions = [n for n in around if isinstance(n, SCOPES)]
    target, value = _assigned(statements[-1])
    return bool(
        value
        and functions
        and holds(value, begin, stop)
        and _passes(value, begin, stop, frame)
        and _is_only_printed(target, functions[-1], frame)
    )


def _assigned(statement: ast.AST) -> tuple[str, ast.expr | None]:
    """The one name to which a statement assigns, and the value."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            return name, value
    return "", None


def _is_only_printed(name: str, function: ast.AST, frame: FrameType) -> bool:
    """Whether all reads of a local name of a function are in statements that print, or give a text to it again."""
    if name not in frame.f_code.co_varnames or READS_ALL.intersection(frame.f_code.co_names):
        return False  # another function may read it

    def is_printed(statement: ast.AST, read: ast.AST) -> bool:
        target, value = _assigned(statement)
        again = target == name and value is not None and _passes(value, begin_of(read), end_of(read), frame)
        return again or _is_printed(statement, begin_of(read), end_of(read), frame)

    statements = [n for n in ast.walk(function) if isinstance(n, ast.stmt)]
    return all(is_printed(statement, read) for statement in statements for read in _reads(statement, name))


def _reads(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """The reads of a name in a statement, without those of the statements in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
            yield child
        if not isinstance(child, ast.stmt):
            yield from _reads(child, name)


def _is_printed(statement: ast.AST, begin: Place, stop: Place, frame: FrameType) -> bool:
    """Whether a statement is a call that prints, also under a condition, and what is read at this place goes through
    texts and numbers only: to no other function, name, condition or file."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.BoolOp):
        call = call.values[-1]
    elif isinstance(call, ast.IfExp):
        call = call.body
    inside = isinstance(call, ast.Call) and holds(call, begin, stop)
    return inside and _passes(call, begin, stop, frame, prints=True) and is_output(call, frame)


def _passes(value: ast.expr, begin: Place, stop: Place, frame: FrameType, prints: bool = False) -> bool:
    """Whether what is read at a place reaches the value as text or number only. `prints`: of a call that prints, its
    arguments."""
    inner = [n for n in ast.walk(value) if n is not value or not prints]
    around = [n for n in inner if isinstance(n, DECIDE) and holds(n, begin, stop)]
    keys = [k for n in inner for k in _keys(n) if holds(k, begin, stop)]
    stores = [n for n in inner if isinstance(getattr(n, "ctx", None), ast.Store) and not isinstance(n, ast.Name)]
    named = any(isinstance(n, ast.NamedExpr) for n in inner)
    return not (keys or stores or named) and all(_is_plain(n, frame) for n in around)


def _keys(node: ast.AST) -> list[ast.expr]:
    """Parts that choose what an object of the user's does: an index, a format."""
    if isinstance(node, ast.Subscript):
        return [node.slice]
    spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
    return [v.value for v in getattr(spec, "values", ()) if isinstance(v, ast.FormattedValue)]


def _is_plain(node: ast.AST, frame: FrameType) -> bool:
    """`"{:.3f}".format(...)`, `str(...)`, `float(...)`, `math.exp(...)`."""
    if not isinstance(node, ast.Call):
        return False
    function, names = node.func, names_of(frame)
    if isinstance(function, ast.Name) and function.id in PLAIN:
        return names[function.id] is vars(builtins)[function.id]
    formats = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)
    found = object_at(function, names)
    return formats or (any(found is curve for curve in CURVES) and not _is_tried(node, frame))


def _is_tried(node: ast.AST, frame: FrameType) -> bool:
    """Is it in a `try`? A function of nan raises nothing, where that of a number may."""
    around = (n for n in nodes_of(frame.f_code.co_filename) if isinstance(n, ast.Try))
    return any(begin_of(n) <= begin_of(node) < end_of(n) for n in around)

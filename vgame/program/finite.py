"""Checks that numbers are finite, `if not math.isfinite(loss.item()): raise ...`. They pass while a step is traced: a
run ends by itself at the first step whose loss or new weights are not finite. One warning names the lines.

In: a frame of a traced loss that reads a number or a truth value. Out: what it reads if the tensors of the check are
finite. Only for an `assert`, and for an `if` of which a branch only prints, then raises or ends the process, or both
only print: any other statement would choose another step. Nothing in the loss may catch the error.
"""

from __future__ import annotations

import ast
import builtins
import math
import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, get_proxy_slot

from vgame.errors import some_of
from vgame.program.catching import GENERATES, catching, is_raised
from vgame.program.constants import Known
from vgame.program.hidden_state import PASSES, is_library_file
from vgame.program.statements import around, holds, is_output, names_of, object_at, place_in
from vgame.system.installed import is_of_user

aten = torch.ops.aten
FINITE = tuple(getattr(of, name) for of in (math, np) for name in ("isfinite", "isnan", "isinf"))
ENDS = (sys.exit, os._exit, os.abort, *(getattr(builtins, name, sys.exit) for name in ("exit", "quit")))
NEVER = (aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default)
PLAIN = (str, format, float, int, round, repr, len, abs)  # what a branch that only prints may call
READS = {"item", "detach", "mean", "max", "min", "sum", "norm", "abs", "cpu"}  # and of which methods
EQUAL, OTHER = (aten.eq.Tensor, aten.eq.Scalar), (aten.ne.Tensor, aten.ne.Scalar)  # x == x, |x| == inf, and not


class Checks(Known):
    """The replay of a tracer's graph in which all numbers that a check reads are finite; the lines of the checks."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, None] = {}

    def answer(self, function: Any, frame: FrameType | None, arguments: Any) -> Any | None:
        """What a function that decides gives in a check of finite numbers, else None."""
        if (own := _checking(frame)) is None or (real := self.replaced(arguments)) is None:
            return None
        self._note(own)
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return function(*real[0], **real[1])

    def truth(self, number: Any, frame: FrameType | None) -> bool | None:
        """Of a truth value that was read before the check, else None."""
        mode = get_proxy_mode()
        if mode is None or (own := _checking(frame)) is None:
            return None
        slot = get_proxy_slot(number, mode.tracer, None)
        if slot is None:
            return None
        proxy = slot.force() if hasattr(slot, "force") else slot
        self._replay(mode.tracer.graph, mode.tracer.root)
        if (found := self.values.get(proxy.node)) is not None:
            self._note(own)
        return found

    def number(self, frame: FrameType | None) -> float | None:
        """A finite number in `math.isfinite(x.item())` of a check, else None."""
        if (own := _checking(frame)) is None or not _is_read_by_check(own):
            return None
        self._note(own)
        return 0.0

    def _note(self, frame: FrameType) -> None:
        self.lines[f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"] = None

    def _follow(self, node: Node, root: Any) -> None:
        super()._follow(node, root)
        passes = None if node in self.values else _passes(node)
        if passes is not None and all(isinstance(n, int) for n in node.meta["val"].shape):
            self.values[node] = torch.full((), passes).expand(node.meta["val"].shape)

    def warn(self) -> None:
        if self.lines:
            warnings.warn(
                f"checks of finite numbers in the loss ({some_of([*self.lines])}) are not made in a run: it ends at "
                "the first step whose loss or new weights are not finite",
                stacklevel=2,
            )


def _passes(node: Node) -> bool | None:
    """The value of an operator that asks whether numbers are finite, if they are; None for any other."""
    if node.target in NEVER:
        return False
    if node.target in (*EQUAL, *OTHER):
        first, second = node.args
        itself, infinite = first is second, second == math.inf and getattr(first, "target", None) is aten.abs.default
        return (itself == (node.target in EQUAL)) if itself or infinite else None
    return None


def _checking(frame: FrameType | None) -> FrameType | None:
    """The frame of the user's check that reads something; None if it is none, or its error could be caught."""
    while frame is not None and is_library_file(file := frame.f_code.co_filename):
        frame = None if file == PASSES else frame.f_back
    if frame is None or not (statements := around(frame, ast.stmt)):
        return None
    names, check = names_of(frame), statements[-1]
    match check:
        case ast.Assert(test=test):
            raises = True
        case ast.If(test=test, body=body, orelse=orelse):
            raises = _ends(body, frame, names) or _ends(orelse, frame, names)
            if not raises and not all(_prints(each, frame) and _is_plain(each, names) for each in [*body, *orelse]):
                return None
        case _:
            return None
    later = [n for each in ast.walk(test) if isinstance(each, ast.BoolOp) for v in each.values[1:] for n in ast.walk(v)]
    kept = any(isinstance(n, ast.NamedExpr | ast.IfExp) or _writes(n) for n in ast.walk(test))
    if (
        kept
        or any(_is_users(n, names) for n in later)
        or any(isinstance(n, GENERATES) for n in ast.walk(check))
        or (raises and catching(frame))
    ):
        return None
    return frame


def _ends(branch: list[ast.stmt], frame: FrameType, names: dict[str, Any]) -> bool:
    """Whether a branch only prints, and then raises an error that Python itself does not catch or ends the process."""
    if not branch or not all(_prints(each, frame) for each in branch[:-1]):
        return False
    match branch[-1]:
        case ast.Expr(value=ast.Call(func=function)):
            return any(object_at(function, names) is end for end in ENDS)
        case ast.Raise() as raised:
            return is_raised(raised, names)
    return False


def _prints(statement: ast.stmt, frame: FrameType) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Pass) or (isinstance(call, ast.Call) and is_output(call, frame))


def _is_plain(statement: ast.stmt, names: dict[str, Any]) -> bool:
    """Whether a statement that prints calls nothing that could change something else."""
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call | ast.NamedExpr)][1:]  # without the print itself
    return all(isinstance(call, ast.Call) and _is_plain_call(call.func, names) for call in calls)


def _is_plain_call(function: ast.expr, names: dict[str, Any]) -> bool:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
        return isinstance(function.value.value, str)
    found = object_at(function, names)
    return any(found is f for f in PLAIN) or (isinstance(function, ast.Attribute) and function.attr in READS)


def _writes(node: ast.AST) -> bool:
    """Whether this calls a method that writes in place."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")


def _is_users(node: ast.AST, names: dict[str, Any]) -> bool:
    """Whether this calls a function of the user's."""
    code = getattr(object_at(node.func, names), "__code__", None) if isinstance(node, ast.Call) else None
    return code is not None and is_of_user(code.co_filename)


def _is_read_by_check(frame: FrameType) -> bool:
    """Is the number that a frame reads an argument of math.isfinite and the like?"""
    begin, stop = place_in(frame)
    names, check = names_of(frame), around(frame, ast.stmt)[-1].test
    calls = [n for n in ast.walk(check) if isinstance(n, ast.Call) and holds(n, begin, stop)]
    kinds = [object_at(call.func, names) for call in calls]
    return any(k is f for k in kinds for f in FINITE) and all(any(k is f for f in (*FINITE, float)) for k in kinds)

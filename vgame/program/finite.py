"""Checks that numbers are finite, `if not math.isfinite(loss.item()): raise ...`. They pass while a step is traced: a
run ends by itself at the first step whose loss or new weights are not finite. One warning names the lines.

In: a frame of a traced loss that reads a number or a truth value. Out: the value that it reads if the tensors are
finite, provided that only a check reads it (`asked.py`); in any other statement the value could change the step.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, get_proxy_slot

from vgame.errors import ProgramError, some_of
from vgame.program.asked import FORM, check_around, shows_around
from vgame.program.constants import Known
from vgame.program.hidden_state import line_above, own_frame
from vgame.program.refusals import decides_by_values
from vgame.program.statements import around, begin_of, end_of, holds, names_of, object_at, place_in

aten = torch.ops.aten
FINITE = tuple(getattr(of, name) for of in (math, np) for name in ("isfinite", "isnan", "isinf"))
NEVER = (aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default)
EQUAL = (aten.eq.Tensor, aten.eq.Scalar, operator.eq, aten.le.Tensor, aten.ge.Tensor, operator.le, operator.ge)
OTHER = (aten.ne.Tensor, aten.ne.Scalar, operator.ne, aten.lt.Tensor, aten.gt.Tensor, operator.lt, operator.gt)
#: Comparison of a finite number with an infinity -> its result by the sign of the infinity.
COMPARED = {"eq": {1: False, -1: False}, "ne": {1: True, -1: True}}
COMPARED |= {name: {1: True, -1: False} for name in ("lt", "le")}
COMPARED |= {name: {1: False, -1: True} for name in ("gt", "ge")}
TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Checks(Known):
    """The replay of a tracer's graph in which all numbers that a check reads are finite; the lines of the checks."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, None] = {}
        self.shown: dict[str, None] = {}  # conditions whose branches only print
        self.outputs = _outputs()

    def answer(self, function: Any, frame: FrameType | None, arguments: Any) -> Any | None:
        """The result of a deciding function in a check of finite numbers, else None."""
        if (real := self.replaced(arguments)) is None:
            truth = function in (torch.Tensor.__bool__, torch.equal, torch.allclose)
            return False if truth and self._only_shows(frame) else None
        own, reason = self._check(frame)
        if own is None:
            if function in (torch.Tensor.__bool__, torch.equal, torch.allclose):
                raise decides_by_values(f"a condition{line_above(frame)}", reason)
            return None
        self._note(own)
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return function(*real[0], **real[1])

    def truth(self, number: Any, frame: FrameType | None) -> bool:
        """The bool of a truth value that is read; ProgramError if it decides anything but a check of finite numbers or
        what is printed."""
        mode = get_proxy_mode()
        slot = None if mode is None else get_proxy_slot(number, mode.tracer, None)
        found = None
        if mode is not None and slot is not None:
            proxy = slot.force() if hasattr(slot, "force") else slot
            self._replay(mode.tracer.graph, mode.tracer.root)
            found = self.values.get(proxy.node)
        if found is None and self._only_shows(frame):
            return False
        own, reason = (None, "") if found is None else self._check(frame)
        if own is None or found is None:
            raise decides_by_values(f"a condition{line_above(frame)}", reason)
        self._note(own)
        return bool(found)

    def number(self, frame: FrameType | None) -> float | None:
        """A finite number in `math.isfinite(x.item())` of a check, nan in a condition that only chooses what is
        printed, else None."""
        if (asking := own_frame(frame)) is None or not around(asking, ast.stmt) or not _is_asked(asking):
            return math.nan if self._only_shows(frame) else None
        own, reason = self._check(frame)
        if own is None:
            raise decides_by_values(f"a condition{line_above(frame)}", reason)
        self._note(own)
        return 0.0

    def array(self, tensor: torch.Tensor, frame: FrameType | None) -> np.ndarray | None:
        """Finite numbers in `np.isfinite(x.numpy()).all()` of a check, else None."""
        return None if self.number(frame) is None else np.zeros(tensor.shape, np.float32)

    def failed(self, error: Exception) -> ProgramError | None:
        """The error for a check that fails although its numbers are finite."""
        lines = [f"{Path(t.filename).name} line {t.lineno}" for t in traceback.extract_tb(error.__traceback__)]
        found = next((line for line in reversed(lines) if line in self.lines), None)
        if found is None:
            return None
        return ProgramError(
            f"the check at {found} fails if all numbers are finite, as they are taken to be while the step is traced, "
            f"so no step would be trained ({type(error).__name__}); remove it, or check constants only"
        )

    def _check(self, frame: FrameType | None) -> tuple[FrameType | None, str]:
        """As `check_around`. None if the loss has replaced an output: it may read the printed text."""
        return check_around(frame) if _outputs() == self.outputs else (None, FORM)

    def _only_shows(self, frame: FrameType | None) -> bool:
        """Whether a number decides only whether something is printed; if so, its line is recorded."""
        own = shows_around(frame) if _outputs() == self.outputs else None
        if own is not None:
            self.shown[f"{Path(own.f_code.co_filename).name} line {own.f_lineno}"] = None
        return own is not None

    def _note(self, frame: FrameType) -> None:
        self.lines[f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"] = None

    def _follow(self, node: Node, root: Any) -> None:
        super()._follow(node, root)
        if node in self.values or node.op != "call_function" or (passes := _passes(node)) is None:
            return
        shape = getattr(node.meta.get("val"), "shape", None)
        if shape is None:
            self.values[node] = passes
        elif all(isinstance(n, int) for n in shape):
            self.values[node] = torch.full((), passes).expand(shape)

    def warn(self) -> None:
        if self.lines:
            warnings.warn(
                f"checks of finite numbers in the loss ({some_of([*self.lines])}) are not made in a run: it ends at "
                "the first step whose loss or new weights are not finite",
                stacklevel=2,
            )


def _outputs() -> tuple[Any, ...]:
    return sys.stdout, sys.stderr, warnings.showwarning, sys.breakpointhook


def _passes(node: Node) -> bool | float | None:
    """The value that an operator which tests for finite numbers has if they are finite; None for any other operator."""
    if node.target in NEVER:
        return False
    if len(node.args) != 2:
        return None
    (first, second), name = node.args, _name(node.target)
    if node.target in (*EQUAL, *OTHER) and first is second:
        return node.target in EQUAL
    if node.target is operator.sub and first is second:
        return 0.0
    if node.target is operator.mul and 0 in (first, second):
        return 0.0
    if isinstance(first, float | int):
        first, second, name = second, first, TURNED.get(name, name)
    infinite = isinstance(second, float) and math.isinf(second) and isinstance(first, Node)
    return COMPARED[name][1 if second > 0 else -1] if infinite and name in COMPARED else None


def _name(target: Any) -> str:
    return getattr(getattr(target, "overloadpacket", target), "__name__", "")


def _is_asked(frame: FrameType) -> bool:
    """Whether the number that a frame reads is an argument of math.isfinite or a similar function."""
    begin, stop = place_in(frame)
    names, statement = names_of(frame), around(frame, ast.stmt)[-1]
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and holds(n, begin, stop)]
    kinds = [object_at(n.func, names) for n in sorted(calls, key=lambda n: (begin_of(n), [-k for k in end_of(n)]))]
    places = [n for n, kind in enumerate(kinds) if any(kind is f for f in FINITE)]
    between = kinds[places[-1] + 1 :] if places else [None]
    return bool(places) and all(kind is float or kind is None for kind in between)

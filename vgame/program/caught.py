"""Errors of a trace that the user's code catches: a read of unknown values, or a refusal of vgame's. In torch's own
loop nothing is raised there, so another step would be captured.

In: nothing. Out: a context that ends with ProgramError if the user's code has caught such an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vgame.errors import ProgramError, VgameError
from vgame.program.hidden_state import is_library_file

#: torch's errors for values that are unknown in a trace, by name: to import their modules takes a third of a second.
UNKNOWN = {"DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"}
READS = ("__bool__", "__int__", "__float__", "__index__")


class Caught:
    """The errors of a trace."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @contextmanager
    def noting(self, reads: bool = True) -> Iterator[None]:
        """Context of a call that raises such an error. `reads`: any error is one, as the call reads values."""
        try:
            yield
        except Exception as error:
            if reads or type(error).__name__ in UNKNOWN:
                self.errors.append(error)
            raise

    @contextmanager
    def refused(self) -> Iterator[None]:
        """ProgramError at the end of this context if the user's code has caught an error."""
        with ExitStack() as stack:
            shapes = sys.modules.get(
                "torch.fx.experimental.symbolic_shapes"
            )  # if loaded: sympy takes a third of a second
            guard = (shapes.GuardOnDataDependentSymNode,) if shapes else ()
            for error in (VgameError, DataDependentOutputException, DynamicOutputShapeException, *guard):
                stack.enter_context(patch.object(error, "__init__", self._noted(error.__init__)))
            for kind in (torch.SymBool, torch.SymInt, torch.SymFloat):
                for name in READS:
                    if hasattr(kind, name):
                        read = self._reading(getattr(kind, name))
                        stack.enter_context(patch.object(kind, name, read))
            yield
            self.refuse()

    def _noted(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(error: Exception, *args: Any, **kwargs: Any) -> None:
            original(error, *args, **kwargs)
            self.errors.append(error)

        return begin

    def _reading(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read(number: Any) -> Any:
            with self.noting():
                return original(number)

        return read

    def refuse(self) -> None:
        """ProgramError if the user's code has caught an error: its traceback begins in the function that catches it."""
        for error in self.errors:
            place = error.__traceback__
            if place is None or _is_library(file := place.tb_frame.f_code.co_filename):
                continue
            line = f"{Path(file).name} line {place.tb_lineno}"
            why = f"{error}" if isinstance(error, VgameError) else "the values of its tensors are unknown there"
            raise ProgramError(
                f"an error while the step is traced is caught at {line} by the code around it ({why}); nothing is "
                "raised there in a loop of torch, so another step would be trained: compute with tensors "
                "(torch.where, torch.clamp), or remove the `try`"
            )


def _is_library(file: str) -> bool:
    """A cell of a notebook is the user's: <ipython-input-7>."""
    return file.startswith("<frozen") or (is_library_file(file) and not file.startswith("<"))

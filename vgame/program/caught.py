"""Errors of a trace that the user's code catches: a read of unknown values, or a refusal of vgame's. In torch's own
loop nothing is raised there, so another step would be captured.

In: nothing. Out: a context that ends with ProgramError if the user's code has caught such an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vgame.errors import ProgramError, VgameError
from vgame.program.hidden_state import is_library_file


class Caught:
    """The errors of a trace."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Context of a call that reads values: any error of it counts."""
        try:
            yield
        except Exception as error:
            self.errors.append(error)
            raise

    @contextmanager
    def refused(self) -> Iterator[None]:
        """ProgramError at the end of this context if the user's code has caught an error of vgame, or one of torch
        about unknown values."""
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # loaded by a trace, with sympy

        with ExitStack() as stack:
            for kind in (
                VgameError, DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode,
            ):  # fmt: skip
                stack.enter_context(patch.object(kind, "__init__", self._noted(kind.__init__)))
            yield
            self.refuse()

    def _noted(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(error: Exception, *args: Any, **kwargs: Any) -> None:
            original(error, *args, **kwargs)
            self.errors.append(error)

        return begin

    def refuse(self) -> None:
        """ProgramError if the user's code has caught an error: its traceback begins in the function that catches it."""
        for error in self.errors:
            place = error.__traceback__
            if place is None or is_library_file(file := place.tb_frame.f_code.co_filename):
                continue
            line = f"{Path(file).name} line {place.tb_lineno}"
            why = f"{error}" if isinstance(error, VgameError) else "the values of its tensors are unknown there"
            raise ProgramError(
                f"an error while the step is traced is caught at {line} by the code around it ({why}); nothing is "
                "raised there in a loop of torch, so another step would be trained: compute with tensors "
                "(torch.where, torch.clamp), or remove the `try`"
            )

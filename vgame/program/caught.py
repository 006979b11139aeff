"""Errors of a trace that the user's code catches: a read of unknown values, or a refusal of vgame's. In torch's own
loop nothing is raised there, so another step would be captured. And errors of torch's that a trace does not raise, or
raises as another class.

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
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves, tree_map

from vgame.errors import ProgramError, VgameError
from vgame.program.catching import catching
from vgame.program.hidden_state import is_library_file

T = torch.Tensor
#: Functions whose error depends on values that a capture does not check.
FAILING: dict[Any, str] = {
    torch.nn.functional.binary_cross_entropy: "probabilities below 0 or above 1",
    **dict.fromkeys((torch.bernoulli, T.bernoulli, T.bernoulli_), "probabilities below 0 or above 1"),
    **dict.fromkeys((torch.normal, T.normal_), "deviations below 0"),
    torch.nn.functional.gaussian_nll_loss: "variances below 0",
}


def undecided() -> tuple[type[Exception], ...]:
    """torch's errors for a number read from a tensor."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # loads sympy: a third of a second

    return DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode


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
        with ExitStack() as stack:
            for kind in (VgameError, *undecided()):
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


def refuse_tried(function: Callable[..., Any]) -> None:
    """ProgramError for a function that fails for some values, if the user's code could catch that: a trace has none."""
    if (limits := FAILING.get(function)) and (line := catching(sys._getframe(1))):
        raise ProgramError(
            f"{function.__name__} fails for {limits} in torch, and code at {line} could catch the error, which would "
            "train another step there; a program raises none: clamp its arguments, and remove the `try`"
        )


def torchs_error(error: Exception, function: Callable[..., Any], arguments: Any) -> Exception:
    """The error that torch raises for tensors with numbers, since the rules for shapes of a trace raise some of another
    class, which the user's code may catch."""
    unknown = torch.SymInt | torch.SymFloat | torch.SymBool
    if isinstance(error, (VgameError, *undecided())) or any(isinstance(x, unknown) for x in tree_leaves(arguments)):
        return error
    if function in (T.backward, torch.autograd.grad, torch.autograd.backward):  # of tensors without a history
        return error
    try:
        with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
            args, kwargs = tree_map(_zeros, arguments)
            function(*args, **kwargs)
    except Exception as own:
        return error if type(own) is type(error) else own.with_traceback(None)
    return error


def _zeros(leaf: Any) -> Any:
    """A tensor of the same shape and strides."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    size = sum((n - 1) * step for n, step in zip(leaf.shape, leaf.stride(), strict=True)) + 1 if leaf.numel() else 0
    return torch.zeros(size, dtype=leaf.dtype).as_strided(leaf.shape, leaf.stride())

"""Errors of a trace that the user's code catches: reads of unknown values, and errors of vgame. A loop of torch raises
none there, so a different step would be captured. Also errors of torch that a trace does not raise, or raises as
another class.

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
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves, tree_map

from vgame.errors import ProgramError, VgameError
from vgame.program.catching import catching
from vgame.program.fails import ERRORS, failing, follows, graph_of_trace, node_of
from vgame.program.hidden_state import is_library_file, line_above
from vgame.program.raised import Raised
from vgame.system.installed import VGAME, is_of_python

T, F = torch.Tensor, torch.nn.functional
MOST = 2**20  # most elements of the tensors for which a failing call is repeated
PROBABILITIES, INDICES = "probabilities below 0 or above 1", "indices that do not exist"
ALL, SECOND = slice(None), slice(1, None)
#: Functions whose error depends on values although their operators raise none, with the arguments that decide it. All
#: others: `fails.py`.
FAILING: dict[Any, tuple[str, slice]] = {
    **dict.fromkeys((F.binary_cross_entropy, torch._C._nn.binary_cross_entropy), (PROBABILITIES, slice(2))),
    **dict.fromkeys((torch.bernoulli, T.bernoulli, T.bernoulli_), (PROBABILITIES, SECOND)),
    **dict.fromkeys((torch.normal, T.normal_), ("deviations below 0", SECOND)),
    F.gaussian_nll_loss: ("variances below 0", SECOND),
    **dict.fromkeys((torch.quantile, T.quantile), ("fractions below 0 or above 1", SECOND)),
    **dict.fromkeys((F.embedding, F.one_hot, F.nll_loss, F.cross_entropy, F.multi_margin_loss), (INDICES, ALL)),
    **dict.fromkeys((T.__getitem__, T.__setitem__), (INDICES, SECOND)),
    **dict.fromkeys((torch.bincount, T.bincount), ("numbers below 0", slice(1))),
    **{
        getattr(of, name): (INDICES, SECOND)
        for of in (torch, T)
        for name in ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_select", "take")
        if hasattr(of, name)
    },
}


def undecided() -> tuple[type[Exception], ...]:
    """torch's errors for a number read from a tensor."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # loads sympy: a third of a second

    return DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode


class Caught:
    """The errors of a trace."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.raised = Raised(self.errors)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Context of a call that reads values: any error of it is recorded."""
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
            stack.enter_context(patch.object(Distribution, "__init__", _limited(Distribution.__init__)))
            stack.callback(self.raised.end)
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
            if place is None:
                continue
            file = place.tb_frame.f_code.co_filename
            by_c = isinstance(error, VgameError) and file.startswith(VGAME)  # code without a frame, such as islice
            if is_library_file(file) and not by_c and not is_of_python(file):  # torch catches its errors itself
                continue
            line = f"{Path(file).name} line {place.tb_lineno}"
            why = f"{error}" if isinstance(error, VgameError) else "the values of its tensors are unknown there"
            raise ProgramError(
                f"an error while the step is traced is caught at {line} by the code around it ({why}); nothing is "
                "raised there in a loop of torch, so another step would be trained: compute with tensors "
                "(torch.where, torch.clamp), or remove the `try`"
            )


def refuse_tried(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """ProgramError for a function that fails for some values, if the user's code could catch the error: a trace raises
    none. Indices computed from the data are checked after the trace."""
    _refuse_anomalies(function)
    if function not in FAILING:
        return
    limits, places = FAILING[function]
    given = tree_leaves([args[places] or ([] if kwargs else args), kwargs])
    tensors = [x for x in given if isinstance(x, T)]
    if limits == INDICES:
        tensors = [x for x in tensors if not x.dtype.is_floating_point and x.dtype != torch.bool]
    _refuse_tried(function.__name__, limits, tensors)


def _refuse_tried(name: str, limits: str, tensors: list[T]) -> None:
    graph, nodes = graph_of_trace(), [n for n in map(node_of, tensors) if n is not None]
    if graph is None or not nodes:
        return
    if (line := catching(sys._getframe(1), ERRORS)) and follows(nodes, graph, limits == INDICES):
        raise failing(name + line_above(sys._getframe(1)), limits, line)


def detects(mode: bool, check_nan: bool = True) -> None:
    """In place of `torch.set_anomaly_enabled` in a trace: no anomaly is detected."""
    detects.on = mode and check_nan  # type: ignore[attr-defined]


detects.on = False  # type: ignore[attr-defined]


def _refuse_anomalies(function: Callable[..., Any]) -> None:
    gradients = (T.backward, torch.autograd.grad, torch.autograd.backward)
    on = function in gradients and detects.on  # type: ignore[attr-defined]
    if on and (line := catching(sys._getframe(1), ERRORS)):
        raise failing(function.__name__, "gradients that are not finite, as it detects anomalies,", line)


class _Validates:
    """In place of the flag by which a distribution checks its arguments: false, but ProgramError if code could catch
    the error of the check."""

    def __bool__(self) -> bool:
        names = sys._getframe(1).f_locals
        given = [x for x in (names.get("value"), *vars(names.get("self", self)).values()) if isinstance(x, T)]
        _refuse_tried(type(names.get("self", self)).__name__, "values that it does not have", given)
        return False


def _limited(original: Callable[..., None]) -> Callable[..., None]:
    """`Distribution.__init__`, which checks its arguments in torch."""

    def begin(distribution: Distribution, *args: Any, **kwargs: Any) -> None:
        original(distribution, *args, **kwargs)
        if kwargs.get("validate_args") is not False:
            given = [x for x in map(vars(distribution).get, distribution.arg_constraints) if isinstance(x, T)]
            _refuse_tried(type(distribution).__name__, "arguments out of its limits", given)
            distribution._validate_args = _Validates()

    return begin


def torchs_error(error: Exception, function: Callable[..., Any], arguments: Any) -> Exception:
    """The error that torch raises for tensors with numbers. The shape rules of a trace raise some errors of another
    class, which the user's code may catch."""
    unknown = torch.SymInt | torch.SymFloat | torch.SymBool
    if isinstance(error, (VgameError, *undecided())) or any(isinstance(x, unknown) for x in tree_leaves(arguments)):
        return error
    if function in (T.backward, torch.autograd.grad, torch.autograd.backward):  # of tensors without a history
        return error
    try:
        if sum(x.numel() for x in tree_leaves(arguments) if isinstance(x, T)) > MOST:
            return error
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

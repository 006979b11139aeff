"""Steps of torch's optimizers as they are captured: the plain loops, with tensors for Python numbers that read values.

Twin of `torch.optim._adafactor._single_tensor_adafactor`, with the same names and order: only `.item()` and Python's
`max` are replaced. The twin replaces torch's function while a step is played.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from vgame.errors import ProgramError
from vgame.program.caught import Caught
from vgame.program.hidden_state import is_library_file, own_line
from vgame.program.recorder import OF_TENSOR, without_data

T = torch.Tensor
VARIANTS = ("foreach", "fused", "capturable", "differentiable")
KINDS = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, Optimizer)]


@contextmanager
def without_values() -> Iterator[None]:
    """Context in which torch's steps read no values of tensors, and tensors made from numbers keep their values."""
    caught = Caught()
    with patch("torch.optim._adafactor._single_tensor_adafactor", _adafactor), plain_loops(), _Numbers(caught):
        yield
    caught.refuse()


@contextmanager
def plain_loops() -> Iterator[None]:
    """Context in which the steps of torch's own classes are their plain loops: the variants differ only in launches of
    kernels. Those of other classes may compute something else, so they read their own settings."""
    before = [(kind, vars(kind)["step"]) for kind in KINDS if "step" in vars(kind)]
    try:
        for kind, step in before:
            kind.step = _plainly(step)
        yield
    finally:
        for kind, step in before:
            kind.step = step


def _plainly(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = [{key: group[key] for key in VARIANTS if key in group} for group in self.param_groups]
        groups = [*zip(self.param_groups, own, strict=True)]
        try:
            for group, variants in groups:
                group.update(dict.fromkeys(variants, False))
            return step(self, *args, **kwargs)
        finally:
            for group, variants in groups:
                group.update(variants)

    return plain


CPU, META = torch.device("cpu"), torch.device("meta")
#: Attributes for the device of a tensor, with their values in a loop.
PLACES = {T.device.__get__: CPU, T.is_cpu.__get__: True, T.is_meta.__get__: False}
#: Functions that give the words of a tensor, or their address.
WORDS = (T.numpy, T.data_ptr, T.untyped_storage, T.storage, T.__array__)


class _Numbers(TorchFunctionMode):
    """Keeps `torch.tensor(0.1, device=p.device)` on a device with data; `torch.zeros(p.shape)` has none, as `p` has.
    The user's code finds all tensors on the CPU, as in a loop; it reads no words of those without data."""

    def __init__(self, caught: Caught) -> None:
        super().__init__()
        self.caught = caught

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.scalar_tensor):
            return func(*args, **kwargs | ({"device": CPU} if kwargs.get("device") is not None else {}))
        if func in PLACES and not is_library_file(sys._getframe(1).f_code.co_filename):
            return PLACES[func]
        if func in WORDS and not is_library_file(sys._getframe(1).f_code.co_filename):
            self._refuse_words(func.__name__, args[0])
        args, kwargs = _placed(func, args, kwargs)
        if func not in (torch.zeros, torch.ones, torch.full, torch.empty) or not _is_of_tensor(*args, **kwargs):
            return func(*args, **kwargs)
        before = OF_TENSOR.set(_is_of_size(*args, **kwargs))
        try:
            return func(*args, **kwargs | {"device": META})
        finally:
            OF_TENSOR.reset(before)

    def _refuse_words(self, name: str, tensor: torch.Tensor) -> None:
        with self.caught.noting():
            if without_data(tensor):
                raise ProgramError(
                    f"the optimizer's step reads {name} of a tensor{own_line(traceback.extract_stack())}, which has no "
                    "data while the step is captured; compute with tensors (torch.where, torch.clamp) instead"
                )


def _placed(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a call, with the device `meta` in place of the CPU, which the user's code reads as the device of
    tensors without data."""
    if func is T.to and not without_data(args[0]):
        return args, kwargs
    places = [META if isinstance(a, torch.device) and a == CPU else a for a in args]
    given = kwargs.get("device")
    return places, kwargs | ({"device": META} if isinstance(given, torch.device) and given == CPU else {})


def _is_of_size(*args: Any, size: Any = None, **_: Any) -> bool:
    """Whether a size is that of another tensor."""
    return isinstance(size if size is not None else args[0] if args else (), torch.Size)


def _is_of_tensor(*args: Any, size: Any = None, **_: Any) -> bool:
    """Whether a size is that of another tensor, or of more than one element: no counter has it."""
    given = size if size is not None else args[0] if args else ()
    if isinstance(given, int):
        given = [n for n in args if isinstance(n, int)]
    return _is_of_size(*args, size=size) or math.prod(given) > 1


def _adafactor(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    row_vars: Sequence[torch.Tensor | None],
    col_vars: Sequence[torch.Tensor | None],
    variances: Sequence[torch.Tensor | None],
    state_steps: Sequence[torch.Tensor],
    grad_scale: None,
    found_inf: None,
    *,
    d: float,
    lr: torch.Tensor | float,
    beta2_decay: float,
    weight_decay: float,
    eps1: float | None,
    eps2: float,
    maximize: bool,
    has_complex: bool,
) -> None:
    states = zip(row_vars, col_vars, variances, state_steps, strict=True)
    for param, grad, (row, col, variance, count) in zip(params, grads, states, strict=True):
        count += 1
        step = count.item()
        grad = -grad if maximize else grad
        least = torch.finfo(param.dtype).eps if eps1 is None else eps1
        alpha = torch.clamp(param.norm(2) / param.numel() ** 0.5, min=eps2) * min(float(lr), 1 / step**0.5)
        if weight_decay:
            param.mul_(1 - float(lr) * weight_decay)
        estimate = _estimate(grad, row, col, variance, step**beta2_decay, least)
        update = estimate.clamp_(min=least * least).rsqrt_().mul_(grad)
        denom = torch.clamp(update.norm(2) / (update.numel() ** 0.5 * d), min=1.0)
        param.sub_(update.mul_(alpha / denom))


def _estimate(grad: torch.Tensor, row: Any, col: Any, variance: Any, share: float, least: float) -> torch.Tensor:
    """The second moment of a gradient, after an update of its factors."""
    if grad.dim() <= 1:
        return variance.lerp_(grad * grad, share).clone()
    row.lerp_(torch.norm(grad, dim=-1, keepdim=True).square_().div_(grad.size(-1)), share)
    col.lerp_(torch.norm(grad, dim=-2, keepdim=True).square_().div_(grad.size(-2)), share)
    return (row @ col).div_(row.mean(dim=-2, keepdim=True).clamp_(min=least))

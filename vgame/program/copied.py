"""Copies of an optimizer and its schedulers, over parameters without data, that step as the originals would.

In: an optimizer and its schedulers. Out: copies; ProgramError where a copy could act in another way than the original:
it reads a module, identifies parameters by address, or a scheduler changes more than the options of groups.
"""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.caught import Caught
from vgame.program.functions_held import parts
from vgame.program.hidden_state import line_of, own_line
from vgame.program.recorder import without_data

Optimizer = torch.optim.Optimizer
WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


def like(p: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A parameter of the class of `p`, with other data."""
    made = data.as_subclass(type(p)) if type(p) is not nn.Parameter else nn.Parameter(data)
    return made.requires_grad_(p.requires_grad)


def copy_attributes(own: Iterable[nn.Parameter], memo: dict[int, Any]) -> None:
    """Give the copies of parameters, which are in the memo, their attributes."""
    for p in own:
        vars(memo[id(p)]).update(deepcopy(vars(p), memo))


def parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"])


def copied(optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> tuple[Optimizer, list[LRScheduler]]:
    """Copies of optimizer and schedulers, over parameters without data; the copies share objects as the originals
    do."""
    made = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): made} | _modules_held(optimizer, schedulers)
    for p in parameters(optimizer):
        memo[id(p)] = like(p, torch.empty_like(p, device="meta", requires_grad=False))
        memo |= {id(v): _empty(k, v, p) for k, v in optimizer.state.get(p, {}).items() if isinstance(v, torch.Tensor)}
    copy_attributes(parameters(optimizer), memo)
    vars(made).update(deepcopy({k: v for k, v in vars(optimizer).items() if k != "step"}, memo))
    return made, [_follower(s, memo) for s in schedulers]


def _empty(key: str, value: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """A tensor of the state without its data; counters keep their value."""
    counter = key == "step" or (value.dim() == 0 and p.dim() > 0)
    return deepcopy(value) if counter else torch.empty_like(value, device="meta")


def _follower(scheduler: LRScheduler, memo: dict[int, Any]) -> LRScheduler:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ProgramError(
            "ReduceLROnPlateau depends on the values of a metric, which cannot be captured; use a scheduler that "
            "depends only on the step"
        )
    if not isinstance(scheduler, LRScheduler):
        raise ProgramError(
            f"the scheduler is a {type(scheduler).__name__}; a torch.optim.lr_scheduler.LRScheduler is expected"
        )
    if id(scheduler.optimizer) not in memo:
        raise ProgramError(f"the scheduler {type(scheduler).__name__} belongs to another optimizer than the task's")
    return deepcopy(scheduler, memo)


def _held(owner: Any, *without: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of what an optimizer, a scheduler or a parameter holds, keys of dictionaries included, also by its
    class and the functions of this."""
    name, seen = type(owner).__name__, {id(owner), *map(id, without)}
    own = [vars(kind) for kind in type(owner).__mro__ if kind.__module__.split(".")[0] not in ("torch", "builtins")]
    todo = [(f"{name}.{key}", value) for key, value in vars(owner).items()]
    todo += [
        (f"{name}.{key}", value)
        for each in own
        for key, value in each.items()
        if isinstance(value, FunctionType) or not key.startswith("__")
    ]
    while todo:
        path, value = todo.pop()
        yield path, value
        if id(value) in seen or isinstance(value, torch.Tensor | nn.Module):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            todo += [(path, key) for key in value]
        if isinstance(value, Optimizer | LRScheduler):
            todo += [(f"{path}.{key}", part) for key, part in vars(value).items()]
        elif isinstance(value, weakref.ref):
            todo.append((path, value()))
        elif isinstance(value, WEAK):
            todo += [(path, weakref.ref(part)) for part in value if isinstance(part, torch.Tensor)]
        else:
            todo += parts(path, value)


def _modules_held(optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> dict[int, Any]:
    """By `id`, what stands in the copies for each module that is held. ProgramError if something held could tell the
    copies of parameters from the originals."""
    own, modules = list(parameters(optimizer)), dict[int, Any]()
    numbers = {number for p in own for number in (id(p), p.data_ptr()) if number}
    texts = {str(number) for number in numbers}
    for owner in (optimizer, *schedulers, *own):
        for path, value in _held(owner):
            if isinstance(value, nn.Module):
                modules[id(value)] = _Module(path, type(value).__name__)
            known = (isinstance(value, int) and value in numbers) or (isinstance(value, str) and value in texts)
            if known or (isinstance(value, weakref.ref) and any(value() is p for p in own)):
                raise ProgramError(
                    f"{path} identifies a parameter by its {'id or address' if known else 'weak reference'}, which "
                    "differs in the copy that is captured; hold the parameter itself, or put it in a group of its own"
                )
    return modules


class _Module:
    """A module that an optimizer or a scheduler holds, and may not read."""

    def __init__(self, path: str, kind: str) -> None:
        vars(self).update(_path=path, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise ProgramError(
            f"{self._path} is a module ({self._kind}) of which {name} is read{own_line(traceback.extract_stack())}, "
            "but a program's optimizer has only parameters, gradients and its own state; give the optimizer or "
            "scheduler what it needs of the module: parameters, names, numbers"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Module:
        return self


class _Zeros(TorchDispatchMode):
    """Notes the memory that is filled with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.filled: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default):
            self.filled |= {t.untyped_storage()._cdata for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
        return func(*args, **(kwargs or {}))


def clear_gradients(optimizer: Optimizer, with_zeros: bool = True, never: Iterable[nn.Parameter] = ()) -> None:
    """Call the class's own `zero_grad`, where it has one. ProgramError if a gradient is left; `with_zeros`: a gradient
    of zeros is as good as none, since every parameter gets one in each step, but for those that `never` do."""
    own = type(optimizer).zero_grad
    if own.__module__.split(".")[0] == "torch":
        return
    with _Zeros() as zeros:
        own(optimizer)
    left = [p.grad for p in parameters(optimizer) if p.grad is not None]
    zero = all(with_zeros and grad.untyped_storage()._cdata in zeros.filled for grad in left)
    if not zero or any(p.grad is not None for p in never):
        place = f"{Path(own.__code__.co_filename).name} line {own.__code__.co_firstlineno}"
        raise ProgramError(
            f"{own.__qualname__} ({place}) leaves gradients, which a program computes anew in each step; let it set "
            "each p.grad to None, and keep what lasts in the optimizer's state"
        )


class _Untouched(TorchDispatchMode):
    """Refuses operators on tensors without data while a scheduler steps, also if the scheduler catches the refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.caught = Caught()

    def __exit__(self, kind: Any, *problem: Any) -> None:
        super().__exit__(kind, *problem)
        if kind is None:
            self.caught.refuse()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(without_data(t) for t in tree_leaves((args, kwargs or {}))):
            with self.caught.noting():
                raise _Touched(f"computes with tensors of the optimizer ({func})")
        return func(*args, **(kwargs or {}))


class _Touched(Exception):
    """A scheduler does more than change options; the text ends the sentence."""


def _fixed(optimizer: Optimizer) -> list[Any]:
    """What a scheduler must leave as it is: parameters and their flags, by group; tensors of the state may be dropped
    only."""
    return [[(id(p), p.requires_grad) for p in group["params"]] for group in optimizer.param_groups]


def _tensors(optimizer: Optimizer) -> set[int]:
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    return {id(t) for state in states for t in state.values() if isinstance(t, torch.Tensor)}


@contextmanager
def _only_options(optimizer: Optimizer) -> Iterator[None]:
    """Context in which only options of groups change, and state is dropped."""
    before, kept = _fixed(optimizer), _tensors(optimizer)
    try:
        with _Untouched():
            yield
    finally:
        if _fixed(optimizer) != before:
            raise _Touched("changes the parameters of a group, or their requires_grad")
    if not _tensors(optimizer) <= kept:
        raise _Touched("puts tensors into the optimizer's state")


def untouched(_: Optimizer) -> TorchDispatchMode:
    """Context in which no operator runs on tensors without data."""
    return _Untouched()


def follow(schedulers: Sequence[LRScheduler], guard: Callable[[Optimizer], Any] = _only_options) -> None:
    """Step the schedulers of a copied optimizer, after its own step. ProgramError if one changes more than options of
    groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that the copy's step is not the one wrapped by the scheduler
        for scheduler in schedulers:
            scheduler.optimizer._opt_called = True  # as torch's wrapper of the step notes
            name = type(scheduler).__name__
            try:
                with guard(scheduler.optimizer):
                    scheduler.step()
            except _Touched as error:
                raise ProgramError(
                    f"the scheduler {name} {error}{line_of(error)}; a program takes only options of the groups from "
                    "a scheduler: compute in the optimizer's step, freeze with Task(frozen=...)"
                ) from None
            except ProgramError:
                raise
            except Exception as error:
                raise ProgramError(
                    f"the scheduler {name} fails at a step of the job: {error}{line_of(error)}; configure it for as "
                    "many steps as the job has"
                ) from None


class Watch:
    """Notes whether the state or the parameters of a copied optimizer are read or changed."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
        own = {id(v) for v in (optimizer.state, *optimizer.state.values(), *parameters(optimizer))}
        self.read = any(id(value) in own for s in schedulers for _, value in _held(s, optimizer))
        optimizer.state = self._noting(defaultdict)(dict, optimizer.state)
        for group in optimizer.param_groups:
            group["params"] = self._noting(list)(group["params"])

    def _noting(self, kind: type) -> Any:
        """A subclass of a container that notes the use of its methods."""

        def noted(name: str) -> Any:
            def method(*args: Any) -> Any:
                self.read = True
                return getattr(kind, name)(*args)

            return method

        kept = ("__init__", "__new__", "__class__", "__getattribute__", "__init_subclass__", "__subclasshook__")
        return type(kind.__name__, (kind,), {n: noted(n) for n in dir(kind) if n not in kept})

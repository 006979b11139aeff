"""Copies of optimizers and their schedulers, over parameters without data, that step as the originals would.

In: optimizers and their schedulers. Out: copies; ProgramError where a copy could act in another way than the original:
it reads a module or another tensor of the model, identifies parameters by address, cannot be copied, or a scheduler
changes more than the options of groups.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.caught import Caught
from vgame.program.functions_held import LEAVES
from vgame.program.hidden_state import has_plain_step, line_of
from vgame.program.memory import root_of, sharing
from vgame.program.recorder import without_data
from vgame.program.slots import Slots, is_counter, tensors_in
from vgame.program.stand_ins import held_by, stand_ins
from vgame.program.unchanged import only_reading
from vgame.system.installed import is_users

Optimizer = torch.optim.Optimizer
COPYING = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
FIXED = (tuple, frozenset, range, partial, torch.device)  # objects that do not change; their parts may


def like(p: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A parameter of the class of `p`, with other data."""
    made = data.as_subclass(type(p)) if type(p) is not nn.Parameter else nn.Parameter(data)
    return made.requires_grad_(p.requires_grad)


def _copy_attributes(own: Iterable[nn.Parameter], memo: dict[int, Any]) -> None:
    """Give the copies of parameters, which are in the memo, their attributes."""
    for p in own:
        copies = {key: _attribute(f"the attribute {key} of a parameter", v, memo) for key, v in vars(p).items()}
        vars(memo[id(p)]).update(copies)


def parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"])


def copied(
    optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler], model: nn.Module | None = None
) -> tuple[list[Optimizer], list[LRScheduler]]:
    """Copies of optimizers and schedulers, over parameters without data; the copies share objects as the originals
    do. Modules, and the other tensors of the model, are not copied, and may not be used."""
    copies, followers, _ = _copies(optimizers, schedulers, model)
    return copies, followers


def objects_copied(optimizer: Optimizer, schedulers: Sequence[LRScheduler], model: nn.Module) -> dict[int, Any]:
    """The objects, by `id`, that `copied` copies for one optimizer: another optimizer that changes one of them changes
    its steps."""
    memo = _copies([optimizer], schedulers, model)[2]
    found = {id(each): each for each in (*memo.get(id(memo), ()), optimizer) if not isinstance(each, FIXED)}
    slots = [value for _, each in _slots_of_all([optimizer], [*parameters(optimizer)]) for value in each.values()]
    found |= {id(value): value for value in slots}
    found |= {f"memory {value.untyped_storage()._cdata}": value for value in slots}
    found |= {f"memory {root_of(each)}": each for each in found.values() if isinstance(each, np.ndarray)}
    return found | {f"memory {place}": storage for place, storage in memo.get("torch", {}).items()}


def _copies(
    optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler], model: nn.Module | None
) -> tuple[list[Optimizer], list[LRScheduler], dict[Any, Any]]:
    own = [p for optimizer in optimizers for p in parameters(optimizer)]
    made = [object.__new__(type(optimizer)) for optimizer in optimizers]
    memo: dict[Any, Any] = stand_ins((*optimizers, *schedulers), own, model)
    memo |= only_reading((*optimizers, *schedulers), model)
    memo |= {id(optimizer): copy for optimizer, copy in zip(optimizers, made, strict=True)}
    memo |= {id(p): like(p, torch.empty_like(p, device="meta", requires_grad=False)) for p in own}
    slots_of_all = [*_slots_of_all(optimizers, own)]
    _refuse_shared_slots(slots_of_all)
    for p, slots in slots_of_all:
        for name, value in slots.items():
            if id(value) not in memo:
                memo[id(value)] = _empty(name, value, p, memo)
    with _whole_copies():
        _copy_attributes(own, memo)
        for optimizer, copy in zip(optimizers, made, strict=True):
            vars(copy).update(_attributes(optimizer, memo))
        followers = [_follower(s, memo) for s in schedulers]
    _refuse_own_copying(memo.get(id(memo), ()), memo, type(optimizers[0]).__name__)
    return made, followers, memo


def _refuse_own_copying(originals: Iterable[Any], memo: Mapping[int, Any], name: str) -> None:
    """Raise ProgramError if the class of a copied object defines how it is copied, and the copy differs."""
    for kind in {type(each) for each in originals if not _is_same(each, memo)}:
        keys = COPYING[:1] if issubclass(kind, Optimizer | LRScheduler) else COPYING  # these are copied as a whole
        methods = [(key, vars(each).get(key)) for each in kind.__mro__ for key in keys]
        own = [key for key, method in methods if isinstance(method, FunctionType) and is_users(method)]
        if own:
            raise ProgramError(
                f"the optimizer {name} or its schedulers hold an object of {kind.__name__}, whose {own[0]} decides "
                "what a copy of it has, but a capture plays the steps on copies; remove the method, or keep numbers"
            )


def _is_same(original: Any, memo: Mapping[int, Any]) -> bool:
    """Whether the copy of a plain object has its attributes, with the same values or their copies."""
    copy = memo.get(id(original))
    if type(copy) is not type(original) or not hasattr(copy, "__dict__"):
        return False
    if isinstance(original, dict | list | set | tuple) or {k for k in type(copy).__mro__ if "__slots__" in vars(k)}:
        return False
    pairs = [(value, vars(copy).get(key, memo)) for key, value in vars(original).items()]
    same = all(a is b or memo.get(id(a)) is b or (isinstance(a, LEAVES) and repr(a) == repr(b)) for a, b in pairs)
    return same and len(pairs) == len(vars(copy))


def deep_copy(optimizer: Optimizer, memo: dict[Any, Any]) -> Optimizer:
    """A copy of an optimizer with all attributes of it and of its parameters, whose copies are in the memo."""
    with _whole_copies():
        _copy_attributes(parameters(optimizer), memo)
        return _whole(optimizer, memo)


def _slots_of_all(optimizers: Sequence[Optimizer], own: Sequence[nn.Parameter]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for optimizer in optimizers:
        slots = Slots(optimizer)
        yield from ((p, slots.of(p)) for p in own)


def _refuse_shared_slots(slots_of_all: Iterable[tuple[nn.Parameter, dict[str, torch.Tensor]]]) -> None:
    """Raise ProgramError if a slot shares memory with a parameter, or with another slot that is not a counter."""
    places = {id(p): f"a parameter of shape {tuple(p.shape)}" for p, _ in slots_of_all}
    given = {id(p): (places[id(p)], p) for p, _ in slots_of_all}
    kept = {
        (id(p), id(t)): (f"{name} of {places[id(p)]}", t)
        for p, own in slots_of_all
        for name, t in own.items()
        if not is_counter(name, t, p)
    }
    for (one, first), (other, second) in sharing([*given.values(), *kept.values()]):
        if not (isinstance(first, nn.Parameter) and isinstance(second, nn.Parameter)):
            raise ProgramError(
                f"the memory of {one} and of {other} is shared in the optimizers, but a program stores them "
                "separately; clone one of them"
            )


@contextmanager
def _whole_copies() -> Iterator[None]:
    """Context in which `deepcopy` copies all attributes of optimizers and schedulers: their `__getstate__` omits
    attributes that are not saved to a file, such as hooks."""
    with ExitStack() as stack:
        for kind in (Optimizer, LRScheduler):
            stack.enter_context(patch.object(kind, "__deepcopy__", _whole, create=True))
        yield


def _whole(owner: Any, memo: dict[Any, Any]) -> Any:
    made = memo[id(owner)] = object.__new__(type(owner))
    vars(made).update(_attributes(owner, memo))
    return made


def _attributes(owner: Any, memo: dict[int, Any]) -> dict[str, Any]:
    """Copies of the attributes, without the `step` that torch's schedulers set on their optimizer: it steps the
    original."""
    name, own = type(owner).__name__, dict(vars(owner))
    if isinstance(owner, Optimizer):
        if not has_plain_step(owner):
            raise ProgramError(
                f"the step of the optimizer {name} was replaced, and not by a scheduler; define the step in the "
                "optimizer's class"
            )
        own.pop("step", None)
    return {key: _attribute(f"{name}.{key}", value, memo) for key, value in own.items()}


def _attribute(path: str, value: Any, memo: dict[int, Any]) -> Any:
    try:
        return deepcopy(value, memo)
    except ProgramError:
        raise
    except Exception as error:  # a copy may raise anything
        raise ProgramError(
            f"{path} is or holds an object that cannot be copied ({type(error).__name__}: {error}), but the steps of "
            "an optimizer and its schedulers are played on a copy; open files, locks and generators elsewhere, and "
            "keep numbers in the optimizer"
        ) from None


def _empty(key: str, value: torch.Tensor, p: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A tensor of the state without its data; counters keep their value."""
    return deepcopy(value, memo) if is_counter(key, value, p) else torch.empty_like(value, device="meta")


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
    """Call the class's own `zero_grad`, if it has one. ProgramError if a gradient is left. `with_zeros`: a gradient of
    zeros counts as none, since each step gives the parameter a new one; not for those that `never` get one."""
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
    """A scheduler does more than change options; the text completes the error message."""


def fixed(optimizers: Iterable[Optimizer]) -> list[Any]:
    """The parameters of each group and their flags, which a step must not change."""
    return [[[(id(p), p.requires_grad) for p in group["params"]] for group in o.param_groups] for o in optimizers]


def tensors_kept(optimizers: Iterable[Optimizer]) -> set[int]:
    """The tensors in the state, by `id`: another optimizer or a scheduler may only drop them."""
    states = [state for o in optimizers for state in o.state.values() if isinstance(state, dict)]
    return {id(t) for state in states for _, t in tensors_in("", state)}


@contextmanager
def _only_options(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Context in which only options of groups change, and state is dropped."""
    before, kept = fixed(optimizers), tensors_kept(optimizers)
    try:
        with _Untouched():
            yield
    finally:
        if fixed(optimizers) != before:
            raise _Touched("changes the parameters of a group, or their requires_grad")
    if not tensors_kept(optimizers) <= kept:
        raise _Touched("puts tensors into the optimizer's state")


def untouched(_: Sequence[Optimizer]) -> TorchDispatchMode:
    """Context in which no operator runs on tensors without data."""
    return _Untouched()


def follow(
    schedulers: Sequence[LRScheduler],
    optimizers: Sequence[Optimizer] = (),
    guard: Callable[[Sequence[Optimizer]], Any] = _only_options,
) -> None:
    """Step the schedulers of copied optimizers, after the optimizers' own steps. ProgramError if one changes more than
    options of groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that the copy's step is not the one wrapped by the scheduler
        for scheduler in schedulers:
            scheduler.optimizer._opt_called = True  # as torch's wrapper of the step notes
            name = type(scheduler).__name__
            try:
                with guard([*optimizers, scheduler.optimizer]):
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
        self.read = any(id(value) in own for s in schedulers for _, value in held_by(s, optimizer))
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

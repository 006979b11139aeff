"""Check the values that functions of an optimizer and its schedulers read: a copy of an optimizer shares them with the
original.

In: an optimizer and its schedulers, while a copy of them is played, or a loss traced. Out: nothing, or a ProgramError:
a function that reads the optimizer itself, a module or a parameter would read the original, not the copy; a change of
these values would change the steps of the next capture, or of the job.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiplicativeLR

from vgame.errors import ProgramError
from vgame.program.compared import differing, values_outside
from vgame.program.functions_held import LEAVES, LIVE, STANDARD, Reader, parts
from vgame.program.named import CALLED, WHOLE
from vgame.program.stand_ins import held_by
from vgame.tasks.reach import is_own_class


@contextmanager
def unchanged_outside(
    owners: Sequence[torch.optim.Optimizer | LRScheduler], model: nn.Module | None
) -> Iterator[dict[int, Any]]:
    """Context that raises ProgramError if functions of optimizers or schedulers read values outside the copies, or
    change values that they read, or random numbers are drawn. It yields the objects, by `id`, that they read."""
    name = " and ".join(type(each).__name__ for each in owners if isinstance(each, torch.optim.Optimizer))
    reader = _reader(owners, model)
    before, chance, outside = reader.found, _chance(), values_outside()
    yield reader.objects()
    if chance != _chance():
        raise ProgramError(
            f"the optimizer {name} or its schedulers draw random numbers on the host, so every "
            "capture gets other numbers; draw them with torch.rand_like(p)"
        )
    if changed := [*differing(_reader(owners, model).found, before), *differing(values_outside(), outside)]:
        raise ProgramError(
            f"the optimizer {name} or its schedulers change {changed[0].split(' in ')[0]} while "
            "they step, so a second capture would start from the changed value; keep it in the optimizer or in an "
            "object of the scheduler"
        )


@contextmanager
def kept_for(owners: Sequence[torch.optim.Optimizer | LRScheduler], model: nn.Module) -> Iterator[None]:
    """Context of a loss, which may not change values that these optimizers and schedulers hold, or that their functions
    read."""
    before = _reader(owners, model).found | _held(owners, model)
    yield
    if changed := differing(_reader(owners, model).found | _held(owners, model), before):
        raise ProgramError(
            f"the loss or the model changes {changed[0]}, which the optimizer or its schedulers read, so their steps "
            "would depend on those of the loss; let them read numbers that no step changes"
        )


def _own_classes(kind: type) -> list[type]:
    """The classes outside torch."""
    return [each for each in kind.__mro__ if each.__module__.split(".")[0] not in ("torch", "builtins")]


def _own_functions(kind: type) -> list[FunctionType]:
    return [f for each in _own_classes(kind) for f in vars(each).values() if isinstance(f, FunctionType)]


def _class_attributes(kind: type) -> list[tuple[str, Any]]:
    """(path, value) of numbers, texts and containers of the classes outside torch, which a copy shares."""
    held = [(f"{each.__name__}.{name}", value) for each in _own_classes(kind) for name, value in vars(each).items()]
    return [(path, value) for path, value in held if ".__" not in path and isinstance(value, (*LEAVES, *STANDARD))]


def _held_by(owner: Any, shared: Set[int]) -> list[Any]:
    """Functions and plain objects in attributes, containers and plain objects. `shared`: methods and partials that are
    not opened."""
    found, seen, todo = [], set(), [vars(owner)]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (*LEAVES, *LIVE, torch.Tensor, ModuleType, type)):
            continue
        seen.add(id(value))
        found.append(value)
        if isinstance(value, FunctionType) or id(value) in shared or _is_of_class(value):
            continue
        if isinstance(value, MethodType):
            todo += [value.__func__, value.__self__]
        else:
            todo += [part for _, part in parts("", value)]
    return found


def _is_of_class(value: Any) -> bool:
    """Whether a value is a bound method of a class, which no copy has."""
    return isinstance(value, MethodType) and isinstance(value.__self__, type)


def _functions(owner: Any, shared: Set[int]) -> list[Any]:
    """Functions that a copy shares: those of the owner's class, those that it holds, and the `shared` methods and
    partials."""
    held = _held_by(owner, shared)
    held = [v for v in held if isinstance(v, FunctionType) or id(v) in shared or _is_of_class(v)]
    return [*_own_functions(type(owner)), *held]


def objects_read(owners: Sequence[Any], model: nn.Module | None) -> dict[int, Any]:
    """The objects, by `id`, that functions of owners read; none if a read is not allowed, which a later check
    refuses."""
    try:
        return _reader(owners, model).objects()
    except ProgramError:
        return {}


def only_reading(owners: Iterable[Any], model: nn.Module | None) -> dict[int, Any]:
    """By `id`, methods and partial functions that torch's own schedulers call, and which read no more than named
    attributes of objects that no owner holds otherwise. A copy shares them, as it does functions."""
    owners = list(owners)
    found = {id(f): (f, objects) for f in _called(owners) if (objects := _objects_read(f, model)) is not None}
    held = {id(v) for owner in owners for _, v in held_by(owner, *(f for f, _ in found.values()))}
    return {key: f for key, (f, objects) in found.items() if held.isdisjoint(objects)}


def _called(schedulers: Iterable[Any]) -> Iterator[Any]:
    for each in schedulers:
        yield from _called(getattr(each, "_schedulers", ()))
        if type(each) in (LambdaLR, MultiplicativeLR):
            yield from (f for f in each.lr_lambdas if isinstance(f, MethodType | partial))


def _objects_read(called: Any, model: nn.Module | None) -> set[int] | None:
    """The objects, by `id`, of which a method or a partial function reads attributes; None if it does more with an
    object, which may change it."""
    reader = Reader(model, _given(called))
    try:
        reader.read(("", "", called, CALLED))
    except ProgramError:
        return None
    return {*reader.opened} if reader.objects().keys() <= reader.opened.keys() - reader.seen.keys() else None


def _given(called: Any) -> list[Any]:
    """The objects that are given to a method or a partial function."""
    if isinstance(called, MethodType):
        return [called.__self__]
    if isinstance(called, partial):
        given = [v for v in (*called.args, *called.keywords.values()) if not isinstance(v, LEAVES)]
        return [*given, *_given(called.func)]
    return []


def _reader(owners: Sequence[Any], model: nn.Module | None) -> Reader:
    """A reader of the values that functions of owners read besides their arguments, and of the values of the owners'
    classes."""
    shared = only_reading(owners, model).keys()
    functions = [f for owner in owners for f in _functions(owner, shared)]
    held = {type(v) for owner in owners for v in _held_by(owner, shared)}
    classes = [part for kind in {*map(type, owners), *filter(is_own_class, held)} for part in _class_attributes(kind)]
    reader = Reader(model)
    reader.read(*(("", "", f, CALLED) for f in functions), *((path, "", v, WHOLE) for path, v in classes))
    return reader


def _held(owners: Sequence[Any], model: nn.Module) -> dict[str, Any]:
    """The numbers, texts and tensors that owners hold, by path, without those that their functions reach."""
    shared, found = only_reading(owners, model).keys(), dict[str, tuple[Any, ...]]()
    for owner in owners:
        for path, value in held_by(owner, *_functions(owner, shared)):
            if isinstance(value, LEAVES):
                found[path] = (*found.get(path, ()), value)
            elif isinstance(value, torch.Tensor):
                found[path] = (*found.get(path, ()), value, value._version)
    return found


def _chance() -> tuple[Any, ...]:
    _, words, *place = np.random.get_state()
    return random.getstate(), words.tobytes(), place, torch.get_rng_state().numpy().tobytes()

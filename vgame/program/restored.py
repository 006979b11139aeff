"""Undo the changes that a traced forward pass makes outside a program: containers of the user's code may keep tensors
of the tracer, which no later pass could use.

In: a model and its losses. Out: a context that restores the modules' tensors, attributes and modes, and the containers,
attributes of objects, classes and functions, globals, closures and caches that the user's code can reach.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch import nn

from vgame.program.compared import Roots
from vgame.program.hidden_state import Container, containers, is_library_file, roots_of, same_parts
from vgame.system.installed import is_own_module
from vgame.tasks.opened import attributes
from vgame.tasks.reach import CACHED, is_own_class, reached

ABSENT = object()


@contextmanager
def restored(model: nn.Module, *losses: Callable[..., Any]) -> Iterator[None]:
    """Context that restores the objects described above, and the requires_grad of each parameter."""
    roots = roots_of(model, losses)
    undo = [partial(_fill, each, _plain(each)) for each in containers(roots)] + list(_bindings(roots))
    frozen = [(p, p.requires_grad) for _, p in model.named_parameters()]
    tensors = [*model.parameters(), *model.buffers()]
    undo += [partial(_set_back, each, dict(attributes(each))) for each in tensors]
    try:
        yield
    finally:
        for parameter, trains in frozen:
            parameter.requires_grad_(trains)
        for each in undo:
            each()


def _set_back(tensor: torch.Tensor, before: dict[str, Any]) -> None:
    """Give a tensor its earlier attributes."""
    for name in {*dict(attributes(tensor))} - {*before}:
        delattr(tensor, name)
    vars(tensor).update(before)


def _plain(each: Container) -> Container:
    """The parts of a container, in one of Python's: a class of the user's may not be made of them."""
    kind = next(kind for kind in (dict, list, set, deque) if isinstance(each, kind))
    return kind(each)


def _fill(each: Container, parts: Container) -> None:
    """Give a container its earlier parts."""
    if not same_parts(each, parts):
        each.clear()
        (each.update if isinstance(each, dict | set) else each.extend)(parts)


def _bindings(roots: Roots) -> Iterator[Callable[[], None]]:
    """Functions that restore names outside containers, and clear caches that were written."""
    for _, value in reached(roots):
        if isinstance(value, FunctionType) and not is_library_file(value.__code__.co_filename):
            names = _stored(value.__code__)
            yield partial(_bind, value.__globals__, {n: value.__globals__.get(n, ABSENT) for n in names})
            for cell in value.__closure__ or ():
                yield partial(_refill, cell, _content(cell))
        elif isinstance(value, ModuleType) and is_own_module(value):
            yield partial(_bind, vars(value), dict(vars(value)))
        elif isinstance(value, type) and is_own_class(value):
            yield partial(_redefine, value, dict(vars(value)))
        elif isinstance(value, CACHED):
            yield partial(_clear, value, value.cache_info().misses)
        elif is_own_class(type(value)):
            yield from (partial(_reset, slot, value, _in(slot, value)) for slot in _slots(type(value)))


@cache
def _stored(code: CodeType) -> frozenset[str]:
    """The globals that a function and its inner functions write."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    return frozenset(own).union(*(_stored(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _bind(names: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [n for n in before if names.get(n, ABSENT) is not before[n]]:
        if before[name] is ABSENT:
            del names[name]
        else:
            names[name] = before[name]


def _redefine(kind: type, before: dict[str, Any]) -> None:
    for name in [n for n in {**vars(kind), **before} if vars(kind).get(n, ABSENT) is not before.get(n, ABSENT)]:
        if name in before:
            type.__setattr__(kind, name, before[name])  # also if its metaclass refuses assignments
        else:
            type.__delattr__(kind, name)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return ABSENT


def _refill(cell: Any, before: Any) -> None:
    if _content(cell) is not before:
        if before is ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = before


@cache
def _slots(kind: type) -> tuple[MemberDescriptorType, ...]:
    return tuple(v for each in kind.__mro__ for v in vars(each).values() if isinstance(v, MemberDescriptorType))


def _in(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # it is empty
        return ABSENT


def _reset(slot: MemberDescriptorType, value: Any, before: Any) -> None:
    if _in(slot, value) is not before:
        if before is ABSENT:
            slot.__delete__(value)
        else:
            slot.__set__(value, before)


def _clear(cached: Any, misses: int) -> None:
    if cached.cache_info().misses != misses:
        cached.cache_clear()

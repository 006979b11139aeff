"""The attributes that the code of a function names: `self.cfg.warmup` reads one number of `self`, not all of it.

In: the code of a function. Out: for each name in it the attributes that it reads there. In: an object and such
attributes. Out: the first one's value, without a call of the user's code.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping, Set
from functools import cache
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from vgame.program.printing import READS_ALL
from vgame.system.installed import is_own_module
from vgame.tasks.reach import is_library_class

Names = tuple[str, ...]
WHOLE: Names = ()  # the value itself is used: as an argument, a result, an operand, a target
CALLED: Names = ("()",)  # it is called, and nothing else
ABSENT = object()
HIDDEN = ("CACHE", "EXTENDED_ARG", "NOP")
LOADS = {*dis.haslocal, *dis.hasfree, *(dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME"))}
LOADS |= {code for name, code in dis.opmap.items() if name.startswith("LOAD_FROM_DICT")}
#: Names through which code reaches values that it does not name.
OPENS = {"__closure__", "__dict__", "__func__", "__globals__", "__self__", "__wrapped__", "f_locals", "gi_frame"}
OPENS |= READS_ALL | {"globals"}
#: Attributes of every module, such as its mode.
FLAGS = {*vars(nn.Module())}
CHANGING = (torch.optim.Optimizer, LRScheduler, torch.Tensor)


def names_read(code: CodeType) -> Mapping[str, frozenset[Names]]:
    """For each name that a function and its inner functions load, the paths of the attributes read there."""
    found = _names_read(code)
    return found if OPENS.isdisjoint(_names_of(code)) else {name: frozenset([WHOLE]) for name in found}


@cache
def _names_read(code: CodeType) -> Mapping[str, frozenset[Names]]:
    steps = [step for step in dis.get_instructions(code) if step.opname not in HIDDEN]
    found = [
        (name, WHOLE if others else _path(steps[place + 1 :]))
        for place, step in enumerate(steps)
        for others, name in enumerate(reversed(_loaded(step, {*code.co_cellvars, *code.co_freevars})))
    ]
    if "super" in code.co_names:  # it reads the first argument without a load
        found += [(name, WHOLE) for name in code.co_varnames[: min(code.co_argcount, 1)]]
    inner = [_names_read(each) for each in code.co_consts if isinstance(each, CodeType)]
    found += [(name, path) for each in inner for name, paths in each.items() for path in paths]
    return {name: frozenset(path for other, path in found if other == name) for name, _ in found}


def _loaded(step: dis.Instruction, cells: Set[str]) -> list[str]:
    """The names whose values an instruction loads; of the last one the next instruction may read an attribute. A cell
    itself is loaded for an inner function."""
    if step.opcode not in LOADS or "LOAD" not in step.opname or step.opname == "LOAD_CLOSURE":
        return []
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return [name for name in names if "LOAD_FAST" not in step.opname or name not in cells]


def _path(steps: list[dis.Instruction]) -> Names:
    """The attributes that these instructions begin with."""
    found: Names = ()
    for step in steps:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        found = (*found, step.argval)
        if step.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and (step.arg or 0) & 1):
            return found + CALLED
    return found


@cache
def _names_of(code: CodeType) -> frozenset[str]:
    return frozenset(code.co_names).union(*(_names_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def part_at(value: Any, path: Names) -> tuple[Any, Names]:
    """(value of the first attribute of a path, path read from it): for a property a method that is called, ABSENT if
    there is no such attribute. LookupError if code of an unknown kind could decide the value."""
    name, *rest = path
    if isinstance(value, ModuleType):
        return (vars(value).get(name, ABSENT), tuple(rest)) if is_own_module(value) else (None, WHOLE)
    if isinstance(value, FunctionType):
        return vars(value)[name], tuple(rest)
    kind, of_class = type(value), isinstance(value, type)
    if isinstance(value, CHANGING) or not _is_plain(kind, type if of_class else object):
        raise LookupError(name)
    if is_library_class(value if of_class else kind) and not isinstance(value, nn.Module):
        raise LookupError(name)
    own = _static(value if of_class else kind, name)
    if of_class:
        if _static(kind, name) is not ABSENT:
            raise LookupError(name)
        return _bound(own, value, None), tuple(rest)
    if type(own) is property and isinstance(own.fget, FunctionType):
        return MethodType(own.fget, value), CALLED
    return _held(value, name, own), tuple(rest)


def _held(value: Any, name: str, own: Any) -> Any:
    """An attribute of an object; `own`: the attribute of this name in its class."""
    if isinstance(own, MemberDescriptorType):
        return _in_slot(own, value)
    if own is not ABSENT and (hasattr(type(own), "__set__") or hasattr(type(own), "__delete__")):
        raise LookupError(name)
    held = getattr(value, "__dict__", {})
    if isinstance(value, nn.Module):
        if name in FLAGS or name in value._parameters or name in value._buffers:
            raise LookupError(name)
        held = {**value._modules, **held}
    return held[name] if name in held else _bound(own, type(value), value)


def _bound(own: Any, kind: type, value: Any) -> Any:
    """An entry of a class, bound to the class or to an object."""
    if isinstance(own, staticmethod):
        return own.__func__
    if isinstance(own, classmethod) and isinstance(own.__func__, FunctionType):
        return MethodType(own.__func__, kind)
    if isinstance(own, FunctionType):
        return own if value is None else MethodType(own, value)
    if own is not ABSENT and hasattr(type(own), "__get__"):
        raise LookupError
    return own


def _in_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # it is empty
        return ABSENT


def _static(kind: type, name: str) -> Any:
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), ABSENT)


def _is_plain(kind: type, root: type) -> bool:
    """Whether Python itself looks up the attributes of objects of a class, or torch those of its modules."""
    plain = kind.__getattribute__ in (root.__getattribute__, SimpleNamespace.__getattribute__)
    return plain and _static(kind, "__getattr__") in (ABSENT, nn.Module.__getattr__)

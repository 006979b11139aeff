"""Stand-ins, in the copies of optimizers and schedulers, for modules and tensors of the model, which a program's
optimizer cannot read.

In: optimizers, schedulers, the model. Out: by `id` of an original, a value that raises ProgramError when it is used.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.functions_held import parts, place_of, tensors_of
from vgame.program.hidden_state import own_line
from vgame.program.memory import sharing

Optimizer = torch.optim.Optimizer
WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
T = torch.Tensor
#: Functions of a tensor that read no values and change nothing.
HARMLESS = {
    *(getattr(T, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim")),
    *(getattr(T, name) for name in ("dim", "size", "numel", "__hash__", "__len__", "is_floating_point")),
}


def held_by(owner: Any, *without: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of the objects that an optimizer, a scheduler or a parameter holds, also through its class and the
    functions of the class; keys of dictionaries included."""
    name, seen = type(owner).__name__, {id(owner), *map(id, without)}
    own = [vars(kind) for kind in type(owner).__mro__ if kind.__module__.split(".")[0] not in ("torch", "builtins")]
    todo = [(f"{name}.{key}", value) for key, value in _attributes(owner)]
    todo += [
        (f"{name}.{key}", value)
        for each in own
        for key, value in each.items()
        if isinstance(value, FunctionType) or not key.startswith("__")
    ]
    while todo:
        path, value = todo.pop()
        yield path, value
        if id(value) in seen or type(value) in weakref.ProxyTypes or isinstance(value, torch.Tensor | nn.Module):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            todo += [(path, key) for key in value]
        if isinstance(value, Optimizer | LRScheduler):
            todo += [(f"{path}.{key}", part) for key, part in _attributes(value)]
        elif isinstance(value, weakref.ref):
            todo.append((path, value()))
        elif isinstance(value, WEAK):
            weak = value.values() if isinstance(value, weakref.WeakValueDictionary) else value
            todo += [(path, weakref.ref(part)) for part in weak]
        else:
            todo += parts(path, value)


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    """The attributes, without the `step` that torch's schedulers set on their optimizer: no copy has it."""
    return [(key, v) for key, v in vars(owner).items() if not (key == "step" and isinstance(owner, Optimizer))]


def optimizers_held(owner: Any) -> list[Optimizer]:
    """The optimizers that an optimizer holds, such as those that it wraps."""
    found = {id(v): v for _, v in held_by(owner) if isinstance(v, Optimizer) and v is not owner}
    return list(found.values())


def stand_ins(owners: Iterable[Any], own: Sequence[nn.Parameter], model: nn.Module | None) -> dict[int, Any]:
    """By `id` of the original, a stand-in for each module that is held, and for each tensor of the model except the
    optimizers' `own` parameters. ProgramError if a held value could distinguish the copies of parameters from the
    originals."""
    numbers = {number for p in own for number in (id(p), p.data_ptr()) if number}
    texts, mine = {str(number) for number in numbers}, {id(p) for p in own}
    tensors = tensors_of(model)
    rest = [(name, tensor) for name, tensor in tensors.values() if id(tensor) not in mine]
    found: dict[int, Any] = {id(t): _tensor("an optimizer or a scheduler holds", name, t) for name, t in rest}
    held = [pair for owner in (*owners, *own) for pair in held_by(owner)]
    for path, value in held:
        if weak := _kind_of_referent(value):
            raise ProgramError(
                f"{path} holds a weak reference to an object of {weak}, which a copy would share with the original, "
                "but the steps of an optimizer and its schedulers are played on a copy; hold the object"
            )
        if isinstance(value, np.ndarray):
            _refuse_memory(path, value, model)
        if isinstance(value, nn.Module):
            found[id(value)] = _Module(path, type(value).__name__)
        if isinstance(value, T) and id(value) not in mine and place_of(value) in tensors:
            found[id(value)] = _tensor(f"{path} is", tensors[place_of(value)][0], value)
        if (isinstance(value, int) and value in numbers) or (isinstance(value, str) and value in texts):
            raise ProgramError(
                f"{path} identifies a parameter by its id or address, which differs in the copy that is captured; "
                "hold the parameter itself, or put it in a group of its own"
            )
    _refuse_shared_memory(held)
    return found


def _kind_of_referent(value: Any) -> str:
    """The name of the class of an object to which this is a weak reference, if a step could change the object."""
    if type(value) in weakref.ProxyTypes:
        return "any class (a proxy)"
    found = value() if isinstance(value, weakref.ref) else None
    fixed = isinstance(found, type(None) | type | FunctionType | ModuleType)
    return "" if fixed else type(found).__name__


def _refuse_shared_memory(held: Iterable[tuple[str, Any]]) -> None:
    """Raise ProgramError if an array shares memory with another object: their copies would not. (Copies of tensors
    do.)"""
    different = {id(value): (path, value) for path, value in held if type(value) not in weakref.ProxyTypes}
    for (one, first), (other, second) in sharing(different.values()):
        if not (isinstance(first, T) and isinstance(second, T)):
            raise ProgramError(
                f"{one} and {other} share memory, which copies of them do not, but the steps of an optimizer and its "
                "schedulers are played on copies; hold one of them, or a copy of it"
            )


def _refuse_memory(path: str, array: np.ndarray, model: nn.Module | None) -> None:
    """Raise ProgramError if an array lies in the memory of a tensor of the model."""
    place = array.__array_interface__["data"][0]
    for name, tensor in tensors_of(model).values():
        start = tensor.untyped_storage().data_ptr()
        if start <= place < start + tensor.untyped_storage().nbytes():
            raise ProgramError(
                f"{path} is an array in the memory of the model's {name}, but an optimizer and its schedulers compute "
                "in a program with tensors; let the step read the parameter itself"
            )


class _Tensor(T):
    """A tensor of the model that an optimizer or a scheduler holds in addition to its own parameters, and may not
    use."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        holds, name = next(vars(leaf)["_held"] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise ProgramError(
            f"{holds} the model's {name}, which is used{own_line(traceback.extract_stack())}, but an optimizer and its "
            "schedulers compute in a program only with its own parameters, gradients and state; let the forward pass "
            "change buffers, and give a parameter to the optimizer that uses it"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tensor:
        return self


def _tensor(holds: str, name: str, like: T) -> _Tensor:
    made = torch.empty_like(like, device="meta", requires_grad=False).as_subclass(_Tensor)
    vars(made).update(_held=(holds, name), _is_param=isinstance(like, nn.Parameter))
    return made


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

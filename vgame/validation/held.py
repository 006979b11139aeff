"""State of the user's functions and objects outside the model: counters, generators, arrays, files. A program does not
carry changes of it to the next step.

In: a loss, a data set, a collate function. Out: a fingerprint of each reachable value, by its path. Two collections of
fingerprints show the changes. Objects of libraries have no parts here, except Python's HOLDERS: a data set's tables and
archives fill caches and move in files when they are read. The search of a capture (vgame/tasks/reach.py) opens them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import (
    BuiltinMethodType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn

from vgame.program.functions_held import _is_full, _of_function
from vgame.system.installed import VGAME, is_installed, is_own_module
from vgame.tasks.fingerprint import MOST_PARTS, size, state, words
from vgame.tasks.opened import PLAIN, functions_of, wrapped
from vgame.tasks.opened import held_by as attributes_of
from vgame.tasks.reach import parts
from vgame.tasks.task import Task

LEAVES = (int, float, complex, str, bytes, bool, type(None))
CONTAINERS = list | tuple | set | frozenset | deque
CHANCE = (random.Random, np.random.Generator, np.random.RandomState)
#: Modules of Python whose objects hold values of the user. (Others hold files, or change by themselves.)
HOLDERS = {
    "_contextvars", "_queue", "_thread", "argparse", "array", "collections", "configparser", "contextvars", "functools",
    "multiprocessing.sharedctypes", "queue", "threading", "types", "weakref",
}  # fmt: skip
MOST, MOST_BYTES = 20_000, 1 << 24  # objects; bytes of a tensor that are hashed


class Held:
    """Fingerprints of all values reachable from these roots, now."""

    def __init__(self, roots: Mapping[str, Any], without: nn.Module) -> None:
        self.found: dict[str, Any] = {f"the generator of {name}": state for name, state in _generators().items()}
        self.without = {
            id(each) for each in (*without.modules(), *dict(without.named_parameters()).values(), *without.buffers())
        }
        seen: set[int] = set()
        todo = deque(roots.items())
        while todo and len(self.found) < MOST:
            path, value = todo.popleft()
            if isinstance(value, LEAVES):
                self.found[path] = value
            elif id(value) not in seen and id(value) not in self.without:
                seen.add(id(value))
                self.found[path] = _print(value)
                todo.extend(_parts(path, value))

    def changed(self, before: Held) -> list[str]:
        """Paths with another fingerprint than `before`; new paths do not count."""
        shared = [(path, print, self.found[path]) for path, print in before.found.items() if path in self.found]
        return sorted(path for path, print, now in shared if now != print and not (now != now and print != print))


def held_by(task: Task) -> Held:
    """The state that the losses and the data set of a task hold outside the model."""
    source = getattr(task, "source", None)
    names = [f"loss {n + 1}" if n else "the loss" for n in range(len(task.losses))]
    roots = {f"{name}{_place(loss)}": loss for name, loss in zip(names, task.losses, strict=True)}
    if source is not None:
        roots |= {"the data set": source.samples, "collate_fn": source.make}
    return Held(roots, task.model)


def _place(loss: Any) -> str:
    """File and line of a function; none for one that a Collated wraps."""
    code = None if (getattr(loss, "__module__", None) or "").startswith("vgame.") else getattr(loss, "__code__", None)
    return f" ({Path(code.co_filename).name} line {code.co_firstlineno})" if code else ""


def _generators() -> dict[str, bytes]:
    """The global random generators."""
    _, words, *place = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": words.tobytes() + repr(place).encode(),
        "random": repr(random.getstate()).encode(),
    }


def _print(value: Any) -> Any:
    """The fingerprint of a value without its parts."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.ndarray):
        hashed = value.nbytes <= MOST_BYTES and not value.dtype.hasobject
        return hashlib.sha256(value.tobytes()).digest() if hashed else None
    if isinstance(value, io.IOBase):
        return None if value.closed or not value.seekable() else value.tell()
    if isinstance(value, GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, (*CHANCE, Iterator)):
        return _pickled(value)
    if isinstance(value, dict | CONTAINERS) and size(value) > MOST_PARTS:
        return words([*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else value)
    return size(value) if isinstance(value, dict | CONTAINERS) else state(value)


def _of_tensor(tensor: torch.Tensor) -> Any:
    if tensor.numel() * tensor.element_size() > MOST_BYTES or tensor.layout is not torch.strided:
        return tensor._version
    words = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(words.tobytes()).digest()


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except (Exception, SystemExit):  # an object may raise anything
        return None


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        if is_installed(file := value.__code__.co_filename):
            return [(path, part) for _, part in wrapped(value)]
        if not file.startswith(VGAME):
            return _of_function(path, value)
        cells = value.__closure__ or ()  # of a wrapper of a user's function
        held = [cell.cell_contents for cell in cells if _is_full(cell)]
        return [(path, part) for part in held if isinstance(part, FunctionType | MethodType | partial)]
    if isinstance(value, MethodType):
        return [(path, value.__func__), (path, value.__self__)]
    if isinstance(value, partial):
        return [(path, value.func), (path, value.args), (path, value.keywords)]
    if isinstance(value, dict | CONTAINERS) and size(value) > MOST_PARTS:
        return []
    if isinstance(value, dict):
        return [(f"{path}[{_key(key)}]", part) for key, part in dict.items(value)]
    if isinstance(value, CONTAINERS):
        return [(f"{path}[{n}]", part) for n, part in enumerate(value)]
    if isinstance(value, ModuleType | torch.Tensor | np.ndarray | torch.optim.Optimizer):
        return []
    if isinstance(value, GeneratorType | BuiltinMethodType | MethodWrapperType) or type(value).__module__ in HOLDERS:
        return [(f"{path}.{name}", part) for name, part in parts(value)]
    return _of_object(path, value)


def _key(key: Any) -> str:
    """A key; one that is no number or text by its class and identity: its own text may be long, or fail."""
    return repr(key) if type(key) in PLAIN else f"{type(key).__name__} {id(key)}"


def _of_object(path: str, value: Any) -> list[tuple[str, Any]]:
    """Attributes of an object of a user's class, including __slots__ and class attributes; attributes of torch's
    modules."""
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    own = [kind for kind in kinds if _is_own(kind)]
    if not own and not isinstance(value, nn.Module | torch.utils.data.Dataset):
        return []
    found = dict(vars(value)) if isinstance(value, type) else dict(attributes_of(value))
    for kind in own:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        for name in names:
            with suppress(Exception):  # it has no value; a class decides what it raises
                found |= {name: getattr(value, name)} if name[:2] != "__" else {}
        plain = {k: v for k, v in vars(kind).items() if not k.startswith("__")}
        functions = {k: each for k, v in plain.items() for each in functions_of(v) if each is not v}
        plain = {k: v for k, v in plain.items() if not isinstance(v, property | MemberDescriptorType)}
        found = functions | plain | found
    return [(f"{path}.{name}", part) for name, part in found.items()]


def _is_own(kind: type) -> bool:
    """Whether a class is the user's, whose attributes are searched."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    return module is None or (is_own_module(module) and not file.startswith(VGAME))

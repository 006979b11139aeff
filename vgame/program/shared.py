"""Objects that a loss or the model holds, and optimizers and schedulers change while they step.

In: a task, then copies of its optimizers and schedulers while they are played. Out: the places of the originals (an
entry of a dictionary, an attribute) that a later step finds changed, with the new value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import FunctionType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.compared import Roots, differing, innermost, values_of
from vgame.program.hidden_state import roots_of
from vgame.program.inner_parts import inner_parts
from vgame.program.memory import overlaps, span
from vgame.program.traps import ABSENT, is_number, is_trap, trapped
from vgame.program.traps import shown as printable
from vgame.tasks.fingerprint import state
from vgame.tasks.opened import has_attributes, held_by
from vgame.tasks.reach import parts, reached
from vgame.tasks.task import Task

LIVE = (Optimizer, LRScheduler)  # of torch's own, `reached` gives no attributes
LEAVES = (int, float, complex, str, bytes, type(None))
ENUMERATED = (tuple, set, frozenset, deque)
#: Attributes and keys handled elsewhere: `later_step` refuses a loss that reads or changes them; the last is a flag of
#: torch.
OTHERWISE = {"state", "params", "_last_lr", "_opt_called"}

MOST_VALUES = 8  # of a place, each of which is shown to the loss

Change = tuple[Any, Any, Any]  # container, key, later value


@dataclass
class _Pair:
    """An object and its copy. `then`: the copy's contents at the start."""

    path: str
    own: Any
    copy: Any
    then: tuple[list[dict[Any, Any]], Any]


class Shared:
    """The changes of all optimizers of a task, so far."""

    def __init__(self, task: Task | None = None, everything: bool = False) -> None:
        """`everything`: also of objects that no loss reaches, as far as vgame knows."""
        self.roots = roots_with_optimizers(task) if task is not None else []
        self.reached = {id(value): value for _, value in self._reaches()}
        self.losses = roots_of(task.model, task.losses) if task is not None and not everything else []
        self.values = values_of(self.losses)
        self.spans = [place for value in self.reached.values() if (place := span(value))]
        self.everything = everything
        self.read: Mapping[int, Any] = {}
        self.pairs: list[_Pair] = []
        self.places: dict[tuple[int, Any], tuple[Any, Any, Any, Any, str]] = {}  # container, key, values, path
        self.by_identity: dict[tuple[int, Any], list[Any]] = {}  # values of a place that `is` recognises
        self.whole: dict[int, tuple[Any, Any, str]] = {}  # object, its copy, path

    def _reaches(self) -> Iterable[tuple[str, Any]]:
        return reached(self.roots, inner_parts)

    def begin(
        self, originals: Sequence[Any], copies: Sequence[Any], read: Mapping[int, Any] = MappingProxyType({})
    ) -> None:
        """Compare these copies from here on. `read`: the originals, by `id`, of which their functions read
        attributes."""
        self.read = read
        self.pairs, self.twins, self.copies = [], dict[int, Any](), list[Any]()  # copies: kept, so ids are unique
        todo = [(type(a).__name__, a, b) for a, b in zip(originals, copies, strict=True)]
        while todo:
            path, a, b = todo.pop()
            if a is b or type(a) is not type(b) or isinstance(a, LEAVES) or id(b) in self.twins:
                continue
            self.twins[id(b)] = a
            self.copies.append(b)
            if self.everything or id(a) in self.reached or id(a) in read or overlaps(a, self.spans):
                self.pairs.append(_Pair(path, a, b, _contents(b)))
            named = zip(_inside(path, a), _inside(path, b), strict=False)
            todo += [(inner, x, y) for (inner, x), (_, y) in named]

    def note(self) -> None:
        """Record the changes of a step. ProgramError if a function reads the original of a changed object."""
        for pair in self.pairs:
            if id(pair.own) in self.whole or _is_bare(pair.own, pair.copy):
                continue
            known = len(self.places)
            self._note(pair)
            if id(pair.own) in self.read and (len(self.places) > known or id(pair.own) in self.whole):
                raise ProgramError(
                    f"a step changes {pair.path}, which a function of the optimizer or of its schedulers reads too, "
                    "but a capture works on a copy of it, and the function is not copied; give the function to the "
                    "scheduler as a method of this object"
                )

    def refuse_outside(self) -> None:
        """Raise ProgramError if the steps of the copies have changed what the losses or the model reach."""
        if changed := innermost(differing(values_of(self.losses), self.values)):
            raise ProgramError(
                f"a step of the optimizer or its schedulers changes {changed[0]}, which the loss or the model may "
                "read, but the loss of a program is the same in all steps; remove it"
            )

    def _note(self, pair: _Pair) -> None:
        then, now = pair.then, _contents(pair.copy)
        if len(then[0]) != len(now[0]) or not _is_same(then[1], now[1]):
            self.whole[id(pair.own)] = (pair.own, pair.copy, pair.path)
            return
        for container, before, after in zip(_containers(pair.own), *(each[0] for each in (then, now)), strict=True):
            if list(before) != list(after) and before.keys() == after.keys():
                self.whole[id(pair.own)] = (pair.own, pair.copy, pair.path)  # in another order
            self._compare(pair.path, container, before, after)

    def _compare(self, path: str, container: Any, before: dict[Any, Any], after: dict[Any, Any]) -> None:
        for key in {**before, **after}:
            old, new = before.get(key, ABSENT), after.get(key, ABSENT)
            if not (isinstance(key, str) and key in OTHERWISE) and not _is_same(old, new):
                own, new = (self.twins.get(id(part), part) for part in (key, new))
                self.places[id(container), own] = container, own, old, new, _joined(path, container, key)
                known = self.by_identity.setdefault((id(container), own), [])
                if self._is_known(new) and all(new is not each for each in known):
                    known.append(new)

    def _is_known(self, value: Any) -> bool:
        """Whether a loss may be able to compare a value with this very object by `is`."""
        named = isinstance(value, bool | type | FunctionType | Enum | type(None))
        return named or (id(value) in self.reached and not isinstance(value, LEAVES))

    def has_more_than(self, known: Sequence[Change]) -> bool:
        """Whether anything has changed except numbers in places for which `known` has a stand-in that may not be
        read."""
        places = {(id(container), key) for container, key, value in known if is_trap(value)}
        changed = [(p, old, new) for p, (_, _, old, new, _) in self.places.items()]
        alike = (p in places and is_number(new, old) and type(new) is type(old) for p, old, new in changed)
        return bool(self.whole) or any(self.by_identity.values()) or not all(alike)

    def variants(self) -> list[list[Change]]:
        """The changes so far, once for each value that `is` recognises, and once with stand-ins that may not be
        read."""
        most = max(map(len, self.by_identity.values()), default=0)
        return [*(self.changes(number=n) for n in range(max(1, min(most, MOST_VALUES)))), self.changes(traps=True)]

    def changes(self, traps: bool = False, number: int = 0) -> list[Change]:
        """The changes so far. `traps`: each value is a stand-in that may not be read; else only numbers are, and other
        values are those of a later step. `number`: which of the values that `is` recognises."""
        show = trapped if traps else printable
        found = []
        for place, (container, key, old, new, path) in self.places.items():
            known = [] if traps else self.by_identity.get(place, [])
            value = known[number] if number < len(known) else show(new, path, old)
            found.append((container, key, value))
        wanted = self._wanted()
        for value in self.reached.values() if wanted else ():
            for container in _settable(value):
                for key, part in list(_items(container)):
                    if (each := wanted.get(id(part))) and each[0] is part:
                        found.append((container, key, trapped(each[1], each[2]) if traps else each[1]))
        return found

    def _wanted(self) -> dict[int, tuple[Any, Any, str]]:
        """The objects that change as a whole, those in their memory, and those that hold one of them in a place that no
        stand-in can take, such as tuples."""
        found, spans = dict(self.whole), [(place, path) for own, _, path in self.whole.values() if (place := span(own))]
        for value in self.reached.values() if spans else ():
            paths = [path for place, path in spans if id(value) not in found and overlaps(value, [place])]
            found |= {id(value): (value, value, path) for path in paths}
        fixed = [v for v in self.reached.values() if isinstance(v, tuple | frozenset)] if found else []
        while more := [(v, found[id(p)]) for v in fixed if id(v) not in found for p in v if id(p) in found]:
            found |= {id(v): (v, v, path) for v, (_, _, path) in more}
        return found

    def refuse_held(self) -> None:
        """Raise ProgramError if the loss still reaches such an object, in a place that no stand-in can take."""
        wanted = self._wanted()
        for name, value in self._reaches() if wanted else ():
            if id(value) in wanted:
                raise ProgramError(
                    f"the loss or the model reaches {wanted[id(value)][2]} ({name}), which changes from step to "
                    "step, but the loss of a program is the same in all steps; let the loss hold only what it reads"
                )


def roots_with_optimizers(task: Task) -> Roots:
    """The model with its tensors, the losses, and the attributes of optimizers and schedulers that these reach."""
    tensors = [*task.model.named_parameters(), *task.model.named_buffers()]
    roots, known = [*roots_of(task.model, task.losses), *tensors], set[int]()
    while live := {id(v): v for _, v in reached(roots, inner_parts) if isinstance(v, LIVE) and id(v) not in known}:
        known |= {*live}
        roots = [*roots, *((type(v).__name__, vars(v)) for v in live.values())]
    return roots


class _Attributes:
    """The slots of an object, the attributes of a class or the content of a cell, as a container."""

    def __init__(self, value: Any, names: Iterable[str]) -> None:
        self.value, self.names = value, names

    def get(self, key: str, default: Any) -> Any:
        try:
            return getattr(self.value, key)
        except (AttributeError, ValueError):  # an empty slot or cell
            return default

    def items(self) -> list[tuple[str, Any]]:
        return [(n, v) for n in self.names if (v := self.get(n, ABSENT)) is not ABSENT]

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self.value, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self.value, key)


def _containers(value: Any) -> list[Any]:
    """The parts of an object in which a value can be replaced."""
    found = [value] if isinstance(value, dict | list) else []
    if has_attributes(value) and not isinstance(value, type):
        found.append(held_by(value))  # also an empty one, which a step may fill
    if slots := _slots(type(value)):
        found.append(_Attributes(value, slots))
    return found


def _is_bare(own: Any, copy: Any) -> bool:
    """Whether a parameter and its copy have no attributes; only attributes of parameters are compared."""
    return isinstance(own, torch.nn.Parameter) and type(own) is type(copy) and not vars(own) and not vars(copy)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(n for each in kind.__mro__ for n, v in vars(each).items() if _is_slot(each, n, v))


def _is_slot(kind: type, name: str, value: Any) -> bool:
    return isinstance(value, MemberDescriptorType) and "__slots__" in vars(kind) and not name.startswith("__")


def _settable(value: Any) -> list[Any]:
    """As `_containers`, also of functions, modules and classes."""
    if isinstance(value, FunctionType):
        cells = [_Attributes(cell, ["cell_contents"]) for cell in value.__closure__ or ()]
        return [*cells, value.__globals__, vars(value)]
    if isinstance(value, type):
        return [_Attributes(value, [n for n, v in vars(value).items() if not n.startswith("__")])]
    return [vars(value)] if isinstance(value, ModuleType) else _containers(value)


def _items(container: Any) -> Iterable[tuple[Any, Any]]:
    return enumerate(container) if isinstance(container, list) else container.items()


def _inside(path: str, value: Any) -> list[tuple[str, Any]]:
    """(path, part) of the parts of an object that a copy of it has as copies."""
    if isinstance(value, (*LIVE, torch.Tensor)):
        return [(f"{path}.{key}", part) for key, part in vars(value).items()]
    keys = list(value) if isinstance(value, dict) else []
    return [(f"{path}.{key}".rstrip("."), part) for key, part in parts(value)] + [(path, key) for key in keys]


def _joined(path: str, container: Any, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str | int) else f"{path}[{key!r}]"


def _contents(value: Any) -> tuple[list[dict[Any, Any]], Any]:
    """The entries of an object's containers, and a comparable form of the rest."""
    containers = _containers(value)
    held = [dict(_items(each)) for each in containers]
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return held, (kind, None if isinstance(value, torch.nn.Parameter) else (value.requires_grad, _words(value)))
    whole = not containers or isinstance(value, ENUMERATED)
    lengths = len(value) if isinstance(value, list) else None
    inner = [part for _, part in parts(value)] if whole and not isinstance(value, LIVE) else []
    return held, (kind, state(value), lengths, inner)


def _words(tensor: torch.Tensor) -> Any:
    """The content of a tensor; that of a slot is unknown, so it never compares as equal."""
    if tensor.device.type == "meta":
        return object()
    words = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), hash(words)


def _is_same(one: Any, other: Any) -> bool:
    """Whether both are one object, or equal values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, LEAVES):
        return bool(one == other and repr(one) == repr(other)) or (one != one and other != other)
    if isinstance(one, tuple | list | deque):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, set | frozenset):
        return bool(one == other)
    if isinstance(one, torch.Tensor):
        return bool(_words(one) == _words(other))
    return state(one) is not None and bool(state(one) == state(other))

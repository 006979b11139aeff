"""Show the optimizers and schedulers of a task as at a later step, so that a loss that reads them is refused.

In: a task. Out: a context in which their numbers are others than in the first step, and cannot be compared or computed
with; afterwards they are as before. To print them is allowed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.program.copied import clear_gradients, copied, follow, parameters
from vgame.program.functions_held import LEAVES
from vgame.program.hidden_state import own_line
from vgame.program.recorder import Counters
from vgame.program.torchs_steps import without_values
from vgame.tasks.task import Task

CONSTANT = ("weight_decay", "eps", "dampening", "alpha", "etas", "step_sizes")  # of groups, that torch never changes
COUNTS = ("last_epoch", "_step_count", "T_cur", "T_i")  # of torch's schedulers
LATER = 97  # steps, after which counts are shown
Change = tuple[Any, Any, Any]  # container, key, later value
ABSENT = object()


def _refused(what: str) -> ProgramError:
    return ProgramError(
        f"the loss reads {what}{own_line(traceback.extract_stack())}, which changes from step to step, but the loss of "
        "a program is the same in all steps; remove it"
    )


def _trap(*names: str) -> dict[str, Any]:
    def raising(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise _refused(self.what)

    return dict.fromkeys(names, raising)


NUMBER = (
    "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow neg abs lt le gt ge eq ne bool "
    "float int index"
)
DICT = "getitem setitem delitem len iter contains"
_TRAPS = {**_trap(*(f"__{name}__" for name in NUMBER.split())), "__hash__": lambda self: 0}
_Int, _Float = type("int", (int,), dict(_TRAPS)), type("float", (float,), dict(_TRAPS))
_State = type("dict", (dict,), _trap(*(f"__{name}__" for name in DICT.split()), *(n for n in dir(dict) if n[0] != "_")))


def _shown(value: Any, what: str) -> Any:
    """A number that can only be printed; other values as they are."""
    if isinstance(value, tuple):
        return tuple(_shown(part, what) for part in value)
    kind = _Int if type(value) is int else _Float if isinstance(value, float) else None
    if kind is None:
        return value
    shown = kind(value)
    shown.what = what
    return shown


def refuse_shown(arguments: Any) -> None:
    """Raise ProgramError if a shown number is an argument of a function of torch, which reads it without a call."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, _Int | _Float):
            raise _refused(leaf.what)


def options(task: Task) -> list[tuple[int, str, Any]]:
    """What the groups of the optimizers hold: each parameter, and each option."""
    groups = [group for optimizer in task.optimizers for group in optimizer.param_groups]
    lists = [(n, key, [*v] if key == "params" else [v]) for n, group in enumerate(groups) for key, v in group.items()]
    return [(n, key, part) for n, key, parts in lists for part in parts]


def refuse_other_options(task: Task, before: Sequence[tuple[int, str, Any]]) -> None:
    """Raise ProgramError if the loss has changed the groups of an optimizer."""
    now = options(task)
    pairs = zip(before, now, strict=False)
    changed = [b[1] for a, b in pairs if a[:2] != b[:2] or (a[2] is not b[2] and repr(a[2]) != repr(b[2]))]
    if changed or len(before) != len(now):
        raise ProgramError(
            f"the loss changes the groups of the optimizer ({(changed or ['params'])[0]}), which a program's optimizer "
            "does not follow; give all groups before the task is made, rates by schedulers=[...], and freeze "
            "parameters for a time with Task(frozen=...)"
        )


def later_step(task: Task) -> list[Change]:
    """The changes of a step and of the schedulers after it; numbers that another step may change, too."""
    found: list[Change] = []
    for optimizer in task.optimizers:
        schedulers = [s for s in task.schedulers if getattr(s, "optimizer", None) is optimizer]
        with suppress(Exception):  # its cause is named when the optimizer is played
            found += _of_step(optimizer, schedulers)
        for group in optimizer.param_groups:
            fixed = CONSTANT if all(map(_is_torchs, schedulers)) else ()
            changing = [key for key in group if key == "lr" or (schedulers and key not in fixed)]
            found += [(group, key, _shown(_other(group[key]), f"{key} of the optimizer")) for key in changing]
        for each in _all_of(schedulers):
            keys = [key for key in vars(each) if not _is_torchs(each) or key in COUNTS]
            found += [(vars(each), key, _shown(_other(vars(each)[key]), f"{key} of the scheduler")) for key in keys]
            if hasattr(each, "_last_lr"):
                rates = [_shown(_other(rate), "the last rate of the scheduler") for rate in each._last_lr]
                found.append((vars(each), "_last_lr", rates))
        state = _State()
        vars(state)["what"] = "the state of the optimizer"
        found.append((vars(optimizer), "state", state))
    return found


def _is_torchs(scheduler: LRScheduler) -> bool:
    return type(scheduler).__module__.startswith("torch.")


def _all_of(schedulers: Sequence[LRScheduler]) -> list[LRScheduler]:
    """The schedulers, and those that they hold."""
    found = list(schedulers)
    for each in found:
        found += [s for s in getattr(each, "_schedulers", ()) if s not in found]
    return found


def _of_step(optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler]) -> Iterator[Change]:
    (copy,), followers = copied([optimizer], schedulers)
    clear_gradients(copy)
    for p in parameters(copy):
        p.grad = torch.empty_like(p, requires_grad=False)
    with suppress(ProgramError), without_values(), Counters():
        type(optimizer).step(copy)
    follow(followers)
    seen: set[int] = set()
    for before, after in ((optimizer, copy), *zip(schedulers, followers, strict=True)):
        yield from _changed(vars(before), vars(after), type(before).__name__, seen)


def _changed(before: Any, after: Any, path: str, seen: set[int]) -> Iterator[Change]:
    """The numbers and texts that differ between two dictionaries or lists of the same form."""
    if id(before) in seen:
        return
    seen.add(id(before))
    for key in [k for k in (after if isinstance(after, dict) else range(len(after))) if isinstance(k, str | int)]:
        old, new = before.get(key, ABSENT) if isinstance(before, dict) else before[key], after[key]
        if isinstance(new, LEAVES) or type(old) is not type(new):
            if isinstance(new, LEAVES) and (type(old) is not type(new) or old != new):
                yield before, key, _shown(new, f"{path}.{key}")
        elif isinstance(new, dict) or (isinstance(new, list) and len(old) == len(new)):
            yield from _changed(old, new, f"{path}.{key}", seen)
        elif isinstance(new, list | tuple):
            if all(isinstance(part, LEAVES) for part in new) and old != new:
                yield before, key, new
        elif hasattr(new, "__dict__") and not isinstance(new, torch.Tensor | nn.Module | type):
            yield from _changed(vars(old), vars(new), f"{path}.{key}", seen)


def _other(value: Any) -> Any:
    """Another number, flag or text than any that is likely to be meant: torch, lists and formats read a number without
    a call that `_shown` could refuse. Other values as they are."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + LATER
    if isinstance(value, float | torch.Tensor):
        return value * 0.7171 + 0.0131
    if isinstance(value, tuple):
        return tuple(map(_other, value))
    return f"{value}, later" if isinstance(value, str) else value


@contextmanager
def shown(changes: Sequence[Change]) -> Iterator[None]:
    """Context in which the changes are made."""
    before = [_set(*change) for change in changes]
    try:
        yield
    finally:
        for change, old in zip(reversed(changes), reversed(before), strict=True):
            _set(*change[:2], old)


def _set(container: Any, key: Any, value: Any) -> Any:
    """Set, or remove, a value; returns the one before."""
    old = container.get(key, ABSENT) if isinstance(container, dict) else container[key]
    if value is ABSENT:
        del container[key]
    else:
        container[key] = value
    return old

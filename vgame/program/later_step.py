"""Show the optimizers and schedulers of a task as at a later step, so that a loss that reads them gives another graph.

In: a task. Out: a context in which their numbers differ from those of the first step; afterwards they are as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.copied import clear_gradients, copied, follow, parameters
from vgame.program.recorder import Counters
from vgame.program.torchs_steps import without_values
from vgame.tasks.task import Task

LEAVES = (int, float, complex, str, bytes, type(None))
Change = tuple[Any, Any, Any]  # container, key, later value
ABSENT = object()


def later_step(task: Task) -> list[Change]:
    """The changes of a step and of the schedulers after it; the rates differ even if they would not change."""
    found: list[Change] = []
    for optimizer in task.optimizers:
        schedulers = [s for s in task.schedulers if getattr(s, "optimizer", None) is optimizer]
        with suppress(Exception):  # its cause is named when the optimizer is played
            found += _of_step(optimizer, schedulers)
        found += [(group, "lr", _other(group["lr"])) for group in optimizer.param_groups if "lr" in group]
        found += [(vars(s), "_last_lr", [_other(x) for x in s._last_lr]) for s in schedulers if hasattr(s, "_last_lr")]
    return found


def _of_step(optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler]) -> Iterator[Change]:
    copy, followers = copied(optimizer, schedulers)
    clear_gradients(copy)
    for p in parameters(copy):
        p.grad = torch.empty_like(p, requires_grad=False)
    with suppress(ProgramError), without_values(), Counters():
        type(optimizer).step(copy)
    follow(followers)
    for p, own in zip(parameters(optimizer), parameters(copy), strict=True):
        if own in copy.state:
            yield optimizer.state, p, copy.state[own]
    seen: set[int] = set()
    for before, after in ((optimizer, copy), *zip(schedulers, followers, strict=True)):
        yield from _changed(vars(before), vars(after), seen)


def _changed(before: Any, after: Any, seen: set[int]) -> Iterator[Change]:
    """The numbers and texts that differ between two dictionaries or lists of the same form."""
    if id(before) in seen:
        return
    seen.add(id(before))
    keys = after if isinstance(after, dict) else range(len(after))
    for key in [k for k in keys if isinstance(k, str | int)]:
        old, new = before.get(key, ABSENT) if isinstance(before, dict) else before[key], after[key]
        if isinstance(new, LEAVES) or type(old) is not type(new):
            if isinstance(new, LEAVES) and (type(old) is not type(new) or old != new):
                yield before, key, new
        elif isinstance(new, dict) or (isinstance(new, list) and len(old) == len(new)):
            yield from _changed(old, new, seen)
        elif isinstance(new, list | tuple):
            if all(isinstance(part, LEAVES) for part in new) and old != new:
                yield before, key, new
        elif hasattr(new, "__dict__") and not isinstance(new, torch.Tensor | nn.Module | type):
            yield from _changed(vars(old), vars(new), seen)


def _other(rate: Any) -> Any:
    """Another rate than any that is likely to be meant."""
    return rate * 0.7171 + 0.0131 if isinstance(rate, int | float | torch.Tensor) else rate


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

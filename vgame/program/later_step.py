"""Show the optimizers and schedulers of a task as at a later step, so that a loss that reads them is refused.

In: a task. Out: a context in which their numbers differ from those of the first step and cannot be compared or computed
with; its end restores them. Printing them is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.copied import clear_gradients, follow, parameters
from vgame.program.coupled import Coupled, coupled_of
from vgame.program.inner_parts import inner_parts
from vgame.program.recorder import Counters
from vgame.program.shared import Change, Shared, roots_with_optimizers
from vgame.program.torchs_steps import without_values
from vgame.program.traps import ABSENT, Changing, trapped
from vgame.program.traps import shown as shown_number
from vgame.tasks.reach import reached
from vgame.tasks.task import Task

CONSTANT = ("weight_decay", "eps", "dampening", "alpha", "etas", "step_sizes")  # of groups, that torch never changes
COUNTS = ("last_epoch", "_step_count", "T_cur", "T_i")  # of torch's schedulers


def options(task: Task) -> list[tuple[int, str, Any]]:
    """The parameters and the options of the optimizers' groups."""
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


def later_step(task: Task, traps: bool = False) -> list[Change]:
    """The changes of a step and of the schedulers after it; also of numbers that a further step may change. `traps`:
    the values that a step changes may not be read."""
    found, shared = list[Change](), Shared(task, everything=True)
    with suppress(Exception):  # the error is raised when the optimizer is played
        for coupled in coupled_of(task):
            _step(shared, coupled)
    for optimizer in task.optimizers:
        schedulers = [s for s in task.schedulers if getattr(s, "optimizer", None) is optimizer]
        for group in optimizer.param_groups:
            fixed = CONSTANT if all(map(_is_torchs, schedulers)) else ()
            changing = [key for key in group if key == "lr" or (schedulers and key not in fixed)]
            found += [(group, key, _other(group[key], f"{key} of the optimizer")) for key in changing]
        for each in _all_of(schedulers):
            keys = [key for key in vars(each) if not _is_torchs(each) or key in COUNTS]
            found += [(vars(each), key, _other(vars(each)[key], f"{key} of the scheduler")) for key in keys]
            if hasattr(each, "_last_lr"):
                rates = [_other(rate, "the last rate of the scheduler") for rate in each._last_lr]
                found.append((vars(each), "_last_lr", rates))
        found.append((vars(optimizer), "state", trapped(optimizer.state, "the state of the optimizer")))
    return [*shared.changes(), *found] if not traps else [*found, *shared.changes(traps)]


def _is_torchs(scheduler: LRScheduler) -> bool:
    return type(scheduler).__module__.startswith("torch.")


def _all_of(schedulers: Sequence[LRScheduler]) -> list[LRScheduler]:
    """The schedulers, and those that they hold."""
    found = list(schedulers)
    for each in found:
        found += [s for s in getattr(each, "_schedulers", ()) if s not in found]
    return found


def _step(shared: Shared, coupled: Coupled) -> None:
    """Note the changes of one step."""
    copies, followers = coupled.copied()
    shared.begin((*coupled.optimizers, *coupled.schedulers), (*copies, *followers))
    for copy in copies:
        clear_gradients(copy)
        for p in parameters(copy):
            p.grad = torch.empty_like(p, requires_grad=False)
        with suppress(ProgramError), without_values(), Counters():
            type(copy).step(copy)
        if copy is not copies[-1]:
            shared.note()
    follow(followers, copies)
    shared.note()


def _other(value: Any, what: str) -> Any:
    """A different flag or text; a stand-in of a number or tensor; other values unchanged."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, torch.Tensor):
        return trapped(value, what)
    return f"{value}, later" if isinstance(value, str) else shown_number(value, what)


def is_reached(task: Task, changes: Sequence[Change]) -> bool:
    """Whether the losses or the model reach a value that changes."""
    with shown(changes):
        return any(isinstance(value, Changing) for _, value in reached(roots_with_optimizers(task), inner_parts))


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
    old = container[key] if isinstance(container, list) else container.get(key, ABSENT)
    if value is ABSENT:
        del container[key]
    else:
        container[key] = value
    return old

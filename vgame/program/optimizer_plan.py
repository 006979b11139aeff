"""Choose how an optimizer's step becomes operators: by a rule (optimizers.py), or by playing its own code.

In: a task, the schedule of its job. Out: the learning rates of the groups for a rule, or the played steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import JobFileError, ProgramError
from vgame.program.frozen import Asleep
from vgame.program.optimizers import check_groups, check_rates, has_rule
from vgame.program.play import Played, play, scheduled
from vgame.program.recorder import Key
from vgame.program.schedule import Rate, Schedule, double
from vgame.program.shared import Shared
from vgame.system.progress import NULL_PROGRESS, NullProgress
from vgame.tasks.task import Task

RateAt = Callable[[int], Rate]  # step -> exact learning rate


@dataclass(frozen=True)
class ByRule:
    """`rates[g]` is the learning rate of group g."""

    rates: Sequence[RateAt]


def plan_of(
    task: Task,
    optimizer: Optimizer,
    schedule: Schedule | None,
    steps: int,
    trained: set[str],
    asleep: Asleep,
    listener: NullProgress = NULL_PROGRESS,
    shared: Shared | None = None,
) -> ByRule | Mapping[Key, Played]:
    """Rates for a rule that is equivalent to the task's optimizer and schedulers; else the played steps. `shared` notes
    what these change of the loss's objects."""
    check_rates(optimizer)
    by_rule = has_rule(optimizer)
    if by_rule:
        check_groups(optimizer)
    names = {id(p): name for name, p in task.model.named_parameters() if name in trained}
    sleeping = {i: asleep[name] for i, name in names.items() if name in asleep}
    by_rule &= not any(id(p) in sleeping for group in optimizer.param_groups for p in group["params"])
    if schedulers := _schedulers_of(task, optimizer):
        if schedule is not None:
            raise JobFileError("the task has schedulers and the job has a [schedule]; remove one of them")
        if by_rule and (rates := _rates_alone(optimizer, schedulers, steps, shared)) is not None:
            return ByRule([lambda t, group=group: Fraction(group[t - 1]) for group in rates])
        return play(optimizer, {*names}, schedulers, None, steps, sleeping, listener, shared)
    rates = [] if schedule is None and not by_rule else _scheduled_rates(task, optimizer, schedule, steps)
    if by_rule:
        return ByRule(rates)
    doubles = None if schedule is None else lambda t: [double(rate(t), 64) for rate in rates]
    return play(optimizer, {*names}, (), doubles, steps, sleeping, listener, shared)


def _schedulers_of(task: Task, optimizer: Optimizer) -> Sequence[LRScheduler]:
    """The schedulers of this optimizer; schedulers of no optimizer are assigned to the first, which refuses them."""
    owners = [getattr(s, "optimizer", None) for s in task.schedulers]
    first = task.optimizers[0]
    own = [next((o for o in task.optimizers if o is owner), first) for owner in owners]
    return [s for s, owner in zip(task.schedulers, own, strict=True) if owner is optimizer]


def _rates_alone(
    optimizer: Optimizer, schedulers: Sequence[LRScheduler], steps: int, shared: Shared | None
) -> list[list[float]] | None:
    """The learning rates of each group; None if the schedulers change more than them, or read more than options."""
    rates: list[list[float]] = [[] for _ in optimizer.param_groups]
    first = None
    for groups in scheduled(optimizer, schedulers, steps, shared):
        others = [_others(group) for group in groups]
        if others != (first := first or others):
            return None
        for column, group in zip(rates, groups, strict=True):
            column.append(float(group["lr"]))
    return rates if all(len(column) == steps for column in rates) else None


def _others(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in ("params", "lr")}


def _scheduled_rates(task: Task, optimizer: Optimizer, schedule: Schedule | None, steps: int) -> list[RateAt]:
    """The job's schedule, scaled by each group's rate over the first's of all; without one the optimizer's own rates
    throughout."""
    groups = optimizer.param_groups
    for group in (*groups, task.optimizers[0].param_groups[0]):
        if schedule is not None and "lr" not in group:
            raise ProgramError(
                f"a group of the optimizer has no lr ({', '.join(sorted({*group} - {'params'}))}), which the job's "
                "[schedule] sets; remove the [schedule]"
            )
    base = float(task.optimizers[0].param_groups[0]["lr"])
    if schedule is None:
        return [lambda t, lr=float(group["lr"]): Fraction(repr(lr)) for group in groups]
    ratios = [_ratio(type(optimizer).__name__, float(group["lr"]), base) for group in groups]
    return [lambda t, ratio=ratio: schedule.rate(t, steps) * ratio for ratio in ratios]


def _ratio(name: str, rate: float, base: float) -> Fraction:
    """A group's rate over that of the first group of all."""
    if rate == base:
        return Fraction(1)
    if rate >= 2.0**127 * base:
        raise ProgramError(
            f"{name} with lr = {rate} in a group: the schedule sets the rate of the first group, {base}, and scales "
            "the others; a ratio below 2^127 is expected"
        )
    return Fraction(rate / base)

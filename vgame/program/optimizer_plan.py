"""How an optimizer's step becomes operators: by a rule of ours (SGD, Adam, AdamW), or as the optimizer is written.

In: a task, the schedule of its job. Out: the learning rates of the groups for a rule, or the played steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vgame.errors import JobFileError
from vgame.program.optimizers import check_groups, has_rule
from vgame.program.play import Played, play, scheduled
from vgame.program.recorder import Key
from vgame.program.schedule import Rate, Schedule
from vgame.system.progress import SILENCE, Silence
from vgame.tasks.task import Task

RateAt = Callable[[int], Rate]  # step -> exact learning rate


@dataclass(frozen=True)
class ByRule:
    """`rates[g]` is the learning rate of group g."""

    rates: Sequence[RateAt]


def plan_of(
    task: Task, schedule: Schedule | None, steps: int, trained: set[str], listener: Silence = SILENCE
) -> ByRule | Mapping[Key, Played]:
    """Rates for a rule where one does what the optimizer and its schedulers do; else the played steps."""
    if has_rule(task.optimizer):
        check_groups(task.optimizer)
    ids = {id(p) for name, p in task.model.named_parameters() if name in trained}
    if task.schedulers:
        if schedule is not None:
            raise JobFileError("the task has schedulers and the job a [schedule]; leave one of them out")
        if has_rule(task.optimizer) and (rates := _rates_alone(task, steps)) is not None:
            return ByRule([lambda t, group=group: Fraction(group[t - 1]) for group in rates])
        return play(task.optimizer, ids, task.schedulers, None, steps, listener)
    rates = _scheduled_rates(task, schedule, steps)
    if has_rule(task.optimizer):
        return ByRule(rates)
    doubles = None if schedule is None else lambda t: [_double(rate(t)) for rate in rates]
    return play(task.optimizer, ids, (), doubles, steps, listener)


def _rates_alone(task: Task, steps: int) -> list[list[float]] | None:
    """The learning rates of each group; None if the schedulers change more than them."""
    rates: list[list[float]] = [[] for _ in task.optimizer.param_groups]
    first = None
    for groups in scheduled(task.optimizer, task.schedulers, steps):
        others = [_others(group) for group in groups]
        if others != (first := first or others):
            return None
        for column, group in zip(rates, groups, strict=True):
            column.append(float(group["lr"]))
    return rates


def _others(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in ("params", "lr")}


def _scheduled_rates(task: Task, schedule: Schedule | None, steps: int) -> list[RateAt]:
    """The job's schedule, scaled by each group's rate over the first's; without one the optimizer's own rates throughout."""
    groups = task.optimizer.param_groups
    base = float(groups[0]["lr"])
    if schedule is None:
        return [lambda t, lr=float(group["lr"]): Fraction(repr(lr)) for group in groups]
    ratios = [Fraction(1.0 if group["lr"] == base else float(group["lr"]) / base) for group in groups]
    return [lambda t, ratio=ratio: schedule.rate(t, steps) * ratio for ratio in ratios]


def _double(rate: Rate) -> float:
    """The Python number that an optimizer computes with: within 2^-60 of the rate."""
    return float(rate if isinstance(rate, Fraction) else rate.enclose(64)[0])

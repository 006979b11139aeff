"""Choose how an optimizer's step becomes operators: by a rule (optimizers.py), or by playing its own code.

In: a task, the schedule of its job. Out: the learning rates of the groups for a rule, or the played steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from torch.optim import Optimizer

from vgame.errors import JobFileError, ProgramError
from vgame.program.coupled import Coupled, coupled_of, coupled_with
from vgame.program.frozen import FrozenSteps
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


Plan = ByRule | Mapping[Key, Played]


class Plans:
    """The plans of a task's optimizers, each made at its first use."""

    def __init__(
        self,
        task: Task,
        schedule: Schedule | None,
        steps: int,
        trained: Sequence[Sequence[str]],
        frozen_steps: FrozenSteps,
        listener: NullProgress = NULL_PROGRESS,
        shared: Shared | None = None,
    ) -> None:
        """`trained`: for each optimizer the names of the parameters with a gradient at its step. `shared` records the
        changes that the optimizers make to objects of the loss."""
        self.task, self.schedule, self.steps, self.listener, self.shared = task, schedule, steps, listener, shared
        ids = {name: id(p) for name, p in task.model.named_parameters()}
        pairs = zip(task.optimizers, trained, strict=True)
        self.trained = {id(optimizer): {ids[name] for name in names} for optimizer, names in pairs}
        self.frozen_steps = {ids[name]: steps for name, steps in frozen_steps.items()}
        self.played: dict[int, Plan] = {}  # by `id` of the optimizer

    def of(self, optimizer: Optimizer) -> Plan:
        """Rates for a rule that is equivalent to the optimizer and its schedulers; else the played steps."""
        check_rates(optimizer)
        if has_rule(optimizer):
            check_groups(optimizer)
        if id(optimizer) not in self.played:
            coupled = coupled_with(self.coupled, optimizer)
            if coupled.schedulers and self.schedule is not None:
                raise JobFileError("the task has schedulers and the job has a [schedule]; remove one of them")
            if coupled.alone and has_rule(optimizer) and (rates := self._rates_of_rule(coupled)) is not None:
                return ByRule(rates)
            self._play(coupled)
        return self.played[id(optimizer)]

    @cached_property
    def coupled(self) -> list[Coupled]:
        return coupled_of(self.task)

    def _rates_of_rule(self, coupled: Coupled) -> list[RateAt] | None:
        """The rates of the groups; None if other numbers change too, or a parameter has no gradient in some steps."""
        (optimizer,) = coupled.optimizers
        if any(id(p) in self.frozen_steps for group in optimizer.param_groups for p in group["params"]):
            return None
        if not coupled.schedulers:
            return _scheduled_rates(self.task, optimizer, self.schedule, self.steps)
        rates = _rates_alone(coupled, self.steps, self.shared)
        return rates and [lambda t, group=group: Fraction(group[t - 1]) for group in rates]

    def _play(self, coupled: Coupled) -> None:
        rates = None
        if self.schedule is not None:
            rates = [self._doubles(optimizer) for optimizer in coupled.optimizers]
        trained = [self.trained[id(optimizer)] for optimizer in coupled.optimizers]
        played = play(coupled, trained, rates, self.steps, self.frozen_steps, self.listener, self.shared)
        self.played |= {id(o): record for o, record in zip(coupled.optimizers, played, strict=True)}

    def _doubles(self, optimizer: Optimizer) -> Callable[[int], list[float]]:
        rates = _scheduled_rates(self.task, optimizer, self.schedule, self.steps)
        return lambda t: [double(rate(t), 64) for rate in rates]


def _rates_alone(coupled: Coupled, steps: int, shared: Shared | None) -> list[list[float]] | None:
    """The learning rates of each group; None if the schedulers change other options, or read more than options."""
    rates: list[list[float]] = [[] for _ in coupled.optimizers[0].param_groups]
    first = None
    for groups in scheduled(coupled, steps, shared):
        others = [_others(group) for group in groups]
        if others != (first := first or others):
            return None
        for column, group in zip(rates, groups, strict=True):
            column.append(float(group["lr"]))
    return rates if all(len(column) == steps for column in rates) else None


def _others(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in ("params", "lr")}


def _scheduled_rates(task: Task, optimizer: Optimizer, schedule: Schedule | None, steps: int) -> list[RateAt]:
    """The job's schedule, scaled by each group's rate over that of the first group of all; without a schedule the
    optimizer's own rates in all steps."""
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

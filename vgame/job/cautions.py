"""Warnings about likely mistakes in a job: an unused learning rate, a batch larger than the data, a factory with other
weights at each call.

In: a task and its job. Out: nothing, or a warning.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from vgame.errors import some_of
from vgame.program.schedule import Schedule
from vgame.tasks.reach import is_own_class
from vgame.tasks.task import TOTALS, Task

LONG = 10.0  # seconds; a slower factory is not called twice


def warn_of_rate(task: Task, schedule: Schedule | None) -> None:
    """Warn of an optimizer's rate that the schedule overrides, unless it is 1.0, the usual scale of a schedule."""
    if schedule is None or "lr" not in task.optimizers[0].param_groups[0]:
        return
    written, default = (
        task.optimizers[0].param_groups[0]["lr"],
        inspect.signature(type(task.optimizers[0])).parameters.get("lr"),
    )
    if float(written) not in (1.0, float(schedule.lr), default.default if default else None):
        warnings.warn(
            f"the optimizer's lr = {float(written):g} is not used, the schedule's lr = {schedule.lr} is; leave the "
            "schedule out to train with the optimizer's, or write one number in both",
            stacklevel=2,
        )


def warn_of_schedulers(task: Task, before: int) -> None:
    """Warn of schedulers that have not stepped, in a job that continues a run of so many steps."""
    if before and any(getattr(scheduler, "last_epoch", 0) == 0 for scheduler in task.schedulers):
        warnings.warn(
            f"the task's schedulers are new, but go on after the run's {before} steps: this job's first step has their "
            f"rate of step {before + 1}, where new ones in a loop of torch's begin again; for that leave them out and "
            "give schedule=vgame.Cosine(...), which counts the job's own steps, or take the run's weights alone: "
            "initial=run.state_dict()",
            stacklevel=2,
        )


def warn_of_batch(task: Task) -> None:
    """Warn of a batch larger than the data: torch's DataLoader makes a smaller batch, a job repeats samples."""
    if task.batch > task.population:
        warnings.warn(
            f"batch = {task.batch} is more than the {task.population} samples of the data: each batch reads some of "
            "them again; give a batch of at most that many",
            stacklevel=2,
        )


def warn_of_evaluation(task: Task) -> None:
    """Warn of a model in evaluation mode with modules for which that matters: a job trains it in training mode."""
    rest = [type(m).__name__ for m in task.model.modules() if _has_modes(m)]
    if rest and not task.model.training and not hasattr(task.model, TOTALS):
        warnings.warn(
            "the model is in evaluation mode, as eval() or from_pretrained() leaves it, but is trained in training "
            f"mode, with {some_of(sorted(set(rest)))}; call model.train() to say so, and eval() of the modules that "
            "keep their evaluation mode",
            stacklevel=2,
        )


def _has_modes(module: nn.Module) -> bool:
    """Whether a module computes something else in evaluation mode. A module of the user's does if its code reads
    `training`."""
    functions = [v for kind in type(module).__mro__ if is_own_class(kind) for v in vars(kind).values()]
    if any("training" in getattr(getattr(function, "__code__", None), "co_names", ()) for function in functions):
        return True
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def warn_of_untrained(
    task: Task, schedule: Schedule | None, without_gradient: Sequence[str], played: Collection[int]
) -> None:
    """Warn of trainable parameters that no step changes; they stay the same in torch's own loop too. `played`: the
    optimizers, by number, whose own code decides what a rate of 0 means."""
    groups = [(n, g) for n, optimizer in enumerate(task.optimizers) for g in optimizer.param_groups]
    rates = {id(p): 1.0 if n in played else float(g.get("lr", 1.0)) for n, g in groups for p in g["params"]}
    rest = {n: p for n, p in task.model.named_parameters() if p.requires_grad and n not in without_gradient}
    planned = schedule is not None or task.schedulers
    for names, why, instead in (
        (without_gradient, "no gradient reaches them", "use them in the loss, or freeze them: requires_grad_(False)"),
        ([n for n, p in rest.items() if id(p) not in rates], "no optimizer holds them", "give them to one, or freeze "
            "them: requires_grad_(False)"),
        ([n for n, p in rest.items() if rates.get(id(p)) == 0 and not planned], "their learning rate is 0",
            "give their group another, or freeze them: requires_grad_(False)"),
    ):  # fmt: skip
        if names:
            warnings.warn(
                f"{len(names)} parameters stay as they are; not trained, as {why}: {some_of(names)}; {instead}",
                stacklevel=2,
            )


def call_factory(make: Callable[[], Task]) -> Task:
    """The factory's task. A fast factory is called twice, to warn if the second task has other weights."""
    begin = time.monotonic()
    task = make()
    if time.monotonic() - begin > LONG:
        return task
    first, second = task.model.state_dict(), make().model.state_dict()
    if other := [n for n, t in first.items() if not (n in second and torch.equal(t, second[n]))]:
        warnings.warn(
            f"the factory gives other weights at each call ({other[0]} is one of {len(other)}), so this job cannot be "
            "prepared again; begin it with torch.manual_seed(seed), and take the job's seed: def task(seed)",
            stacklevel=2,
        )
    return task

"""Which optimizers of a task step together: those that share an object which a step could change.

In: a task. Out: its optimizers, coupled ones together, with their schedulers. Coupled ones are copied as a whole, so
the copies share objects as the originals do: a rate that is a tensor, a counter, an optimizer that another one or a
scheduler holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vgame.program.copied import copied, objects_copied
from vgame.program.stand_ins import optimizers_held
from vgame.program.unchanged import objects_read
from vgame.tasks.task import Task


@dataclass(frozen=True)
class Coupled:
    """Optimizers that share something, and their schedulers, in the order of their steps."""

    optimizers: Sequence[Optimizer]
    schedulers: Sequence[LRScheduler]
    model: nn.Module

    @property
    def alone(self) -> bool:
        return len(self.optimizers) == 1

    @property
    def owners(self) -> list[Optimizer | LRScheduler]:
        """The optimizers, those that they hold, and the schedulers."""
        own = {id(o): o for optimizer in self.optimizers for o in (optimizer, *optimizers_held(optimizer))}
        return [*own.values(), *self.schedulers]

    def copied(self) -> tuple[list[Optimizer], list[LRScheduler]]:
        """Copies over parameters without data."""
        return copied(self.optimizers, self.schedulers, self.model)


def coupled_of(task: Task) -> list[Coupled]:
    """Every optimizer of the task is in one of them."""
    if len(task.optimizers) == 1:
        return [Coupled(task.optimizers, task.schedulers, task.model)]
    owners = [_owner(task, scheduler) for scheduler in task.schedulers]
    own = [[s for s, o in zip(task.schedulers, owners, strict=True) if o is each] for each in task.optimizers]
    copies = [objects_copied(o, s, task.model) for o, s in zip(task.optimizers, own, strict=True)]
    reads = [objects_read([o, *s], task.model).keys() for o, s in zip(task.optimizers, own, strict=True)]

    def is_tied(n: int, m: int) -> bool:
        """Whether a step of one could change what the other one's steps or functions read."""
        return bool((copies[n].keys() | reads[n]) & copies[m].keys() or copies[n].keys() & reads[m])

    groups: list[set[int]] = []
    for n in range(len(copies)):
        joined = [group for group in groups if any(is_tied(n, m) for m in group)]
        groups = [group for group in groups if group not in joined] + [{n}.union(*joined)]
    return [_coupled(task, owners, [task.optimizers[n] for n in sorted(group)]) for group in groups]


def coupled_with(coupled: Sequence[Coupled], optimizer: Optimizer) -> Coupled:
    """The one that an optimizer is in."""
    return next(each for each in coupled if any(o is optimizer for o in each.optimizers))


def _coupled(task: Task, owners: Sequence[Optimizer], optimizers: Sequence[Optimizer]) -> Coupled:
    of = [s for s, owner in zip(task.schedulers, owners, strict=True) if any(owner is o for o in optimizers)]
    return Coupled(optimizers, of, task.model)


def _owner(task: Task, scheduler: LRScheduler) -> Optimizer:
    """The task's optimizer that a scheduler belongs to, directly or through an optimizer that it holds; if none, the
    first, whose copy raises the error."""
    stepped = getattr(scheduler, "optimizer", None)
    own = [o for o in task.optimizers if o is stepped]
    held = [o for o in task.optimizers if any(each is stepped for each in optimizers_held(o))]
    return next(iter([*own, *held, task.optimizers[0]]))

"""Check that training starts from the task's own tensors.

In: a task, the initial state by name. Out: the first tensor that differs from the task's, if any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from vgame.program.batches import POSITION
from vgame.program.copied import parameters
from vgame.program.slots import Slots
from vgame.tasks.task import Task
from vgame.validation.compare import Differs, distance, largest

T = torch.Tensor


def check_start(task: Task, state: Mapping[str, T], first: int) -> Differs | None:
    """The first difference, or None. Parameters and buffers must be the module's; in a new run, slots must be the
    optimizer's, and no sample may have been read."""
    for name, given in _given(task, first == 1):
        if name not in state:
            continue
        mine, own = state[name].reshape(-1), given.detach().cpu().reshape(-1).to(state[name].dtype)
        if mine.shape != own.shape or float(largest(distance(mine, own))) > 0:
            far = largest(distance(mine, own)) if mine.shape == own.shape else float("inf")
            return Differs("start", name, first, far, largest(own))
    return None


def _given(task: Task, fresh: bool) -> Iterator[tuple[str, T]]:
    model = task.model
    yield from (*model.named_parameters(), *model.named_buffers())
    if not fresh:
        return
    yield POSITION, torch.zeros((), dtype=torch.int32)
    names = {id(p): name for name, p in model.named_parameters()}
    for optimizer in task.optimizers:
        slots = Slots(optimizer)
        for p in parameters(optimizer):
            yield from ((f"{slot}.{names.get(id(p), '')}", t) for slot, t in slots.of(p).items())

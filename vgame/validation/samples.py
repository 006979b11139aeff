"""Are the data what the data set gives? Samples are read twice more, the second time backwards, and a part of them is
collated again.

In: the task, the rows that validation has read. Out: nothing, or a ValidationError that says what is different.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgame.errors import ValidationError
from vgame.tasks.datasets import Source, _same, other_rows
from vgame.tasks.task import Task
from vgame.validation.budget import Budget

MOST = 256  # samples that are read again, beside those of the batches


def check_samples(task: Task, rows: Sequence[int], budget: Budget) -> int:
    """How many samples were read again."""
    source: Source | None = getattr(task, "source", None)
    if source is None:
        return 0
    count = len(source.samples)
    more = torch.randperm(count, generator=torch.Generator().manual_seed(2))[:MOST].tolist()
    indices = sorted({*rows[:MOST], *more})
    first: dict[int, Any] = {}
    for index in indices:
        first[index] = source.samples[index]
        if budget.over and len(first) >= 2:
            break
    for index in reversed(first):
        if not _same(first[index], source.samples[index]):
            raise ValidationError(
                f"{type(source.samples).__name__} gives another sample {index} when it is read again: its random "
                "transform was drawn once, for all epochs; put it into the loss, on the batch, with vgame.augment or "
                "torch's random functions"
            )
    part = {index: first[index] for index in list(first)[: max(task.batch, 2)]}
    if wrong := other_rows(part, source.make, task.data):
        raise ValidationError(wrong + "; or the data set has changed")
    return len(first)

"""Compare the data with the data set: samples are read two more times, the second time backwards, and some are collated
again.

In: the task, the rows that the validation has read. Out: the number of samples read again, or a ValidationError that
names the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgame.errors import ValidationError
from vgame.tasks.datasets import Source, _draws, _generators, _same, fresh, other_rows
from vgame.tasks.reading import fetched, undrawn
from vgame.tasks.task import Task
from vgame.validation.budget import Budget

MOST = 256  # additional samples to read again


@undrawn()
def check_samples(task: Task, rows: Sequence[int], budget: Budget) -> int:
    """The number of samples read again."""
    source: Source | None = getattr(task, "source", None)
    if source is None:
        return 0
    count = len(source.samples)
    more = torch.randperm(count, generator=torch.Generator().manual_seed(2))[:MOST].tolist()
    indices = sorted({*rows[:MOST], *more})
    first: dict[int, Any] = {}
    before = _generators(source.samples)
    for index in indices:
        (first[index],) = map(fresh, fetched(source.samples, [index]))
        if budget.over and len(first) >= 2:
            break
    drew = _generators(source.samples) != before
    for index in reversed(first):
        again = fetched(source.samples, [index])
        if not _same([first[index]], again) or (drew and _draws(source.samples, [index])):
            raise ValidationError(
                f"{type(source.samples).__name__} gives another sample {index} when it is read again, but a job reads "
                "it once, for all epochs; move the random transform into the loss, on the batch, with vgame.augment or "
                "torch's random functions"
            )
    part = {index: first[index] for index in list(first)[: max(task.batch, 2)]}
    if wrong := other_rows(part, source.make, task.data):
        raise ValidationError(wrong + ", or the data set has changed")
    return len(first)

"""Are the data what the data set gives? Samples are read twice more, the second time backwards, and a part of them is
collated again.

In: the task, the rows that validation has read. Out: nothing, or a ValidationError that says what is different.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from vgame.errors import ValidationError
from vgame.tasks.datasets import Source, _same, collated
from vgame.tasks.task import Task

MOST = 256  # samples that are read again, beside those of the batches


def check_samples(task: Task, rows: Sequence[int], deadline: float) -> int:
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
        if time.monotonic() > deadline and len(first) >= 2:
            break
    for index in reversed(first):
        if not _same(first[index], source.samples[index]):
            raise ValidationError(
                f"{type(source.samples).__name__} gives another sample {index} when it is read again: its random "
                "transform was drawn once, for all epochs; put it into the loss, on the batch, with vgame.augment or "
                "torch's random functions"
            )
    _check_collation(task, source, first)
    return len(first)


def _check_collation(task: Task, source: Source, samples: dict[int, Any]) -> None:
    """A part of the samples, collated, are the same rows of the whole, but for what pads them."""
    indices = list(samples)[: max(task.batch, 2)]
    part = collated([samples[i] for i in indices], source.make)
    for name, tensor in task.data.items():
        for place, index in enumerate(indices):
            if name not in part or not _is_row(part[name][place], tensor[index]):
                raise ValidationError(
                    f"collate_fn makes other rows of {name} from {len(indices)} samples than from all of them (sample "
                    f"{index}), or the data set has changed: a job collates all samples once; compute over a batch in "
                    "the loss"
                )


def _is_row(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Equal where both have elements; what the whole has more is one padding."""
    if part.dim() != whole.dim() or part.dtype != whole.dtype:
        return False
    common = tuple(slice(0, min(a, b)) for a, b in zip(part.shape, whole.shape, strict=True))
    if not _same(part[common], whole[common]):
        return False
    for tensor in (part, whole):
        outside = torch.ones(tensor.shape, dtype=torch.bool)
        outside[common] = False
        if len(tensor[outside].unique()) > 1:
            return False
    return True

"""Refuse values that no training can start from.

In: a task. Out: nothing, or DataError for NaN in the data, ProgramError for parameters and buffers that are not finite.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vgame.commit.mapped import look_through, source_of
from vgame.errors import DataError, ProgramError
from vgame.system.progress import NullProgress
from vgame.tasks.task import Task


def look_at_files(data: Mapping[str, torch.Tensor], listener: NullProgress) -> None:
    """Read each data file once: hash it, and refuse NaN."""
    for name, tensor in data.items():
        if (source := source_of(tensor)) is None:
            continue
        found = look_through(source, lambda done, count, name=name: listener.progress(f"hashing {name}", done, count))
        if found.nan:
            row = found.first // max(tensor[:1].numel(), 1)
            raise DataError(f"the data {name} holds {found.nan} NaN, the first in row {row}; clean it before training")


def refuse_values(task: Task) -> None:
    """Refuse NaN anywhere, and infinity in a parameter."""
    for name, tensor in task.data.items():
        if source_of(tensor) is None and tensor.is_floating_point() and bool((wrong := tensor.isnan()).any()):
            row = int(wrong.reshape(len(tensor), -1).any(1).int().argmax())
            raise DataError(
                f"the data {task.place(name)} holds {int(wrong.sum())} NaN, the first in row {row}; clean it before "
                "training"
            )
    for name, tensor in (*task.model.named_parameters(), *task.model.named_buffers()):
        finite = isinstance(tensor, torch.nn.Parameter)
        if tensor.is_floating_point() and not bool((tensor.isfinite() if finite else ~tensor.isnan()).all()):
            raise ProgramError(f"{name} is not finite at the start; initialise or load the model again")

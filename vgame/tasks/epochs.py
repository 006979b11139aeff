"""Warn of the end of an epoch: a loop over a DataLoader has a short last batch there, a job has whole ones only.

In: a task and its steps. Out: nothing, or one warning.
"""

from __future__ import annotations

import math
import warnings

from vgame.tasks.task import Task


def warn_of_rest(task: Task, steps: int) -> None:
    """Warn if the job's loader has a short last batch, or one that fills no step, and the job reaches it."""
    if getattr(task, "batches", None) is None or task.order not in ("shuffled", "sequential"):
        return
    batches, rest = math.ceil(task.population / task.batch), task.population % task.batch
    left = batches % task.accumulate
    if not (rest or left) or steps * task.accumulate < batches:
        return
    what = f"the last batch of an epoch has {rest} of {task.batch} samples in a loop over the loader"
    if not rest:
        what = f"the last step of an epoch has {left} of {task.accumulate} batches in a loop that ends it there"
    warnings.warn(
        f"{what}, but a job has whole ones, which continue into the next epoch: from step "
        f"{math.ceil(batches / task.accumulate)} on it trains otherwise; for the same training take a number of "
        f"samples that {task.batch * task.accumulate} divides",
        stacklevel=2,
    )

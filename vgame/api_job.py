"""An order in Python: `vgame.Job`, which `vgame.prepare` captures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from vgame.api_run import Folder, Run
from vgame.errors import JobFileError
from vgame.job import factory, file
from vgame.job.file import LogTerms, Terms
from vgame.program.schedule import Schedule
from vgame.schedules import Constant
from vgame.tasks.task import Task

#: Fields that a job file and a `Job` have in common.
SHARED = tuple(name for name in file.JobFile.model_fields if name not in ("model", "args", "initial"))


@dataclass(frozen=True)
class Job:
    """An order: `steps` training steps of a task, with a commitment every `interval` steps. When the job is prepared, a
    JobFileError names every invalid field."""

    task: Task
    """Model, loss, optimizer and data."""

    _: KW_ONLY
    steps: int | None = None
    """Training steps, at most 2^24. Give either `steps` or `epochs`."""
    epochs: float | None = None
    """Passes over the data; a pass has as many steps as a DataLoader has batches. The last step may reach into the next
    pass."""
    interval: int | None = None
    """Steps between two checkpoints; None: a tenth of all steps. A checkpoint takes the disk space of one state. A
    shorter interval costs more disk space, but less computing after an interruption, in an audit of a part, and in a
    dispute."""
    seed: int = 0
    """Seed of the samples' order and of dropout, from 0 to 2^64 - 1. It is public; another seed gives another run."""
    schedule: Constant | Schedule | None = None
    """Learning rates; None: those of the task's `schedulers`, or else the optimizer's own rates in all steps."""
    initial: Run | Folder | Mapping[str, torch.Tensor] | None = None
    """A finished run, which is continued by the same optimizer (weights, its slots and step count; schedule and
    `frozen` count the job's own steps, the task's `schedulers` those of the run too; the order of samples continues if
    the data are the same, otherwise it begins again), or a state_dict or a file of weights, which are loaded into the
    task's model."""
    mode: Literal["correct", "logged", "nearest", "fp32"] = "correct"
    """Rounding of results. `correct`: correctly rounded, so that every device computes the same bits; `logged`: as in
    the paper (docs/paper.md); `nearest`, `fp32`: only for speed comparisons, because honest runs differ."""
    log: LogTerms | None = None
    """In mode `logged`: bits and thresholds."""
    depth: int = 5
    """Levels of a tree that one move of a dispute shows, 1 to 8."""
    terms: Terms = field(default_factory=Terms)
    """Money and times of an order on a chain."""
    name: str = ""
    """Name of the order, for display: at most 32 bytes."""

    @classmethod
    def from_toml(cls, path: Folder) -> Job:
        """The job that a job file describes (docs/guide.md). Calls the factory that it names."""
        job = file.read_job_file(Path(path))
        fields = {name: getattr(job, name) for name in SHARED}
        return cls(factory.make_task(job), initial=factory.initial_of(job), **fields)

    def _steps(self) -> int:
        if self.steps is not None and self.epochs is None:
            return self.steps
        if self.epochs is None or self.steps is not None or not 0 < self.epochs < 2**24:
            raise JobFileError(
                f"steps = {self.steps}, epochs = {self.epochs}: either steps or epochs, more than 0, is expected"
            )
        return math.ceil(self.epochs * self.task.epoch / self.task.accumulate)

    def _file(self) -> file.JobFile:
        fields: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        fields["steps"] = self._steps()
        if isinstance(self.schedule, Constant):
            fields["schedule"] = vars(self.schedule) | {"kind": self.schedule.kind}
        try:
            job = file.JobFile.model_validate({"model": "vgame:Task"} | fields)
        except ValidationError as error:
            raise JobFileError(f"the job: {file.problems(error)}") from None
        job._task, job._initial = self.task, self.initial
        return job

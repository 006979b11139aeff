"""Evaluation that can be disputed: a job of its own that measures a trained state over held-out data.

In: an `Evaluation` and a module that holds the weights. Out: a task whose step measures one batch and adds to totals in
the state. No weights are trained. A run of this task can be audited, compared and disputed like any other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vgame.api import Cancel, Progress, prepare, train
from vgame.api_job import Job
from vgame.api_run import Folder, Run
from vgame.errors import ProgramError, StoreError
from vgame.job.file import Terms
from vgame.tasks.task import SAMPLES, TOTALS, Batch, Evaluation, Task

SIZES = "sizes"  # `sizes.NAME`: sum of an integer total's absolute values, in binary32
# limit of a size: binary32 loses less than 2^29 of it in 2^24 steps, so below this limit no total has passed 2^31
LARGEST = 2.0**30


class Measured(nn.Module):
    """A trained model in evaluation mode, frozen, with the totals of its measurements."""

    def __init__(self, model: nn.Module, totals: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.totals = nn.Module()
        for name, tensor in {SAMPLES: torch.zeros((), dtype=torch.int32), **totals}.items():
            self.totals.register_buffer(name, tensor)
        self.sizes = nn.Module()
        for name, tensor in totals.items():
            if not tensor.is_floating_point():
                self.sizes.register_buffer(name, torch.zeros(()))

    def train(self, mode: bool = True) -> Measured:
        """Does nothing: the model keeps the modes that its eval() has set."""
        return self


@dataclass(frozen=True)
class Evaluated:
    """The numbers of an evaluation."""

    totals: Mapping[str, int | float]
    """The sums by name."""
    samples: int
    """Number of samples measured."""
    run: Run
    """The evaluation's own run, which anyone can audit."""

    def mean(self, name: str) -> float:
        """A total over the number of samples."""
        return self.totals[name] / self.samples


def evaluate(
    run: Run | Folder,
    task: Task,
    folder: Folder,
    *,
    device: str = "default",
    validate: float | None = None,
    progress: bool | Progress = False,
    cancel: Cancel | None = None,
) -> Evaluated:
    """Measure the last committed state of a run by the task's `evaluate`, as a run of its own in `folder`; resumable.

    `task`: the task of the run, or another one with the same module. `validate`: as for `prepare`. ProgramError if a
    total is not finite.
    """
    bundle = prepare(evaluation_job(run, task), progress=progress, cancel=cancel, validate=validate)
    done = train(bundle, folder, device=device, progress=progress, cancel=cancel)
    if (at := done.divergence) is not None:
        raise ProgramError(
            f"evaluate: a total is not finite after batch {at.step}; measure in integers, or check the data"
        )
    return evaluated(done)


def evaluated(run: Run | Folder) -> Evaluated:
    """The numbers of an evaluation's run. StoreError if it is not an evaluation, or not complete; ProgramError if an
    integer total may have passed 2^31, where it wraps to -2^31."""
    run = run if isinstance(run, Run) else Run.open(run)
    state, sizes = (_numbers(run, prefix) for prefix in (TOTALS, SIZES))
    if SAMPLES not in state or not run.done:
        raise StoreError(f"{run.folder} is not the run of a complete evaluation; create one by `vgame evaluate`")
    if large := [name for name, size in sizes.items() if size >= LARGEST]:
        raise ProgramError(
            f"the evaluation {run.folder} counts {sizes[large[0]]:.3g} of {large[0]}; integers are added up in 32 "
            "bits, so less than 2^30 is allowed: return a float, or measure smaller numbers"
        )
    samples = state.pop(SAMPLES)
    return Evaluated(state, int(samples), run)


def _numbers(run: Run, kind: str) -> dict[str, int | float]:
    prefix = f"{kind}."
    return {n.removeprefix(prefix): t.item() for n, t in run.state_dict().items() if n.startswith(prefix)}


def evaluation_job(run: Run | Folder, task: Task, *, interval: int = 10, terms: Terms | None = None) -> Job:
    """The evaluation of a run's last committed state, as a job that can be ordered like any other. ProgramError if the
    task has no evaluation."""
    if task.evaluate is None:
        raise ProgramError(
            "the task has no evaluation; write Task(..., evaluate=vgame.Evaluation(measure, data, batch))"
        )
    run = run if isinstance(run, Run) else Run.open(run)
    measured = evaluation_task(task.evaluate, _loaded(task.model, run))
    steps = measured.population // measured.batch
    return Job(measured, steps=steps, interval=min(interval, steps), seed=0, terms=terms or Terms())


def _loaded(model: nn.Module, run: Run) -> nn.Module:
    """A copy of the model with every parameter and buffer of the run, also buffers outside the state_dict."""
    model = copy.deepcopy(model)
    state = run.start().state
    mine = dict((*model.named_parameters(), *model.named_buffers()))
    wrong = [n for n, t in mine.items() if n not in state or state[n].shape != t.shape]
    if wrong:
        raise ProgramError(
            f"the run {run.folder} trains another module: it has no {wrong[0]} of shape {tuple(mine[wrong[0]].shape)}"
        )
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(state[name])
    return model


def evaluation_task(evaluation: Evaluation, model: nn.Module) -> Task:
    """One pass over the held-out data, batch after batch. ProgramError if `measure` returns a value that cannot be
    added up."""
    samples = len(next(iter(evaluation.data.values()), ()))
    if not samples:
        raise ProgramError(
            "evaluate: there are no held-out samples; give tensors with the samples in their first dimension"
        )
    _check_batch(evaluation.batch, samples)
    measured = Measured(model, _zeros(evaluation, model))

    def step(module: Measured, batch: Batch) -> torch.Tensor:
        found = evaluation.measure(module.model, batch)
        for name, value in found.items():
            total = getattr(module.totals, name)
            setattr(module.totals, name, total + value.to(total.dtype))
            if (size := getattr(module.sizes, name, None)) is not None:
                setattr(module.sizes, name, size + value.float().abs())  # before an integer wraps at 32 bits
        setattr(module.totals, SAMPLES, getattr(module.totals, SAMPLES) + evaluation.batch)
        # a "loss" that is finite for all data, so that it cannot end the run
        return getattr(module.totals, SAMPLES).float()

    nothing = torch.optim.SGD(measured.model.parameters(), lr=1.0)
    return Task(measured, step, nothing, evaluation.data, evaluation.batch, order="sequential")


def _check_batch(batch: int, samples: int) -> None:
    if type(batch) is not int or batch < 1:
        raise ProgramError(f"evaluate: batch = {batch!r}: a whole number of at least 1 is expected")
    if samples % batch:
        smaller = next(b for b in range(batch, 0, -1) if samples % b == 0)
        raise ProgramError(
            f"evaluate: {samples} held-out samples are not a multiple of batch = {batch}; "
            f"write batch={smaller}, or leave {samples % batch} samples out"
        )


def _zeros(evaluation: Evaluation, model: nn.Module) -> dict[str, torch.Tensor]:
    """Zeros of the form that `measure` returns for the first batch."""
    first = {name: t[: evaluation.batch] for name, t in evaluation.data.items()}
    with torch.no_grad():
        found = evaluation.measure(copy.deepcopy(model).eval(), first)
    if not isinstance(found, Mapping) or not found:
        raise ProgramError(f"measure returned {found!r}; a dict of sums over the batch is expected, "
                           '{"correct": (guess == batch["y"]).sum()}')  # fmt: skip
    for name, value in found.items():
        if not (isinstance(name, str) and name.isidentifier()) or name == SAMPLES or hasattr(nn.Module(), name):
            raise ProgramError(
                f"measure returned the name {name!r}; a Python name is expected, which is no attribute of a module and "
                f'not "{SAMPLES}"'
            )
        if not isinstance(value, torch.Tensor) or value.dim() or value.is_complex():
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise ProgramError(
                f"measure returned {name} = {what}; a tensor of one number, the batch's sum, is expected"
            )
    floating = {name: value.is_floating_point() for name, value in found.items()}
    return {n: torch.zeros((), dtype=torch.float32 if f else torch.int32) for n, f in floating.items()}

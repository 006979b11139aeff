"""A LightningModule with its data as a job: training_step, configure_optimizers, the Trainer's clipping, accumulation
and length.

In: a module, a LightningDataModule or a DataLoader, a Trainer. Out: a Job; what cannot be taken over is listed, all of
it. Lightning itself is not imported: the objects are asked for what they are documented to have.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from vgame.api import Job
from vgame.errors import JobFileError, VgameError
from vgame.tasks.datasets import Collated, collate
from vgame.tasks.task import Task

#: Methods of a module that change what a step does, and are not asked.
HOOKS = (
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "optimizer_step",
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "on_before_batch_transfer",
)


def job_from(
    module: Any, data: Any, trainer: Any, *, interval: int | None = None, seed: int = 0, **options: Any
) -> Job:
    """The job of `trainer.fit(module, data)`. `interval`: steps between two checkpoints, by default a tenth of all.

    Further options are those of a Job: mode, depth, terms. JobFileError lists everything that cannot be taken over.
    """
    problems, found = list(_problems(module, trainer)), None
    loader = _loader(data)
    try:
        found = collate(loader)
    except VgameError as error:
        problems.append(str(error))
    optimizer, scheduler, every = _configured(module, problems)
    if problems or found is None or optimizer is None:
        raise JobFileError("the training asks for what a job does not have: " + "; ".join(problems))
    epoch = math.ceil(len(loader) / trainer.accumulate_grad_batches)
    steps = _steps(trainer, epoch)
    if scheduler is not None and every > 0:
        scheduler = _by_epoch(optimizer, scheduler, epoch * every, steps)
    task = _task(module, found, trainer, optimizer, scheduler)
    return Job(task, steps=steps, interval=interval or max(1, steps // 10), seed=seed, **options)


def _task(module: Any, found: Collated, trainer: Any, optimizer: Any, scheduler: LRScheduler | None) -> Task:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        returned = model.training_step(batch, 0)
        return returned["loss"] if isinstance(returned, Mapping) else returned

    by_value = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm)) == "value"
    limit = trainer.gradient_clip_val or None
    return Task(
        module,
        found.restored(loss),
        optimizer,
        found.tensors,
        found.batch or 1,
        clip=None if by_value else limit,
        clip_value=limit if by_value else None,
        accumulate=trainer.accumulate_grad_batches,
        order=found.order,
        weights=found.weights,
        schedulers=[] if scheduler is None else [scheduler],
    )


def _loader(data: Any) -> Any:
    if hasattr(data, "train_dataloader"):
        data.prepare_data()
        data.setup("fit")
        data = data.train_dataloader()
    if not isinstance(data, torch.utils.data.DataLoader):
        raise JobFileError(
            f"the data is a {type(data).__name__}; a DataLoader, or a module of data that makes one, is expected"
        )
    return data


def _steps(trainer: Any, epoch: int) -> int:
    by_epochs = trainer.max_epochs * epoch if (trainer.max_epochs or -1) > 0 else math.inf
    steps = min(by_epochs, trainer.max_steps if trainer.max_steps > 0 else math.inf)
    if steps == math.inf:
        raise JobFileError("the Trainer has neither max_steps nor max_epochs; a job has an end: say one of them")
    return int(steps)


def _configured(module: Any, problems: list[str]) -> tuple[Any, LRScheduler | None, int]:
    """(optimizer, scheduler, epochs between two of its steps; 0: it steps after every step)."""
    try:
        made = module.configure_optimizers()
    except Exception as error:  # a user's method can raise anything
        problems.append(f"configure_optimizers fails: {type(error).__name__}: {error}")
        return None, None, 0
    if isinstance(made, Mapping):
        optimizers, schedulers = [made.get("optimizer")], [made["lr_scheduler"]] if made.get("lr_scheduler") else []
    elif isinstance(made, tuple | list) and made and isinstance(made[0], tuple | list):
        optimizers, schedulers = made
    else:
        optimizers, schedulers = list(made) if isinstance(made, tuple | list) else [made], []
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer) or len(schedulers) > 1:
        problems.append(
            f"{len(optimizers)} optimizers and {len(schedulers)} schedulers (one optimizer and at most one scheduler)"
        )
        return None, None, 0
    said = schedulers[0] if schedulers else None
    said = said if isinstance(said, Mapping) else {"scheduler": said}
    scheduler, each = said["scheduler"], 1 if said.get("interval", "epoch") == "epoch" else 0
    if isinstance(scheduler, ReduceLROnPlateau) or (not each and said.get("frequency", 1) != 1):
        problems.append(
            f"the scheduler {type(scheduler).__name__} (one of the step or the epoch, that looks at no loss)"
        )
    return optimizers[0], scheduler, each * said.get("frequency", 1)


def _by_epoch(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, every: int, steps: int) -> LRScheduler:
    """The scheduler's rates, each held for `every` steps: it is played once, and its table takes its place."""
    first = [dict(group) for group in optimizer.param_groups]
    table = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer has made no step
        for _ in range(-(-steps // every)):
            table.append([group["lr"] for group in optimizer.param_groups])
            scheduler.step()
    base = [group.get("initial_lr", group["lr"]) for group in first]
    for group, was, rate in zip(optimizer.param_groups, first, base, strict=True):
        if any(group[k] != was[k] for k in was if k not in ("params", "lr")):
            raise JobFileError(
                f"the scheduler {type(scheduler).__name__} changes more than rates; let it step by the step"
            )
        group["lr"] = rate
    factors = [[rates[g] / rate if rate else 1.0 for rates in table] for g, rate in enumerate(base)]
    return LambdaLR(optimizer, [lambda step, f=f: f[min(step // every, len(f) - 1)] for f in factors])


def _problems(module: Any, trainer: Any) -> Iterator[str]:
    if not module.automatic_optimization:
        yield "automatic_optimization = False (write the step as one loss)"
    if "32" not in str(trainer.precision):
        yield f"precision = {trainer.precision} (train in float32)"
    if trainer.world_size > 1:
        yield f"{trainer.world_size} processes (train in one)"
    base = next(c for c in type(module).__mro__ if c.__module__.startswith(("lightning.", "pytorch_lightning.")))
    for name in HOOKS:
        if getattr(type(module), name, None) is not getattr(base, name, None):
            yield f"a {name} of {type(module).__name__} (write what changes values into training_step)"
    for callback in getattr(trainer, "callbacks", ()):
        if "EarlyStopping" in type(callback).__name__ or not type(callback).__module__.startswith(
            ("lightning.", "pytorch_lightning.")
        ):
            yield (
                f"the callback {type(callback).__name__} (vgame.train(..., callbacks=[...]) calls functions at "
                "checkpoints)"
            )


__all__ = ["job_from"]

"""A LightningModule with its data as a job: training_step, configure_optimizers, the Trainer's clipping, accumulation
and length.

In: a module, a LightningDataModule or a DataLoader, a Trainer. Out: a Job, or one error that lists every unsupported
setting. Lightning itself is not imported: only documented attributes of the objects are read.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from vgame.api_job import Job
from vgame.errors import JobFileError, VgameError
from vgame.program.capture import _train
from vgame.program.restored import restored
from vgame.tasks.datasets import Collated, collate
from vgame.tasks.task import Task

#: Hooks that run outside the training step; all others can change a step.
BESIDE = re.compile("on_(validation|test|predict)_(?!model_)|on_(fit|train)_end|on_(save|load)_checkpoint")
#: Other methods that a Trainer calls.
CALLED = (
    "backward",
    "clip_gradients",
    "configure_callbacks",
    "configure_gradient_clipping",
    "configure_sharded_model",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)
BEFORE = ("prepare_data", "setup", "configure_model")
#: Callbacks of Lightning that only observe training.
HARMLESS = {
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "ThroughputMonitor",
}
#: Arguments of a Trainer: (attribute, value without effect, remedy).
ARGUMENTS = (
    ("limit_train_batches", 1.0, "give a DataLoader of those samples"),
    ("overfit_batches", 0.0, "give a DataLoader of those samples"),
    ("fast_dev_run", False, "remove it, or set max_steps"),
    ("reload_dataloaders_every_n_epochs", 0, "remove it: a job reads its data once"),
)
COUNTS = ("current_epoch", "global_step")  # attributes of a module that do not exist in a job's step
LIGHTNING = ("lightning.", "pytorch_lightning.")


def job_from(
    module: Any, data: Any, trainer: Any, *, interval: int | None = None, seed: int = 0, **options: Any
) -> Job:
    """The job of `trainer.fit(module, data)`. `interval`: steps between two checkpoints, by default a tenth of all.

    Further options are those of a Job: mode, depth, terms. JobFileError lists every unsupported setting.
    """
    problems, found = list(_problems(module, data, trainer)), None
    loader = _loader(data)
    given = _Given(trainer, len(loader))
    with _attached(module, given):
        problems += _prepared(module)
    problems += _modes(module)
    try:
        found = collate(loader)
    except VgameError as error:
        problems.append(str(error))
    with _attached(module, given):
        optimizer, scheduler, every = _configured(module, problems)
    if problems or found is None or optimizer is None:
        raise JobFileError("a job does not support these settings of the training: " + "; ".join(problems))
    epoch = math.ceil(len(loader) / trainer.accumulate_grad_batches)
    steps = _steps(trainer, epoch)
    if scheduler is not None and every > 0:
        scheduler = _by_epoch(optimizer, scheduler, epoch * every, steps)
    task = _task(module, found, trainer, optimizer, scheduler)
    return Job(task, steps=steps, interval=interval, seed=seed, **options)


def _task(module: Any, found: Collated, trainer: Any, optimizer: Any, scheduler: LRScheduler | None) -> Task:
    indexed = len(inspect.signature(module.training_step).parameters) > 1

    def loss(model: Any, batch: Any) -> torch.Tensor:
        with _without_counts(type(model)):
            returned = model.training_step(batch, NOT_COUNTED) if indexed else model.training_step(batch)
        return returned["loss"] if isinstance(returned, Mapping) else returned

    by_value = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm)) == "value"
    limit = trainer.gradient_clip_val or None
    return Task(
        module,
        loss,
        optimizer,
        found,
        clip=None if by_value else limit,
        clip_value=limit if by_value else None,
        accumulate=trainer.accumulate_grad_batches,
        schedulers=[] if scheduler is None else [scheduler],
    )


def _loader(data: Any) -> Any:
    if hasattr(data, "train_dataloader"):
        data.prepare_data()
        data.setup("fit")
        data = data.train_dataloader()
    if not isinstance(data, torch.utils.data.DataLoader):
        raise JobFileError(
            f"the data is a {type(data).__name__}; a DataLoader, or a LightningDataModule that has one, is expected"
        )
    return data


def _steps(trainer: Any, epoch: int) -> int:
    none = (None, -1)
    limits = [] if trainer.max_epochs in none else [trainer.max_epochs * epoch]
    limits += [] if trainer.max_steps in none else [trainer.max_steps]
    if not limits:
        raise JobFileError("the Trainer has neither max_steps nor max_epochs, but a job has an end; set one of them")
    return int(min(limits))


class _Given:
    """The Trainer while a module is prepared and configured: the length of the training is already known."""

    def __init__(self, trainer: Any, batches: int) -> None:
        self._trainer, self.num_training_batches = trainer, batches

    @property
    def estimated_stepping_batches(self) -> int:
        return _steps(self._trainer, math.ceil(self.num_training_batches / self._trainer.accumulate_grad_batches))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


@contextmanager
def _attached(module: Any, trainer: _Given) -> Iterator[None]:
    """Context in which the module, and modules of Lightning in it, have a trainer."""
    before = [(m, vars(m)["_trainer"]) for m in module.modules() if "_trainer" in vars(m)]
    try:
        for m, _ in before:
            vars(m)["_trainer"] = trainer
        yield
    finally:
        for m, own in before:
            vars(m)["_trainer"] = own


class _NotCounted:
    """The batch_idx of a training_step: it can be passed to other functions, but not read."""


def _refuse(name: str) -> Any:
    def read(*_: Any) -> Any:
        raise JobFileError(
            f"training_step reads {name}, which does not exist in a job's step; remove it from training_step"
        )

    return read


READS = "eq ne lt le gt ge bool int index float str repr format hash add radd sub mul mod floordiv"
for _name in READS.split(" "):
    setattr(_NotCounted, f"__{_name}__", _refuse("batch_idx"))
NOT_COUNTED = _NotCounted()


@contextmanager
def _without_counts(kind: type) -> Iterator[None]:
    """Context that refuses a module that reads the epoch or the step: it would read 0 in every step."""
    own = {name: vars(kind)[name] for name in COUNTS if name in vars(kind)}
    for name in COUNTS:
        setattr(kind, name, property(_refuse(name)))
    try:
        yield
    finally:
        for name in COUNTS:
            delattr(kind, name)
        for name, value in own.items():
            setattr(kind, name, value)


def _configured(module: Any, problems: list[str]) -> tuple[Any, LRScheduler | None, int]:
    """(optimizer, scheduler, epochs between two steps of the scheduler; 0: it steps after every training step)."""
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
    config = schedulers[0] if schedulers else None
    config = config if isinstance(config, Mapping) else {"scheduler": config}
    scheduler, each = config["scheduler"], 1 if config.get("interval", "epoch") == "epoch" else 0
    if isinstance(scheduler, ReduceLROnPlateau) or (not each and config.get("frequency", 1) != 1):
        problems.append(
            f"the scheduler {type(scheduler).__name__} (use one that steps per step or epoch and reads no loss)"
        )
    return optimizers[0], scheduler, each * config.get("frequency", 1)


def _by_epoch(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, every: int, steps: int) -> LRScheduler:
    """A scheduler with the same rates, each held for `every` steps: the given one is played once, into a table."""
    first = [dict(group) for group in optimizer.param_groups]
    table = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the optimizer has made no step
        for _ in range(-(-steps // every)):
            table.append([group["lr"] for group in optimizer.param_groups])
            scheduler.step()
    base = [group.get("initial_lr", group["lr"]) for group in first]
    for group, was, rate in zip(optimizer.param_groups, first, base, strict=True):
        if any(group[k] != was[k] for k in was if k not in ("params", "lr")):
            raise JobFileError(
                f"the scheduler {type(scheduler).__name__} changes more than learning rates; use it with "
                'interval = "step"'
            )
        group["lr"] = rate
    factors = [[rates[g] / rate if rate else 1.0 for rates in table] for g, rate in enumerate(base)]
    return LambdaLR(optimizer, [lambda step, f=f: f[min(step // every, len(f) - 1)] for f in factors])


def _prepared(module: Any) -> Iterator[str]:
    """Call the hooks that Lightning calls on a module before training."""
    for name in BEFORE:
        try:
            getattr(module, name)(*(["fit"] if name == "setup" else []))
        except Exception as error:  # a user's method can raise anything
            yield f"{name} fails: {type(error).__name__}: {error}"


def _modes(module: Any) -> Iterator[str]:
    """A capture trains a module in the modes that its train() sets, Trainer.fit in those that the user has set: a
    problem if they differ."""

    def now() -> list[bool]:
        return [m.training for m in module.modules()] + [p.requires_grad for p in module.parameters()]

    before = now()
    with restored(module):
        _train(module)
        if now() != before:
            yield "the module's modes, as Trainer.fit does not call module.train() (call it before)"


def _overridden(owner: Any) -> Iterator[str]:
    """Names of Lightning's methods that a module, or a LightningDataModule, overrides."""
    base = next(c for c in type(owner).__mro__ if c.__module__.startswith(LIGHTNING))
    for name in dir(base):
        own = getattr(owner, name, None) if callable(getattr(base, name, None)) else None
        if own is not None and getattr(own, "__func__", own) is not getattr(base, name):
            yield name


def _problems(module: Any, data: Any, trainer: Any) -> Iterator[str]:
    if not module.automatic_optimization:
        yield "automatic_optimization = False (write the step as one loss)"
    if "32" not in str(trainer.precision):
        yield f"precision = {trainer.precision} (train in float32)"
    elif (kind := type(trainer.precision_plugin).__name__) != "Precision":
        yield f"the plugin {kind} (train in float32)"
    if trainer.world_size > 1:
        yield f"{trainer.world_size} processes (train in one)"
    elif (kind := type(trainer.strategy).__name__) != "SingleDeviceStrategy":
        yield f"the strategy {kind} (train in one process)"
    for name, nothing, instead in ARGUMENTS:
        value = getattr(trainer, name, getattr(trainer._data_connector, name, nothing))
        if type(value) is not type(nothing) or value != nothing:
            yield f"{name} = {value} ({instead})"
    for owner in (module, *([data] if hasattr(data, "train_dataloader") else [])):
        for name in _overridden(owner):
            if name in CALLED or (name.startswith("on_") and not BESIDE.match(name)):
                yield f"a {name} of {type(owner).__name__} (move changes of values into training_step)"
    for callback in getattr(trainer, "callbacks", ()):
        if type(callback).__name__ not in HARMLESS or not type(callback).__module__.startswith(LIGHTNING):
            yield (
                f"the callback {type(callback).__name__} (vgame.train(..., callbacks=[...]) calls functions at "
                "checkpoints)"
            )


__all__ = ["job_from"]

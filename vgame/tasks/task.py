"""A task: an ordinary module, a loss, an optimizer and a data set, as torch users write them. Capture turns it into a
program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from vgame.errors import ProgramError
from vgame.tasks.datasets import Collated, collate

MOST_WORDS = 2**31 - 1  # of a tensor
ORDERS = ("shuffled", "sequential", "streams", "replacement")
MOST_BATCHES = 1_024  # per step: each is written out in the program

TOTALS = "totals"  # the state of an evaluation has its totals as tensors `totals.NAME`
SAMPLES = "samples"  # the total that counts what was measured

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Sums over held-out data, such as the number of right answers, measured batch after batch."""

    measure: Callable[[nn.Module, Batch], Mapping[str, torch.Tensor]]
    """`measure(model, batch)` returns sums over a batch by name, tensors of one number; the model is in evaluation
    mode. Integers are added up in int32, and refused where they come to 2^30 or more; floats in binary32. The number
    of samples is counted beside them."""
    data: Mapping[str, torch.Tensor]
    """Held-out samples, as those of a `Task`."""
    batch: int
    """Samples of a batch; it divides their number."""


@dataclass(frozen=True)
class Task:
    """What is trained: model, loss, optimizer and data, as torch users write them. The first four may be given without
    their names. ProgramError names a field that is wrong."""

    model: nn.Module
    """Any torch module that capture knows (docs/capture.md)."""
    loss: Callable[[nn.Module, Batch], torch.Tensor] | Sequence[Callable[[nn.Module, Batch], torch.Tensor]]
    """`loss(model, batch)` returns the scalar loss. Several, one for each optimizer, take turns: each sees the steps
    that the optimizers before it have made (a GAN)."""
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    """The learning rates of its groups scale a job's `schedule`: with `lr=1.0` the schedule's rate holds, and a group
    with twice the first group's rate keeps twice its rate. Without a schedule they hold throughout. Several step one
    after the other, each for its own parameters."""
    data: Mapping[str, torch.Tensor] | Dataset | DataLoader | Collated
    """Tensors by name, each with the samples in its first dimension. Of a Dataset or a DataLoader all samples are read
    and collated once; the loss gets batches as the collation makes them."""
    batch: int = 0
    """Samples of a batch; needed unless a DataLoader has it."""
    window: int | None = None
    """The tensors of `data` are streams: sample i is the stretch [i * stride, i * stride + window) of each."""
    stride: int = 1
    """With a `window`: from the beginning of a sample to that of the next."""
    clip: float | None = None
    """Largest norm of all gradients together, as torch.nn.utils.clip_grad_norm_."""
    clip_value: float | None = None
    """Largest absolute value of a gradient, as torch.nn.utils.clip_grad_value_."""
    average: float | Literal["equal"] | None = None
    """Averaged weights, kept beside the weights: the decay of an EMA, or the mean of all steps."""
    accumulate: int = 1
    """Batches per step; the step's loss is the mean of theirs."""
    order: Literal["shuffled", "sequential", "streams", "replacement"] | Sequence[int] | torch.Tensor | None = None
    """Of the samples (docs/capture.md), or a list of sample numbers; None: shuffled, anew in each epoch."""
    frozen: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    """Steps without a gradient: {"encoder.*": 100} the first 100, (50, 99) these."""
    schedulers: Sequence[LRScheduler] = ()
    """Of torch or transformers, instead of a job's `schedule`; each steps once after every step."""
    weights: Sequence[float] | torch.Tensor | None = None
    """One for each sample: they are drawn with replacement, in proportion."""
    evaluate: Evaluation | None = None
    """Measured by `vgame.evaluate` after training; no part of the order."""

    def __repr__(self) -> str:
        """One line: without the data."""
        kinds = ", ".join(type(optimizer).__name__ for optimizer in self.optimizers)
        samples = len(next(iter(self.tensors.values())))
        return f"Task({type(self.model).__name__}, {kinds}, {samples} samples of {', '.join(self.tensors)})"

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ProgramError(f"the task's model is {self.model!r}; a torch.nn.Module is expected")
        for loss in self.losses:
            if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn"):
                raise ProgramError(
                    f"the task's loss is {loss!r}, and is called as loss(model, batch); write a function, such as "
                    f"lambda model, batch: criterion(model(batch['x']), batch['y'])"
                )
        if not self.optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in self.optimizers):
            raise ProgramError(f"the task's optimizer is {self.optimizer!r}; a torch.optim.Optimizer is expected")
        if isinstance(self.loss, Sequence) and len(self.loss) != len(self.optimizers):
            raise ProgramError(
                f"{len(self.loss)} losses and {len(self.optimizers)} optimizers: one optimizer for each loss is "
                "expected, in their order"
            )
        if not isinstance(self.schedulers, Sequence):
            raise ProgramError(f"schedulers = {self.schedulers!r}: a list of them is expected, [scheduler] for one")
        if not isinstance(self.data, Mapping):
            self._collate()
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise ProgramError(
                    f"the data {name} is of type {type(tensor).__name__}; a tensor is expected: torch.as_tensor makes "
                    "one"
                )
            if not (isinstance(name, str) and name.isprintable() and name != "__metadata__"):
                raise ProgramError(f"the data has the name {name!r}; a string of printable characters is expected")
            if tensor.layout is not torch.strided:
                raise ProgramError(f"the data {name} is of layout {tensor.layout}; write {name}.to_dense()")
        lengths = {name: len(t) if t.dim() else 0 for name, t in self.tensors.items()}
        if not lengths or len(set(lengths.values())) > 1:
            raise ProgramError(f"every data tensor needs the same number of samples, got {lengths or 'no data'}")
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise ProgramError(
                f"order = {self.order!r}: one of {', '.join(ORDERS)}, or a list of sample numbers, is expected"
            )
        if self.weights is not None and self.order is not None:
            raise ProgramError("order and weights were both given; samples with weights are drawn, leave the order out")
        for name in ("batch", "stride", "accumulate") + (("window",) if self.window is not None else ()):
            if not isinstance(number := getattr(self, name), int) or number < 1:
                raise ProgramError(f"{name} = {number!r}: a whole number of at least 1 is expected")
        if self.population < 1:
            raise ProgramError(f"the data has no sample: {self.length} rows and a window of {self.window}")
        for name, tensor in self.tensors.items():
            words = self.batch * (self.window or 1) * tensor[:1].numel()
            if words > MOST_WORDS:
                raise ProgramError(f"batch = {self.batch}: {words:,} words of {name}, {MOST_WORDS:,} are the most")
        if self.accumulate > MOST_BATCHES:
            raise ProgramError(f"accumulate = {self.accumulate}: {MOST_BATCHES} batches per step are the most")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ProgramError(f"clip = {self.clip}: a positive norm is expected")
        if self.clip_value is not None and not 0 < self.clip_value < float("inf"):
            raise ProgramError(f"clip_value = {self.clip_value}: a positive number is expected")
        if self.average not in (None, "equal") and not (isinstance(self.average, float) and 0 <= self.average < 1):
            raise ProgramError(f'average = {self.average!r}: a decay from 0 to below 1, or "equal", is expected')

    def _collate(self) -> None:
        """The tensors of a Dataset or a DataLoader, and what a loader says about batches and their order."""
        if isinstance(self.data, torch.Tensor | tuple):
            raise ProgramError(
                f"the data is a {type(self.data).__name__}; a dictionary of tensors, a Dataset or a DataLoader is "
                f"expected, {{'x': tensor}}"
            )
        found = self.data
        if not isinstance(found, Collated):
            found = collate(found, ordered=self.order is not None or self.weights is not None)
        order = None if self.weights is not None else found.order
        for name, said in (("batch", found.batch), ("order", order), ("weights", found.weights)):
            own = getattr(self, name)
            own = said if own is None or (name == "batch" and own == 0) else own
            if said is not None and name == "batch" and own != said:
                raise ProgramError(
                    f"batch = {self.batch}, but the DataLoader's batch_size is {said}; leave one of them out"
                )
            object.__setattr__(self, name, own)
        object.__setattr__(self, "data", found.tensors)
        object.__setattr__(self, "source", found.source)  # for vgame/validation, which reads samples again
        object.__setattr__(self, "batches", found.batches)
        restored = [found.restored(loss) for loss in self.losses]
        object.__setattr__(self, "loss", restored if isinstance(self.loss, Sequence) else restored[0])

    @property
    def losses(self) -> tuple[Callable[[nn.Module, Batch], torch.Tensor], ...]:
        """In the order in which they are computed."""
        return tuple(self.loss) if isinstance(self.loss, Sequence) else (self.loss,)

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """In the order of their steps."""
        return tuple(self.optimizer) if isinstance(self.optimizer, Sequence) else (self.optimizer,)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The data by name: read and collated."""
        assert isinstance(self.data, Mapping)
        return self.data

    @property
    def length(self) -> int:
        """Rows of every data tensor."""
        return len(next(iter(self.tensors.values())))

    @property
    def population(self) -> int:
        """Number of samples."""
        return self.length if self.window is None else (self.length - self.window) // self.stride + 1

    @property
    def epoch(self) -> float:
        """Batches of a pass over the data: as many as a loader makes, else by the samples."""
        return getattr(self, "batches", None) or self.population / self.batch

    def samples(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """The samples of these indices [B], each tensor [B, ...] or [B, window, ...]."""
        if self.window is not None:
            indices = indices[:, None] * self.stride + torch.arange(self.window)
        return {name: t[indices] for name, t in self.tensors.items()}

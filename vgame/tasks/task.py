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
from vgame.tasks.given import as_given, as_kept

MOST_WORDS = 2**31 - 1  # of a tensor
ORDERS = ("shuffled", "sequential", "streams", "replacement")
MOST_BATCHES = 1_024  # per step: the program repeats the operators for each

TOTALS = "totals"  # an evaluation's state has its totals as tensors `totals.NAME`
SAMPLES = "samples"  # the total that counts the measured samples

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Sums over held-out data, such as the number of right answers, measured batch after batch."""

    measure: Callable[[nn.Module, Batch], Mapping[str, torch.Tensor]]
    """`measure(model, batch)` returns sums over a batch by name, tensors of one number; the model is in evaluation
    mode. Integers are added up in int32, and refused from 2^30 on; floats in binary32. The number of samples is counted
    too."""
    data: Mapping[str, torch.Tensor]
    """Held-out samples, in the form of a `Task`'s data."""
    batch: int
    """Samples of a batch; it must divide the number of samples."""


@dataclass(frozen=True)
class Task:
    """A training task: model, loss, optimizer and data, as torch users write them. The first four may be positional
    arguments. ProgramError names an invalid field."""

    model: nn.Module
    """Any torch module that capture supports (docs/capture.md)."""
    loss: Callable[[nn.Module, Batch], torch.Tensor] | Sequence[Callable[[nn.Module, Batch], torch.Tensor]]
    """`loss(model, batch)` returns the scalar loss. Several losses, one for each optimizer, take turns: each uses the
    parameters after the steps of the optimizers before it (a GAN)."""
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    """The learning rates of its groups scale a job's `schedule`: the first group gets the schedule's rate, and a group
    with twice the first group's rate gets twice that. Without a schedule they apply in all steps. Several optimizers
    step one after the other, each for its own parameters."""
    data: Mapping[str, torch.Tensor] | Dataset | DataLoader | Collated
    """Tensors by name, each with the samples in its first dimension. All samples of a Dataset or a DataLoader are read
    and collated once; the loss gets batches in the form of the collation."""
    batch: int = 0
    """Samples of a batch; not needed for a DataLoader."""
    window: int | None = None
    """The tensors of `data` are streams: sample i is the part [i * stride, i * stride + window) of each."""
    stride: int = 1
    """With a `window`: distance from the beginning of a sample to the beginning of the next."""
    clip: float | None = None
    """Largest norm of all gradients together, as in torch.nn.utils.clip_grad_norm_."""
    clip_value: float | None = None
    """Largest absolute value of a gradient, as in torch.nn.utils.clip_grad_value_."""
    average: float | Literal["equal"] | None = None
    """Averaged weights, kept in addition to the weights: the decay of an EMA, or "equal" for the mean of all steps."""
    accumulate: int = 1
    """Batches per step; the step's loss is the mean of their losses."""
    order: Literal["shuffled", "sequential", "streams", "replacement"] | Sequence[int] | torch.Tensor | None = None
    """Order of the samples (docs/capture.md), or a list of sample numbers; None: shuffled again in each epoch."""
    frozen: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    """Steps without a gradient, by names of parameters: {"encoder.*": 100} for the first 100 steps, {"encoder.*": (50,
    99)} for steps 50 to 99."""
    schedulers: Sequence[LRScheduler] = ()
    """Schedulers of torch or transformers, instead of a job's `schedule`; each steps once after every training step."""
    weights: Sequence[float] | torch.Tensor | None = None
    """One for each sample: samples are drawn with replacement, with probabilities proportional to the weights."""
    evaluate: Evaluation | None = None
    """The evaluation for `vgame.evaluate` after training; not part of the order."""

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
            if type(tensor) not in (torch.Tensor, nn.Parameter):
                raise ProgramError(
                    f"the data {self.place(name)} is of class {type(tensor).__name__}, whose own operators a program "
                    f"does not record; write {self.place(name)}.as_subclass(torch.Tensor)"
                )
            if tensor.layout is not torch.strided:
                raise ProgramError(f"the data {name} is of layout {tensor.layout}; write {name}.to_dense()")
        self._keep()
        lengths = {name: len(t) if t.dim() else 0 for name, t in self.tensors.items()}
        if not lengths or len(set(lengths.values())) > 1:
            raise ProgramError(f"every data tensor needs the same number of samples, got {lengths or 'no data'}")
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise ProgramError(
                f"order = {self.order!r}: one of {', '.join(ORDERS)}, or a list of sample numbers, is expected"
            )
        if self.weights is not None and self.order is not None:
            raise ProgramError("order and weights are both given, but weights draw samples at random; remove the order")
        for name in ("batch", "stride", "accumulate") + (("window",) if self.window is not None else ()):
            if not isinstance(number := getattr(self, name), int) or number < 1:
                raise ProgramError(f"{name} = {number!r}: a whole number of at least 1 is expected")
        if self.population < 1:
            raise ProgramError(f"the data has no sample: {self.length} rows and a window of {self.window}")
        for name, tensor in self.tensors.items():
            words = self.batch * (self.window or 1) * tensor[:1].numel()
            if words > MOST_WORDS:
                raise ProgramError(
                    f"batch = {self.batch}: {words:,} words of {name}; at most {MOST_WORDS:,} are allowed"
                )
        if self.accumulate > MOST_BATCHES:
            raise ProgramError(f"accumulate = {self.accumulate}: at most {MOST_BATCHES} batches per step are allowed")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ProgramError(f"clip = {self.clip}: a positive norm is expected")
        if self.clip_value is not None and not 0 < self.clip_value < float("inf"):
            raise ProgramError(f"clip_value = {self.clip_value}: a positive number is expected")
        if self.average not in (None, "equal") and not (isinstance(self.average, float) and 0 <= self.average < 1):
            raise ProgramError(f'average = {self.average!r}: a decay from 0 to below 1, or "equal", is expected')

    def _collate(self) -> None:
        """Read the tensors of a Dataset or a DataLoader, and a loader's batch size and order."""
        if isinstance(self.data, torch.Tensor | tuple):
            raise ProgramError(
                f"the data is a {type(self.data).__name__}; a dictionary of tensors, a Dataset or a DataLoader is "
                f"expected, {{'x': tensor}}"
            )
        found = self.data
        if not isinstance(found, Collated):
            found = collate(found, ordered=self.order is not None or self.weights is not None)
        order = None if self.weights is not None else found.order
        for name, loaded in (("batch", found.batch), ("order", order), ("weights", found.weights)):
            own = getattr(self, name)
            own = loaded if own is None or (name == "batch" and own == 0 and loaded) else own
            if loaded is not None and name == "batch" and own != loaded:
                raise ProgramError(
                    f"batch = {self.batch}, but the DataLoader's batch_size is {loaded}; remove one of them"
                )
            object.__setattr__(self, name, own)
        object.__setattr__(self, "data", found.tensors)
        object.__setattr__(self, "source", found.source)  # for vgame/validation, which reads samples again
        object.__setattr__(self, "batches", found.batches)
        object.__setattr__(self, "given", found.given)
        self._set_losses([found.restored(loss) for loss in self.losses])

    def _set_losses(self, losses: list[Callable[[nn.Module, Batch], torch.Tensor]]) -> None:
        object.__setattr__(self, "loss", losses if isinstance(self.loss, Sequence) else losses[0])

    def _keep(self) -> None:
        """Keep data of float64 as float32, and those that require gradients without; the losses get them as given."""
        given: Mapping[str, torch.Tensor] = getattr(self, "given", self.tensors)
        doubles = {name: self.place(name) for name, t in given.items() if t.dtype == torch.float64}
        differentiated = {name for name, t in given.items() if t.requires_grad}
        if doubles or differentiated:
            object.__setattr__(self, "data", {name: as_kept(t) for name, t in self.tensors.items()})
            object.__setattr__(self, "doubles", doubles)
            self._set_losses([as_given(loss, doubles, differentiated) for loss in self.losses])

    def place(self, name: str) -> str:
        """A data tensor as the loss reads it, `batch[1]`; its name, if a batch is a dictionary."""
        path = getattr(getattr(self, "source", None), "paths", {}).get(name, name)
        return name if path == f"batch[{name!r}]" else path

    @property
    def losses(self) -> tuple[Callable[[nn.Module, Batch], torch.Tensor], ...]:
        """The losses, in the order of their computation."""
        return tuple(self.loss) if isinstance(self.loss, Sequence) else (self.loss,)

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers, in the order of their steps."""
        return tuple(self.optimizer) if isinstance(self.optimizer, Sequence) else (self.optimizer,)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The data by name, after reading and collation."""
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
        """Batches of a pass over the data: those of a loader, of a list of sample numbers, else samples / batch."""
        order = self.order
        samples = self.population if order is None or isinstance(order, str) else len(order)
        return getattr(self, "batches", None) or samples / self.batch

    def samples(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """The samples of these indices [B], each tensor [B, ...] or [B, window, ...]."""
        if self.window is not None:
            indices = indices[:, None] * self.stride + torch.arange(self.window)
        return {name: t[indices] for name, t in self.tensors.items()}

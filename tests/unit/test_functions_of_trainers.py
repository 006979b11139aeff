"""A scheduler's function may read numbers of an object that also holds the model, the optimizer and the scheduler; not
these themselves, nor values that a step changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimizer_steps import BATCH, compare, data, network
from optimizer_steps import loss as usual_loss
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, SequentialLR

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """With its width, as Transformers keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.d, self.sizes, self.inner = 64, [64], network()
        self.config = SimpleNamespace(width=64)
        self.scale, self.last = nn.Parameter(torch.tensor(1.0)), nn.Linear(3, 3)

    @property
    def width(self) -> int:
        return self.d

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x) * self.scale)


@dataclass(frozen=True)
class Config:
    warmup: int = 5
    steps: list[int] = field(default_factory=lambda: [5])


class Trainer:
    """Holds all of a job, and an object that cannot be copied."""

    floor = 0.1

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer, self.lock = model, optimizer, threading.Lock()
        self.warmup, self.best, self.cfg, self.calls = 5, 1.0, Config(), 0
        self.scheduler: Any = SimpleNamespace(last_epoch=0)
        self.shown = torch.tensor(0.0)

    @property
    def share(self) -> float:
        return 1 / self.warmup

    def rate(self, t: int) -> float:
        return max(self.floor, min(1.0, (t + 1) / self.warmup))

    def scaled(self, factor: float, t: int) -> float:
        return factor * self.rate(t)

    def of_optimizer(self, t: int) -> float:
        return self.optimizer.param_groups[0]["momentum"] + self.rate(t)

    def itself(self) -> Trainer:
        return self

    @property
    def last(self) -> int:
        return self.scheduler.last_epoch


def rate_of(trainer: Trainer, t: int) -> float:
    return min(1.0, (t + 1) / trainer.warmup)


def nested(s: Trainer) -> Callable[[int], float]:
    def rate(t: int) -> float:
        def share() -> float:
            return min((t + 1) / each for each in (s.warmup, s.cfg.warmup))

        return min(1.0, share())

    return rate


Functions = dict[str, Callable[[Any], Callable[[int], float]]]
READS: Functions = {
    "a number": lambda s: lambda t: min(1.0, (t + 1) / s.warmup),
    "a method": lambda s: s.rate,
    "a method in a function": lambda s: lambda t: s.scaled(0.5, t),
    "a property": lambda s: lambda t: min(1.0, (t + 1) * s.share),
    "a nested function": nested,
    "a number of a dataclass": lambda s: lambda t: min(1.0, (t + 1) / s.cfg.warmup),
    "an element of a list": lambda s: lambda t: min(1.0, (t + 1) / s.cfg.steps[0]),
    "an attribute of the class": lambda s: lambda t: s.floor ** min(t, 3),
    "a partial function": lambda s: partial(rate_of, s),
    "a partial method": lambda s: partial(s.scaled, 0.5),
    "a default": lambda s: lambda t, own=s: min(1.0, (t + 1) / own.warmup),
    "a number of the model": lambda s: lambda t: 8 * s.model.d**-0.5 * min((t + 1) ** -0.5, (t + 1) * 5**-1.5),
    "a property of the model": lambda s: lambda t: s.model.width**-0.5 * (t + 1) ** -0.5,
    "a number of the model's configuration": lambda s: lambda t: s.model.config.width**-0.5 * (t + 1) ** -0.5,
    "a number of a layer": lambda s: lambda t: 1 / s.model.last.in_features,
}
MODELS: list[nn.Module] = []
TRAINERS: list[Trainer] = []


def build() -> nn.Module:
    MODELS.append(Net())
    return MODELS[-1]


def scheduled(function: Callable[[Any], Callable[[int], float]], optimizer: Optimizer) -> list[Any]:
    trainer = Trainer(MODELS[-1], optimizer)
    trainer.scheduler = LambdaLR(optimizer, function(trainer))
    TRAINERS.append(trainer)
    return [trainer.scheduler]


def momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("function", READS.values(), ids=READS)
def test_a_function_that_reads_numbers_gives_torchs_steps(function: Callable) -> None:
    compare(momentum, partial(scheduled, function), build)


def test_a_method_of_a_scheduler_within_another() -> None:
    def both(optimizer: Optimizer) -> list[Any]:
        trainer = Trainer(MODELS[-1], optimizer)
        trainer.scheduler = SequentialLR(optimizer, [LambdaLR(optimizer, trainer.rate), ConstantLR(optimizer)], [6])
        return [trainer.scheduler]

    compare(momentum, both, build)


def helper(trainer: Trainer) -> float:
    return float(trainer.scheduler.last_epoch)


def twice(t: int, s: Trainer) -> float:
    own = s
    return own.scheduler.last_epoch / (t + 1)


class Inherits(Trainer):
    def other(self, t: int) -> float:
        return super().of_optimizer(t)


class OfClass:
    optimizer: Any = None

    @classmethod
    def rate(cls, t: int) -> float:
        return cls.optimizer.param_groups[0]["lr"] / (t + 1)  # type: ignore[no-any-return]


OTHERS: Functions = {
    "its scheduler": lambda s: lambda t: 1 / (1 + s.scheduler.last_epoch),
    "the rate of its optimizer": lambda s: lambda t: s.optimizer.param_groups[0]["lr"],
    "a parameter": lambda s: lambda t: s.model.scale.item(),
    "a parameter of a layer": lambda s: lambda t: s.model.inner[0].weight.norm().item(),
    "parameters by a method": lambda s: lambda t: 1 / len([*s.model.parameters()]),
    "a mode": lambda s: lambda t: 1.0 if s.model.training else 0.5,
    "an attribute by a text": lambda s: lambda t: 1 / (1 + getattr(s, "sched" + "uler").last_epoch),
    "all attributes": lambda s: lambda t: 1 / (1 + vars(s)["scheduler"].last_epoch),
    "its dictionary": lambda s: lambda t: 1 / (1 + s.__dict__["scheduler"].last_epoch),
    "names by a text": lambda s: lambda t: eval("s.scheduler.last_epoch") + s.warmup,
    "another function": lambda s: lambda t: helper(s),
    "another name": lambda s: lambda t: twice(t, s),
    "a result": lambda s: lambda t: s.itself().scheduler.last_epoch,
    "a property": lambda s: lambda t: 1 / (1 + s.last),
    "a method's object": lambda s: lambda t: s.rate.__self__.scheduler.last_epoch,
    "a comprehension": lambda s: lambda t: sum(1 / (1 + each.scheduler.last_epoch) for each in [s]),
    "a choice": lambda s: lambda t: (s if t < 99 else None).scheduler.last_epoch,
    "an operator": lambda s: lambda t: 1.0 if s == t else 0.5,
    "a function that it holds": lambda s: setattr(s, "f", lambda: s.scheduler.last_epoch) or (lambda t: s.f()),
    "a class": lambda s: lambda t: Trainer.of_optimizer(s, t),
    "a method of a class": lambda s: setattr(OfClass, "optimizer", s.optimizer) or OfClass.rate,
    "a method of a base class": lambda s: (lambda o: lambda t: o.other(t))(Inherits(s.model, s.optimizer)),
}


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_a_function_that_reads_more_is_refused(function: Callable) -> None:
    model = build()
    optimizer = momentum(model.parameters())
    task = Task(model, usual_loss, optimizer, data(), BATCH, schedulers=scheduled(function, optimizer))
    with pytest.raises(ProgramError, match=r"of its schedulers reads [\w.]+ in \S+ \(test_functions_of_trainers.py l"):
        lower_task(task, None, 12)


def sets(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.warmup = 7


def reads(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.best = x.item()  # type: ignore[assignment]


def measures(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.warmup = x.dim() + 3


def keeps(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.best = x.detach()  # type: ignore[assignment]


def sets_of_model(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.model.d = 16  # type: ignore[assignment]


def sets_of_class(trainer: Trainer, x: torch.Tensor) -> None:
    Trainer.floor = 0.2


def adds(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.cfg.steps[:] = [9]


def replaces(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.cfg = Config(9)


class Counting:
    """Its method changes it, so a capture copies it."""

    def __init__(self, held: Any) -> None:
        self.held, self.calls = SimpleNamespace(cfg=held.cfg), 0

    def rate(self, t: int) -> float:
        self.calls += 1
        return 1 / self.calls / self.held.cfg.warmup

    def inside(self, t: int) -> float:
        self.held.calls = t + 1
        return 1 / self.held.calls


@pytest.mark.parametrize("name", ["rate", "inside"])
def test_a_method_that_counts_gives_torchs_steps(name: str) -> None:
    compare(momentum, partial(scheduled, lambda s: getattr(Counting(s), name)), build)


def counting(trainer: Trainer) -> Counting:
    trainer.counting = Counting(trainer)  # type: ignore[attr-defined]
    return trainer.counting  # type: ignore[attr-defined, no-any-return]


def sets_of_held(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.counting.held.cfg = Config(9)  # type: ignore[attr-defined]


def keeps_tensor(trainer: Trainer, x: torch.Tensor) -> None:
    trainer.shown = x.detach()


CHANGES: dict[str, tuple[Callable[[Trainer, torch.Tensor], None], Callable[[Any], Callable[[int], float]]]] = {
    "a number": (sets, READS["a number"]),
    "a number of a method": (sets, READS["a method"]),
    "a number of a partial function": (sets, READS["a partial function"]),
    "a size": (measures, READS["a property"]),
    "the loss": (reads, lambda s: lambda t: min(1.0, s.best)),
    "the loss as a tensor": (keeps, lambda s: lambda t: min(1.0, float(s.best))),
    "a number of the model": (sets_of_model, READS["a number of the model"]),
    "a number of the class": (sets_of_class, READS["an attribute of the class"]),
    "a list": (adds, READS["an element of a list"]),
    "a dataclass": (replaces, READS["a number of a dataclass"]),
    "a number of a method that is copied": (sets_of_held, lambda s: counting(s).rate),
    "a tensor": (keeps_tensor, lambda s: lambda t: 1 / (1 + float(s.shown))),
}


@pytest.mark.parametrize(("change", "function"), CHANGES.values(), ids=CHANGES)
def test_a_number_that_the_loss_changes_is_refused(change: Callable, function: Callable) -> None:
    model = build()
    optimizer = momentum(model.parameters())
    schedulers = scheduled(function, optimizer)
    trainer = TRAINERS[-1]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        change(trainer, found)
        return found

    with pytest.raises(ProgramError, match=r"the loss or the model changes .*, which the optimizer or its schedulers"):
        lower_task(Task(model, loss, optimizer, data(), BATCH, schedulers=schedulers), None, 12)


def test_a_number_that_a_training_mode_changes_is_refused() -> None:
    class Warm(Net):
        def train(self, mode: bool = True) -> Warm:
            self.d = 32
            return super().train(mode)  # type: ignore[return-value]

    model = Warm()
    model.d = 64
    optimizer = momentum(model.parameters())
    schedulers = [LambdaLR(optimizer, lambda t: model.d**-0.5)]
    with pytest.raises(ProgramError, match=r"the loss or the model changes model\.d in"):
        lower_task(Task(model, usual_loss, optimizer, data(), BATCH, schedulers=schedulers), None, 12)


def test_a_number_that_the_function_changes_is_refused() -> None:
    def counts(s: Trainer) -> Callable[[int], float]:
        def rate(t: int) -> float:
            s.cfg.steps[0] += 1
            return 1 / s.cfg.steps[0]

        return rate

    model = build()
    optimizer = momentum(model.parameters())
    schedulers = scheduled(counts, optimizer)
    with pytest.raises(ProgramError, match=r"or its schedulers change s\.cfg\.steps\S* while they step"):
        lower_task(Task(model, usual_loss, optimizer, data(), BATCH, schedulers=schedulers), None, 12)


class Heated(SGD):
    """Changes a number of its settings in each step."""

    def __init__(self, parameters: Any, held: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.held = held

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.held.warmup += 1
        super().step(closure)


def test_a_method_of_an_object_that_the_optimizer_changes_gives_torchs_steps() -> None:
    held: list[Any] = []

    def heated(parameters: Any) -> Optimizer:
        held.append(SimpleNamespace(warmup=5))
        return Heated(parameters, held[-1])

    class Rate:
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def rate(self, t: int) -> float:
            return 1 / self.cfg.warmup  # type: ignore[no-any-return]

    compare(heated, lambda o: [LambdaLR(o, Rate(held[-1]).rate)])


def test_a_function_that_reads_a_value_that_the_optimizer_changes_is_refused() -> None:
    model, held = network(), SimpleNamespace(warmup=5)
    optimizer = Heated(model.parameters(), held)
    schedulers = [LambdaLR(optimizer, lambda t: 1 / held.warmup)]
    with pytest.raises(ProgramError, match=r"a step changes \S+\.held, which a function of"):
        lower_task(Task(model, usual_loss, optimizer, data(), BATCH, schedulers=schedulers), None, 12)


def test_a_function_that_reads_a_value_that_another_optimizer_changes_is_refused() -> None:
    model, held = network(), SimpleNamespace(warmup=5)
    first, *others = model.parameters()
    optimizers = [Heated([first], held), SGD(others, lr=0.05)]
    schedulers = [LambdaLR(optimizers[1], lambda t: 1 / held.warmup)]
    with pytest.raises(ProgramError, match=r"a step changes \S+\.held, which a function of"):
        lower_task(Task(model, usual_loss, optimizers, data(), BATCH, schedulers=schedulers), None, 12)

"""A loss that reads a number of the optimizer or of a scheduler in a way that calls no method of the number is refused;
a loss that only holds an optimizer is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

REFUSED = r"two forward passes of the same batch differ|which changes from step|does not find at a later step"
TABLE = [1.0, 1.0, 3.0]

READS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "a factor behind the loss": lambda x, s: x * s.last_epoch,
    "a quotient": lambda x, s: x / s._step_count,
    "a power": lambda x, s: (x + 1) ** s.last_epoch,
    "a factor of a function": lambda x, s: torch.add(x, x, alpha=s.last_epoch),
    "a tensor of it": lambda x, s: x * torch.tensor(s.last_epoch),
    "a table": lambda x, s: x * TABLE[s.last_epoch],
    "a tensor as a table": lambda x, s: x * torch.arange(3.0)[s.last_epoch],
    "a table of numpy": lambda x, s: x * float(np.array(TABLE)[s.last_epoch]),
    "a part": lambda x, s: x * sum(TABLE[: s.last_epoch]),
    "a loop": lambda x, s: sum((x for _ in range(s.last_epoch)), x),
    "a cosine": lambda x, s: x * math.cos(s.last_epoch),
    "a text": lambda x, s: x * {"0": 1.0, "1": 2.0}[f"{s.last_epoch}"],
    "a remainder": lambda x, s: x * divmod(s.last_epoch, 2)[1],
    "a rounded number": lambda x, s: x * round(s.last_epoch),
}


def task_of(read: Callable[[torch.Tensor, Any], Any], make: Callable[[Any], Any]) -> Task:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    return Task(
        model, lambda m, b: read(usual_loss(m, b), scheduler), optimizer, data(), 16, schedulers=[scheduler]
    )  # fmt: skip


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_count_of_a_scheduler(read: Callable[[torch.Tensor, Any], Any]) -> None:
    with pytest.raises(ProgramError, match=REFUSED):
        capture(task_of(read, lambda o: lr_scheduler.StepLR(o, 30)))


NAMED = [
    name for name in READS if name.startswith("a factor") or name.split()[-1] in ("quotient", "power", "it", "cosine")
]


@pytest.mark.parametrize("name", NAMED)
def test_the_line_is_named(name: str) -> None:
    with pytest.raises(ProgramError, match=r"^the loss reads (last_epoch|_step_count) of the scheduler, \S+ line \d+,"):
        capture(task_of(READS[name], lambda o: lr_scheduler.StepLR(o, 30)))


RATES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "a factor": lambda x, rate: x * rate,
    "a factor in front": lambda x, rate: rate * x,
    "a sum": lambda x, rate: torch.add(x, x, alpha=rate),
    "a tensor": lambda x, rate: x * torch.full((), rate),
    "a list": lambda x, rate: x * torch.tensor([rate, 1.0]).sum(),
    "in place": lambda x, rate: x.clone().mul_(rate),
}


@pytest.mark.parametrize("read", RATES.values(), ids=RATES)
def test_a_rate(read: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    task = Task(model, lambda m, b: read(usual_loss(m, b), optimizer.param_groups[0]["lr"]), optimizer, data(), 16)
    with pytest.raises(ProgramError, match=r"^the loss reads lr of the optimizer, test_losses_read_later.py line \d+,"):
        capture(task)


def test_an_exponential_of_a_rate() -> None:
    """Python's function asks the number for its float."""
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    task = Task(model, lambda m, b: usual_loss(m, b) * math.exp(optimizer.param_groups[0]["lr"]), optimizer, data(), 16)
    with pytest.raises(ProgramError, match="the loss reads lr of the optimizer"):
        capture(task)


def test_a_count_of_a_scheduler_in_another_one() -> None:
    def make(o: Any) -> Any:
        return lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.StepLR(o, 9)], [3])

    with pytest.raises(ProgramError, match=REFUSED):
        capture(task_of(lambda x, s: x * s._schedulers[0].last_epoch, make))


def test_a_length_that_torchs_scheduler_changes() -> None:
    with pytest.raises(ProgramError, match=REFUSED):
        capture(task_of(lambda x, s: x * s.T_i, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2)))


def test_a_rate_of_numpy() -> None:
    with pytest.raises(ProgramError, match=REFUSED):
        capture(task_of(
            lambda x, s: x * (1.0 if s.get_last_lr()[0] > 0.05 else 3.0),
            lambda o: lr_scheduler.LambdaLR(o, lambda t: np.exp(-0.1 * t)),
        ))  # fmt: skip


def test_a_tuple_of_numbers() -> None:
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    task = Task(
        model, lambda m, b: usual_loss(m, b) * (1 - optimizer.param_groups[0]["betas"][0]), optimizer, data(), 16,
        schedulers=[scheduler],
    )  # fmt: skip
    with pytest.raises(ProgramError, match=REFUSED):
        capture(task)


class Warming(lr_scheduler.LRScheduler):
    """Its values change after the third step."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.warming, self.phase, self.factor = True, "warm", 1.0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        if self.last_epoch > 2:
            self.warming, self.phase, self.factor = False, "cold", 2.0
            self.optimizer.param_groups[0]["nesterov"] = True
        return list(self.base_lrs)


FLAGS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "a flag": lambda x, s: x * (1.0 if s.warming else 3.0),
    "a text": lambda x, s: x * (1.0 if s.phase == "warm" else 3.0),
    "a number": lambda x, s: x * s.factor,
    "a decay of the optimizer": lambda x, s: x * (1 + s.optimizer.param_groups[0]["weight_decay"]),
    "a flag of the optimizer": lambda x, s: x * (3.0 if s.optimizer.param_groups[0]["nesterov"] else 1.0),
}


@pytest.mark.parametrize("read", FLAGS.values(), ids=FLAGS)
def test_a_value_that_a_users_scheduler_changes_after_some_steps(read: Callable[[torch.Tensor, Any], Any]) -> None:
    task = task_of(read, Warming)
    with pytest.raises(ProgramError, match=REFUSED):
        capture(task)
    held = task.schedulers[0]
    assert (held.warming, held.phase, held.factor, held.last_epoch) == (True, "warm", 1.0, 0)


class Own(optim.Adam):
    """A user's optimizer without a rule of its own."""


def test_a_loss_may_hold_a_users_optimizer() -> None:
    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.optimizer = Own(model.parameters())

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return usual_loss(model, batch)

    model = network()
    trainer = Trainer(model)
    assert capture(Task(model, trainer.loss, trainer.optimizer, data(), 16))

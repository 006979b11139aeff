"""Tasks of a model or two layers, supported or refused by a capture.

In: a model or the function after a linear layer. Out: the program of its training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vgame.api import Job, prepare
from vgame.program.lower import Lowered, lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Batch, Task


class Made(nn.Module):
    """A linear layer, then any function."""

    def __init__(self, then: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(3, 3), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self, self.first(x))


def squares(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["x"]).square().mean()


def lowered(model: nn.Module, data: Mapping[str, torch.Tensor] | None = None, loss=squares, **options) -> Lowered:
    data = data if data is not None else {"x": torch.ones(8, 3)}
    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, **{"batch": 4, **options})
    return lower_task(task, Schedule(lr="0.1"), 2)


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return cross_entropy(model(batch["x"]), batch["y"])


def root_of(loss: Callable[[nn.Module, Batch], torch.Tensor]) -> str:
    """The root of the program that a user's job of one linear layer has with this loss."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = {"x": torch.randn(8, 4), "y": torch.arange(8) % 3}
    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, 4, order="sequential")
    return prepare(Job(task, steps=2, interval=1, seed=0)).program.root.hex()

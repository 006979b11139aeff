"""Small tasks in which tests/unit/test_validation_faults.py plants faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import vgame.program.lower as lower
from vgame.tasks.task import Task
from vgame.validation.report import Order, Report
from vgame.validation.steps import validate


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.up, self.out = nn.ConvTranspose2d(4, 2, 2, 2), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.leaky_relu(self.batch(self.one(x)), 0.1), 2)
        x = F.elu(self.group(self.two(F.interpolate(x, scale_factor=2.0, mode="bilinear"))))
        x = F.avg_pool2d(self.up(x), 2) + F.adaptive_avg_pool2d(x[:, :2], 3)[..., :3, :3].mean()
        return self.out(x.flatten(2).logsumexp(-1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out, self.scale = nn.Linear(8, 9), nn.Parameter(torch.ones(8))

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(t))
        x = x + F.dropout(self.attention(x, x, x, need_weights=False)[0], 0.25)
        x = F.gelu(x, approximate="tanh") + 0.1 * F.gelu(x) + torch.randn_like(x) * 0.1
        x = x.roll(1, 1) * torch.sigmoid(x) + torch.tanh(x).cumsum(1) + torch.where(x > 0, x.square(), -x)
        return self.out(torch.add(x, x.flip(1), alpha=0.3) * self.scale.pow(1.5) / (1 + x.abs().amax(-1, keepdim=True)))


def _data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "i": torch.randn(12, 2, 6, 6, generator=generator),
        "t": torch.randint(0, 9, (12, 5), generator=generator),
        "x": torch.randn(12, 6, generator=generator),
        "y": torch.arange(12) % 3,
    }


def images(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["i"]), batch["y"])


def words(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["t"]).flatten(0, 1), batch["t"].roll(-1, 1).flatten())


def lines(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def made(model: Callable[[], nn.Module], loss: Any, optimizer: Any = sgd, **options: Any) -> Callable[[], Task]:
    def make() -> Task:
        torch.manual_seed(0)
        module = model()
        return Task(module, loss, optimizer(module.parameters()), _data(), 4, **options)

    return make


def line(optimizer: Any = sgd, **options: Any) -> Callable[[], Task]:
    return made(lambda: nn.Linear(6, 3), lines, optimizer, **options)


IMAGES, WORDS = made(Images, images), made(Words, words)


def checked(make: Callable[[], Task], steps: int = 16) -> Report:
    task = make()
    lowered = lower.lower_task(task, None, steps)
    return validate(Order(task, lowered, lowered.state, None, 11, steps), 200.0)

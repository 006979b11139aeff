"""After a capture no object of the user stays alive (a notebook prepares many models), and a profiler of the process
still records."""

from __future__ import annotations

import cProfile
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import vgame
from vgame.errors import ProgramError

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = {"x": torch.randn(12, 4), "y": torch.arange(12) % 3}


class Net(nn.Module):
    checkpointed = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        middle = checkpoint(self.part, x, use_reentrant=False) if self.checkpointed else self.part(x)
        return self.second(middle)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).relu()


class Checkpointed(Net):
    checkpointed = True


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch["x"]), batch["y"])


def counting(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    model.steps = getattr(model, "steps", 0) + 1
    return loss(model, batch) * model.steps


def failing(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch["x"]), batch["z"])


REFUSED = counting, failing


def simple(loss: Any, kind: type[Net] = Net, **options: Any) -> Callable[[], tuple[vgame.Task, Any]]:
    def make() -> tuple[vgame.Task, Any]:
        model = kind()
        return vgame.Task(model, loss, optim.AdamW(model.parameters(), lr=0.01), DATA, batch=4, **options), model

    return make


def scheduled() -> tuple[vgame.Task, Any]:
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return vgame.Task(model, loss, optimizer, DATA, batch=4, schedulers=[schedule]), model


def in_turns() -> tuple[vgame.Task, Any]:
    model = Net()
    first = optim.SGD(model.first.parameters(), lr=0.1)
    second = optim.Adam([*model.norm.parameters(), *model.second.parameters()], lr=0.1)
    return vgame.Task(model, [loss, loss], [first, second], DATA, batch=4), model


TASKS = {
    "checkpointed": simple(loss, Checkpointed),
    "accumulated": simple(loss, accumulate=2),
    "scheduled": scheduled,
    "in turns": in_turns,
}


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
def test_a_model_is_freed_after_its_job_is_prepared(make: Callable[[], tuple[vgame.Task, Any]]) -> None:
    task, model = make()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    bundle = vgame.prepare(vgame.Job(task, steps=3))
    del task, model
    gc.collect()
    assert [r() for r in references if r() is not None] == []
    assert bundle.steps == 3


@pytest.mark.parametrize("refused", REFUSED)
def test_a_model_is_freed_after_its_job_is_refused(refused: Any) -> None:
    task, model = simple(refused)()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    with pytest.raises(ProgramError) as caught:
        vgame.prepare(vgame.Job(task, steps=3))
    del task, model, caught
    gc.collect()
    assert [r() for r in references if r() is not None] == []


def test_a_profiler_still_records_after_a_job_is_prepared() -> None:
    profiler = cProfile.Profile()
    task, _ = simple(loss, Checkpointed)()
    profiler.enable()
    vgame.prepare(vgame.Job(task, steps=3))
    after_all()
    profiler.disable()
    assert any(getattr(entry.code, "co_name", "") == "after_all" for entry in profiler.getstats())


def after_all() -> None:
    pass

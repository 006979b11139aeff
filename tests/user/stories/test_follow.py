"""Stories of users: losses over 20 steps follow the library's own loop in eager binary64 within 1e-6, or 1e-7 for small
losses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import vgame

Parts = tuple[nn.Module, Callable, torch.optim.Optimizer, list, dict]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def pairs(model: nn.Module, batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def one_cycle(model: nn.Module) -> Parts:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, pairs, optimizer, [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=21)], {}


def decay_groups(model: nn.Module) -> Parts:
    transformers = pytest.importorskip("transformers")
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() < 2) == flat], "weight_decay": 0.1 * (not flat)}
        for flat in (0, 1)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    return model, pairs, optimizer, [transformers.get_linear_schedule_with_warmup(optimizer, 5, 20)], {"clip": 0.5}


def chained(model: nn.Module) -> Parts:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    ]
    return model, pairs, optimizer, schedulers, {"clip_value": 0.1}


def fine_tuned(model: nn.Module) -> Parts:
    for p in model[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return model, pairs, optimizer, [], {"accumulate": 2, "average": 0.9}


@pytest.mark.parametrize("story", [one_cycle, decay_groups, chained, fine_tuned])
def test_losses_follow_the_librarys_loop(story: Callable[[nn.Module], Parts], tmp_path) -> None:
    torch.manual_seed(1)
    x = torch.randn(32, 4)
    model, loss, optimizer, schedulers, options = story(net())
    loader = DataLoader(TensorDataset(x, x.argmax(1) % 3), batch_size=8)
    task = vgame.Task(model, loss, optimizer, loader, schedulers=schedulers, **options)
    run = vgame.train(vgame.prepare(vgame.Job(task, steps=20, interval=10, seed=1)), tmp_path / "run")
    assert run.losses == pytest.approx(eager(story, task, 20), rel=1e-6, abs=1e-7)


def eager(story: Callable[[nn.Module], Parts], task: vgame.Task, steps: int) -> list[float]:
    """The plain loop, in binary64."""
    model, loss, optimizer, schedulers, options = story(deepcopy(net()).double())
    losses, parts, at = [], options.get("accumulate", 1), 0
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(0.0)
        for _ in range(parts):
            rows = torch.arange(at, at + task.batch) % 32
            at += task.batch
            value = (
                loss(model, [t.double() if t.is_floating_point() else t for t in task.samples(rows).values()]) / parts
            )
            value.backward()
            losses[-1] += float(value)
        if "clip" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        if "clip_value" in options:
            nn.utils.clip_grad_value_(model.parameters(), options["clip_value"])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return losses

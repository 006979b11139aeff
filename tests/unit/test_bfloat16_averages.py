"""Averages of bfloat16 parameters are rounded to bfloat16 in each step, as those of torch's AveragedModel: an average
that moves by less than half a unit stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import vgame

STEPS = 120


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).bfloat16()


def data() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    return {"x": torch.randn(48, 6, generator=made), "y": torch.randint(0, 3, (48,), generator=made)}


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])


@pytest.mark.parametrize("average", [0.999, "equal"])
def test_an_average_in_bfloat16(average: Any, tmp_path: Path) -> None:
    model = network()
    task = vgame.Task(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.5), data(), 8, order="sequential", average=average
    )
    run = vgame.train(vgame.prepare(vgame.Job(task, steps=STEPS), validate=60), tmp_path / "run")
    ours = run.state_dict(average=True)
    theirs = own_loop(average)
    start = {name: t.float() for name, t in network().state_dict().items()}
    for name, tensor in ours.items():
        assert tensor.dtype == torch.bfloat16
        moved = (theirs[name].float() - start[name]).abs().max()
        assert (tensor.float() - theirs[name].float()).abs().max() < 0.06 * moved, name


def own_loop(average: Any) -> dict[str, torch.Tensor]:
    model, given = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kept = AveragedModel(model, multi_avg_fn=None if average == "equal" else get_ema_multi_avg_fn(average))
    for step in range(STEPS):
        rows = torch.arange(step * 8, step * 8 + 8) % 48
        optimizer.zero_grad()
        loss(model, {name: t[rows] for name, t in given.items()}).backward()
        optimizer.step()
        kept.update_parameters(model)
    return kept.module.state_dict()

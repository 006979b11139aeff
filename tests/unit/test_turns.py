"""Losses that take turns in one step: each sees the effect of the optimizers before it (a usual GAN), compared with
torch's loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import vgame
from vgame.errors import ProgramError

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 20


class Pair(nn.Module):
    """A critic and a generator; batch norm changes its buffers in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))


def critic_loss(model: nn.Module, batch) -> torch.Tensor:
    fake = model.generator(batch["z"]).detach()
    return F.softplus(model.critic(fake)).mean() + F.softplus(-model.critic(batch["x"])).mean()


def generator_loss(model: nn.Module, batch) -> torch.Tensor:
    return F.softplus(-model.critic(model.generator(batch["z"]))).mean()


def optimizers(model: nn.Module) -> list[optim.Optimizer]:
    return [
        optim.Adam(model.critic.parameters(), lr=0.02, betas=(0.5, 0.9)),
        optim.RMSprop(model.generator.parameters(), lr=0.01),
    ]


def task(**options) -> vgame.Task:
    torch.manual_seed(2)
    model, data = Pair(), {"x": torch.randn(24, 3), "z": torch.randn(24, 2)}
    losses = options.pop("loss", [critic_loss, generator_loss])
    return vgame.Task(
        model, losses, options.pop("optimizer", None) or optimizers(model), data, 8, order="sequential", **options
    )


def loop(task: vgame.Task, losses: list[Callable], each: Callable = lambda o: None) -> tuple[nn.Module, list[float]]:
    """The usual loop, in binary64."""
    model = copy.deepcopy(task.model).double().train()
    steppers, totals = optimizers(model), []
    for step in range(STEPS):
        rows = torch.arange(step * 8, step * 8 + 8) % 24
        batch = {name: t[rows].double() for name, t in task.data.items()}
        total = 0.0
        for loss, optimizer in zip(losses, steppers, strict=True):
            model.zero_grad()
            value = loss(model, batch)
            value.backward()
            each(optimizer)
            optimizer.step()
            total += value.item()
        totals.append(total)
    return model, totals


def trained(ordered: vgame.Task, folder: Path) -> vgame.Run:
    return vgame.train(vgame.prepare(vgame.Job(ordered, steps=STEPS, interval=10, seed=0)), folder)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_second_loss_is_computed_after_the_first_step(tmp_path: Path, clip: float | None) -> None:
    ordered = task(clip=clip)
    each = (lambda o: None) if clip is None else lambda o: nn.utils.clip_grad_norm_(o.param_groups[0]["params"], clip)
    model, text = loop(ordered, [critic_loss, generator_loss], each)
    run = trained(ordered, tmp_path / "run")
    assert run.losses.tolist() == pytest.approx(text, rel=1e-5)
    for name, tensor in run.state_dict().items():
        assert torch.allclose(tensor.double(), model.state_dict()[name].double(), rtol=1e-3, atol=1e-3), name
    assert vgame.audit(run, device="compatible").match


def test_the_order_of_the_turns_matters(tmp_path: Path) -> None:
    """The comparison above can fail: a generator step with the old critic gives other words."""
    first = trained(task(), tmp_path / "first").state_dict()
    swapped = task(loss=[generator_loss, critic_loss])
    swapped = replace(swapped, optimizer=optimizers(swapped.model)[::-1])
    other = trained(swapped, tmp_path / "other").state_dict()
    assert not torch.allclose(first["generator.0.weight"], other["generator.0.weight"], rtol=1e-3)


def test_schedulers_averages_and_frozen_parts_work_with_turns(tmp_path: Path) -> None:
    ordered = task()
    schedulers = [optim.lr_scheduler.ExponentialLR(o, 0.9) for o in ordered.optimizers]
    ordered = replace(ordered, schedulers=schedulers, average=0.9, frozen={"generator.*": 3}, accumulate=2)
    run = trained(ordered, tmp_path / "run")
    start = run.state_dict(0)["generator.0.weight"]
    same = [torch.equal(start, run.state_dict(step)["generator.0.weight"]) for step in (3, 4)]
    assert same == [True, False] and vgame.audit(run).match


def test_losses_without_an_optimizer_each_are_refused() -> None:
    with pytest.raises(ProgramError, match="3 losses and 2 optimizers: one optimizer for each loss is expected"):
        task(loss=[critic_loss, generator_loss, critic_loss])
    with pytest.raises(ProgramError, match="1 losses and 2 optimizers"):
        task(loss=[critic_loss])


def test_a_part_of_both_optimizers_is_refused() -> None:
    ordered = task()
    both = [optim.SGD(ordered.model.parameters(), lr=0.1), optim.SGD(ordered.model.critic.parameters(), lr=0.1)]
    with pytest.raises(ProgramError, match="two optimizers of the task train the same parameter"):
        vgame.prepare(vgame.Job(replace(ordered, optimizer=both), steps=2, interval=1, seed=0))


def in_place(model: nn.Module, batch) -> torch.Tensor:
    batch["x"].mul_(2)
    return critic_loss(model, batch)


def in_a_part(model: nn.Module, batch) -> torch.Tensor:
    batch["x"].data[:, 1:].zero_()
    return critic_loss(model, batch)


def replacing(model: nn.Module, batch) -> torch.Tensor:
    batch["x"] = 2 * batch["x"]
    return critic_loss(model, batch)


def adding(model: nn.Module, batch) -> torch.Tensor:
    batch["fake"] = model.generator(batch["z"])
    return critic_loss(model, batch)


def removing(model: nn.Module, batch) -> torch.Tensor:
    batch.pop("y", None)
    return critic_loss(model, {"x": batch.pop("x"), "z": batch["z"]})


def in_a_list(model: nn.Module, batch) -> torch.Tensor:
    batch[0] = 2 * batch[0]
    return critic_loss(model, {"x": batch[0], "z": batch[1]})


def in_place_of_a_list(model: nn.Module, batch) -> torch.Tensor:
    batch[0].add_(1)
    return critic_loss(model, {"x": batch[0], "z": batch[1]})


@pytest.mark.parametrize("loss", [in_place, in_a_part, replacing, adding, removing, in_a_list, in_place_of_a_list])
def test_a_batch_that_a_loss_changes_for_the_next_is_refused(loss: Callable) -> None:
    ordered = task()
    pair = lambda model, batch: generator_loss(model, {"z": batch[1] if isinstance(batch, list) else batch["z"]})  # noqa: E731
    data = ordered.data
    if "list" in loss.__name__:
        data = [[x, z] for x, z in zip(data["x"], data["z"], strict=True)]
    with pytest.raises(ProgramError, match=r"a loss changes .* of its batch, which the next loss of the step would"):
        vgame.prepare(vgame.Job(replace(ordered, loss=[loss, pair], data=data), steps=2, interval=1, seed=0))


def test_a_loss_may_change_a_copy_and_the_last_its_batch(tmp_path: Path) -> None:
    def first(model: nn.Module, batch) -> torch.Tensor:
        return in_place(model, {name: t.clone() for name, t in batch.items()})

    def last(model: nn.Module, batch) -> torch.Tensor:
        batch["z"].mul_(2)
        return generator_loss(model, batch)

    plain = [
        lambda m, b: critic_loss(m, {"x": 2 * b["x"], "z": b["z"]}),
        lambda m, b: generator_loss(m, {"z": 2 * b["z"]}),
    ]
    one, other = (trained(task(loss=losses), tmp_path / str(n)) for n, losses in enumerate(([first, last], plain)))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])

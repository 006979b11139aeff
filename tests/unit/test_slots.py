"""Slots: the tensors that an optimizer keeps for a parameter, also in dictionaries and lists, and the numbers that it
keeps as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from optimizer_steps import lowered, validated
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import ProgramError


class Own(optim.Optimizer):
    def __init__(self, given: Iterable[nn.Parameter], lr: Any = 0.05) -> None:
        super().__init__(given, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.one(p, self.state[p], group)

    def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class AggMo(Own):
    """A momentum for each of two decays."""

    def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["momentum"] = {beta: torch.zeros_like(p) for beta in (0.0, 0.9)}
        for beta, momentum in state["momentum"].items():
            momentum.mul_(beta).add_(p.grad)
            p.sub_(momentum, alpha=group["lr"] / 2)


class History(Own):
    """The last two gradients."""

    def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["last"] = [p.grad.clone(), *state.get("last", [torch.zeros_like(p)])[:1]]
        p.sub_(state["last"][0] + 0.5 * state["last"][1], alpha=group["lr"])


class Deep(Own):
    def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        mean = state.setdefault("means", ({"of.it": torch.zeros_like(p)},))[0]["of.it"]
        mean.lerp_(p.grad, 0.1)
        p.sub_(mean, alpha=group["lr"])


@pytest.mark.parametrize("make", [AggMo, History, Deep])
def test_tensors_in_containers_are_slots(make: Callable) -> None:
    validated(make)


def test_the_name_of_a_slot_contains_its_container() -> None:
    names = {label.name for label in lowered(AggMo).program.labels.state}
    assert {"momentum[0_0].0.weight", "momentum[0_9].4.bias"} <= names


def test_two_keys_of_one_name_are_refused() -> None:
    class Same(Own):
        def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            if not state:
                state["m"] = {"a.b": torch.zeros_like(p), "a_b": torch.zeros_like(p)}
            p.sub_(p.grad + state["m"]["a.b"] + state["m"]["a_b"], alpha=group["lr"])

    with pytest.raises(ProgramError, match=r"the optimizer Same keeps two tensors for a parameter as 'm\[a_b\]'"):
        lowered(Same)


# ---- numbers ----


class Falls(Own):
    """Its rate is a tensor that it lowers itself."""

    def __init__(self, given: Iterable[nn.Parameter]) -> None:
        super().__init__(given, torch.tensor(0.1))

    def one(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        p.sub_(p.grad * group["lr"].item())
        group["lr"].mul_(0.95)


def test_a_rate_in_a_tensor_is_a_number_of_binary32() -> None:
    validated(Falls)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.RMSprop])
def test_torchs_classes_read_a_rate_in_a_tensor(kind: Callable) -> None:
    validated(lambda p: kind(p, lr=torch.tensor(0.01)), lambda o: [lr_scheduler.CosineAnnealingLR(o, 9)])


class Later(lr_scheduler.LRScheduler):
    """Momentum from a later step on."""

    def get_lr(self) -> list[float]:
        return self.base_lrs

    def step(self, epoch=None) -> None:
        super().step()
        self.optimizer.param_groups[0]["momentum"] = 0.9 if self.last_epoch >= 9 else 0.0


def test_momentum_may_begin_at_a_later_step() -> None:
    validated(lambda p: optim.SGD(p, lr=0.01), lambda o: [Later(o)])

"""Numbers of an optimizer's step: counters that are compared, truth values, whole numbers among floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import compare, data, loss, lowered
from torch import nn, optim

import vgame
from vgame.errors import ProgramError
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

Each = Callable[[Any, torch.Tensor, dict[str, Any]], None]


def stepping(each: Each) -> Callable[[Any], optim.Optimizer]:
    class Own(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    each(self, p, self.state[p])

    return Own


def counted(own: Any, p: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    state["t"] = state.get("t", torch.tensor(0)) + 1
    return state["t"]


def warm_up(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    p.sub_(torch.where(counted(own, p, state) > 3, p.grad, 0.1 * p.grad), alpha=0.1)


def in_turn(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    state.setdefault("odd", torch.tensor(False)).logical_not_()
    p.sub_(torch.where(state["odd"], p.grad, 0.5 * p.grad), alpha=0.1)


def whole(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    p.sub_(torch.maximum(p.grad, p.grad * counted(own, p, state) / 20), alpha=0.1)


def signs(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    average = state.setdefault("m", torch.zeros_like(p))
    average.lerp_((p.grad > 0) * 1.0, 0.1)
    p.sub_(average * 0.5, alpha=0.05)


def large(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    p.sub_(((p.grad > 0) * 1e10) * 1e-11)


STEPS = {each.__name__: each for each in (warm_up, in_turn, whole, large)}


@pytest.mark.parametrize("each", STEPS.values(), ids=STEPS)
def test_a_number_keeps_its_type(each: Each) -> None:
    compare(stepping(each))


def test_a_whole_float_times_a_truth_value_is_a_float() -> None:
    """torch's lerp accepts no integers, nor a binary64 parameter here."""
    assert lowered(stepping(signs))


class Scaled(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def momentum(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    if not state:
        state["m"] = torch.zeros(p.size(), device=p.device, dtype=p.dtype)
    p.sub_(state["m"].mul_(0.9).add_(p.grad), alpha=0.02)


def corrected(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    if not state:
        state.update(m=torch.zeros(p.shape, dtype=p.dtype), t=torch.zeros((), device=p.device))
    state["t"] += 1
    p.sub_(state["m"].lerp_(p.grad, 0.1) / (1 - 0.9 ** state["t"]), alpha=0.1)


@pytest.mark.parametrize("each", [momentum, corrected])
def test_a_slot_of_a_parameter_without_dimensions(each: Each) -> None:
    compare(stepping(each), build=Scaled)


def test_its_steps_are_validated() -> None:
    model = Scaled()
    task = Task(model, loss, stepping(momentum)(model.parameters()), data(), 16)
    assert vgame.prepare(vgame.Job(task, steps=8), validate=60).validation["complete"]


def on_the_cpu(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    p.sub_(p.grad, alpha=0.1 if p.device.type == "cpu" and p.is_cpu and not p.is_meta else 0.01)


def moved(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    if not state:
        state["t"] = torch.zeros(1).to(p.device)[0]
    state["t"] += 1
    p.sub_(p.grad / state["t"], alpha=0.1)


@pytest.mark.parametrize("each", [on_the_cpu, moved])
def test_a_step_reads_the_device_of_its_parameters(each: Each) -> None:
    compare(stepping(each))


def by_numpy(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    try:
        p.grad.numpy()
        rate = 0.1
    except Exception:
        rate = 0.05
    p.sub_(p.grad, alpha=rate)


def by_address(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    p.sub_(p.grad, alpha=0.1 if p.data_ptr() else 0.05)


READS = {
    by_numpy: r"is caught at test_numbers\S+ line \d+ by the code around it \(.*numpy",
    by_address: r"the optimizer's step reads data_ptr of a tensor, test_numbers\S+ line \d+",
}


@pytest.mark.parametrize("each", READS, ids=lambda each: each.__name__)
def test_words_and_addresses_are_not_read(each: Each) -> None:
    with pytest.raises(ProgramError, match=READS[each]):
        lowered(stepping(each))


def test_a_state_by_the_id_of_a_parameter() -> None:
    class ById(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                state = self.state[id(p)]
                state["n"] = state.get("n", 0) + 1
                p.sub_(p.grad, alpha=0.1 / state["n"])

    with pytest.raises(ProgramError, match=r"ById keeps its state by the id of a parameter; keep it in"):
        lowered(ById)


def on_its_device(own: Any, p: torch.Tensor, state: dict[str, Any]) -> None:
    if not state:
        state["m"] = torch.zeros_like(p, device=p.device).to(p.device)
    ones = torch.ones(1, device=p.device).to(p.grad.device)
    state["m"] = state["m"].mul_(0.9).add_(p.grad.to(p.device)).to(device=p.device)
    p.sub_(state["m"] / (ones + p.abs()), alpha=0.05)


def test_a_tensor_on_the_device_of_a_parameter() -> None:
    compare(stepping(on_its_device))

"""An entry of `RULES` suffices for a new rule: slots with names of its own, no counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from optimizer_steps import compare, lowered
from torch import nn
from torch.nn import functional as F

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError, ValidationError
from vgame.program import optimizers
from vgame.program.lower import lower_task
from vgame.program.lowering.builder import Builder, Value
from vgame.program.optimizers import Slot
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task
from vgame.validation.steps import Order, validate
from vgame.validation.user import AtStep

pytestmark = pytest.mark.usefixtures("one_thread")


class Scaled(torch.optim.Optimizer):
    """An average of gradients over the root of an average of their squares."""

    def __init__(self, parameters: Any, lr: float = 0.125) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["summary"], state["power"] = torch.zeros_like(p), torch.zeros_like(p)
                mean, power = state.values()
                mean.mul_(0.875).add_(p.grad, alpha=0.125)
                power.mul_(0.75).addcmul_(p.grad, p.grad, value=0.25)
                p.addcdiv_(mean, power.sqrt().add_(0.5), value=-group["lr"])


@dataclass(frozen=True)
class ScaledRule:
    beta: float
    slots = (Slot("mean", "summary"), Slot("power", "power", square=True))
    counters = ()
    scalars = {"lr": lambda rate, step: rate}  # noqa: RUF012

    def update(
        self, b: Builder, p: Value, g: Value, slots: Mapping[str, Value], scalars: Mapping[str, Value]
    ) -> tuple[Value, dict[str, Value]]:
        mean = optimizers._averaged(b, slots["mean"], g, self.beta)
        power = optimizers._averaged(b, slots["power"], b.map(Function.MUL, g, g), 0.75)
        root = b.map(Function.ADD, b.map(Function.SQRT, power), 0.5)
        step = b.map(Function.MUL, b.map(Function.DIV, mean, root), scalars["lr"])
        return b.map(Function.SUB, p, step), {"mean": mean, "power": power}


def with_rule(beta: float = 0.875) -> Any:
    return patch.dict(optimizers.RULES, {Scaled: lambda group: ScaledRule(beta)})


def order() -> Order:
    torch.manual_seed(2)
    data = {"x": torch.randn(40, 6), "y": torch.randn(40, 3)}
    model = nn.Linear(6, 3)
    task = Task(
        model, lambda m, batch: F.mse_loss(m(batch["x"]), batch["y"]), Scaled(model.parameters()), data, batch=8
    )
    program = lower_task(task, None, 8)
    return Order(task, program, program.state, None, 11, 8)


def test_a_rule_of_a_new_class_steps_as_its_own_loop() -> None:
    assert "lr.0" not in lowered(Scaled).program.labels.scalars
    with with_rule():
        compare(Scaled)
        labels = lowered(Scaled).program.labels
        assert labels.scalars == ("lr.0",) and {"mean.0.weight", "power.0.weight"} <= {x.name for x in labels.state}


def test_validation_fills_its_slots_at_their_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    least: dict[str, float] = {}
    stepped = AtStep.stepped

    def noted(self: AtStep, values: Any, gradients: Any, slots: Mapping[str, Any], budget: Any) -> Any:
        for slot, value in (each for own in slots.values() for each in own.items()):
            least[slot] = min(least.get(slot, 0.0), float(value.min()))
        return stepped(self, values, gradients, slots, budget)

    monkeypatch.setattr(AtStep, "stepped", noted)
    with with_rule():
        report = validate(order(), 200.0)
    assert report.complete, report.unchecked
    assert least["mean"] < 0 == least["power"]


def test_validation_finds_a_wrong_rule() -> None:
    with with_rule(0.876), pytest.raises(ValidationError, match="differs in the stage 'optimizer'"):
        validate(order(), 200.0)


def groups(kind: Any) -> Any:
    """An optimizer whose first group has the rate 0."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return kind([{"params": [first], "lr": 0.0}, {"params": rest}], lr=0.1)

    return make


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop])
def test_a_schedule_scales_no_first_group_of_rate_zero(kind: Any) -> None:
    lowered(groups(kind))  # without a schedule nothing is scaled
    with pytest.raises(ProgramError, match=f"{kind.__name__} with lr = 0.1 in a group: the schedule sets the rate of"):
        lowered(groups(kind), schedule=Schedule(lr="0.1"))

"""Composed functions are accurate where a plain formula cancels, overflows or vanishes."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch
from torch import nn

from vgame.execute.executor import Executor
from vgame.program.lower import lower_task
from vgame.tasks.task import Task
from vgame.validation.report import Order
from vgame.validation.steps import validate

pytestmark = pytest.mark.usefixtures("one_thread")
Function = Callable[[torch.Tensor], torch.Tensor]
SMALL = 2.0 ** -torch.arange(1, 24.0)
WHOLE = torch.arange(-149, 128.0)


class Kept(nn.Module):
    """The function's values in a buffer, its gradient in a parameter."""

    def __init__(self, function: Function, count: int) -> None:
        super().__init__()
        self.function, self.shift = function, nn.Parameter(torch.zeros(count))
        self.register_buffer("kept", torch.zeros(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(x[0] + self.shift)
        self.kept.copy_(y.detach())
        return y.mean()


def task(function: Function, x: torch.Tensor) -> Task:
    model = Kept(function, len(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Task(model, lambda m, b: m(b["x"]), optimizer, {"x": x[None]}, 1, order="sequential")


def values(function: Function, x: torch.Tensor) -> torch.Tensor:
    lowered = lower_task(task(function, x), None, 1)
    executor = Executor(lowered.program, lowered.data, lowered.scalars, 1)
    place = [label.name for label in lowered.program.labels.state].index("kept")
    return executor.step(1, executor.initial(lowered.state)).state[place]


def running(x: torch.Tensor) -> torch.Tensor:
    return torch.logcumsumexp(x, 0)


def length(x: torch.Tensor) -> torch.Tensor:
    return torch.hypot(x, 3 * x)


INF = float("inf")
ENDS = torch.tensor([0.0, 1e-30, 1e30, -1e30, INF, -INF])
CASES: dict[str, tuple[Any, torch.Tensor]] = {
    "erfc": (torch.erfc, torch.cat([torch.linspace(-6, 9.1, 303), torch.tensor([4.0, 0.5, 11, 1e9, INF, -INF])])),
    "atanh": (torch.atanh, torch.cat([1 - SMALL, SMALL - 1, SMALL, -SMALL, torch.tensor([1.0, -0.999999, 2, 0.0])])),
    "acosh": (torch.acosh, torch.cat([1 + SMALL, torch.tensor([1.0, 9, 1e10, 1e19, 1e30, 3e38, INF, 0.5])])),
    "asinh": (torch.asinh, torch.cat([SMALL, -SMALL, torch.tensor([9.0, -1e10, 1e19, -1e30, 3e38, INF, -INF])])),
    "log2": (torch.log2, torch.cat([2.0**WHOLE, 1 + SMALL, 1 - SMALL, torch.tensor([0.0, INF, -1, 3e38, 1.4143])])),
    "floor of log2": (lambda x: torch.log2(x).floor(), 2.0**WHOLE),
    "exp2": (torch.exp2, torch.cat([WHOLE, WHOLE + 0.3, torch.tensor([-200.0, 200, INF, -INF])])),
    "2 ** x": (lambda x: 2.0**x, WHOLE),
    **{
        f"{base} ** x": (
            lambda x, base=base: base**x,
            torch.cat([torch.linspace(-44, 38, 821) * 2.302585 / abs(log(base)), ENDS]),
        )
        for base in (10.0, 0.3, 1.5, 1.0001, 3, 1e30)
    },
    "1.0 ** x": (lambda x: 1.0**x, torch.cat([SMALL, ENDS])),
    "logcumsumexp": (running, torch.tensor([-INF, -110.0, 0, -300, 50, 1, 200, 200, 90, -INF, 210])),
    "logcumsumexp of -inf": (running, torch.tensor([-INF, -INF, 3, INF, 1])),
    "hypot": (length, torch.tensor([1e-30, 1e30, 1.0, 1e20, 1e-22, -7e37, 0, 1e-44, INF, -2e12])),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_composed_function_is_accurate(name: str) -> None:
    function, x = CASES[name]
    true, found = function(x.double()), values(function, x).double()
    assert torch.equal(true.isnan(), found.isnan())
    error = torch.where(true.float().double() == found, 0.0, (found - true).abs())
    far = error / (true.abs() + 2.0**-126)
    assert float(far.nan_to_num(0.0).max()) < 2.0**-20, (x[far.argmax()], found[far.argmax()], true[far.argmax()])
    if name in ("floor of log2", "2 ** x"):
        assert torch.equal(found, true)


@pytest.mark.parametrize("base", [10.0, 0.3, 3])
def test_a_power_of_a_number_errs_by_less_than_an_ulp(base: float) -> None:
    x = torch.linspace(-36, 37, 5003) * 2.302585 / log(base)
    true, found = base ** x.double(), values(lambda x: base**x, x).double()
    assert float(((found - true) / true).abs().max()) < 2.0**-23


@pytest.mark.parametrize(
    "name", ["erfc", "atanh", "acosh", "asinh", "log2", "exp2", "10.0 ** x", "0.3 ** x", "logcumsumexp", "hypot"]
)
def test_validation_finds_the_function_the_same(name: str) -> None:
    function, _ = CASES[name]
    one = task(function, torch.linspace(0.05, 0.95, 40) + (name in ("acosh", "erfc")))
    lowered = lower_task(one, None, 3)
    assert validate(Order(one, lowered, lowered.state, None, 11, 3), 60.0).complete

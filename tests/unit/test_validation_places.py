"""A failed validation names the place: the module and the user's line whose result first differs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_validation import data, report, squares
from test_validation_faults import MUL, SLIGHTLY, instead
from torch import nn

from vgame.errors import ValidationError
from vgame.program.lowering import HANDLERS
from vgame.tasks.task import Task

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
aten = torch.ops.aten


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inside(x)
        hidden = hidden * torch.sigmoid(hidden)  # swish
        hidden = F.leaky_relu(hidden, 0.1)
        hidden = torch.cumsum(hidden, 1)
        return x + self.out(hidden)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.head = nn.ModuleList([Part(), Part()]), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return self.head(x)  # head


def line_with(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_with)).split("\n")
    return next(n for n, line in enumerate(lines, 1) if text in line)


def task(model: nn.Module, loss: Any = squares, **options: Any) -> Task:
    return Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data(), 4, **options)


def moved(operator: Any) -> Any:
    """The rule computes with a first operand that is an ulp or two too large."""
    rule = HANDLERS[operator]
    return instead(operator, lambda b, x, *args, **kwargs: rule(b, b.map(MUL, x, SLIGHTLY), *args, **kwargs))


def failure(one: Task) -> str:
    with pytest.raises(ValidationError) as found:
        report(one)
    return str(found.value)


@pytest.mark.parametrize(
    ("operator", "name", "text"),
    [
        (aten.sigmoid.default, "sigmoid", "# swish"),
        (aten.leaky_relu.default, "leaky_relu", "F.leaky_relu(hidden, 0.1)"),
        (aten.cumsum.default, "cumsum", "torch.cumsum(hidden, 1)"),
    ],
)
def test_an_operator_of_the_forward_pass(operator: Any, name: str, text: str) -> None:
    with moved(operator):
        output = failure(task(Net()))
    where = f"the first result that differs is that of {name} in the module parts.0, test_validation_places.py line "
    assert output.startswith("loss differs in the stage 'loss and gradients' of step 1: by up to ")
    assert output.endswith(f"{where}{line_with(text)}")


def test_an_operator_of_the_backward_pass_is_reported_with_its_forward_line() -> None:
    with moved(aten.leaky_relu_backward.default):
        output = failure(task(Net()))
    assert "gradient.parts.0.inside.weight differs" in output
    assert output.endswith(
        f"in the module parts.1, test_validation_places.py line {line_with('F.leaky_relu(hidden, 0.1)')}"
    )


def test_an_operator_of_the_loss() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        difference = model(batch["x"]) - batch["y"]
        return difference.abs().logsumexp(1).sum()  # loss

    with moved(aten.abs.default):
        output = failure(task(Net(), loss))
    assert output.endswith(f"test_validation_places.py line {line_with('# loss')}") and "in the module" not in output


def test_a_loss_over_two_batches() -> None:
    with moved(aten.cumsum.default):
        output = failure(task(Net(), accumulate=2))
    assert output.endswith(f"cumsum in the module parts.0, test_validation_places.py line {line_with('torch.cumsum(')}")


def test_a_layer_that_the_program_does_not_train() -> None:
    class Cut(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)  # of the cut one
                if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
                    x = x.detach()
            return self.head(x)

    output = failure(task(Cut()))
    assert "gradient.parts.0.inside.weight differs" in output
    assert output.endswith(f"the module parts.0.inside is called in test_validation_places.py line "
                         f"{line_with('hidden = self.inside(x)')}")  # fmt: skip


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()  # of Own's step
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.sub_(p.grad.atan(), alpha=self.param_groups[0]["lr"])


def test_the_step_of_an_optimizer() -> None:
    model = Net()
    with instead(aten.atan.default, lambda b, x: HANDLERS[aten.sin.default](b, x)):
        output = failure(Task(model, squares, Own(model.parameters()), data(), 4))
    assert output.startswith("parts.0.inside.weight differs in the stage 'optimizer' of step 1: by up to ")
    assert output.endswith(f"; it is a step of Own, test_validation_places.py line {line_with('# of Own')}")


def test_code_that_tests_the_class_of_a_parameter() -> None:
    """A traced parameter has another class; a capture does not hide it from `__class__`."""

    class ChecksType(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)
            weight = self.head.weight
            weight = weight if weight.__class__ is nn.Parameter else weight.detach()
            return F.linear(x, weight)  # asking

    output = failure(task(ChecksType()))
    assert output.startswith("gradient.head.weight differs") and "only your code computes it" in output

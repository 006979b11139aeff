"""A function of `torch.jit.script` gives the same program at each capture, that of the function as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import data
from torch import nn, optim

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def gate(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    return x * torch.sigmoid(k * x)


def act(x: torch.Tensor, times: int = 2, k: float = 1.0) -> torch.Tensor:
    for _ in range(times):
        x = gate(x, k=k)
    return x if times > 1 else x + 1


class Network(nn.Module):
    def __init__(self, act: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(6, 8), act, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x), 3, k=1.5))


def root(act: Callable[..., torch.Tensor]) -> bytes:
    model = Network(act)
    loss: Any = lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    return lower_task(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16), None, 3).program.root


@pytest.mark.parametrize("calls", [0, 1, 4], ids="{} calls before".format)
def test_the_program_is_that_of_the_function(calls: int) -> None:
    scripted = torch.jit.script(act)
    for _ in range(calls):
        Network(scripted)(torch.ones(2, 6)).sum().backward()
    assert root(scripted) == root(scripted) == root(act)


def test_a_traced_function() -> None:
    traced = torch.jit.trace(lambda x: gate(x), (torch.ones(2, 8),))
    assert root(lambda x, *_, **__: traced(x)) == root(lambda x, *_, **__: gate(x))


@torch.jit.script
def choosing(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        x = x * 2
    return x


def test_a_function_that_branches_on_values() -> None:
    with pytest.raises(ProgramError, match=r"branches on the values of its tensors .*test_scripted.py line"):
        root(lambda x, *_, **__: choosing(x))

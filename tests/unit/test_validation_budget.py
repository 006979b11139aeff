"""Validation stops at its limits of seconds and memory, and reports it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_validation import task
from torch import nn

from vgame.program.lower import lower_task
from vgame.system.memory import peak, resident, start_peak
from vgame.tasks.task import Task
from vgame.validation import budget
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.report import Order, Report
from vgame.validation.steps import validate

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not resident(), reason="this system does not tell what is resident"),
]


def report(one: Task, memory: float | None = None) -> Report:
    lowered = lower_task(one, None, 4)
    return validate(Order(one, lowered, lowered.state, None, 11, 4), 100.0, memory)


def wide() -> Task:
    """Each weight and each slot has 34 MB in binary64."""
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)])
    x = torch.randn(8, 2048, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Task(model, lambda m, b: F.mse_loss(m(b["x"]), b["x"]), optimizer, {"x": x}, 4)


def test_memory_has_a_bound() -> None:
    one = wide()
    lowered = lower_task(one, None, 4)
    order = Order(one, lowered, lowered.state, None, 11, 4)
    start_peak()
    before = resident()
    found = validate(order, 100.0, 200e6)
    assert found.unchecked == ["the part that needs more than 0.2 GB of memory"]
    assert (peak() or 0) - before < 200e6 + 4 * 34e6  # of one operator


def test_without_memory_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "resident", lambda held=iter([0, *[2**40] * 10**6]): next(held))
    found = report(task(), 0.0)
    assert found.unchecked == ["the part that needs more than 0.0 GB of memory"] and not found.steps


def test_the_default_limit_is_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "free", lambda: 8e9)
    assert Budget(1.0).memory == 4e9
    assert report(task()).complete


def test_the_time_limit_ends_the_comparison_too() -> None:
    with pytest.raises(Exhausted, match="the part after 0 seconds"):
        Budget(0.0).check()

"""Losses that call their optimizer, or copy modules: calls without an effect on a step are captured, all others are
refused."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


def captured(before: Callable[[nn.Module, Any], Any], **options: Any) -> str:
    model = network()
    optimizer = optim.SGD(model[:4].parameters(), lr=0.1)

    def loss(m: nn.Module, batch: Any) -> torch.Tensor:
        before(m, optimizer)
        return usual_loss(m, batch)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = capture(Task(model, loss, optimizer, data(), 16, **options))
    return re.sub("val_[0-9]+", "val", found.graph.code)


def named(model: nn.Module, _: Any) -> None:
    with torch.profiler.record_function("mine"), torch.autograd.profiler.record_function("other"):
        model(torch.ones(1, 6))


CLEARING = {
    "optimizer": lambda m, o: o.zero_grad(),
    "with zeros": lambda m, o: o.zero_grad(set_to_none=False),
    "model": lambda m, o: m.zero_grad(),
}


@pytest.mark.parametrize("call", CLEARING.values(), ids=CLEARING)
def test_gradients_may_be_cleared_in_a_loss_of_one_batch(call: Callable) -> None:
    assert captured(call) == captured(lambda m, o: None)
    with pytest.raises(
        ProgramError, match=r"the loss clears gradients, .*py line \d+, but a step adds up those of 2 b"
    ):
        captured(call, accumulate=2)


def test_a_part_of_a_loss_may_have_a_name_of_the_profiler() -> None:
    assert captured(named) == captured(lambda m, o: m(torch.ones(1, 6)))


CHANGES = {
    "a group": lambda m, o: len(o.param_groups) > 1 or o.add_param_group({"params": [*m[4].parameters()]}),
    "a parameter": lambda m, o: o.param_groups[0]["params"].append(m[4].weight),
    "the rate": lambda m, o: o.param_groups[0].update(lr=0.01),
    "an option": lambda m, o: o.param_groups[0].update(weight_decay=0.01),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_loss_that_changes_groups_is_refused(change: Callable) -> None:
    with pytest.raises(ProgramError, match="the loss changes the groups of the optimizer"):
        captured(change)


def test_the_same_option_again_is_no_change() -> None:
    captured(lambda m, o: o.param_groups[0].update(momentum=0))


def test_a_copy_of_a_module_in_the_loss_is_refused_in_a_sentence() -> None:
    with pytest.raises(ProgramError, match=r"reads or copies the memory of a tensor, .*py line \d+, which") as caught:
        captured(lambda m, o: copy.deepcopy(m[0]))
    assert "custom kernel" not in str(caught.value)

"""Parts that are frozen for some steps, and several optimizers in one step, compared with torch's own loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from optimizer_steps import STEPS, compare, data, loss, lowered, network
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import JobFileError, ProgramError
from vgame.execute.executor import Executor
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS = {
    "with a rule of ours": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "as it is written": lambda p: optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_frozen_part_starts_training_when_it_is_thawed(make: Callable) -> None:
    """Its slots and its count of steps too; without a gradient it does not count for the norm."""
    compare(make, frozen={"0.*": 7, "2.weight": 4}, clip=0.1)


def test_a_frozen_part_keeps_its_words() -> None:
    program = lowered(lambda p: optim.SGD(p, lr=0.5), frozen={"0.*": (2, 3)}, steps=4)
    executor = Executor(program.program, program.data, program.scalars, 1)
    states = [executor.initial(program.state)]
    for step in range(1, 5):
        states.append(executor.step(step, states[-1]).state)
    place = [label.name for label in program.program.labels.state].index("0.weight")
    same = [torch.equal(a[place], b[place]) for a, b in pairwise(states)]
    assert same == [False, True, True, False]


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        ({"encoder.*": 3}, r"frozen = \{'encoder.\*': ...\}: no trained parameter has such a name"),
        ({"0.*": 0}, r"frozen = \{'0.\*': 0\}: the last frozen step"),
        ({"0.*": (5, 4)}, r"\(first, last\), is expected"),
        ({"0.*": 2.5}, r"the last frozen step"),
    ],
)
def test_invalid_frozen_parts_are_named(frozen: dict, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(lambda p: optim.SGD(p, lr=0.1), frozen=frozen)


def _by_parameters(model: nn.Module, batch: dict) -> torch.Tensor:
    return loss(model, batch) + sum(p.square().sum() for p in model.parameters() if p.requires_grad)


def _by_result(model: nn.Module, batch: dict) -> torch.Tensor:
    first = model[0](batch["x"])
    return loss(model, batch) + (first.square().mean() if first.requires_grad else 0.0)


@pytest.mark.parametrize(("penalised", "what"), [(_by_parameters, "0.weight"), (_by_result, "a result")])
def test_a_loss_that_reads_which_parts_are_frozen_is_refused(penalised: Callable, what: str) -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    lower_task(Task(model, penalised, optimizer, data(), 8), None, 4)
    with pytest.raises(ProgramError, match=rf"reads requires_grad of {what}, test_frozen_parts.py line \d+, which"):
        lower_task(Task(model, penalised, optimizer, data(), 8, frozen={"0.*": 2}), None, 4)


def two(parameters) -> list[optim.Optimizer]:
    """As on Muon's page, with RMSprop for the matrices."""
    parameters = list(parameters)
    matrices, others = [p for p in parameters if p.dim() == 2], [p for p in parameters if p.dim() != 2]
    return [optim.RMSprop(matrices, lr=0.01), optim.AdamW(others, lr=0.02)]


def test_several_optimizers_each_train_their_own() -> None:
    compare(two, lambda o: [lr_scheduler.ExponentialLR(o[1], 0.9), lr_scheduler.CosineAnnealingLR(o[0], STEPS)])


def test_a_schedule_scales_all_groups_by_the_first_of_all() -> None:
    def both(parameters) -> list[optim.Optimizer]:
        first, *others = parameters
        return [optim.SGD([first], lr=0.1), optim.SGD(others, lr=0.3)]

    program = lowered(both, schedule=Schedule(lr="0.5"), steps=2)
    assert torch.equal(program.scalars, torch.tensor([[0.5, 1.5]] * 2))


def test_incompatible_optimizers_are_refused() -> None:
    def overlapping(parameters) -> list[optim.Optimizer]:
        parameters = list(parameters)
        return [optim.SGD(parameters, lr=0.1), optim.Adam(parameters[:1], lr=0.1)]

    with pytest.raises(ProgramError, match="two optimizers of the task train the same parameter"):
        lowered(overlapping)
    with pytest.raises(ProgramError, match="belongs to another optimizer"):
        lowered(two, lambda o: [lr_scheduler.StepLR(optim.SGD(network().parameters(), lr=0.1), 1)])
    with pytest.raises(JobFileError, match="remove one of them"):
        lowered(two, lambda o: [lr_scheduler.StepLR(o[1], 1)], Schedule(lr="0.1"))
    with pytest.raises(ProgramError, match=r"a torch\.optim\.Optimizer is expected"):
        lowered(lambda p: [optim.SGD(p, lr=0.1), nn.Linear(1, 1)])

"""Counters of users' optimizers and schedulers: a counter in an object is played, a counter in a class is refused. A
scheduler that reads a module is refused in one sentence."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import own_counts
import pytest
import torch
from optimizer_steps import data, loss, network
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import vgame
from vgame.errors import ProgramError
from vgame.tasks.task import Task


class Falling(Optimizer):
    """Divides the rate by the number of its step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.begin()

    def begin(self) -> None: ...
    def count(self) -> int: ...

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        count = self.count()
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=-self.param_groups[0]["lr"] / count)


class OfTheObject(Falling):
    def begin(self) -> None:
        self.steps = 0

    def count(self) -> int:
        self.steps += 1
        return self.steps


class OfTheGroup(Falling):
    def count(self) -> int:
        self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
        return self.param_groups[0]["steps"]


class OfTheState(Falling):
    def begin(self) -> None:
        self.state["steps"] = 0

    def count(self) -> int:
        self.state["steps"] += 1
        return self.state["steps"]


class OfTheClass(Falling):
    steps = 0

    def count(self) -> int:
        type(self).steps += 1
        return self.steps


class InAListOfTheClass(Falling):
    steps: list[int] = []  # noqa: RUF012

    def count(self) -> int:
        self.steps.append(1)
        return len(self.steps)


class OfAModule(Falling):
    def count(self) -> int:
        own_counts.step += 1
        return own_counts.step


class OfAModuleInside(Falling):
    def count(self) -> int:
        import own_counts as held

        held.step += 1
        return held.step


class OfTheEnvironment(Falling):
    def count(self) -> int:
        os.environ["OWN_COUNT"] = str(int(os.environ.get("OWN_COUNT", "0")) + 1)
        return int(os.environ["OWN_COUNT"])


class OfAGenerator(Falling):
    def begin(self) -> None:
        self.counts = (n for n in range(1, 99))

    def count(self) -> int:
        return next(self.counts)


def job_of(
    make: Callable[[Any], Optimizer], schedulers: Callable[..., list[LRScheduler]] = lambda o, m: []
) -> vgame.Job:
    model = network()
    optimizer = make(model.parameters())
    return vgame.Job(Task(model, loss, optimizer, data(), 16, schedulers=schedulers(optimizer, model)), steps=8)


@pytest.mark.parametrize("kind", [OfTheObject, OfTheGroup, OfTheState])
def test_a_counter_is_played(kind: type[Falling]) -> None:
    validation = vgame.prepare(job_of(kind), validate=60).validation
    assert validation["validated"] and validation["complete"]


def test_a_counter_that_is_used() -> None:
    def used(parameters: Any) -> Optimizer:
        made = OfTheState(parameters)
        made.state["steps"] = 3
        return made

    with pytest.raises(ProgramError, match="OfTheState already holds steps, but a run starts from a new optimizer"):
        vgame.prepare(job_of(used), validate=0)


@pytest.mark.parametrize("kind", [OfTheClass, InAListOfTheClass])
def test_a_counter_of_the_class(kind: type[Falling]) -> None:
    with pytest.raises(ProgramError, match=rf"schedulers change {kind.__name__}.steps while they step"):
        vgame.prepare(job_of(kind), validate=0)


OUTSIDE = {OfAModule: "own_counts.step", OfAModuleInside: "step (of the", OfTheEnvironment: "OWN_COUNT (of os"}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_counter_of_a_module(kind: type[Falling], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_counts, "step", 0)
    monkeypatch.setenv("OWN_COUNT", "0")
    with pytest.raises(ProgramError, match=rf"schedulers change {re.escape(OUTSIDE[kind])}.*while they step"):
        vgame.prepare(job_of(kind), validate=0)


def test_a_number_of_a_module_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_counts, "step", math.nan)
    assert vgame.prepare(job_of(OfTheObject), validate=0)


class Box:
    __slots__ = ("n",)


def box() -> Box:
    made = Box()
    made.n = 0
    return made


HELD = {
    "slots": (box, lambda held: setattr(held, "n", held.n + 1)),
    "bytes": (lambda: bytearray(1), lambda held: held.__setitem__(0, held[0] + 1)),
    "a full deque": (lambda: deque([0], 1), lambda held: held.append(held[0] + 1)),
}


@pytest.mark.parametrize(("make", "change"), HELD.values(), ids=HELD)
def test_an_object_that_a_function_of_a_scheduler_changes(make: Callable, change: Callable) -> None:
    held = make()
    with pytest.raises(ProgramError, match=r"schedulers change held\S* while they step"):
        vgame.prepare(
            job_of(lambda p: SGD(p, lr=0.1), lambda o, m: [LambdaLR(o, lambda t: 1.0 if change(held) else 0.5)]),
            validate=0,
        )


def test_an_object_that_cannot_be_copied() -> None:
    with pytest.raises(ProgramError, match=r"OfAGenerator.counts is or holds an object that cannot be copied"):
        vgame.prepare(job_of(OfAGenerator), validate=0)


class CountingScheduler(LRScheduler):
    steps = 0

    def get_lr(self) -> list[float]:
        type(self).steps += 1
        return [rate / self.steps for rate in self.base_lrs]


class Reading(LRScheduler):
    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self.model = model
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [rate if self.model.training else 0.0 for rate in self.base_lrs]


def test_a_counter_of_a_schedulers_class() -> None:
    with pytest.raises(ProgramError, match=r"schedulers change CountingScheduler.steps while they step"):
        vgame.prepare(job_of(lambda p: SGD(p, lr=0.1), lambda o, m: [CountingScheduler(o)]), validate=0)


def test_a_scheduler_that_reads_a_module() -> None:
    with pytest.raises(ProgramError) as error:
        vgame.prepare(job_of(lambda p: SGD(p, lr=0.1), lambda o, m: [Reading(o, m)]), validate=0)
    text = str(error.value)
    assert text.startswith("Reading.model is a module (Sequential) of which training is read, test_counters_of_opt")
    assert text.endswith("give the optimizer or scheduler what it needs of the module: parameters, names, numbers")


def test_a_function_that_reads_a_module() -> None:
    with pytest.raises(
        ProgramError, match=r"reads m in \S+ \(test_counters_of_optimizers.py line \d+\), a Sequential,"
    ):
        vgame.prepare(
            job_of(lambda p: SGD(p, lr=0.1), lambda o, m: [LambdaLR(o, lambda t: 1.0 if m.training else 0.5)]),
            validate=0,
        )

"""Optimizers of one task that share an object, or that another optimizer or a scheduler holds, step as in torch's loop;
an optimizer that computes with parameters of another one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimizer_steps import SEED, data, loss, network, validated
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import ProgramError, VgameError
from vgame.execute.executor import Executor
from vgame.program.coupled import coupled_of
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task
from vgame.validation.report import Order
from vgame.validation.steps import validate

STEPS = 12


def halves(given: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    own = list(given)
    return own[:3], own[3:]


class By(optim.Optimizer):
    """Gradient descent at the rate `of(shared)`."""

    def __init__(self, given: Any, of: Callable[[Any], float], shared: Any) -> None:
        super().__init__(given, {"lr": 0.1})
        self.of, self.shared = of, shared

    @torch.no_grad()
    def step(self, closure=None) -> None:
        rate = self.of(self.shared)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=rate)


def counted(shared: Any) -> float:
    shared["n"] += 1
    return 0.3 / shared["n"]


def counted_in_a_tensor(shared: torch.Tensor) -> float:
    shared.add_(1)
    return 0.3 / shared.item()


def counted_in_an_object(shared: SimpleNamespace) -> float:
    shared.n += 1
    return 0.3 / shared.n


def by_the_others_state(other: optim.Optimizer) -> float:
    return 0.1 / (1 + len(other.state))


def by_the_others_rate(other: optim.Optimizer) -> float:
    return other.param_groups[0]["lr"]


def sets_the_others_rate(other: optim.Optimizer) -> float:
    other.param_groups[0]["lr"] *= 0.9
    return 0.1


class Leads(lr_scheduler.LRScheduler):
    """Sets the rate of a second optimizer too."""

    def __init__(self, optimizer: optim.Optimizer, other: optim.Optimizer) -> None:
        self.other = other
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [base * 0.9**self.last_epoch for base in self.base_lrs]

    def step(self, epoch=None) -> None:
        super().step()
        for group in self.other.param_groups:
            group["lr"] = self.optimizer.param_groups[0]["lr"] * 0.5


class Follows(Leads):
    """Reads the rate of a second optimizer, or that of its scheduler."""

    def get_lr(self) -> list[float]:
        if isinstance(self.other, lr_scheduler.LRScheduler):
            return [0.5 * rate for rate in self.other.get_last_lr()]
        return [group["lr"] * 0.5 for group in self.other.param_groups]

    def step(self, epoch=None) -> None:
        lr_scheduler.LRScheduler.step(self)


class Counts(lr_scheduler.LRScheduler):
    def __init__(self, optimizer: optim.Optimizer, box: dict[str, int]) -> None:
        self.box = box
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.box["n"] += 1
        return [base / self.box["n"] for base in self.base_lrs]


def two_by(of: Callable, shared: Callable[[], Any]) -> Callable:
    def make(given: Any) -> list[optim.Optimizer]:
        (first, second), each = halves(given), shared()
        return [By(first, of, each), By(second, of, each)]

    return make


def beside(of: Callable, other: Callable, before: bool = False) -> Callable:
    """An optimizer that holds another one of the task, which steps before or after it."""

    def make(given: Any) -> list[optim.Optimizer]:
        first, second = halves(given)
        held = other(first)
        pair = [held, By(second, of, held)]
        return pair if before else pair[::-1]

    return make


def sgds(given: Any) -> list[optim.Optimizer]:
    first, second = halves(given)
    return [optim.SGD(first, lr=0.2), optim.SGD(second, lr=0.1)]


def one_rate(given: Any) -> list[optim.Optimizer]:
    (first, second), rate = halves(given), torch.tensor(0.05)
    return [optim.SGD(first, lr=rate), optim.Adam(second, lr=rate)]


def counting(optimizers: list[optim.Optimizer]) -> list[lr_scheduler.LRScheduler]:
    box = {"n": 0}
    return [Counts(each, box) for each in optimizers]


def following_a_scheduler(optimizers: list[optim.Optimizer]) -> list[lr_scheduler.LRScheduler]:
    leader = lr_scheduler.StepLR(optimizers[0], 2, 0.5)
    return [leader, Follows(optimizers[1], leader)]


def falling(optimizers: list[optim.Optimizer]) -> list[lr_scheduler.LRScheduler]:
    return [lr_scheduler.StepLR(optimizers[0], 4, 0.5)]


def nothing(_: Any) -> tuple[()]:
    return ()


CASES: list[tuple[str, Callable, Callable]] = [
    ("a counter", two_by(counted, lambda: {"n": 0}), nothing),
    ("a counter in a tensor", two_by(counted_in_a_tensor, lambda: torch.zeros(())), nothing),
    ("a counter in an object", two_by(counted_in_an_object, lambda: SimpleNamespace(n=0)), nothing),
    ("the other's state", beside(by_the_others_state, lambda p: optim.Adam(p, lr=0.01), before=True), nothing),
    ("the other's rate", beside(by_the_others_rate, lambda p: optim.SGD(p, lr=0.2)), lambda o: falling(o[::-1])),
    ("sets the other's rate", beside(sets_the_others_rate, lambda p: optim.SGD(p, lr=0.2)), nothing),
    ("sets it after its step", beside(sets_the_others_rate, lambda p: optim.SGD(p, lr=0.2), before=True), nothing),
    ("a rate that is a tensor", one_rate, falling),
    ("a scheduler of both", sgds, lambda o: [Leads(*o)]),
    ("a scheduler that follows", sgds, lambda o: [lr_scheduler.StepLR(o[0], 2, 0.5), Follows(o[1], o[0])]),
    ("a scheduler that follows a scheduler", sgds, following_a_scheduler),
    ("schedulers with one counter", sgds, counting),
]


@pytest.mark.parametrize(("make", "schedulers"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_object_that_optimizers_share_is_one_object(make: Callable, schedulers: Callable) -> None:
    validated(make, schedulers)


def task_of(make: Callable, schedulers: Callable = nothing) -> Task:
    model = network()
    optimizers = make(model.parameters())
    return Task(model, loss, optimizers, data(), 16, schedulers=schedulers(optimizers))


def test_ordinary_optimizers_are_by_themselves() -> None:
    """Their rules and their plain schedulers stay; functions that they share are checked elsewhere."""

    def ordinary(given: Any) -> list[optim.Optimizer]:
        (first, second), betas = halves(given), (0.9, 0.95)
        return [optim.AdamW(first, lr=0.1, betas=betas), optim.Adam(second, lr=0.1, betas=betas)]

    def warm(optimizers: list[optim.Optimizer]) -> list[lr_scheduler.LRScheduler]:
        rate = lambda t: min(1.0, t / 5)  # noqa: E731
        return [lr_scheduler.LambdaLR(each, rate) for each in optimizers]

    assert [coupled.alone for coupled in coupled_of(task_of(ordinary, warm))] == [True, True]
    assert [len(coupled.optimizers) for coupled in coupled_of(task_of(two_by(counted, dict)))] == [2]


def test_the_schedule_of_a_job_sets_the_rates_of_all() -> None:
    def make(given: Any) -> list[optim.Optimizer]:
        (first, second), box = halves(given), {"n": 0}
        own = [optim.RMSprop(first, lr=0.1), optim.RMSprop(second, lr=0.05)]
        for each in own:
            each.box = box
        return own

    task, schedule = task_of(make), Schedule(kind="linear", lr="0.1")
    program = lower_task(task, schedule, STEPS)
    assert not validate(Order(task, program, program.state, schedule, SEED, STEPS), 200.0).unchecked

    with pytest.raises(ProgramError, match=r"changes its lr in step 1, but the job's \[schedule\] sets"):
        lower_task(task_of(beside(sets_the_others_rate, lambda p: optim.SGD(p, lr=0.2))), schedule, STEPS)


# ---- losses in turns ----


def first_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return loss(model, batch)


def second_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return loss(model, batch) ** 2


@pytest.mark.parametrize(("make", "schedulers"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_optimizers_of_losses_in_turns_share_too(make: Callable, schedulers: Callable) -> None:
    model = network()
    optimizers = make(model.parameters())
    follow = schedulers(optimizers)
    task = Task(model, [first_loss, second_loss], optimizers, data(), 16, order="sequential", schedulers=follow)
    program = lower_task(task, None, STEPS)
    assert not validate(Order(task, program, program.state, None, SEED, STEPS), 200.0).unchecked
    executor = Executor(program.program, program.data, program.scalars, SEED)
    state = executor.initial(program.state)
    plain = network().double()
    own = make(plain.parameters())
    following = schedulers(own)
    for step in range(1, STEPS + 1):
        state = executor.step(step, state).state
        rows = torch.arange(16) + 16 * ((step - 1) % 4)
        batch = {"x": data()["x"][rows].double(), "y": data()["y"][rows]}
        for each, optimizer in zip((first_loss, second_loss), own, strict=True):
            plain.zero_grad()
            each(plain, batch).backward()
            optimizer.step()
        for scheduler in following:
            scheduler.step()
    names = [label.name for label in program.program.labels.state]
    for name, p in plain.named_parameters():
        assert (state[names.index(name)].view(p.shape).double() - p.detach()).abs().max() <= 1e-5, name


# ---- refused ----


def steps_the_other(other: optim.Optimizer) -> float:
    other.step()
    return 0.1


def decays_the_other(other: optim.Optimizer) -> float:
    for p in other.param_groups[0]["params"]:
        p.mul_(0.9)
    return 0.1


def freezes_the_other(other: optim.Optimizer) -> float:
    for p in other.param_groups[0]["params"]:
        p.requires_grad_(False)
    return 0.1


def gives_the_other_state(other: optim.Optimizer) -> float:
    other.state[other.param_groups[0]["params"][0]]["more"] = torch.zeros(8, 6)
    return 0.1


OTHERS = [
    (steps_the_other, r"By computes with a parameter of shape \(8, 6\) of SGD, another optimizer of the task"),
    (decays_the_other, r"By computes with a parameter of shape \(8, 6\) of SGD, another optimizer of the task"),
    (freezes_the_other, "By changes the parameters of a group, or their requires_grad, in step 1"),
    (gives_the_other_state, "By puts tensors into another optimizer's state"),
]


@pytest.mark.parametrize(("of", "text"), OTHERS)
@pytest.mark.parametrize("before", [False, True])
def test_an_optimizer_leaves_the_parameters_of_another(of: Callable, text: str, before: bool) -> None:
    with pytest.raises(VgameError, match=text):
        lower_task(task_of(beside(of, lambda p: optim.SGD(p, lr=0.2), before)), None, STEPS)

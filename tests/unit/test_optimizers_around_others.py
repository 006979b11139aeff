"""An optimizer around others, which its task does not name: their attributes, hooks, schedulers and state count."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from optimizer_steps import data, loss, lowered, network, validated
from torch import nn, optim
from torch.optim import lr_scheduler

import vgame
from vgame.errors import ProgramError
from vgame.tasks.task import Task


def all_of(optimizer: optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Ahead(optim.Optimizer):
    """Lookahead, with its own state."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.count, self.defaults = inner, 0, inner.defaults
        self.param_groups, self.state = inner.param_groups, defaultdict(dict)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.inner.step()
        self.count += 1
        for p in all_of(self):
            slow = self.state[p].setdefault("slow", p.clone())
            if self.count % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


class AheadByProperty(Ahead):
    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.count, self.defaults = inner, 0, inner.defaults
        self.state = defaultdict(dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups


class Several(optim.Optimizer):
    """Two optimizers as one."""

    def __init__(self, given: Iterable[nn.Parameter]) -> None:
        own = list(given)
        self.parts = optim.SGD(own[:3], lr=0.1, momentum=0.5), optim.Adam(own[3:], lr=0.01)
        self.defaults, self.state = {}, {}
        self.param_groups = [group for each in self.parts for group in each.param_groups]

    def step(self, closure=None) -> None:
        for each in self.parts:
            each.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self.parts:
            each.zero_grad(set_to_none)


class Scaled(optim.SGD):
    """`scale` has a value of the class, `own` has none, `steps` begins at that of the class."""

    scale, steps = 1.0, 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] * self.scale * self.own / self.steps)


class Counting(Ahead):
    """Counts in its own state, as the inner optimizer does in its."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in all_of(self):
            self.state[p].setdefault("step", torch.zeros(())).add_(1)
            p.grad.mul_(1 / self.state[p]["step"].item())
        super().step()


def scaled(given: Iterable[nn.Parameter]) -> optim.Optimizer:
    inner = Scaled(given, lr=0.2)
    inner.scale, inner.own = 0.5, 0.9
    return Ahead(inner)


def hooked(given: Iterable[nn.Parameter]) -> optim.Optimizer:
    inner = optim.SGD(given, lr=0.1)

    def halved(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        for p in all_of(optimizer):
            p.grad.mul_(0.5)

    inner.register_step_pre_hook(halved)
    return Ahead(inner)


def falling(inner: Callable[[Any], optim.Optimizer]) -> Callable:
    return lambda optimizer: [lr_scheduler.ExponentialLR(inner(optimizer), 0.8)]


def nothing(_: Any) -> tuple[()]:
    return ()


CASES: list[tuple[str, Callable, Callable]] = [
    ("attributes", scaled, nothing),
    ("a hook", hooked, nothing),
    ("a state for itself", lambda p: Ahead(optim.Adam(p, lr=0.01)), nothing),
    ("a scheduler around", lambda p: Ahead(optim.SGD(p, lr=0.1)), falling(lambda o: o)),
    ("a scheduler within", lambda p: Ahead(optim.SGD(p, lr=0.1)), falling(lambda o: o.inner)),
    ("a scheduler within, and a state", lambda p: Ahead(optim.Adam(p, lr=0.02)), falling(lambda o: o.inner)),
    ("groups by a property", lambda p: AheadByProperty(optim.Adam(p, lr=0.01)), nothing),
    ("counters of one name", lambda p: Counting(optim.Adam(p, lr=0.01)), nothing),
    ("several", Several, nothing),
    ("a scheduler of one of several", Several, falling(lambda o: o.parts[0])),
]


@pytest.mark.parametrize(("make", "schedulers"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_optimizer_around_others_steps_as_in_torch(make: Callable, schedulers: Callable) -> None:
    validated(make, schedulers)


def test_one_name_for_two_tensors_is_refused() -> None:
    class Same(Ahead):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            self.inner.step()
            for p in all_of(self):
                self.state[p].setdefault("exp_avg", p.clone())

    with pytest.raises(ProgramError, match="Same keeps two tensors for a parameter as 'exp_avg', one of them in"):
        lowered(lambda p: Same(optim.Adam(p, lr=0.01)))


def test_a_replaced_step_of_an_inner_optimizer_is_refused() -> None:
    def make(given: Iterable[nn.Parameter]) -> optim.Optimizer:
        inner = optim.SGD(given, lr=0.1)
        inner.step = lambda closure=None: None
        return Ahead(inner)

    with pytest.raises(ProgramError, match="the step of the optimizer SGD was replaced, and not by a scheduler"):
        lowered(make)


def test_a_hook_that_reads_the_optimizer_from_outside_is_refused() -> None:
    def make(given: Iterable[nn.Parameter]) -> optim.Optimizer:
        inner = optim.SGD(given, lr=0.1)
        inner.register_step_pre_hook(lambda *_: [p.grad.mul_(0.5) for p in all_of(inner)] and None)
        return Ahead(inner)

    with pytest.raises(ProgramError, match=r"of its schedulers reads inner in .*, a SGD"):
        lowered(make)


def test_an_inner_optimizer_of_other_parameters_is_refused() -> None:
    class Both(optim.SGD):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            super().step()
            self.rest.step()

    def make(given: Iterable[nn.Parameter]) -> optim.Optimizer:
        own = list(given)
        both = Both(own[:3], lr=0.1)
        both.rest = optim.SGD(own[3:], lr=0.1)
        return both

    with pytest.raises(ProgramError, match=r"Both\.rest\.param_groups\[0\].* is the model's 4\.weight, which is used"):
        lowered(make)


class Warming(Ahead):
    """Gives the inner optimizer its rate in each step."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.01 * self.count
        self.inner.step()


def test_a_rate_of_0_that_the_step_replaces_is_no_mistake() -> None:
    model = network()
    task = Task(model, loss, Warming(optim.SGD(model.parameters(), lr=0.0)), data(), 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vgame.prepare(vgame.Job(task, steps=4, interval=2), validate=0)


KERNELS: dict[str, Callable[[Any, nn.Parameter], Any]] = {
    "Adam": lambda own, p: torch._fused_adam_(
        [p], [p.grad], [own.state[p]["m"]], [own.state[p]["v"]], [], [torch.ones(())],
        lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    ),
    "SGD": lambda own, p: torch._fused_sgd_(
        [p], [p.grad], [own.state[p]["m"]], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    ),
    "several at once": lambda own, p: torch._fused_sgd_(
        all_of(own), [q.grad for q in all_of(own)], [torch.zeros_like(q) for q in all_of(own)], weight_decay=0.0,
        momentum=0.9, lr=0.1, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_fused_kernel_is_refused_in_a_sentence(kernel: Callable[[Any, nn.Parameter], Any]) -> None:
    class Fused(optim.SGD):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            for p in all_of(self):
                for slot in ("m", "v"):
                    self.state[p].setdefault(slot, torch.zeros_like(p))
                kernel(self, p)

    with pytest.raises(ProgramError, match=r"the optimizer Fused calls aten\._fused_\w+\.default, test_\S+ line \d+"):
        lowered(lambda p: Fused(p, lr=0.1))

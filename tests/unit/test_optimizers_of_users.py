"""Behaviour of users' own optimizers and schedulers that a capture must reproduce exactly, or refuse."""

from __future__ import annotations

import random
import types
from collections.abc import Callable

import pytest
import torch
from optimizer_steps import compare, equal_layers, lowered, network
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from wide import of_many

from vgame.errors import ProgramError
from vgame.program.optimizers import has_rule
from vgame.program.schedule import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def optimizer_of(step: Callable, **attributes) -> Callable:
    """A function from parameters to an optimizer with the step `step(self)` and the learning rate 0.1."""

    class Own(optim.SGD):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            step(self)

    def make(parameters) -> optim.Optimizer:
        optimizer = Own(parameters, lr=0.1)
        vars(optimizer).update(attributes)
        return optimizer

    return make


def parameters(optimizer: optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def rebinds(self) -> None:
    for p in parameters(self):
        p.data = p.data - self.param_groups[0]["lr"] * p.grad


def by_place(self) -> None:
    for n, p in enumerate(reversed(parameters(self))):
        p.sub_(p.grad, alpha=0.1 * 0.5**n)


def by_number_of_parameters(self) -> None:
    for p in parameters(self):
        p.sub_(p.grad, alpha=0.1 / len(parameters(self)))


def one_form_each(self) -> None:
    for n, p in enumerate(parameters(self)):
        p.sub_(p.grad.sign() if n % 2 else p.grad, alpha=0.01)


def lowers_its_rate(self) -> None:
    for p in parameters(self):
        p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
    self.param_groups[0]["lr"] *= 0.8


def begins_again(self) -> None:
    """The average restarts in every fifth step."""
    self.count = getattr(self, "count", 0) + 1
    for p in parameters(self):
        average = self.state[p].setdefault("average", torch.zeros_like(p))
        p.sub_(average.mul_(0.9).add_(p.grad), alpha=0.05)
        if self.count % 5 == 0:
            self.state[p].clear()


def by_rows(self) -> None:
    """Another view of the same memory."""
    for p in parameters(self):
        p.view(-1)[:2].sub_(p.grad.view(-1)[:2])
        p.sub_(p.grad, alpha=0.1)


def with_a_vector_of_its_own(self) -> None:
    """A constant that all parameters read, and none writes to."""
    ones = torch.ones(1, device=parameters(self)[0].device)
    for p in parameters(self):
        p.sub_(p.grad / (ones + p.abs()), alpha=0.1)


FOLLOWED = [
    rebinds,
    by_place,
    by_number_of_parameters,
    one_form_each,
    lowers_its_rate,
    begins_again,
    by_rows,
    with_a_vector_of_its_own,
]


@pytest.mark.parametrize("step", FOLLOWED)
@pytest.mark.parametrize("build", of_many([network, equal_layers], network))
def test_a_program_computes_a_users_own_step(step: Callable, build: Callable) -> None:
    compare(optimizer_of(step), build=build)


def test_the_memory_of_a_rebound_parameter_is_not_taken_for_a_later_tensor() -> None:
    """`p.data = ...` leaves the old memory, and a later parameter's result may lie there."""
    layers = lambda: torch.manual_seed(0) and torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(12)))  # noqa: E731
    for _ in range(3):
        compare(optimizer_of(rebinds), build=layers)


class Ahead(optim.Optimizer):
    """A wrapper with the groups and the state of the wrapped optimizer."""

    def __init__(self, inner: optim.Optimizer) -> None:
        super().__init__([p for g in inner.param_groups for p in g["params"]], {"lr": inner.param_groups[0]["lr"]})
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in parameters(self):
            p.grad.mul_(2.0)
        self.inner.step()


def test_an_optimizer_around_another_shares_its_groups() -> None:
    compare(
        lambda p: Ahead(optim.RMSprop(p, lr=0.01)), lambda o: [lr_scheduler.ExponentialLR(o, 0.8)], build=equal_layers
    )


def test_parameters_without_a_gradient_stay_as_in_torch() -> None:
    """Decay skips them too: their grad is None."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x))

    for make in (optim.AdamW, optim.RMSprop):
        program = lowered(lambda p, make=make: make(p, lr=0.1, weight_decay=0.5), build=Half, steps=3).program
        for n, (label, source) in enumerate(zip(program.labels.state, program.sources, strict=True)):
            if label.name.startswith(("unused", "frozen")):
                assert (source.ref.cls.name, source.ref.index) == ("STATE", n), label.name
        assert {label.name.split(".")[1] for label in program.labels.state if label.name.count(".") == 2} == {"used"}

    def decays_all(self) -> None:
        for p in parameters(self):
            p.mul_(0.9)
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)

    with pytest.raises(
        ProgramError, match=r"without a gradient \(frozen, or not used by the loss\); skip parameters whose grad"
    ):
        lowered(optimizer_of(decays_all), build=Half)


# ---- refused ----


def adds_up(self) -> None:
    total = torch.zeros(1, device=parameters(self)[0].device)
    for p in parameters(self):
        total.add_(p.grad.pow(2).sum())
        p.sub_(p.grad / total, alpha=0.1)


def shares_a_slot(self) -> None:
    first = parameters(self)[0]
    for p in parameters(self):
        if p.shape == first.shape:
            self.state[p]["average"] = self.state[first].setdefault("average", torch.zeros_like(first))
        p.sub_(p.grad, alpha=0.1)
    self.state[first]["average"].add_(1.0)


def keeps_a_view(self) -> None:
    for p in parameters(self):
        self.state[p]["flat"] = p.view(-1)
        p.sub_(p.grad, alpha=0.1)


def keeps_the_neighbours_gradient(self) -> None:
    several = parameters(self)
    for p, q in zip(several, several[2:] + several[:2], strict=True):
        p.sub_(p.grad, alpha=0.1)
        self.state[p]["other"] = q.grad


def sets_memory(self) -> None:
    for p in parameters(self):
        p.set_(p.grad)


def draws(self) -> None:
    for p in parameters(self):
        p.sub_(p.grad, alpha=random.random())


def halves(self) -> None:
    for p in parameters(self):
        p.data = p.data.half()


COUNTED = [0.1]


def counts_outside(self) -> None:
    COUNTED.append(1.0)
    for p in parameters(self):
        p.sub_(p.grad, alpha=0.1)


REFUSED = {
    adds_up: "computes with several parameters at once",
    shares_a_slot: "in the same memory|several parameters",
    keeps_a_view: "keeps two tensors in the same memory",
    keeps_the_neighbours_gradient: "several parameters at once",
    sets_memory: "changes the memory or the shape of a tensor",
    draws: "draw random numbers on the host",
    halves: "holds parameter as torch.float16",
    counts_outside: "change COUNTED while they step",
}


@pytest.mark.parametrize(("step", "expected"), REFUSED.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_unsupported_steps_are_named(step: Callable, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(optimizer_of(step), build=equal_layers)


def test_a_rate_set_by_optimizer_and_schedule_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"changes its lr in step 1, but the job's \[schedule\] sets"):
        lowered(optimizer_of(lowers_its_rate), schedule=Schedule(lr="0.1"))


def test_schedulers_with_shared_state_are_refused_and_with_a_table_accepted() -> None:
    def by_itself(o: optim.Optimizer) -> list:
        return [lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + o.param_groups[0]["lr"]))]

    def counting(o: optim.Optimizer) -> list:
        calls = []
        return [lr_scheduler.LambdaLR(o, lambda t: calls.append(t) or 1 / len(calls))]

    def one_after_the_other(o: optim.Optimizer) -> list:
        rates = (1 / n for n in range(1, 100))
        return [lr_scheduler.LambdaLR(o, lambda t: next(rates))]

    for schedulers, expected in (
        (by_itself, "reads o in .*lambda.*, a Own, but a capture works on copies"),
        (counting, "change calls while they step"),
        (one_after_the_other, "reads rates in .*lambda.*, a generator, .* let it read a list of numbers"),
    ):
        with pytest.raises(ProgramError, match=expected):
            lowered(optimizer_of(rebinds), schedulers)
    table = [0.5, 0.25] * 20
    program = lowered(optimizer_of(rebinds), lambda o: [lr_scheduler.LambdaLR(o, lambda t: table[t])], steps=4)
    assert torch.equal(program.scalars[:, 0].abs(), torch.tensor([0.05, 0.025] * 2))


def test_a_list_changed_in_place_by_a_scheduler_is_followed() -> None:
    class Betas(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            self.optimizer.param_groups[0]["betas"][0] = 0.5 + 0.01 * self.last_epoch
            return [group["lr"] for group in self.optimizer.param_groups]

    def adam(parameters) -> optim.Optimizer:
        optimizer = optim.Adam(parameters, lr=0.01)
        optimizer.param_groups[0]["betas"] = [0.9, 0.999]
        return optimizer

    compare(adam, lambda o: [Betas(o)])


def test_a_replaced_or_hooked_step_is_refused() -> None:
    def replaced(parameters) -> optim.Optimizer:
        optimizer = optim.SGD(parameters, lr=0.1)
        optimizer.step = types.MethodType(lambda self, closure=None: None, optimizer)
        return optimizer

    for schedulers in (lambda o: [lr_scheduler.StepLR(o, 1)], lambda o: []):
        with pytest.raises(ProgramError, match="was replaced, and not by a scheduler"):
            lowered(replaced, schedulers)
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        with pytest.raises(ProgramError, match="has hooks on its step"):
            lowered(lambda p: optim.SGD(p, lr=0.1))
    finally:
        handle.remove()


def test_a_subclass_that_overrides_a_part_of_a_step_does_not_use_the_rule() -> None:
    class Doubled(optim.SGD):
        def _init_group(self, group, params, grads, momenta) -> bool:
            sparse = super()._init_group(group, params, grads, momenta)
            grads[:] = [2 * g for g in grads]
            return sparse

    assert not has_rule(Doubled([nn.Parameter(torch.ones(1))], lr=0.1))
    compare(lambda p: Doubled(p, lr=0.05))


SHORT = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.OneCycleLR(o, 0.1, total_steps=1)], [1]
    ),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: [1.0, 0.5][step]),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_scheduler_that_ends_before_the_job(name: str) -> None:
    with pytest.raises(ProgramError, match=f"the scheduler {name} fails at a step of the job: .*; configure it "):
        lowered(lambda p: optim.SGD(p, lr=0.1), schedulers=lambda o: [SHORT[name](o)])


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Adafactor])
@pytest.mark.parametrize("rate", [None, "0.1"])
def test_a_rate_that_is_not_a_number_is_refused(make: Callable, rate: object) -> None:
    def without(p) -> optim.Optimizer:
        optimizer = make(p, lr=0.1)
        optimizer.param_groups[0]["lr"] = rate
        return optimizer

    with pytest.raises(ProgramError, match=f"{make.__name__} with lr = {rate!r}: a number is expected"):
        lowered(without)


def test_the_adafactor_of_transformers_is_captured_with_its_own_rate() -> None:
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    compare(lambda p: adafactor(p, lr=1e-2, relative_step=False, scale_parameter=False))
    with pytest.raises(ProgramError, match="Adafactor with lr = None: a number is expected"):
        lowered(adafactor)

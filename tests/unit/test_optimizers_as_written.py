"""Optimizers and schedulers compared with the library's own loop: the same steps in binary64 by torch and in exact
binary32 by the executor."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from optimizer_steps import BATCH, SEED, STEPS, compare, data, loss, lowered, network
from torch import nn, optim
from torch.optim import lr_scheduler
from wide import of_many

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.errors import ProgramError, VgameError
from vgame.execute.executor import Executor
from vgame.program.schedule import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")


class Lion(optim.Optimizer):
    """Chen and others, "Symbolic discovery of optimization algorithms" (2023), as users write it."""

    def __init__(self, parameters, lr: float = 1e-3, betas=(0.9, 0.99), weight_decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(state["average"].clone().mul_(first).add(p.grad, alpha=1 - first).sign_(), alpha=-group["lr"])
                state["average"].mul_(second).add_(p.grad, alpha=1 - second)


class ByValues(optim.SGD):
    """Branches on a gradient before it steps."""

    def step(self, closure=None) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad.norm() > 1:
                p.data.sub_(p.grad)


class AllAtOnce(optim.SGD):
    """Computes with several parameters at once."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        first, second, *_ = self.param_groups[0]["params"]
        first.sub_(second.sum())


OPTIMIZERS = {
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1, lr_decay=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Adam, amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "ASGD": lambda p: optim.ASGD(p, lr=0.05, lambd=0.1, t0=5),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.05, eps=(2.0**-23, 1e-3), weight_decay=0.01),
    "SGD, maximize": lambda p: optim.SGD(p, lr=0.01, maximize=True, momentum=0.9),
    "a user's own": lambda p: Lion(p, lr=0.01),
}


@pytest.mark.parametrize("name", of_many(OPTIMIZERS, "Adafactor", "NAdam", "ASGD", "SGD, maximize", "a user's own"))
def test_a_program_computes_the_optimizers_own_step(name: str) -> None:
    compare(OPTIMIZERS[name])


def matrices() -> nn.Module:
    torch.manual_seed(0)
    sizes = [(6, 8), (8, 8), (8, 3)]
    return nn.Sequential(*(layer for a, b in sizes for layer in (nn.Linear(a, b, bias=False), nn.Tanh())))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, marks=pytest.mark.wide)],
    ids=["plain", "other"],
)
def test_muon_is_its_formula_in_binary32(monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    """torch iterates in bfloat16 to save time; vgame does not, and warns of it."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    compare(lambda p: optim.Muon(p, lr=0.01, **options), build=matrices)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"Muon computes in torch\.bfloat16; vgame computes this in float32"):
        lowered(lambda p: optim.Muon(p, lr=0.01, **options), build=matrices, steps=2)


def test_every_optimizer_of_torch_is_compared_or_refused() -> None:
    kinds = {name for name, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    shown = {name.split(",")[0] for name in OPTIMIZERS} | {"Muon", "AdamW", "LBFGS", "SparseAdam", "Optimizer"}
    assert kinds == shown - {"a user's own"}


SCHEDULERS = {
    "rates and momentum of one cycle": (
        lambda p: optim.AdamW(p, lr=0.01),
        lambda o: [lr_scheduler.OneCycleLR(o, max_lr=0.02, total_steps=STEPS + 1)],
    ),
    "cosine": (lambda p: optim.AdamW(p, lr=0.01), lambda o: [lr_scheduler.CosineAnnealingLR(o, STEPS)]),
    "one after the other": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
        lambda o: [
            lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [5]
            )
        ],
    ),
    "a function of the step": (
        lambda p: optim.RMSprop(p, lr=0.01),
        lambda o: [lr_scheduler.LambdaLR(o, lambda t: min(1, t / 5))],
    ),
    "momentum that cycles": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda o: [lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4)],
    ),
}


@pytest.mark.parametrize(("make", "schedulers"), SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_sets_the_values_of_torchs_own_loop(make: Callable, schedulers: Callable) -> None:
    compare(make, schedulers)


def test_the_rates_are_those_of_the_library_step_by_step() -> None:
    """transformers' linear warm-up begins at 0, one step behind the schedules of job files."""
    from transformers import get_linear_schedule_with_warmup

    program = lowered(lambda p: optim.SGD(p, lr=0.5), lambda o: [get_linear_schedule_with_warmup(o, 4, STEPS)])
    rates = [0.5 * min(t / 4, (STEPS - t) / (STEPS - 4)) for t in range(STEPS)]
    assert torch.equal(program.scalars[:, 0], torch.tensor(rates))


def test_without_a_schedule_the_optimizers_own_rates_are_used() -> None:
    program = lowered(lambda p: optim.SGD(p, lr=0.3))
    assert torch.equal(program.scalars, torch.full((STEPS, 1), 0.3))


def test_a_played_optimizer_follows_the_schedule_of_the_job() -> None:
    program = lowered(lambda p: Lion(p, weight_decay=0.0), schedule=Schedule(kind="linear", lr="0.5"), steps=4)
    assert torch.equal(program.scalars[:, 0], -torch.tensor([0.5, 0.375, 0.25, 0.125]))


def test_a_different_first_step_is_selected_by_a_scalar() -> None:
    """The first step's momentum is the gradient itself: a scalar selects it."""
    program = lowered(OPTIMIZERS["SGD, maximize"])
    assert any(torch.equal(c, torch.tensor([0.0] + [1.0] * (STEPS - 1))) for c in program.scalars.unbind(1))


def test_slots_start_from_the_optimizers_initial_state() -> None:
    program = lowered(OPTIMIZERS["Adagrad"])
    sums = [t for l, t in zip(program.program.labels.state, program.state, strict=True) if l.name.startswith("sum.")]
    assert len(sums) == 5 and all(torch.equal(t, torch.full_like(t, 0.1)) for t in sums)


REFUSED = {
    "branches on values": (
        ByValues,
        r"ByValues branches on the values of its tensors, test_optimizers_as_written\.py line \d+",
    ),
    "computes with several parameters": (AllAtOnce, "computes with several parameters at once"),
    "needs a closure": (optim.LBFGS, "LBFGS needs a closure, which computes the loss again"),
    "needs sparse gradients": (optim.SparseAdam, "SparseAdam does not support dense gradients"),
}


@pytest.mark.parametrize(("make", "expected"), REFUSED.values(), ids=REFUSED)
def test_unsupported_code_is_named(make: Callable, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(lambda p: make(p, lr=0.1))


def _plateau(optimizer: optim.Optimizer) -> list:
    return [lr_scheduler.ReduceLROnPlateau(optimizer)]


def test_schedulers_that_cannot_be_played_are_named() -> None:
    with pytest.raises(ProgramError, match="ReduceLROnPlateau depends on the values of a metric"):
        lowered(lambda p: optim.SGD(p, lr=0.1), _plateau)
    with pytest.raises(ProgramError, match="belongs to another optimizer"):
        lowered(
            lambda p: optim.SGD(p, lr=0.1),
            lambda o: [lr_scheduler.StepLR(optim.SGD(network().parameters(), lr=0.1), 1)],
        )
    with pytest.raises(VgameError, match="remove one of them"):
        lowered(lambda p: optim.SGD(p, lr=0.1), lambda o: [lr_scheduler.StepLR(o, 1)], Schedule(lr="0.1"))


def test_a_used_optimizer_is_refused() -> None:
    def used(parameters) -> optim.Optimizer:
        parameters = list(parameters)
        optimizer = optim.RMSprop(parameters)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer

    with pytest.raises(ProgramError, match="RMSprop already holds step"):
        lowered(used)


AVERAGES = {"equal": "equal", "decay": 0.9}


@pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES)
def test_averages_are_those_of_averaged_models(average) -> None:
    """Clipping by value too: the program is compared with torch's own functions."""
    program = lowered(lambda p: optim.SGD(p, lr=0.5), average=average, clip_value=0.01)
    executor = Executor(program.program, program.data, program.scalars, SEED)
    state = executor.initial(program.state)
    model = copy.deepcopy(network()).double()
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    function = None if average == "equal" else optim.swa_utils.get_ema_avg_fn(average)
    averaged = optim.swa_utils.AveragedModel(model, avg_fn=function)
    for step in range(1, STEPS + 1):
        state = executor.step(step, state).state
        chosen = torch.tensor([shuffle_index(SEED, step, e, BATCH, 64) for e in range(BATCH)])
        optimizer.zero_grad()
        loss(model, {"x": data()["x"][chosen].double(), "y": data()["y"][chosen]}).backward()
        assert any((p.grad.abs() > 0.01).any() for p in model.parameters()), "nothing is clipped, so nothing is tested"
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        averaged.update_parameters(model)
    names = [label.name for label in program.program.labels.state]
    for name, p in averaged.module.named_parameters():
        ours = state[names.index(f"average.{name}")].view(p.shape).double()
        assert (ours - p.detach()).abs().max() < 1e-6, name
        assert (ours - state[names.index(name)].view(p.shape)).abs().max() > 1e-4, f"{name} is no average"


@pytest.mark.parametrize("options", [{"clip_value": 0.0}, {"average": 1.0}, {"average": "ema"}])
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ProgramError, match=next(iter(options))):
        lowered(lambda p: optim.SGD(p, lr=0.5), **options)

"""State that a program would not carry to the next step is refused: state outside of buffers, tensors with two names,
hooks, optimizers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_tasks import Made, lowered, squares
from torch import nn

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Holding(nn.Module):
    """A linear layer and a buffer, a plain tensor, a number, nothing, containers and an object, which `then` may
    change."""

    def __init__(self, then: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(3, 3), then
        self.register_buffer("held", torch.ones(3))
        self.plain, self.number, self.nothing = torch.ones(3), 1, None
        self.list, self.table, self.object = [], {}, SimpleNamespace(n=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.then(self, y)
        return y * self.held * self.plain * self.number


def _count(model: nn.Module, y: torch.Tensor) -> None:
    model.number += 1


def _begun(model: nn.Module, y: torch.Tensor) -> None:
    model.nothing = y.detach() if model.nothing is None else 0.9 * model.nothing + 0.1 * y.detach()
    y.sub_(model.nothing)


def _made(model: nn.Module, y: torch.Tensor) -> None:
    y.add_(getattr(model, "state", 0.0))
    model.state = y.detach()


def _stale(model: nn.Module, y: torch.Tensor) -> None:
    if not hasattr(model, "state"):
        model.state = model.first.weight.detach() * 2
    y.mul_(model.state.sum())


def _drawn_once(model: nn.Module, y: torch.Tensor) -> None:
    if model.nothing is None:
        model.nothing = torch.rand(3)
    y.mul_(model.nothing)


def _grown(model: nn.Module, y: torch.Tensor) -> None:
    model.nothing = torch.zeros(()) if model.nothing is None else model.nothing + 1
    y.mul_(model.nothing)


def _average(held: list, y: torch.Tensor) -> None:
    """The mean of the last two outputs."""
    held.append(y.detach())
    y.sub_(torch.stack(held[-2:]).mean(0))


def _looked_up(model: nn.Module, y: torch.Tensor) -> None:
    y.add_(model.table.get("state", 0.0))
    model.table["state"] = y.detach()


def _warm(model: nn.Module, y: torch.Tensor) -> None:
    with torch.set_grad_enabled(model.nothing is not None):
        y.mul_(model.first.bias)
    model.nothing = True


CHANGED = {
    "a buffer of another shape": (
        lambda m, y: setattr(m, "held", y.detach().mean().reshape(1)),
        r"replaces its buffer held, torch.float32 \(3,\), by torch.float32 \(1,\)",
    ),
    "a buffer of another type": (
        lambda m, y: setattr(m, "held", m.held > 0),
        r"replaces its buffer held, torch.float32 \(3,\), by torch.bool",
    ),
    "a plain tensor": (lambda m, y: setattr(m, "plain", m.plain * 0.5), "changes its attribute `plain` in the forward"),
    "a plain tensor in place": (lambda m, y: m.plain.mul_(0.5), "writes to a tensor that is not a buffer"),
    "a part of a plain tensor": (
        lambda m, y: m.plain.split(1)[0].add_(y.detach().mean()),
        "writes to a tensor that is",
    ),
    "a counter": (_count, "changes its attribute `number` in the forward pass, .*; make it a buffer"),
    "a state that begins as nothing": (
        _begun,
        "changes its attribute `nothing` in the forward pass, .*; make it a buffer",
    ),
    "a state that does not exist at first": (_made, "changes its attribute `state` in the forward"),
    "a parameter that was read at the first step": (_stale, "changes its attribute `state` in the forward"),
    "a mask that was drawn at the first step": (_drawn_once, "changes its attribute `nothing` in the forward"),
    "a constant that grows": (_grown, "changes its attribute `nothing` in the forward"),
    "tensors in a list": (lambda m, y: _average(m.list, y), r"changes its attribute `list.1` in the forward"),
    "a tensor in a dictionary": (_looked_up, r"changes its attribute `table.state` in the forward"),
    "a counter in a list": (lambda m, y: m.list.append(1), r"changes its attribute `list.1` in the forward"),
    "a counter in an object": (
        lambda m, y: m.object.__dict__.update(n=m.object.n + 1),
        "changes its attribute `object.n` in",
    ),
    "a first call without gradients": (_warm, "changes its attribute `nothing` in the forward"),
    "a state that no module holds": (
        lambda m, y: _average(ELSEWHERE, y),
        r"changes ELSEWHERE.1 \(test_outside.py line \d+\), which a program does not record",
    ),
    "a number of Python's random": (
        lambda m, y: y.mul_(random.random()),
        "draws numbers from Python's random or NumPy",
    ),
    "a number of NumPy's random": (
        lambda m, y: y.mul_(np.random.rand()),
        "draws numbers from Python's random or NumPy",
    ),
}
ELSEWHERE: list[torch.Tensor] = []


@pytest.mark.parametrize(("then", "expected"), CHANGED.values(), ids=CHANGED)
def test_state_that_a_program_would_not_carry_is_refused(then, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(Holding(then))


class Warm(nn.Module):
    """A criterion that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return y.square().mean() if self.calls <= 5 else y.abs().mean()


class Slotted:
    __slots__ = ("calls",)
    made = 0

    def __init__(self) -> None:
        self.calls = 0

    def once(self, m: nn.Module, b) -> torch.Tensor:
        self.calls += 1
        return squares(m, b)

    @classmethod
    def of_class(cls, m: nn.Module, b) -> torch.Tensor:
        cls.made += 1
        return squares(m, b)


def _counting() -> Callable:
    calls = 0

    def loss(m: nn.Module, b) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return squares(m, b)

    return loss


def _in_array(held: np.ndarray) -> Callable:
    return lambda m, b: squares(m, b) * (1 + 0 * np.add(held, 1, out=held)[0])


def _counted(criterion: nn.Module) -> Callable:
    return lambda m, b: criterion(m(b["x"]))


def _walked(numbers) -> Callable:
    return lambda m, b: squares(m, b) * (1 + 0 * next(numbers))


def _drawn(chance) -> Callable:
    return lambda m, b: squares(m, b) * (1 + 0 * chance.random())


AROUND = {
    "a criterion": (
        _counted(Warm()),
        r"changes criterion.calls \(test_outside.py line \d+\), which a program does not record",
    ),
    "a criterion in a list": (lambda m, b, held=[Warm()]: held[0](m(b["x"])), r"changes a default of <lambda>.0.calls"),
    "slots": (Slotted().once, "changes loss.calls, which a program does not record"),
    "a class attribute": (Slotted.of_class, "changes loss.made, which a program does not record"),
    "a closure": (_counting(), r"changes calls \(test_outside.py line \d+\)"),
    "an argument": (partial(lambda m, b, t: (t.update(n=len(t)), squares(m, b))[1], t={}), "changes loss.t.n, which"),
    "an array": (_in_array(np.zeros(3)), r"changes held \(test_outside.py line \d+\)"),
    "an iterator": (_walked(itertools.count()), r"changes numbers.0.0 \(test_outside.py line \d+\)"),
    "a generator": (_walked(n for n in [1, 2, 3]), r"changes numbers"),
    "NumPy's generator": (_drawn(np.random.default_rng(1)), r"changes chance \(test_outside.py line \d+\)"),
    "Python's generator": (_drawn(random.Random(1)), r"changes chance \(test_outside.py line \d+\)"),
    "torch's generator": (
        lambda m, b, g=torch.Generator(): (m(b["x"]) * torch.rand(3, generator=g.manual_seed(0))).mean(),
        r"draws from a torch.Generator of its own, test_outside.py line \d+; a program draws",
    ),
}


@pytest.mark.parametrize(("loss", "expected"), AROUND.values(), ids=AROUND)
def test_changing_state_around_a_loss_is_refused_by_name(loss, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(Made(lambda m, x: x), loss=loss)


def test_a_criterion_that_changes_nothing_is_taken_and_stays_as_it_was() -> None:
    class Cached(nn.Module):
        mask = None

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            if self.mask is None:
                self.mask = torch.ones(3)
            return (y * self.mask).square().mean()

    criterion = Cached()
    assert lowered(Made(lambda m, x: x), loss=lambda m, b: criterion(m(b["x"]))).program.operators
    assert "mask" not in vars(criterion)


def _penalised() -> tuple[nn.Module, Callable]:
    """A loss that knows the parameters as a list."""
    model = Made(lambda m, x: x)
    parameters = list(model.parameters())
    return model, lambda m, b: squares(m, b) + sum(p.square().sum() for p in parameters)


def _with(then: Callable, prepare: Callable[[nn.Module], object]) -> tuple[nn.Module, Callable]:
    model = Made(then)
    prepare(model)
    return model, squares


def _two_buffers(then: Callable) -> tuple[nn.Module, Callable]:
    model = Made(then)
    model.register_buffer("a", torch.ones(4))
    model.register_buffer("b", model.a[1:])
    return model, squares


def _scaled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * model.other.sum()


ALIASES = {
    "parameters in a list": (_penalised, r"a constant of loss and first.(weight|bias) share memory"),
    "a parameter in a list": (
        lambda: _with(lambda m, x: x * m.list[0].sum(), lambda m: setattr(m, "list", [m.first.weight])),
        r"a constant of \(model\) and first.weight share memory",
    ),
    "a parameter's data": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight.data[1])),
        r"first.weight and a constant of \(model\) share memory",
    ),
    "a parameter of a parameter": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", nn.Parameter(m.first.weight))),
        r"(first.weight and other|other and first.weight) share memory",
    ),
    "a part of a buffer that is written to": (
        lambda: _two_buffers(lambda m, x: x * m.a.add_(1)[:3] * m.b),
        "a and b share memory that a step changes",
    ),
    "a part of a buffer that stays": (lambda: _two_buffers(lambda m, x: x * m.a[:3] * m.b), None),
    "a frozen parameter": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight.requires_grad_(False).data)),
        None,
    ),
    "the same parameter": (lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight)), None),
}


@pytest.mark.parametrize(("make", "expected"), ALIASES.values(), ids=ALIASES)
def test_changed_memory_has_one_tensor(make, expected: str | None) -> None:
    model, loss = make()
    if expected is None:
        assert lowered(model, loss=loss).program.operators
    else:
        with pytest.raises(ProgramError, match=expected):
            lowered(model, loss=loss)


def _kept(model: nn.Module, y: torch.Tensor) -> None:
    """Caches of constants, shapes and masks, lists that are emptied, losses and outputs to look at."""
    if model.nothing is None:
        model.nothing = (torch.arange(3) * 0.1).cos()
    model.table.setdefault(tuple(y.shape), torch.ones(3, 3).tril()[1].detach())
    model.list.clear()
    model.list.append(y.mean())
    model.last, model.object.n, model.number = y, y.shape[0], 5
    y.mul_(model.nothing * model.table[tuple(y.shape)]).add_(sum(model.list) * model.object.n)


def test_repeated_values_are_not_carried() -> None:
    model = Holding(_kept)
    first = lowered(model)
    assert (model.nothing, model.number, model.list, model.table) == (None, 1, [], {}) and model.object.n == 1
    assert lowered(model).program.root == first.program.root


def test_values_made_in_every_step_are_not_carried() -> None:
    def then(model: nn.Module, y: torch.Tensor) -> None:
        model.plain, model.nothing = torch.full((3,), 2.0), y

    model = Holding(then)
    before = dict(vars(model))
    assert lowered(model).program.operators
    assert all(vars(model)[name] is value for name, value in before.items())


def _halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


class Renamed(torch.optim.AdamW):
    """AdamW with another constructor."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=1.0)


def _used(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


Momentum = partial(torch.optim.SGD, lr=1.0, momentum=0.9)
HANGING = {
    "a hook on a gradient": (Momentum, lambda m, o: m.first.weight.register_hook(_halved), "first.weight has a hook"),
    "a hook behind a gradient": (
        Momentum,
        lambda m, o: m.first.bias.register_post_accumulate_grad_hook(lambda p: None),
        "first.bias has a hook",
    ),
    "a hook before the step": (
        Momentum,
        lambda m, o: o.register_step_pre_hook(lambda *_: None),
        "has hooks on its step",
    ),
    "a hook behind the step": (
        Momentum,
        lambda m, o: o.register_step_post_hook(lambda *_: None),
        "has hooks on its step",
    ),
    "a learning rate scheduler": (
        Momentum,
        lambda m, o: torch.optim.lr_scheduler.StepLR(o, 1),
        "give the schedulers to the task: schedulers=",
    ),
    "momentum": (Momentum, lambda m, o: _used(o), "SGD already holds momentum_buffer"),
    "moments": (torch.optim.Adam, lambda m, o: _used(o), "Adam already holds exp_avg, exp_avg_sq, step"),
    "parameters from elsewhere": (
        Momentum,
        lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.ones(4))]}),
        r"trains 1 tensors that are not parameters of the model, the first of shape \(4,\)",
    ),
}


@pytest.mark.parametrize(("optimizer", "hang", "expected"), HANGING.values(), ids=HANGING)
def test_hooks_schedulers_and_state_of_an_optimizer_are_refused(optimizer, hang, expected: str) -> None:
    model = Made(lambda m, x: x)
    task = Task(model, squares, optimizer(model.parameters()), {"x": torch.ones(8, 3)}, 4)
    assert lower_task(task, Schedule(lr="0.1"), 1).program.operators
    hang(model, task.optimizer)
    with pytest.raises(ProgramError, match=expected):
        lower_task(task, Schedule(lr="0.1"), 1)


def test_an_optimizer_with_another_constructor_is_captured() -> None:
    model = Made(lambda m, x: x)
    task = Task(model, squares, Renamed(model.parameters()), {"x": torch.ones(8, 3)}, 4)
    assert lower_task(task, Schedule(lr="0.1"), 1).program.operators

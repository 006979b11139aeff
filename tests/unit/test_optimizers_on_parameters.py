"""Optimizers and schedulers that use more of their parameters than the values: attributes, class, identity, state,
modes. A program steps as they do, or they are refused."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import compare, data, lowered, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim import lr_scheduler

import vgame
from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.program.optimizers import has_rule
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Scaled(nn.Parameter):
    """A parameter with a learning rate scale of its own."""


def marked() -> nn.Module:
    """Every second parameter has attributes, the others have the class `Scaled`."""
    model = network()
    for n, (name, p) in enumerate(list(model.named_parameters())):
        if n % 2:
            p.scale, p.no_decay = 0.25, True
        else:
            place, key = name.split(".")
            setattr(model[int(place)], key, Scaled(p.detach()))
    return model


class Layerwise(optim.AdamW):
    """Its rate is that of the parameter."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(getattr(p, "scale", 2.0))
                if isinstance(p, Scaled):
                    p.grad.mul_(0.5)
        super().step()


class Decaying(optim.Optimizer):
    """SGD with decay of the parameters without the attribute `no_decay`; it keeps the objects in `held`."""

    def __init__(self, parameters, lr: float = 0.1, **held: Any) -> None:
        super().__init__(parameters, {"lr": lr})
        vars(self).update(held)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in self.param_groups[0]["params"]:
            if not getattr(p, "no_decay", False):
                p.mul_(0.9)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


@pytest.mark.parametrize("make", [lambda p: Layerwise(p, lr=0.01), Decaying])
def test_attributes_and_classes_of_parameters_count(make: Callable) -> None:
    compare(make, build=marked)


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        (lambda ps: {id(ps[0])}, "by its id or address"),
        (lambda ps: {id(p): 0.1 for p in ps}, "by its id or address"),
        (lambda ps: [p.data_ptr() for p in ps], "by its id or address"),
        (lambda ps: {"of": {ps[0].data_ptr(): 1}}, "by its id or address"),
        (lambda ps: weakref.ref(ps[0]), "holds a weak reference to an object of Parameter"),
        (lambda ps: weakref.WeakSet(ps), "holds a weak reference to an object of Parameter"),
        (lambda ps: weakref.WeakKeyDictionary({ps[0]: 1}), "holds a weak reference to an object of Parameter"),
        (lambda ps: {str(id(p)): 1 for p in ps}, "by its id or address"),
    ],
)
def test_a_reference_to_a_parameter_that_a_copy_cannot_have_is_refused(hold: Callable, text: str) -> None:
    def make(parameters) -> optim.Optimizer:
        ps = [*parameters]
        return Decaying(ps, table=hold(ps))

    with pytest.raises(ProgramError, match=rf"Decaying\.table.* {text}"):
        lowered(make)


def test_a_module_may_be_held_and_not_read() -> None:
    class Reads(Decaying):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            for p in self.table.parameters():
                p.sub_(0.1)

    with pytest.raises(ProgramError, match=r"Reads\.table is a module \(Sequential\) of which parameters is read"):
        lowered(lambda p: Reads(p, table=network()))
    compare(lambda p: Decaying(p, table=network()))


def identities(kind: str) -> Callable:
    def make(parameters) -> optim.Optimizer:
        ps = [*parameters]
        slow = {id(ps[0])}

        class Held(optim.SGD):
            table = slow if kind == "class" else None

            @torch.no_grad()
            def step(self, closure=None) -> None:
                for p in self.param_groups[0]["params"]:
                    known = {"class": self.table, "closure": slow, "parameter": {getattr(p, "me", 0)}}[kind]
                    p.sub_(p.grad, alpha=0.01 if id(p) in (known or ()) else 0.1)

        if kind == "parameter":
            ps[0].me = id(ps[0])
        return Held(ps, lr=0.1)

    return make


@pytest.mark.parametrize("kind", ["class", "closure", "parameter"])
def test_identities_held_elsewhere_are_refused(kind: str) -> None:
    with pytest.raises(ProgramError, match="identifies a parameter by its id or address"):
        lowered(identities(kind))


def test_a_parameter_that_refers_to_another_one() -> None:
    class Paired(Decaying):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            for p in self.param_groups[0]["params"]:
                other = getattr(p, "pair", None)
                p.sub_(p.grad, alpha=0.1 if other is None or other.grad is None else 0.05)

    def paired() -> nn.Module:
        model = network()
        model[0].weight.pair = model[0].bias
        return model

    compare(Paired, build=paired)


def test_parameters_as_keys_are_followed() -> None:
    class Keyed(Decaying):
        @torch.no_grad()
        def step(self, closure=None) -> None:
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad, alpha=self.rates[p])

    def make(parameters) -> optim.Optimizer:
        ps = [*parameters]
        return Keyed(ps, rates={p: 0.05 * (1 + n) for n, p in enumerate(ps)})

    compare(make)


# ---- schedulers ----


def scheduler_of(step: Callable) -> Callable:
    """`step(scheduler)` is called in each step after the first, and returns the factor of the rates or None."""

    class Own(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            factor = step(self) if self.last_epoch else None
            return [b * (1.0 if factor is None else factor) for b in self.base_lrs]

    return lambda o: [Own(o)]


def groups(scheduler: Any) -> list[nn.Parameter]:
    return [p for group in scheduler.optimizer.param_groups for p in group["params"]]


def clears_the_state(scheduler: Any) -> None:
    if scheduler.last_epoch % 3 == 0:
        scheduler.optimizer.state.clear()


def by_count(scheduler: Any) -> float:
    return 1 / (1 + max(float(s["step"]) for s in scheduler.optimizer.state.values()))


def by_state(scheduler: Any) -> float:
    return 0.3 if scheduler.optimizer.state else 1.0


def by_attribute(scheduler: Any) -> float:
    return 0.3 if any(getattr(p, "no_decay", False) for p in groups(scheduler)) else 1.0


@pytest.mark.parametrize("step", [clears_the_state, by_count, by_state, by_attribute])
@pytest.mark.parametrize("make", [lambda p: optim.Adam(p, lr=0.01), lambda p: optim.RAdam(p, lr=0.01)])
def test_a_scheduler_that_reads_or_drops_state_is_followed(step: Callable, make: Callable) -> None:
    compare(make, scheduler_of(step), build=marked)


@pytest.mark.parametrize("what", ["state", "states", "parameters"])
def test_a_scheduler_that_holds_state_or_parameters_is_followed(what: str) -> None:
    class Holding(lr_scheduler.LRScheduler):
        def __init__(self, optimizer: optim.Optimizer) -> None:
            ps = optimizer.param_groups[0]["params"]
            held = {"state": optimizer.state, "states": [optimizer.state[p] for p in ps], "parameters": ps[:1]}
            self.held = held[what]
            super().__init__(optimizer)

        def get_lr(self) -> list[float]:
            if what == "parameters":
                return [b * (0.5 if self.held[0].grad is not None else 1.0) for b in self.base_lrs]
            states = self.held.values() if what == "state" else self.held
            steps = [float(s.get("step", 0)) for s in states]
            return [b / (1 + max(steps, default=0)) for b in self.base_lrs]

    compare(lambda p: optim.Adam(p, lr=0.01), lambda o: [Holding(o)])


def clamps(scheduler: Any) -> None:
    for p in groups(scheduler):
        p.data.clamp_(-0.1, 0.1)


def zeroes_momenta(scheduler: Any) -> None:
    for state in scheduler.optimizer.state.values():
        state["exp_avg"].zero_()


def replaces_momenta(scheduler: Any) -> None:
    for p, state in scheduler.optimizer.state.items():
        state["exp_avg"] = torch.zeros(p.shape, device=p.device)


def reads_weights(scheduler: Any) -> float:
    return 1 / (1 + float(groups(scheduler)[0].detach().norm()))


def freezes(scheduler: Any) -> None:
    groups(scheduler)[0].requires_grad_(False)


def adds_a_group(scheduler: Any) -> None:
    if scheduler.last_epoch == 1:
        scheduler.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (clamps, "computes with tensors of the optimizer"),
        (zeroes_momenta, "computes with tensors of the optimizer"),
        (replaces_momenta, "puts tensors into the optimizer's state"),
        (reads_weights, "computes with tensors of the optimizer"),
        (freezes, "changes the parameters of a group, or their requires_grad"),
        (adds_a_group, "changes the parameters of a group, or their requires_grad"),
    ],
)
@pytest.mark.parametrize("make", [lambda p: optim.Adam(p, lr=0.01), lambda p: optim.NAdam(p, lr=0.01)])
def test_a_scheduler_that_changes_more_than_options_is_refused(step: Callable, text: str, make: Callable) -> None:
    with pytest.raises(ProgramError, match=f"the scheduler Own {text}.*; a program takes only options of the groups"):
        lowered(make, scheduler_of(step))


def test_a_scheduler_that_reads_a_model_is_refused() -> None:
    def schedulers(o: optim.Optimizer) -> list:
        made = scheduler_of(lambda s: s.model.train() and None)(o)
        made[0].model = network()
        return made

    with pytest.raises(ProgramError, match=r"Own\.model is a module \(Sequential\) of which train is read"):
        lowered(lambda p: optim.SGD(p, lr=0.1), schedulers)


# ---- methods of the class ----


def test_a_wrapped_step_is_played() -> None:
    class Late(optim.SGD):
        count = 0

        @functools.wraps(optim.SGD.step)
        def step(self, closure=None) -> None:
            self.count += 1
            for p in self.param_groups[0]["params"]:
                p.grad.mul_(3.0 if self.count > 2 else 1.0)
            super().step()

    assert not has_rule(Late([nn.Parameter(torch.ones(1))], lr=0.1))
    compare(lambda p: Late(p, lr=0.02))


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_torchs_own_classes_have_rules(kind: type[optim.Optimizer]) -> None:
    """Also after the first object of a class, which wraps the step of its class."""
    for _ in range(2):
        optimizer = kind([nn.Parameter(torch.ones(1))], lr=0.1)
        lr_scheduler.StepLR(optimizer, 1)
        assert has_rule(optimizer)


def test_a_step_put_into_torchs_class_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = optim.SGD.step

    def step(self, closure=None) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad.mul_(3.0)
        usual(self)

    monkeypatch.setattr(optim.SGD, "step", step)
    compare(lambda p: optim.SGD(p, lr=0.02))


def test_a_zero_grad_that_keeps_gradients_is_refused() -> None:
    class Kept(optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.grad.mul_(0.5)

    class Counted(optim.SGD):
        def zero_grad(self, set_to_none: bool = False) -> None:
            super().zero_grad(set_to_none)

    with pytest.raises(
        ProgramError, match=r"Kept\.zero_grad \(test_optimizers_on_parameters.py line \d+\) leaves gradients"
    ):
        lowered(lambda p: Kept(p, lr=0.1))
    compare(lambda p: Counted(p, lr=0.1))


# ---- a loss that reads them ----


def task_of(read: Callable[[Any, Any], Any], held: str) -> Task:
    model = network()
    optimizer = optim.Adam([{"params": model.parameters(), "x": 1}], lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 30)  # the rate does not change soon

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return usual_loss(model, batch) * (1 + read(optimizer, scheduler))

    if held == "model":
        model.held = optimizer, scheduler

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            return usual_loss(model, batch) * (1 + read(*model.held))

    return Task(model, loss, optimizer, data(), 16, schedulers=[scheduler])


READS: dict[str, Callable[[Any, Any], Any]] = {
    "rate": lambda o, s: o.param_groups[0]["lr"],
    "last rate": lambda o, s: s.get_last_lr()[0],
    "epoch": lambda o, s: s.last_epoch,
    "state": lambda o, s: len(o.state),
    "count": lambda o, s: float(next(iter(o.state.values()))["step"]) if o.state else 0.0,
    "threshold of the rate": lambda o, s: 1.0 if o.param_groups[0]["lr"] < 0.02 else 0.0,
    "threshold of the epoch": lambda o, s: 1.0 if s.last_epoch >= 3 else 0.0,
    "threshold of the last rate": lambda o, s: 1.0 if s.get_last_lr()[0] < 0.05 else 0.0,
    "another number": lambda o, s: 1.0 if o.param_groups[0]["betas"][0] < 0.5 or o.param_groups[0]["x"] > 3 else 0.0,
}


@pytest.mark.parametrize("held", ["loss", "model"])
@pytest.mark.parametrize("what", READS)
def test_a_loss_that_reads_the_optimizer_or_a_scheduler_is_refused(what: str, held: str) -> None:
    task = task_of(READS[what], held)
    optimizer, scheduler = task.optimizers[0], task.schedulers[0]
    text = "two forward passes of the same batch differ|the loss reads .*, which changes from step"
    with pytest.raises(ProgramError, match=text):
        capture(task)
    assert optimizer.param_groups[0]["lr"] == 0.1 and not optimizer.state
    assert scheduler.last_epoch == 0 and scheduler.get_last_lr() == [0.1]


def test_a_loss_may_read_constants_and_print_other_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    def read(optimizer: Any, scheduler: Any) -> float:
        print(scheduler.last_epoch, optimizer.param_groups[0]["lr"])
        return optimizer.param_groups[0]["weight_decay"]

    assert capture(task_of(read, "loss")) and capsys.readouterr().out


def test_prepare_leaves_the_optimizer_as_it_was() -> None:
    task = task_of(lambda o, s: 0.0, "loss")
    before = task.optimizers[0].state_dict(), task.schedulers[0].state_dict()
    vgame.prepare(vgame.Job(task, steps=4), validate=0)
    assert (task.optimizers[0].state_dict(), task.schedulers[0].state_dict()) == before

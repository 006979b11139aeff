"""State that passes from one step to the next, between two optimizers or an optimizer and the loss, is followed or
refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import vgame
from vgame.errors import ProgramError
from vgame.program.coupled import coupled_of
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task


class Acting(SGD):
    """Does something with an object in each step."""

    def __init__(self, given: Any, act: Callable[[Any], Any], held: Any) -> None:
        super().__init__(given, lr=0.1)
        self.act, self.held = act, held

    def step(self, closure=None):
        self.act(self.held)
        return super().step(closure)


def error(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def lower(model: nn.Module, losses: Any, optimizers: Any, schedulers: Any = ()) -> None:
    task = Task(model, losses, optimizers, data(), 4, schedulers=schedulers)
    lower_task(task, None if schedulers else Schedule(kind="constant", lr="0.1"), 12)


READS: dict[str, Callable[[Any], float]] = {
    "in a set": lambda n: 2.0 if n in {5, 6} else 1.0,
    "as a key": lambda n: {5: 2.0}.get(n, 1.0),
    "its bits": lambda n: 2.0 if n & 4 else 1.0,
    "divided": lambda n: 1.0 + divmod(n, 97)[0],
    "shifted": lambda n: 1.0 + (n >> 2),
    "its length": lambda n: float(n.bit_length()),
    "its real part": lambda n: 1.0 + n.real,
    "rounded": lambda n: 1.0 + round(n, -1),
    "as bytes": lambda n: float(n.to_bytes(4, "big")[3]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_loss_that_reads_a_count_is_refused(read: Callable[[Any], float]) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda t: 0.9**t)
    with pytest.raises(ProgramError, match="which changes from step to step"):
        lower(model, lambda m, b: error(m, b) * read(scheduler.last_epoch), optimizer, [scheduler])


def test_a_loss_in_turns_that_reads_a_value_that_a_step_sets_temporarily_is_refused() -> None:
    """The first optimizer sets it, the second sets it back."""
    model, held = network(), SimpleNamespace(factor=1.0)
    own = list(model.parameters())
    first = Acting(own[:2], lambda h: setattr(h, "factor", 0.3), held)
    second = Acting(own[2:], lambda h: setattr(h, "factor", 1.0), held)
    losses = [error, lambda m, b: error(m, b) * held.factor]
    with pytest.raises(ProgramError, match=r"the loss reads \S*factor"):
        lower(model, losses, [first, second])


def test_a_loss_that_reads_the_order_of_a_dictionary_is_refused() -> None:
    model, held = network(), {"a": 0.5, "b": 2.0}
    optimizer = Acting(model.parameters(), lambda h: h.update(a=h.pop("a")), held)
    with pytest.raises(ProgramError, match="changes from step to step"):
        lower(model, lambda m, b: error(m, b) * next(iter(held.values())), optimizer)


def test_optimizers_that_share_a_tensor_of_their_states_step_together() -> None:
    model = network()
    own = list(model.parameters())
    first, second = SGD(own[:2], lr=0.1), SGD(own[2:], lr=0.1)
    for shared in (torch.zeros(()),):
        first.state[own[0]]["step"] = second.state[own[2]]["step"] = shared
    task = Task(model, error, [first, second], data(), 4)
    assert [len(each.optimizers) for each in coupled_of(task)] == [2]
    apart = Task(model, error, [Adam(own[:2]), Adam(own[2:])], data(), 4)
    assert [len(each.optimizers) for each in coupled_of(apart)] == [1, 1]


class ByAView(Optimizer):
    """The counter of a parameter is a view of an attribute."""

    def __init__(self, given: Any) -> None:
        super().__init__(given, {"lr": 0.1})
        self.count = torch.zeros(1)
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] = self.count[0]

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.3 / self.state[p]["step"].item())


def test_a_counter_that_is_a_view_is_followed() -> None:
    model = network()
    optimizer = ByAView(model.parameters())
    vgame.prepare(vgame.Job(Task(model, error, optimizer, data(), 4), steps=12, interval=6), validate=5)


def clear(other: Optimizer) -> None:
    other.zero_grad()


def replace(other: Optimizer) -> None:
    for p in other.param_groups[0]["params"]:
        p.data = torch.zeros(p.shape)


@pytest.mark.parametrize("act", [clear, replace])
def test_an_optimizer_that_replaces_tensors_of_another_is_refused(act: Callable[[Optimizer], None]) -> None:
    model = network()
    own = list(model.parameters())
    second = SGD(own[2:], lr=0.1)
    with pytest.raises(ProgramError, match="replaces gradients or the data of another optimizer's"):
        lower(model, error, [Acting(own[:2], act, second), second])


class Config:
    """As many that can be pickled."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Doubled(Config):
    def __getstate__(self) -> dict[str, Any]:
        return {"total": 2 * self.total}


@pytest.mark.parametrize("kind", [Config, Doubled])
def test_an_object_that_determines_its_copy(kind: type[Config]) -> None:
    """It is accepted if the copy is equal."""
    model, config = network(), kind(20)
    optimizer = Acting(model.parameters(), lambda held: held.total, config)
    if kind is Config:
        lower(model, error, optimizer)
        return
    with pytest.raises(ProgramError, match="Doubled, whose __getstate__ decides what a copy of it has"):
        lower(model, error, optimizer)


class Frozen(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("frozen")


def test_a_dictionary_that_cannot_be_set_is_one_sentence() -> None:
    model, held = network(), Frozen(a=1.0)
    optimizer = Acting(model.parameters(), lambda h: dict.update(h, a=h["a"] / 2), held)
    with pytest.raises(vgame.VgameError):
        lower(model, lambda m, b: error(m, b) * held["a"], optimizer)

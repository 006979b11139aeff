"""A loss that reads a value that an optimizer or a scheduler changes is refused, for any kind of object that holds it
and any step at which the changes begin; a loss that only reaches the object is captured."""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

REFUSED = r"which changes from step to step|two forward passes of the same batch differ|as at a later step"
Case = tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], Any]]  # make, change, read


class Box:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 1


class Key:
    """A key that a copy does not share."""


def add(held: Any, key: Any) -> None:
    held[key] += 1


def one_more(held: Any) -> None:
    held.n += 1


def late(value: Any) -> Callable[[Any], object]:
    """A change that begins at step 6."""

    def change(held: Any) -> None:
        held.n += 1
        if held.n > 5:
            held.phase = value

    return change


def phases(**first: Any) -> Callable[[], Any]:
    return lambda: types.SimpleNamespace(n=0, **first)


def late_key(held: dict[str, int]) -> None:
    held["n"] += 1
    if held["n"] > 5:
        held["late"] = 1


def late_item(held: list[Any]) -> None:
    held[0] += 1
    held[1] = 3.0 if held[0] > 5 else 1.0


def rotate(held: Any) -> None:
    held.n += 1
    held.a, held.b = held.n < 3, 3 <= held.n < 6


def three_texts(held: Any) -> None:
    held.n += 1
    held.phase = "hot" if held.n < 6 else "cold"


def count_of_key(held: dict[Any, int]) -> None:
    for key in held:
        held[key] += 1


CASES: dict[str, Case] = {
    "a list that grows": (list, lambda h: h.append(0), lambda h: 1 + len(h)),
    "a list of tensors that grows": (list, lambda h: h.append(torch.zeros(1)), lambda h: 1 + len(h)),
    "a list in a list": (lambda: [[]], lambda h: h[0].append(0), lambda h: 1 + len(h[0])),
    "a number in a list": (lambda: [1], lambda h: add(h, 0), lambda h: h[0]),
    "a set": (set, lambda h: h.add(len(h)), lambda h: 1 + len(h)),
    "a deque": (collections.deque, lambda h: h.append(0), lambda h: 1 + len(h)),
    "a deque of one": (lambda: collections.deque([1], 1), lambda h: h.append(h[0] + 1), lambda h: h[0]),
    "a counter": (collections.Counter, lambda h: h.update("a"), lambda h: 1 + h["a"]),
    "slots": (Box, one_more, lambda h: h.n),
    "an array of NumPy": (lambda: np.ones(1), lambda h: h.__iadd__(1), lambda h: float(h[0])),
    "a number in an array of NumPy": (lambda: np.array(1.0), lambda h: h.__iadd__(1), float),
    "a tensor": (lambda: torch.tensor(1.0), lambda h: h.add_(1), lambda h: h),
    "an element of a tensor": (lambda: torch.ones(1), lambda h: h.add_(1), lambda h: h[0]),
    "a number of a tensor": (lambda: torch.tensor(1.0), lambda h: h.add_(1), lambda h: h.item()),
    "an array": (lambda: array.array("d", [1]), lambda h: add(h, 0), lambda h: h[0]),
    "bytes": (lambda: bytearray(1), lambda h: add(h, 0), lambda h: 1 + h[0]),
    "a namespace in a tuple": (lambda: (types.SimpleNamespace(n=1),), lambda h: one_more(h[0]), lambda h: h[0].n),
    "an array in a tuple": (lambda: (np.ones(1),), lambda h: h[0].__iadd__(1), lambda h: float(h[0][0])),
    "a tuple as key": (lambda: {(1,): 1}, lambda h: add(h, (1,)), lambda h: h[(1,)]),
    "an object as key": (lambda: {Key(): 1}, count_of_key, lambda h: next(iter(h.values()))),
    "an iterator": (lambda: iter([1.0] * 99), next, lambda h: float(h.__length_hint__())),
    "a late factor": (phases(phase=1.0), late(3.0), lambda h: h.phase),
    "a late flag": (phases(phase=False), late(True), lambda h: 3.0 if h.phase else 1.0),
    "a late text": (phases(phase="warm"), late("cold"), lambda h: {"warm": 1.0, "cold": 3.0}[h.phase]),
    "a late tuple": (phases(phase=None), late((1,)), lambda h: 1.0 if h.phase is None else 3.0),
    "a late None": (phases(phase=()), late(None), lambda h: 3.0 if h.phase is None else 1.0),
    "a late function": (phases(phase=abs), late(torch.exp), lambda h: h.phase(torch.tensor(1.0))),
    "a late attribute": (phases(), late(3.0), lambda h: getattr(h, "phase", 1.0)),
    "a late key": (lambda: {"n": 0}, late_key, lambda h: 3.0 if "late" in h else 1.0),
    "a late number in a list": (lambda: [0, 1.0], late_item, lambda h: h[1]),
    "a text of three": (phases(phase="warm"), three_texts, lambda h: {"warm": 1.0, "hot": 1.0, "cold": 3.0}[h.phase]),
    "flags in turn": (phases(a=True, b=False), rotate, lambda h: 1.0 if h.a or h.b else 3.0),
}


class Scheduler(LRScheduler):
    """Keeps the rates, and changes an object after each step."""

    def __init__(self, optimizer: optim.Optimizer, held: Any, change: Callable[[Any], object]) -> None:
        self.held, self.change = held, change
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return list(self.base_lrs)

    def step(self, epoch: Any = None) -> None:
        super().step()
        if self.last_epoch > 0:
            self.change(self.held)


class Optimizer(optim.SGD):
    """Changes an object in each step."""

    def __init__(self, params: Any, held: Any, change: Callable[[Any], object]) -> None:
        super().__init__(params, lr=0.1)
        self.held, self.change = held, change

    def step(self, closure: Any = None) -> None:
        super().step()
        self.change(self.held)


def lower(
    model: nn.Module, loss: Callable[..., torch.Tensor], optimizer: optim.Optimizer, *schedulers: Any, steps: int = 12
) -> Any:
    return lower_task(Task(model, loss, optimizer, data(), 16, schedulers=schedulers), None, steps)


def lower_case(case: Case, by_scheduler: bool) -> Any:
    make, change, read = case
    model, held = network(), make()
    loss = lambda m, b: usual_loss(m, b) * read(held)  # noqa: E731
    if not by_scheduler:
        return lower(model, loss, Optimizer(model.parameters(), held, change))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return lower(model, loss, optimizer, Scheduler(optimizer, held, change))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("by_scheduler", [True, False], ids=["scheduler", "optimizer"])
def test_a_loss_that_reads_a_changed_object_is_refused(case: Case, by_scheduler: bool) -> None:
    with pytest.raises(ProgramError, match=REFUSED):
        lower_case(case, by_scheduler)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_loss_that_reaches_a_changed_object_without_reading_it_is_captured(case: Case) -> None:
    make, change, _ = case
    held = make()

    class Trainer:
        def __init__(self) -> None:
            self.model, self.log, self.factor = network(), held, 1.0
            self.optimizer = Optimizer(self.model.parameters(), held, change)

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return usual_loss(model, batch) * self.factor

    trainer = Trainer()
    assert lower(trainer.model, trainer.loss, trainer.optimizer)


class Marks(optim.SGD):
    """Counts on its parameters."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            p.n = getattr(p, "n", 0) + 1


@pytest.mark.parametrize("steps", [0, 5])
def test_an_attribute_of_a_parameter(steps: int) -> None:
    model = network()
    loss = lambda m, b: usual_loss(m, b) * (2.0 if getattr(m[0].weight, "n", 0) > steps else 1.0)  # noqa: E731
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, loss, Marks(model.parameters(), lr=0.1))
    assert not hasattr(model[0].weight, "n")
    model = network()
    assert lower(model, usual_loss, Marks(model.parameters(), lr=0.1))


def test_a_model_that_holds_the_object() -> None:
    held = types.SimpleNamespace(n=0, phase=1.0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.held = network(), held

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.held.phase

    model = Model()
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, usual_loss, Optimizer(model.parameters(), held, late(3.0)))
    assert vars(held) == {"n": 0, "phase": 1.0}


def test_the_object_and_the_line_are_named() -> None:
    with pytest.raises(ProgramError, match=r"the loss reads Optimizer\.held\.phase, test_obj\S+ line \d+, which chang"):
        lower_case(CASES["a late factor"], False)


def test_an_object_that_the_loss_itself_holds_is_named() -> None:
    held: set[int] = set()
    reads = functools.partial(lambda held, m, b: usual_loss(m, b), held)
    model = network()
    with pytest.raises(ProgramError, match=r"reaches Optimizer\.held \(loss\.0\).*which changes from step"):
        lower(model, reads, Optimizer(model.parameters(), held, lambda h: h.add(1)))


def test_a_loss_may_read_unchanged_attributes_of_a_changed_object() -> None:
    held = types.SimpleNamespace(smoothing=0.1, classes=[1, 2], table=np.ones(2), seen=0)
    model = network()
    loss = lambda m, b: usual_loss(m, b) * held.smoothing * len(held.classes) * float(held.table[0])  # noqa: E731
    assert lower(model, loss, Optimizer(model.parameters(), held, lambda h: setattr(h, "seen", h.seen + 1)))

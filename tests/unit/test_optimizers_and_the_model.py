"""Tensors of the model that an optimizer or a scheduler holds beside its own parameters, and the parameters and groups
that it changes: a program's optimizer has its own parameters only, the same in all steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_steps import BATCH, data, loss, network, validated
from torch import nn, optim
from torch.optim import lr_scheduler

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task


class Tempered(nn.Module):
    """`t` is changed by the forward pass; `scale` is a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(1.0))
        self.register_buffer("t", torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t.mul_(0.9)
        return self.layer(x) * self.scale


class Holds(optim.SGD):
    """Holds something, and does something with it in each step."""

    def __init__(self, given: Any, held: Any = None, use: Callable[[Holds], Any] = lambda self: None) -> None:
        super().__init__(given, lr=0.1)
        self.held, self.use, self.steps = held, use, 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.steps += 1
        factor = self.use(self)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.1 * factor if isinstance(factor, float) else 0.1)


class Does(lr_scheduler.LRScheduler):
    def __init__(self, optimizer: optim.Optimizer, held: Any, use: Callable[[Any], Any]) -> None:
        self.held, self.use = held, use
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return self.base_lrs

    def step(self, epoch=None) -> None:
        super().step()
        if self.last_epoch:
            self.use(self)


def reads(owner: Any) -> float:
    return owner.held.item()


def writes(owner: Any) -> None:
    owner.held.mul_(0.8)


def in_lists(owner: Any) -> None:
    torch._foreach_mul_([owner.held], 0.8)


def by_number(owner: Any) -> float:
    return float(owner.held)


def freezes(owner: Any) -> None:
    owner.held.requires_grad_(False)


def lower(model: nn.Module, optimizer: Any, schedulers: Any = ()) -> None:
    lower_task(Task(model, loss, optimizer, data(), BATCH, schedulers=schedulers), None, 12)


TENSORS: dict[str, Callable[[Tempered], torch.Tensor]] = {
    "t": lambda m: m.t,
    "t by a view": lambda m: m.t.view(1),
    "scale": lambda m: m.scale,
    "scale without its gradient": lambda m: m.scale.detach(),
}


@pytest.mark.parametrize("use", [reads, writes, in_lists, by_number, freezes])
@pytest.mark.parametrize("what", TENSORS)
def test_a_tensor_of_the_model_may_not_be_used(what: str, use: Callable) -> None:
    text = rf"held is the model's {what.split()[0]}, which is used, test_optimizers_and_the_model.py line \d+, but an"
    model = Tempered()
    held = TENSORS[what](model)
    with pytest.raises(ProgramError, match=rf"Holds\.{text}"):
        lower(model, Holds(model.layer.parameters(), held, use))
    optimizer = optim.SGD(model.layer.parameters(), lr=0.1)
    with pytest.raises(ProgramError, match=rf"Does\.{text}"):
        lower(model, optimizer, [Does(optimizer, held, use)])


def test_a_parameter_of_another_optimizer_may_not_be_read() -> None:
    model = Tempered()
    own = [Holds(model.layer.parameters(), model.scale, reads), optim.SGD([model.scale], lr=0.5)]
    with pytest.raises(ProgramError, match=r"Holds\.held is the model's scale, which is used"):
        lower(model, own)


def test_weights_that_are_not_its_own_may_not_be_decayed() -> None:
    model = network()
    held = [*model[0].requires_grad_(False).parameters()]
    decays = lambda self: [p.mul_(0.9) for p in self.held]  # noqa: E731
    with pytest.raises(ProgramError, match=r"Holds\.held\[0\] is the model's 0\.weight, which is used"):
        lower(model, Holds(model[2].parameters(), held, decays))


def test_a_tensor_of_the_model_may_be_held_and_asked_for_its_shape() -> None:
    def shaped(self: Holds) -> float:
        return 0.1 * (1 + self.held.dim() + len(self.held.shape) + self.held.numel())

    model = Tempered()
    lower(model, Holds(model.parameters(), model.t, shaped))


def test_the_refusal_may_not_be_caught() -> None:
    def tries(self: Holds) -> float:
        try:
            return self.held.item()
        except Exception:
            return 0.5

    model = Tempered()
    with pytest.raises(
        ProgramError, match=r"caught at test_optimizers_and_the_model.py line \d+.*the model's t, which"
    ):
        lower(model, Holds(model.parameters(), model.t, tries))


def test_an_array_in_the_memory_of_the_model_is_refused() -> None:
    model = Tempered()
    for held, name in ((model.t.numpy(), "t"), (model.layer.weight.detach().numpy()[1:], "layer.weight")):
        with pytest.raises(ProgramError, match=rf"Holds\.held\[0\] is an array in the memory of the model's {name}, "):
            lower(model, Holds(model.parameters(), [held]))


def test_a_function_may_not_read_a_tensor_of_the_model() -> None:
    model = Tempered()
    optimizer, held = optim.SGD(model.parameters(), lr=0.1), model.t
    with pytest.raises(ProgramError, match=r"reads held in .*, a tensor of the model, but a capture"):
        lower(model, optimizer, [lr_scheduler.LambdaLR(optimizer, lambda _: float(held))])


# ---- parameters and groups ----


def freezes_its_own(self: Holds) -> None:
    for p in self.param_groups[0]["params"] if self.steps == 5 else ():
        p.requires_grad_(False)


def drops_a_parameter(self: Holds) -> None:
    if self.steps == 5:
        del self.param_groups[0]["params"][0]


def parts_a_group(self: Holds) -> None:
    if self.steps == 5:
        self.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, device="meta"))]})


@pytest.mark.parametrize("use", [freezes_its_own, drops_a_parameter, parts_a_group])
def test_a_step_that_changes_the_trained_parameters_is_refused(use: Callable) -> None:
    model = network()
    with pytest.raises(
        ProgramError, match=r"Holds changes the parameters of a group, or their requires_grad, in step 5"
    ):
        lower(model, Holds(model.parameters(), None, use))


def test_a_group_of_other_weights_is_refused() -> None:
    model = network()
    adds = lambda self: self.add_param_group({"params": self.held}) if self.steps == 5 else None  # noqa: E731
    with pytest.raises(ProgramError, match=r"Holds\.held\[0\] is the model's 0\.weight, which is used"):
        lower(model, Holds(model[2].parameters(), [*model[0].parameters()], adds))


# ---- objects that have no copy ----


def endless() -> Any:
    while True:
        yield 0.5


class Changed:
    """Its copy holds another number."""

    def __init__(self) -> None:
        self.number = 0.5

    def __getstate__(self) -> dict[str, float]:
        return {"number": 0.3}


class Itself(Changed):
    def __deepcopy__(self, memo: Any) -> Itself:
        made = Itself()
        made.number = 0.3
        return made


@pytest.mark.parametrize("make", [endless, threading.Lock, queue.Queue, Path(__file__).open, lambda: queue])
def test_an_object_without_a_copy_is_refused_in_a_sentence(make: Callable) -> None:
    model = network()
    with pytest.raises(ProgramError, match=r"Holds\.held is or holds an object that cannot be copied \(TypeError"):
        lower(model, Holds(model.parameters(), make()))


@pytest.mark.parametrize(("kind", "method"), [(Changed, "__getstate__"), (Itself, "__deepcopy__")])
def test_an_object_whose_class_makes_the_copy_is_refused(kind: type, method: str) -> None:
    model = network()
    with pytest.raises(ProgramError, match=f"hold an object of {kind.__name__}, whose {method} decides what a copy"):
        lower(model, Holds(model.parameters(), [kind()], lambda self: self.held[0].number))


@dataclass(frozen=True, slots=True)
class Setting:
    number: float = 0.5


def test_a_class_of_dataclasses_is_copied() -> None:
    validated(lambda p: Holds(p, Setting(), lambda self: self.held.number))

"""Code that runs in the backward pass: the next forward pass sees its changes, and the values that it reads may change
from step to step."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import data
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.checkpoint import checkpoint

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.n = nn.Linear(6, 3), 0

    def factor(self) -> float:
        return 1.0 if self.n < 6 else 0.3

    def count(self, *_: Any) -> None:
        self.n += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor()


class ByModuleHook(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layer.register_full_backward_hook(self.count)


class ByTensorHook(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(self.count)
        return y * self.factor()


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: Any) -> torch.Tensor:
        ctx.module = module
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        ctx.module.count()
        return g * ctx.module.factor(), None


class ByFunction(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Counting.apply(self.layer(x), self)


class ByNodeHook(Base):
    register = "register_hook"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.grad_fn is not None:
            getattr(y.grad_fn, self.register)(self.count)
        return y * self.factor()


class ByNodePrehook(ByNodeHook):
    register = "register_prehook"


class BySavedTensors(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, self.unpack):
            return self.layer(x) * self.factor()

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return tensor


class ByAnotherLeaf(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = [torch.ones(3, requires_grad=True)]
        self.scale[0].register_hook(self.count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale[0]


class Flagged(ByModuleHook):
    def count(self, *_: Any) -> None:
        self.n = 9


class OnList(ByModuleHook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def count(self, *_: Any) -> None:
        self.seen.append(0)

    def factor(self) -> float:
        return 1.0 if len(self.seen) < 6 else 0.3


def captured(model: nn.Module, loss: Any = usual_loss, make: Any = None) -> Any:
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return capture(Task(model, loss, optimizer, data(), 16, schedulers=make(optimizer) if make else ()))


@pytest.mark.parametrize(
    "kind",
    [ByModuleHook, ByTensorHook, ByFunction, ByNodeHook, ByNodePrehook, BySavedTensors, ByAnotherLeaf, Flagged],
)
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_an_attribute_is_refused(kind: Callable[[], Base]) -> None:
    model = kind()
    with pytest.raises(ProgramError, match=r"the model changes its attribute `n` in the backward pass"):
        captured(model)
    assert model.n == 0


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_a_list_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"`seen.\d` in the backward pass"):
        captured(OnList())


def test_losses_that_take_turns() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)
            self.factor = 1.0

    def first(m: Any, batch: Any) -> torch.Tensor:
        y = m.a(batch["x"])
        y.register_hook(lambda g: setattr(m, "factor", 1.0))
        return nn.functional.cross_entropy(y, batch["y"]) * m.factor

    def second(m: Any, batch: Any) -> torch.Tensor:
        y = m.b(batch["x"])
        y.register_hook(lambda g: setattr(m, "factor", 0.5))
        return nn.functional.cross_entropy(y, batch["y"])

    model = Pair()
    optimizers = [optim.SGD(m.parameters(), lr=0.1) for m in (model.a, model.b)]
    with pytest.raises(ProgramError, match=r"factor.* in the backward pass"):
        capture(Task(model, [first, second], optimizers, data(), 16))


class Annealed(LRScheduler):
    def __init__(self, optimizer: optim.Optimizer, held: Any) -> None:
        self.held = held
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.held.factor *= 0.9
        return list(self.base_lrs)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: Any) -> torch.Tensor:
        ctx.held = held
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.held.factor, None


def by_hook(x: torch.Tensor, held: Any) -> torch.Tensor:
    x.register_hook(lambda g: g * held.factor)
    return x


READS = {"a function": Scaled.apply, "a hook": by_hook}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_number_that_a_scheduler_changes(read: Callable) -> None:
    held = types.SimpleNamespace(factor=1.0)
    loss = lambda m, b: nn.functional.cross_entropy(read(m(b["x"]), held), b["y"])  # noqa: E731
    with pytest.raises(
        ProgramError,
        match=r"the loss reads Annealed.held.factor, test_changes_in_the_backward_pass.py line \d+, which changes",
    ):
        captured(nn.Linear(6, 3), loss, lambda o: [Annealed(o, held)])
    assert captured(nn.Linear(6, 3), loss, lambda o: [LambdaLR(o, lambda t: 0.9**t)])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_captured(reentrant: bool) -> None:
    """It runs the user's code again."""
    held = types.SimpleNamespace(factor=1.0)

    def part(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(layer(x))

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        x = b["x"].clone().requires_grad_()
        return nn.functional.cross_entropy(checkpoint(part, m, x, use_reentrant=reentrant), b["y"])

    assert captured(nn.Linear(6, 3), loss, lambda o: [Annealed(o, held)])


def test_a_checkpoint_in_turns_may_repeat_the_changes_of_the_forward_pass() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(6, 3), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = tuple(x.shape)
            self.y = self.layer(x)
            return self.y

    model = nn.ModuleList([Part(), Part()])
    losses = [
        lambda m, b, n=n: nn.functional.cross_entropy(checkpoint(m[n], b["x"], use_reentrant=False), b["y"])
        for n in range(2)
    ]
    optimizers = [optim.SGD(part.parameters(), lr=0.1) for part in model]
    assert capture(Task(model, losses, optimizers, data(), 16))

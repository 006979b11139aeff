"""State that a loss keeps outside its model: in attributes of parameters, wrapped backward passes, handlers of logging;
and objects of libraries that a loss may use."""

from __future__ import annotations

import functools
import logging
import logging.handlers
import queue
import random
import secrets
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from library_counters import plain
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import vgame
from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


def test_a_counter_of_a_parameter_is_refused() -> None:
    model = network()
    model[0].weight.uses = 0  # type: ignore[union-attr]

    def loss(model: Any, batch: Any) -> Any:
        model[0].weight.uses += 1
        return usual_loss(model, batch) * (2.0 if model[0].weight.uses > 8 else 1.0)

    with pytest.raises(ProgramError, match=r"changes its attribute `0.weight.uses`"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))
    assert model[0].weight.uses == 0  # type: ignore[union-attr]


def test_a_backward_pass_in_a_wrapper_is_followed() -> None:
    count = plain()

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * (2.0 if count() > 8 else 1.0)

    def loss(model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(Scale.apply(model(batch["x"])), batch["y"])

    model = network()
    with pytest.raises(ProgramError, match="in the backward pass, which a program does not record"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


def test_what_a_scheduler_sets_outside_is_refused() -> None:
    """Late in the job only."""

    class Anneal(LRScheduler):
        def get_lr(self) -> Any:
            torch.beta = 1.0 if self.last_epoch < 7 else 0.2  # type: ignore[attr-defined]
            return self.base_lrs

    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = Anneal(optimizer)

    def loss(model: Any, batch: Any) -> Any:
        return usual_loss(model, batch) * torch.beta  # type: ignore[attr-defined]

    with pytest.raises(ProgramError, match=r"a step of the optimizer or its schedulers changes torch\.beta"):
        lower_task(Task(model, loss, optimizer, data(), 16, schedulers=[scheduler]), None, 12)


def test_a_queue_that_keeps_texts_is_refused() -> None:
    """A handler of Python's own keeps what a branch on a number logs, and the loss reads it."""
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()
    log = logging.getLogger("queued")
    log.handlers = [logging.handlers.QueueHandler(held)]

    def loss(model: Any, batch: Any) -> Any:
        found = usual_loss(model, batch)
        if found.item() < 1.0:
            log.info("low")
        return found * (1.0 if held.qsize() < 4 else 0.2)

    model = network()
    with pytest.raises(ProgramError, match="branches on the values"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


@pytest.mark.parametrize("draw", [lambda: secrets.randbelow(3), random.SystemRandom().random])
def test_numbers_of_the_system_are_refused(draw: Callable[[], float]) -> None:
    def loss(model: Any, batch: Any) -> Any:
        return usual_loss(model, batch) * (2.0 if draw() > 9 else 1.0)

    model = network()
    with pytest.raises(ProgramError, match=r"draws numbers from the operating system .*line \d+"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


LOG = logging.getLogger("plain")


@torch.no_grad()
def accuracy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores.argmax(1) == y).float().mean()


@functools.lru_cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size)


@functools.singledispatch
def scaled(value: Any) -> Any:
    return value * 1


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: scaled(batch["x"]),
        lambda model, batch: accuracy(model(batch["x"]), batch["y"]),
        lambda model, batch: table(3),
        lambda model, batch: LOG.info("a step of %d", len(batch["x"])),
        lambda model, batch, prior=torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)): (
            prior.covariance_matrix
        ),
        lambda model, batch, cache=OrderedDict(a=1): cache.move_to_end("a"),
        lambda model, batch, pool=threading.Semaphore(2): pool.acquire() and pool.release(),
        lambda model, batch, rate=LambdaLR(optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), lambda t: 1.0): (
            rate.get_last_lr()
        ),
    ],
    ids=[
        "singledispatch",
        "no_grad",
        "a cache",
        "a logger",
        "a distribution",
        "an order",
        "a semaphore",
        "a scheduler",
    ],
)
def test_what_is_used_and_does_not_change_is_captured(use: Callable[..., Any]) -> None:
    def loss(model: Any, batch: Any) -> Any:
        use(model, batch)
        return usual_loss(model, batch)

    model = network()
    task = Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16, order="sequential")
    assert vgame.prepare(vgame.Job(task, steps=4), validate=60)


def test_a_dictionary_of_an_own_class_is_given_back() -> None:
    """Its class takes no arguments, so it cannot be copied."""

    class Meter(defaultdict[str, float]):
        def __init__(self) -> None:
            super().__init__(float)

    meter = Meter()

    def loss(model: Any, batch: Any) -> Any:
        meter["loss"] += 0.0
        return usual_loss(model, batch)

    model = network()
    assert capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))
    assert not meter

"""A trace refuses code by an error. A loss, module or optimizer that catches this error is refused too: torch's own
loop raises no error there."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim

from vgame.api import Job, prepare
from vgame.errors import ProgramError
from vgame.tasks.task import Task

Value = torch.Tensor


def a_number(x: Value) -> Value:
    try:
        if x.item() < 0.5:
            x = x * 2
    except RuntimeError:
        pass
    return x


def a_condition(x: Value) -> Value:
    with contextlib.suppress(Exception):
        if x < 0.5:
            x = x * 2
    return x


def anything(x: Value) -> Value:
    try:
        x = x * 2 if x < 0.5 else x
    except:  # noqa: E722
        return x
    return x


def a_return(x: Value) -> Value:
    try:
        if x < 0.5:
            x = x * 2
    finally:
        return x  # noqa: B012


def a_list(x: Value) -> Value:
    try:
        wrong = [value for value in x.reshape(1).tolist() if value < 0.5]
    except Exception:
        wrong = []
    return x * (1 + len(wrong))


def a_text(x: Value) -> Value:
    with contextlib.suppress(Exception):
        x = x * float(f"{x.item():.1f}")
    return x


def a_count(x: Value) -> Value:
    rows = x.reshape(1)
    try:
        rows = rows[rows < 0.5] if int((rows < 0.5).sum()) else rows
    except Exception:
        rows = rows * 1
    return rows.sum()


def a_refusal(x: Value) -> Value:
    generator = torch.Generator()
    with contextlib.suppress(Exception):
        x = x + torch.rand((), generator=generator)
    return x


def an_inner_function(x: Value) -> Value:
    def doubled() -> Value:
        return x * 2 if x < 0.5 else x

    try:
        return doubled()
    except Exception:
        return x


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Value) -> Value:
        return x * 1

    @staticmethod
    def backward(_: Any, gradient: Value) -> Value:
        try:
            return gradient * 3 if gradient.abs().sum() < 0.02 else gradient
        except Exception:
            return gradient


def a_backward_pass(x: Value) -> Value:
    return Halved.apply(x)


def a_number_of_numpy(x: Value) -> Value:
    try:
        return x * 3 if float(x.detach().numpy()) < 0.9 else x
    except Exception:
        return x


CELL = """
def in_a_cell(x):
    try:
        return x * 3 if x < 0.9 else x
    except RuntimeError:
        return x
"""


def a_cell_of_a_notebook(x: Value) -> Value:
    names: dict[str, Any] = {}
    exec(compile(CELL, "<ipython-input-7-abc>", "exec"), names)
    return names["in_a_cell"](x)


CATCHES = [a_number, a_condition, anything, a_return, a_list, a_text, a_count, a_refusal, an_inner_function]
CATCHES += [a_backward_pass, a_number_of_numpy, a_cell_of_a_notebook]


def prepared(model: nn.Module, loss: Callable[..., Value], optimizer: optim.Optimizer) -> None:
    prepare(Job(Task(model, loss, optimizer, data(), 16), steps=4, interval=2))


@pytest.mark.parametrize("catches", CATCHES, ids=lambda f: f.__name__)
def test_a_loss_that_catches_the_refusal(catches: Callable[[Value], Value]) -> None:
    model = network()
    with pytest.raises(
        ProgramError,
        match=r"(is caught at|values of its tensors .*,) (test_caught\.py|<ipython-input-7-abc>) line \d+",
    ):
        prepared(model, lambda m, b: catches(usual_loss(m, b)), optim.SGD(model.parameters(), lr=0.1))


class Safe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, *inputs: Value) -> Value:
        x: Value = self.inner(*inputs)
        try:
            if torch.isnan(x).any() or x.abs().max() > 3:
                x = x.clamp(-3, 3)
        except RuntimeError:
            pass
        return x


def test_a_module_that_catches_the_refusal() -> None:
    model = Safe()
    with pytest.raises(ProgramError, match=r"values of its tensors .*test_caught\.py line"):
        prepared(model, usual_loss, optim.SGD(model.parameters(), lr=0.1))


class Careful(optim.SGD):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                try:
                    if p.grad.norm() > 1.5:
                        p.grad.zero_()
                except Exception:
                    pass
        super().step(closure)


def test_an_optimizer_that_catches_the_refusal() -> None:
    model = network()
    with pytest.raises(ProgramError, match=r"is caught at test_caught\.py line"):
        prepared(model, usual_loss, Careful(model.parameters(), lr=0.1))


class Watched(optim.lr_scheduler.LambdaLR):
    """Lowers the rate when a weight is large."""

    def step(self, epoch: Any = None) -> None:
        super().step(epoch)
        try:
            if float(self.optimizer.param_groups[0]["params"][0].norm()) > 1:
                self.optimizer.param_groups[0]["lr"] = 0.01
        except Exception:
            return


def test_a_scheduler_that_catches_the_refusal() -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    task = Task(model, usual_loss, optimizer, data(), 16, schedulers=[Watched(optimizer, lambda step: 1.0)])
    with pytest.raises(ProgramError, match=r"is caught at test_caught\.py line"):
        prepare(Job(task, steps=4, interval=2))


def test_errors_of_the_users_own_may_be_caught() -> None:
    model = network()
    known: dict[str, Value] = {}

    def loss(m: nn.Module, batch: Any) -> Value:
        found = usual_loss(m, batch)
        try:
            found = found * known["factor"]
        except KeyError:
            found = found * 2
        with contextlib.suppress(RuntimeError):
            found = found.reshape(7)
        return found

    prepared(model, loss, optim.SGD(model.parameters(), lr=0.1))


FAILS: dict[str, tuple[type[Exception], Callable[[Value], Value]]] = {
    "a view": (RuntimeError, lambda x: x.t().view(-1)),
    "a view as another": (RuntimeError, lambda x: x.t().view_as(x)),
    "lists of indices": (IndexError, lambda x: x[[0, 1], [0, 1, 2]]),
    "a mask": (IndexError, lambda x: x[torch.ones(9, dtype=torch.bool)]),
    "a copy by index": (IndexError, lambda x: x.index_copy(0, torch.zeros(2, dtype=torch.long), x)),
    "limits": (RuntimeError, lambda x: x.clamp()),
    "a product": (RuntimeError, lambda x: x @ x),
    "a dimension": (IndexError, lambda x: x.sum(5)),
}


@pytest.mark.parametrize("kind", FAILS)
def test_errors_of_torch_have_their_class(kind: str) -> None:
    expected, fails = FAILS[kind]

    def loss(m: nn.Module, batch: Any) -> Value:
        try:
            fails(m(batch["x"]))
        except expected as error:
            assert type(error) is expected
        return usual_loss(m, batch)

    model = network()
    prepared(model, loss, optim.SGD(model.parameters(), lr=0.1))


def _in_a_thread(x: Value) -> Value:
    found: list[Value] = []
    thread = threading.Thread(target=lambda: found.append(x * 2))
    thread.start()
    thread.join()
    return found[0]


STORED: dict[str, tuple[Callable[[Value], Any], str]] = {
    "a thread": (_in_a_thread, r"not of this trace, .*another thread computes it \(compute it in the loss itself"),
    "JSON": (lambda x: json.dumps(x.sum().item()), r"the loss stores numbers or tensors, test_caught\.py line \d+, "),
    "a file": (lambda x: torch.save(x, os.devnull), r"the loss stores numbers or tensors, test_caught\.py line \d+, "),
    "a copy": (deepcopy, r"the loss reads or copies the memory of a tensor, test_caught\.py line \d+, which has none"),
}


@pytest.mark.parametrize("kind", STORED)
def test_numbers_that_leave_the_trace_are_refused_with_their_cause(kind: str) -> None:
    stores, sentence = STORED[kind]

    def loss(m: nn.Module, batch: Any) -> Value:
        found = m(batch["x"])
        stored = stores(found.detach() if kind == "a copy" else found)
        return usual_loss(m, batch) + (stored.mean() if kind == "a thread" else 0)

    model = network()
    with pytest.raises(ProgramError, match=sentence):
        prepared(model, loss, optim.SGD(model.parameters(), lr=0.1))

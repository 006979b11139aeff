"""Functions that fail for some values are refused where the code could catch the error, since a trace raises none."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn, optim

from vgame.errors import ProgramError
from vgame.program import caught
from vgame.program.capture import capture
from vgame.tasks.task import Task

Value = torch.Tensor


def captured(loss: Callable[[nn.Module, Any], Value]) -> None:
    model = network()
    capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


def probabilities(x: Value) -> Value:
    return nn.functional.binary_cross_entropy(x, torch.ones_like(x))


def variances(x: Value) -> Value:
    return nn.functional.gaussian_nll_loss(x, torch.zeros_like(x), x)


def rows(x: Value) -> Value:
    return nn.functional.embedding(x.detach().long(), torch.ones(4, 1))


def gathered(x: Value) -> Value:
    return torch.ones(4).gather(0, x.detach().long().flatten())


def indexed(x: Value) -> Value:
    return torch.ones(4)[x.detach().long()]


def classes(x: Value) -> Value:
    return nn.functional.cross_entropy(torch.zeros(len(x), 4), x.detach().long()[:, 0])


def written_indices(x: Value) -> Value:
    index = torch.zeros(2, dtype=torch.long)
    index[0] = x.detach().long()[0, 0]
    return torch.ones(4).index_select(0, index)


def drawn(x: Value) -> Value:
    return torch.distributions.Normal(torch.zeros(3), x.detach()[0]).rsample()


FAILS = [drawn, probabilities, variances, rows, gathered, indexed, classes, written_indices]


@pytest.mark.parametrize("fails", FAILS, ids=lambda f: f.__name__)
def test_an_error_for_some_values_that_could_be_caught_is_refused(fails: Callable[[Value], Value]) -> None:
    def loss(m: nn.Module, batch: Any) -> Value:
        found = m(batch["x"])
        try:
            return usual_loss(m, batch) + fails(found).mean()
        except (RuntimeError, ValueError, IndexError):
            return found.square().mean()

    sentence = r"fails for [\w ]+ in torch, and code at test_caught_values\.py line \d+.* outside of that code"
    with pytest.raises(ProgramError, match=sentence):
        captured(loss)


class Timer:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        print("end")


@contextlib.contextmanager
def section() -> Iterator[None]:
    with warnings.catch_warnings():
        yield


def raised_again(x: Value) -> Value:
    try:
        return probabilities(x.sigmoid())
    except RuntimeError as error:
        print("out of memory?")
        raise error


def of_another_class(x: Value) -> Value:
    try:
        return x.missing(1)  # type: ignore[no-any-return, operator]
    except (TypeError, AttributeError):
        pass
    try:
        return probabilities(x.sigmoid()) + rows(x).mean()
    except (KeyError, TypeError, ImportError, torch.cuda.OutOfMemoryError):
        return x


def in_contexts(x: Value) -> Value:
    with Timer(), section(), warnings.catch_warnings():
        return probabilities(x.sigmoid()) + rows(x).mean()


def of_numbers(x: Value) -> Value:
    with contextlib.suppress(RuntimeError):
        noise = torch.normal(0.0, 0.1, x.shape) + torch.empty_like(x).normal_(0, 0.1)
        return x + noise * torch.empty_like(x).bernoulli_(0.9)
    return x


def of_constants(x: Value) -> Value:
    with contextlib.suppress(RuntimeError, ValueError):
        return (
            x
            + torch.normal(torch.zeros(4), torch.ones(4))[:1]
            + torch.distributions.Normal(0.0, torch.ones(4)).sample()
        )
    return x


@pytest.mark.parametrize(
    "fails", [raised_again, of_another_class, in_contexts, of_numbers, of_constants], ids=lambda f: f.__name__
)
def test_an_error_that_nothing_can_catch_is_not_refused(fails: Callable[[Value], Value]) -> None:
    captured(lambda m, batch: fails(m(batch["x"])).mean())


def test_indices_of_the_data_are_not_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))

    def loss(m: nn.Module, batch: Any) -> Value:
        try:
            return nn.functional.cross_entropy(m(batch["x"]), batch["y"])
        except (RuntimeError, IndexError):
            return torch.zeros(())

    given = {"x": torch.randint(0, 9, (32, 2)), "y": torch.randint(0, 3, (32,))}
    capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), given, 16))


def test_a_large_failing_call_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(caught, "_zeros", made.append)
    error = RuntimeError("of the trace")
    large = torch.empty(caught.MOST + 1, device="meta")
    assert caught.torchs_error(error, torch.matmul, ((large, large), {})) is error
    assert not made

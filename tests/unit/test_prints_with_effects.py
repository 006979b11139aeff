"""A print in the branch of a check changes nothing else: no `__str__` of the user's, no handler that keeps the text."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

from vgame import ProgramError

Value = torch.Tensor
LOG = logging.Logger("own")


class Keeps(logging.Handler):
    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        Keeps.last = record.getMessage()


class Shows(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), end="")
            self.flush()
        except Exception:
            self.handleError(record)


class Text:
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def __str__(self) -> str:
        self.seen.append(1)
        return "x"

    def mean(self) -> float:
        self.seen.append(1)
        return 0.0


def by_a_text(x: Value) -> Value:
    text = Text(seen := [])
    if torch.isnan(x):
        print(text)
    return x * (1 + len(seen))


def by_a_method(x: Value) -> Value:
    text = Text(seen := [])
    if torch.isnan(x):
        print(text.mean())
    return x * (1 + len(seen))


def by_a_handler(x: Value) -> Value:
    LOG.handlers[:], Keeps.last = [Keeps()], ""
    if torch.isnan(x):
        LOG.warning("nan")
    return x * (0.1 if Keeps.last else 1.0)


def by_a_text_that_a_handler_keeps(x: Value) -> Value:
    LOG.handlers[:], Keeps.last = [Keeps()], ""
    LOG.warning(f"{x.item():.2f}")
    return x * (0.1 if LOG.handlers[0].last.endswith("nan") else 1.0)  # type: ignore[attr-defined]


def by_a_filter(x: Value) -> Value:
    seen: list[bool] = []
    LOG.handlers[:], LOG.filters[:] = [Shows()], [lambda record: seen.append(record.getMessage() == "nan") or True]
    LOG.warning(f"{x.item():.2f}")
    return x * (0.1 if seen[0] else 1.0)


def by_an_element(x: Value) -> Value:
    held = {"a": Text(seen := [])}
    if torch.isnan(x):
        print(held["a"].mean())
    return x * (1 + len(seen))


def by_a_stream(x: Value) -> Value:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        if torch.isnan(x):
            print("nan")
    return x * (0.1 if stream.getvalue() else 1.0)


def by_a_warning(x: Value) -> Value:
    shows, shown = warnings.showwarning, []
    warnings.showwarning = lambda *_, **__: shown.append(1)
    if torch.isnan(x):
        warnings.warn("nan", stacklevel=1)
    warnings.showwarning = shows
    return x * (0.1 if shown else 1.0)


def by_the_error_of_a_text(x: Value) -> Value:
    try:
        if torch.isnan(x):
            print("%d" % x.item())  # noqa: UP031
            raise KeyboardInterrupt
    except ValueError:
        return x * 0.1
    return x


def by_the_error_of_a_print(x: Value) -> Value:
    try:
        if torch.isnan(x):
            print(int(x.item()))
    except ValueError:
        return x * 0.1
    return x


EFFECTS = [by_an_element, by_a_stream, by_a_warning, by_the_error_of_a_text, by_the_error_of_a_print]
EFFECTS += [by_a_text, by_a_method, by_a_handler, by_a_text_that_a_handler_keeps, by_a_filter]


@pytest.mark.parametrize("decide", EFFECTS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_print_with_an_effect_is_refused(decide: Callable[[Value], Value]) -> None:
    with pytest.raises(ProgramError, match=r"values of its tensors .*test_prints_with_effects\.py line \d+"):
        root_of(lambda model, batch: decide(classify(model, batch)))


@pytest.mark.filterwarnings("ignore:checks of finite numbers")
def test_a_handler_that_only_shows_is_accepted() -> None:
    def loss(model: nn.Module, batch: Any) -> Value:
        found = classify(model, batch)
        LOG.handlers[:], LOG.filters[:] = [Shows()], []
        LOG.warning("loss %.3f", found.item())
        if torch.isnan(found):
            LOG.warning("nan")
        return found

    with pytest.warns(UserWarning, match="numbers that the loss prints"):
        assert root_of(loss) == root_of(classify)

"""State outside the model that does not change the training is accepted: caches that the first step fills, tables with
attributes, logs. Nothing of it is damaged."""

from __future__ import annotations

import enum
import functools
import logging
import logging.handlers
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import vgame
from vgame.program.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore")
Loss = Callable[[Any, Any], Any]


def task(loss: Loss) -> vgame.Task:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3), torch.randn(64, 6)
    return vgame.Task(model, loss, optim.SGD(model.parameters(), lr=0.1), {"x": x, "y": x[:, :3].argmax(1)}, 16)


def usual(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def times(weight: Callable[[], Any]) -> Loss:
    return lambda model, batch: usual(model, batch) * weight()


def filled_table() -> Loss:
    known: dict[int, float] = {}

    def weight() -> float:
        if 4 not in known:
            known[4] = 2.0 / 4
        return known[4]

    return times(weight)


def filled_table_of_tensors() -> Loss:
    known: dict[int, torch.Tensor] = {}

    def weight() -> torch.Tensor:
        if 4 not in known:
            known[4] = torch.tril(torch.ones(4, 4))
        return known[4].mean()

    return times(weight)


def cached_property() -> Loss:
    class Settings:
        @functools.cached_property
        def weight(self) -> float:
            return math.sqrt(2.0)

    held = Settings()
    return times(lambda: held.weight)


def attribute_set_once() -> Loss:
    class Criterion(nn.Module):
        shape: tuple[int, ...] | None = None

        def forward(self, model: Any, batch: Any) -> Any:
            if self.shape is None:
                self.shape = tuple(batch["x"].shape)
            return usual(model, batch) * self.shape[1]

    return Criterion()


def flags() -> Loss:
    class Parts(enum.Flag):
        ENTROPY = 1
        NORM = 2

    return times(lambda: 1.0 if Parts.ENTROPY in (Parts.ENTROPY | Parts.NORM) else 0.0)


def table_with_attributes() -> Loss:
    class Settings(dict):
        __getattr__ = dict.__getitem__

    held = Settings(weight=1.5)
    return times(lambda: held.weight)


def table_without_own_attributes() -> Loss:
    class Settings(dict):
        __slots__ = ()
        __getattr__ = dict.__getitem__

    held = Settings(weight=1.5)
    return times(lambda: held.weight)


def not_a_number() -> Loss:
    held = {"best": float("nan"), "weight": 1.5}
    return times(lambda: held["weight"])


def keys_without_text() -> Loss:
    class Key:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    key = Key()
    held = {key: 1.5}
    return times(lambda: held[key])


def closed_buffers() -> Loss:
    import io

    held = SimpleNamespace(text=io.StringIO("a"), view=memoryview(b"abc"), some=memoryview(b"abcdef")[::2], weight=1.5)
    held.text.close()
    held.view.release()
    return times(lambda: held.weight)


def numpy_iterator() -> Loss:
    held = SimpleNamespace(each=np.nditer(np.zeros(3)), weight=1.5)
    return times(lambda: held.weight)


@pytest.mark.parametrize(
    "make",
    [
        filled_table, filled_table_of_tensors, cached_property, attribute_set_once, flags, table_with_attributes,
        table_without_own_attributes, not_a_number, keys_without_text, closed_buffers, numpy_iterator,
    ],
)  # fmt: skip
def test_state_that_does_not_change_the_training_is_accepted(make: Callable[[], Loss]) -> None:
    assert vgame.prepare(vgame.Job(task(make()), steps=30, interval=10, seed=3), validate=60)


def test_a_log_that_rotates_is_not_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Restoring the handler's attributes would give it the file that it has closed."""
    log = logging.Logger("rotates")
    log.addHandler(logging.handlers.RotatingFileHandler(tmp_path / "log", maxBytes=100, backupCount=1))

    def loss(model: Any, batch: Any) -> Any:
        log.info("x" * 80)
        return usual(model, batch)

    capture(task(loss))
    log.info("x" * 80)
    assert "Error" not in capsys.readouterr().err


def test_repeated_words_of_an_array_are_read_once() -> None:
    """A view of 4 GiB over one word."""
    held = SimpleNamespace(table=np.broadcast_to(np.float32(1.5), (2**15, 2**15)))
    start = time.monotonic()
    capture(task(times(lambda: float(held.table[0, 0]))))
    assert time.monotonic() - start < 20

"""A data set that counts, and changes its samples later than the compared steps, is refused."""

from __future__ import annotations

import itertools
import queue
import threading
import types
from array import array
from collections import UserDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from optimizer_steps import loss, network
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

import vgame

pytestmark = pytest.mark.usefixtures("one_thread")
VARIABLE: ContextVar[list[int]] = ContextVar("read", default=[0])  # noqa: B039


def numbers() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


def filled() -> queue.Queue[int]:
    made = queue.Queue[int]()
    for n in range(2_000):
        made.put(n)
    return made


def local() -> threading.local:
    made = threading.local()
    made.n = 0
    return made


def add(held: Any) -> int:
    held.n += 1
    return held.n


def add_first(held: Any) -> int:
    held[0] += 1
    return held[0]


#: Name: (makes an object, counts by it).
COUNTERS: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = {
    "a namespace": (lambda: types.SimpleNamespace(n=0), add),
    "a thread's attribute": (local, add),
    "a queue": (filled, lambda held: held.get()),
    "an array": (lambda: array("i", [0]), add_first),
    "a dictionary of Python's library": (lambda: UserDict({0: 0}), add_first),
    "a method of an iterator": (lambda: itertools.count().__next__, lambda held: held()),
    "a generator": (numbers, next),
    "a variable": (lambda: VARIABLE, lambda held: add_first(held.get())),
}


class Counted(Dataset):
    def __init__(self, held: Any, count: Callable[[Any], int]) -> None:
        self.held, self.count = held, count

    def __len__(self) -> int:
        return 64

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        scale = 1.0 if self.count(self.held) < 1_000 else 0.2
        return {"x": torch.full((6,), n / 64 * scale), "y": torch.tensor(n % 3)}


@pytest.mark.parametrize(("make", "count"), COUNTERS.values(), ids=COUNTERS)
def test_a_data_set_that_counts_is_refused(make: Callable[[], Any], count: Callable[[Any], int]) -> None:
    model = network()
    task = vgame.Task(model, loss, SGD(model.parameters(), lr=0.1), DataLoader(Counted(make(), count), batch_size=16))
    with pytest.raises(vgame.VgameError, match="has changed after the compared steps"):
        vgame.prepare(vgame.Job(task, steps=200), validate=60)

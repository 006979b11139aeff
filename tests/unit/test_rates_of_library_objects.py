"""A scheduler's function that reads a library's object is refused if the loss changes the object, of any kind."""

from __future__ import annotations

import configparser
import contextvars
import datetime
import enum
import multiprocessing
import pathlib
import queue
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Box:
    n = 1.0


class Rate(enum.Enum):
    LOW = 0.5


def variable() -> contextvars.ContextVar[float]:
    made = contextvars.ContextVar("made", default=1.0)
    made.set(1.0)
    return made


def parser() -> configparser.ConfigParser:
    made = configparser.ConfigParser()
    made["rates"] = {"n": "1.0"}
    return made


def local() -> threading.local:
    made = threading.local()
    made.n = 1.0
    return made


KEPT: dict[str, float] = {"n": 1.0}
BOX = Box()


def behind() -> Any:
    return types.MappingProxyType(KEPT)


#: Name: (make, change, read).
CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], object], Callable[[Any], float]]] = {
    "mp.Value": (lambda: multiprocessing.Value("d", 1.0), lambda x: setattr(x, "value", 0.5), lambda x: x.value),
    "mp.Array": (lambda: multiprocessing.Array("d", 2), lambda x: x.__setitem__(0, 0.5), lambda x: 1 + x[0]),
    "ContextVar": (variable, lambda x: x.set(0.5), lambda x: x.get()),
    "ConfigParser": (parser, lambda x: x.set("rates", "n", "0.5"), lambda x: x.getfloat("rates", "n")),
    "a section": (lambda: parser()["rates"], lambda x: x.__setitem__("n", "0.5"), lambda x: float(x["n"])),
    "a proxy": (behind, lambda x: KEPT.update(n=0.5), lambda x: x["n"]),
    "a weak reference": (lambda: weakref.ref(BOX), lambda x: setattr(BOX, "n", 0.5), lambda x: x().n),
    "a weak proxy": (lambda: weakref.proxy(BOX), lambda x: setattr(BOX, "n", 0.5), lambda x: x.n),
    "a memoryview": (lambda: memoryview(bytearray(b"ab")), lambda x: x.__setitem__(0, 3), lambda x: 1.0 / x[0]),
    "threading.local": (local, lambda x: setattr(x, "n", 0.5), lambda x: x.n),
    "a queue": (queue.Queue, lambda x: x.put(1), lambda x: 1.0 / (1 + x.qsize())),
    "an event": (threading.Event, lambda x: x.set(), lambda x: 0.5 if x.is_set() else 1.0),
}


def prepared(held: Any, read: Callable[[Any], float], change: Callable[[Any], object]) -> Any:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        change(held)
        return usual_loss(model, batch)

    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda step: read(held))
    return lower_task(Task(model, loss, optimizer, data(), 16, schedulers=[schedule]), None, 4)


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_a_rate_that_reads_a_changed_object_is_refused(case: Any) -> None:
    make, change, read = case
    KEPT["n"], BOX.n = 1.0, 1.0
    with pytest.raises(ProgramError):
        prepared(make(), read, change)


CONSTANT: dict[str, tuple[Any, Callable[[Any], float]]] = {
    "a member": (Rate.LOW, lambda x: x.value),
    "a method": ([BOX.__init__, str.upper], lambda x: 1.0 if x[1]("a") == "A" else 0.5),
    "a date": (datetime.date(2026, 1, 1), lambda x: 1.0 / x.month),
    "a path": (pathlib.PurePath("0.5"), lambda x: float(x.name)),
    "a pattern": (re.compile("n"), lambda x: 1.0 if x.match("n") else 0.5),
    "a device": (torch.device("cpu"), lambda x: 1.0 if x.type == "cpu" else 0.5),
    "a proxy": (types.MappingProxyType({"n": 0.5}), lambda x: x["n"]),
    "a parser": (parser(), lambda x: x.getfloat("rates", "n")),
}


@pytest.mark.parametrize("case", CONSTANT.values(), ids=CONSTANT)
def test_a_rate_may_read_an_unchanged_object(case: Any) -> None:
    held, read = case
    assert prepared(held, read, lambda x: None)

"""A counter is found in every kind of object that can hold it: it would be captured with its first value."""

from __future__ import annotations

import array
import ctypes
import decimal
import importlib
import io
import itertools
import multiprocessing
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import optim

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

importlib.import_module("own_counts")  # which some losses read by its name


def in_place(held: Any, read: Callable[[Any], int], add: Callable[[Any], object]) -> Callable[[], int]:
    def count() -> int:
        add(held)
        return read(held)

    return count


def first(held: Any) -> int:
    return held[0]


def add_to_first(held: Any) -> None:
    held[0] += 1


def value(held: Any) -> int:
    return held.value


def add_to_value(held: Any) -> None:
    held.value += 1


def local() -> threading.local:
    made = threading.local()
    made.value = 0
    return made


def of_a_cache(keep: Callable[..., Any]) -> Callable[[], int]:
    @keep
    def box(name: str) -> dict[str, int]:
        return {"n": 0}

    return in_place(box, lambda box: box("a")["n"], lambda box: box("a").update(n=box("a")["n"] + 1))


def by_a_module() -> int:
    import own_counts

    own_counts.step += 1
    return own_counts.step


def by_another_name() -> int:
    import own_counts as held

    held.step += 1
    return held.step


def by_a_list_of_a_module() -> int:
    from own_counts import seen as list_of_steps

    list_of_steps.append(1)
    return len(list_of_steps)


VARIABLE: ContextVar[int] = ContextVar("count", default=0)


def by_a_context() -> int:
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def by_the_name_of_a_module() -> int:
    held = sys.modules["own_counts"]
    name = "step"
    setattr(held, name, getattr(held, name) + 1)
    return getattr(held, name)


def by_a_number_of_numpy() -> int:
    held = sys.modules["own_counts"]
    held.number = held.number + np.int64(1)
    return int(held.number)


def by_a_tuple() -> int:
    held = sys.modules["own_counts"]
    held.pair = ("count", held.pair[1] + 1)
    return int(held.pair[1])


def by_a_text() -> int:
    globals()["counted"] = globals().get("counted", 0) + 1
    return globals()["counted"]


def by_the_environment() -> int:
    os.environ["OWN_COUNT"] = str(int(os.environ.get("OWN_COUNT", "0")) + 1)
    return int(os.environ["OWN_COUNT"])


class Key:
    """A key of a weak dictionary."""


KEY, WEAK = Key(), weakref.WeakKeyDictionary[Key, int]()


def by_a_weak_dictionary() -> int:
    WEAK[KEY] = WEAK.get(KEY, 0) + 1
    return WEAK[KEY]


TYPED = """
steps = 0

def count():
    global steps
    steps += 1
    return steps
"""


def typed(file: str) -> Callable[[], int]:
    """A function that a user types at a prompt."""
    names: dict[str, Any] = {}
    exec(compile(TYPED, file, "exec"), names)
    return names["count"]


COUNTERS: dict[str, Callable[[], int]] = {
    "a number of NumPy": in_place(SimpleNamespace(value=np.int64(0)), value, add_to_value),
    "a decimal number": in_place(SimpleNamespace(value=decimal.Decimal(0)), value, add_to_value),
    "bytes": in_place(bytearray(1), first, add_to_first),
    "an array": in_place(array.array("i", [0]), first, add_to_first),
    "a text in memory": in_place(io.StringIO(), lambda held: len(held.getvalue()), lambda held: held.write("x")),
    "a number of C": in_place(ctypes.c_int(0), value, add_to_value),
    "a number of several processes": in_place(multiprocessing.Value("i", 0), value, add_to_value),
    "a thread's attribute": in_place(local(), value, add_to_value),
    "a method of an iterator": itertools.count().__next__,
    "a cell of IPython": typed("<ipython-input-7-0123456789ab>"),
    "a line of Python's prompt": typed("<stdin>"),
    "a queue": in_place(queue.Queue(), lambda held: held.qsize(), lambda held: held.put(0)),
    "a module": by_a_module,
    "a module by another name": by_another_name,
    "a list of a module": by_a_list_of_a_module,
    "a module by its name": by_the_name_of_a_module,
    "a number of NumPy in a module": by_a_number_of_numpy,
    "a tuple of a module": by_a_tuple,
    "a name by its text": by_a_text,
    "the environment": by_the_environment,
    "a variable of a context": by_a_context,
    "a weak dictionary": by_a_weak_dictionary,
    "a cache": of_a_cache(cache),
    "a small cache": of_a_cache(lru_cache(maxsize=4)),
}


@pytest.mark.parametrize("count", COUNTERS.values(), ids=COUNTERS)
def test_a_counter_is_refused(count: Callable[[], int]) -> None:
    def loss(model: Any, batch: Any) -> Any:
        return usual_loss(model, batch) * (2.0 if count() > 8 else 1.0)

    model = network()
    with pytest.raises(ProgramError, match=r"the loss or the model changes .*, which a program does not record"):
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))


class Settings:
    """An object in place of a module, without a name."""

    __file__ = "settings.py"


def test_equal_values_written_again_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "settings", Settings())  # type: ignore[arg-type]
    monkeypatch.setenv("OWN_TEXT", "1")

    def loss(model: Any, batch: Any) -> Any:
        os.environ["OWN_TEXT"] = "1"
        sys.modules["own_counts"].pair = ("count", int("1000"))
        return usual_loss(model, batch) * next(steps)

    steps = count_up()
    sys.modules["own_counts"].pair = ("count", int("1000"))
    model = network()
    with pytest.raises(ProgramError) as found:
        capture(Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16))
    assert "OWN_TEXT" not in str(found.value)
    assert "pair" not in str(found.value)


def count_up() -> Any:
    yield from (1.0, 2.0, 3.0, 4.0)

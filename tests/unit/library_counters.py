"""Counters that an object or a function of a library keeps.

Out: by name, a function that makes a counter: it gives another number at each call.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import csv
import ctypes
import decimal
import email.message
import functools
import graphlib
import itertools
import json
import logging
import mmap
import queue
import random
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pydantic
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

Count = Callable[[], float]


def plain() -> Count:
    n = [0]

    def count() -> int:
        n[0] += 1
        return n[0]

    return count


def decorated(decorator: Callable[[Any], Any]) -> Callable[[], Count]:
    return lambda: decorator(plain())


def on(make: Callable[[], Any], add: Callable[[Any], object], read: Callable[[Any], float]) -> Callable[[], Count]:
    """A counter that an object keeps."""

    def counter() -> Count:
        held = make()

        def count() -> float:
            add(held)
            return read(held)

        return count

    return counter


def add(held: Any) -> None:
    held.n = getattr(held, "n", 0) + 1


def read(held: Any) -> float:
    return held.n


def keeps(make: Callable[[], Any]) -> Callable[[], Count]:
    """A counter in an attribute of an object."""
    return on(make, add, read)


def by_a_context() -> Count:
    inner = plain()

    @contextlib.contextmanager
    def phase() -> Iterator[float]:
        yield inner()

    def count() -> float:
        with phase() as n:
            return n

    return count


def by_a_setter() -> Count:
    inner, seen = plain(), [0.0]

    class Phase:
        def _set(self, _: str) -> None:
            seen[0] = inner()

        mode = property(fset=_set)

    phase = Phase()

    def count() -> float:
        phase.mode = "train"
        return 0.0 if inner() < 16 else 9.0

    return count


def by_a_cached_property() -> Count:
    class State:
        inner = staticmethod(plain())

        @functools.cached_property
        def n(self) -> float:
            return type(self).inner()

    return lambda: State().n


def by_a_metaclass() -> Count:
    class Meta(type):
        made = 0

        def __call__(cls) -> Any:
            cls.made += 1
            return super().__call__()

    class Batch(metaclass=Meta):
        pass

    def count() -> float:
        Batch()
        return Batch.made

    return count


def of_a_generator(make: Callable[[], Iterator[float]]) -> Callable[[], Count]:
    def counter() -> Count:
        held = make()
        return lambda: next(held)

    return counter


def stages() -> Iterator[float]:
    for n in [1] * 7 + [9] * 99:  # noqa: UP028
        yield n


def inner_stages() -> Iterator[float]:
    yield from itertools.chain([1] * 7, itertools.repeat(9))


class Stats(dict):
    """A dictionary with attributes."""


class Level(float):
    """A number with attributes."""


class Box:
    n = 0


def weak() -> Any:
    held = Box()
    Box.kept = held  # type: ignore[attr-defined]
    return weakref.ref(held)


class Pair(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int),)


def message() -> email.message.Message:
    made = email.message.Message()
    made["n"] = "0"
    return made


def rotate(held: dict[str, Any]) -> None:
    first = next(iter(held))
    held[first] = held.pop(first)


def annealed() -> Count:
    dummy = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    anneal = StepLR(dummy, 7, 9.0)

    def count() -> float:
        dummy.step()
        anneal.step()
        return dummy.param_groups[0]["lr"]

    return count


def of_builtins() -> Count:
    builtins.COUNT = 0  # type: ignore[attr-defined]

    def count() -> float:
        builtins.COUNT += 1  # type: ignore[attr-defined]
        return COUNT  # type: ignore[name-defined]  # noqa: F821

    return count


def of_torch() -> Count:
    torch.count = 0  # type: ignore[attr-defined]

    def count() -> float:
        torch.count += 1  # type: ignore[attr-defined]
        return torch.count  # type: ignore[attr-defined]

    return count


def of_a_class_of_torch() -> Count:
    nn.Linear.calls = 0  # type: ignore[assignment]

    def count() -> float:
        nn.Linear.calls += 1  # type: ignore[operator]
        return nn.Linear.calls  # type: ignore[return-value]

    return count


def of_a_cache() -> Count:
    table = functools.lru_cache(lambda key: 1.0)

    def count() -> float:
        table(0)
        return table.cache_info().hits

    return count


def of_many_parts() -> Count:
    vocabulary, counts = {f"w{i}": i for i in range(30_000)}, {f"k{i}": 0 for i in range(1_500)}

    def count() -> float:
        counts["k0"] += 1
        return counts["k0"] + 0 * len(vocabulary)

    return count


VARIABLE: ContextVar[list[int]] = ContextVar("counted", default=[0])  # noqa: B039


def of_a_default() -> Count:
    def count() -> float:
        VARIABLE.get()[0] += 1
        return VARIABLE.get()[0]

    return count


def of_a_class_and_its_object() -> Count:
    class Kept:
        n = 0

    held = Kept()
    held.n = 4  # hides the counter of the class from the object's readers

    def count() -> float:
        Kept.n += 1
        return Kept.n

    return lambda: count() + 0 * held.n


def of_exec() -> Count:
    names: dict[str, Any] = {}
    exec("class Kept:\n    n = 0", names)
    return keeps(names["Kept"])()


class Settings(pydantic.BaseModel):
    _n: int = pydantic.PrivateAttr(0)


class Own(np.ndarray):
    """An array with attributes."""


def logger() -> logging.Logger:
    made = logging.getLogger("seen")
    made.seen = {0: 0}  # type: ignore[attr-defined]
    return made


def error() -> ValueError:
    return ValueError([0])


def lists() -> dict[int, list[int]]:
    return {k: [0] for k in range(1_500)}


def add_private(held: Any) -> None:
    held._n += 1


def put(held: Any) -> None:
    held.put_nowait(0)


def pop(held: Any) -> float:
    return 9.0 if next(iter(held)) == "h" else 1.0


def add_first(held: Any) -> None:
    held[0] = held[0] + 1


#: Name: makes a counter.
COUNTERS: dict[str, Callable[[], Count]] = {
    "no_grad": decorated(torch.no_grad()),
    "inference_mode": decorated(torch.inference_mode()),
    "autocast": decorated(torch.autocast("cpu", enabled=False)),
    "compiler.disable": decorated(torch.compiler.disable),
    "wraps": decorated(lambda f: functools.wraps(f)(lambda: f())),
    "singledispatch": lambda: functools.partial(functools.singledispatch(decorated(lambda f: lambda _: f())()), 1),
    "vectorize": lambda: functools.partial(np.vectorize(decorated(lambda f: lambda _: f())()), 1),
    "an encoder": lambda: lambda held=json.JSONEncoder(default=decorated(lambda f: lambda _: f())()): float(
        held.encode({1})
    ),
    "contextmanager": by_a_context,
    "a setter": by_a_setter,
    "cached_property": by_a_cached_property,
    "a metaclass": by_a_metaclass,
    "a loop of a generator": of_a_generator(stages),
    "an inner generator": of_a_generator(inner_stages),
    "pairs of an iterator": of_a_generator(lambda: (b for _, b in itertools.pairwise([1] * 9 + [9] * 99))),
    "an array's iterator": of_a_generator(lambda: np.array([1] * 7 + [9] * 99).flat),
    "an optimizer beside the job": annealed,
    "a logger": keeps(lambda: logging.getLogger("counted")),
    "a subclass of dict": keeps(lambda: Stats(name="a")),
    "a subclass of float": keeps(lambda: Level(1.0)),
    "a partial function": keeps(lambda: functools.partial(max, 1)),
    "a cached function": keeps(lambda: functools.lru_cache(max)),
    "a generator of random numbers": keeps(lambda: type("Own", (random.Random,), {})(1)),
    "an error": keeps(lambda: ValueError("a")),
    "this thread": keeps(threading.current_thread),
    "a module without a file": keeps(lambda: types.ModuleType("settings")),
    "a module of Python": of_builtins,
    "a module of a library": of_torch,
    "a class of a library": of_a_class_of_torch,
    "hits of a cache": of_a_cache,
    "a weak reference": on(weak, lambda held: add(held()), lambda held: held().n),
    "an array of objects": on(
        lambda: np.array([Box()], dtype=object), lambda held: add(held[0]), lambda held: held[0].n
    ),
    "an order of keys": on(
        lambda: OrderedDict.fromkeys("abcdefgh"), lambda held: held.move_to_end(next(iter(held))), pop
    ),
    "an order of a dictionary": on(lambda: dict.fromkeys("abcdefgh"), rotate, pop),
    "a large dictionary": of_many_parts,
    "lists of a large dictionary": on(lists, lambda held: add_first(held[5]), lambda held: held[5][0]),
    "a variable's default": of_a_default,
    "a class beside its object": of_a_class_and_its_object,
    "keys with one text": on(lambda: {1: 0, "1": 0}, lambda x: x.__setitem__(1, x[1] + 1), lambda x: x[1]),
    "a list of functions": on(lambda: [min] * 9 + [max] * 99, lambda held: held.append(held.pop(0)) or held.pop(), len),
    "a class of exec": of_exec,
    "a private attribute": on(Settings, add_private, lambda held: held._n),
    "a dictionary of a logger": on(logger, lambda held: add_first(held.seen), lambda held: held.seen[0]),
    "a factory of values": on(
        lambda: defaultdict(itertools.count().__next__), lambda held: held.clear(), lambda held: held[0]
    ),
    "an array of an own class": keeps(lambda: np.zeros(2).view(Own)),
    "an argument of an error": on(error, lambda held: add_first(held.args[0]), lambda held: held.args[0][0]),
    "a simple queue": on(queue.SimpleQueue, put, lambda held: held.qsize()),
    "a queue of asyncio": on(asyncio.Queue, put, lambda held: held.qsize()),
    "a semaphore": on(lambda: threading.Semaphore(0), lambda held: held.release(), lambda held: held._value),
    "a context of decimals": on(
        decimal.Context, lambda held: setattr(held, "prec", held.prec + 1), lambda held: held.prec - 28
    ),
    "memory of a file": on(lambda: mmap.mmap(-1, 8), add_first, lambda held: held[0]),
    "a structure of C": on(Pair, add, read),
    "a message": on(
        message, lambda held: held.replace_header("n", str(int(held["n"]) + 1)), lambda held: int(held["n"])
    ),
    "rows of a table": on(lambda: csv.reader(["1"] * 99), next, lambda held: held.line_num),
    "a sorter": on(graphlib.TopologicalSorter, lambda held: held.add(object()), lambda held: len(held._node2info)),
    "a stack of contexts": on(
        contextlib.ExitStack, lambda held: held.callback(print), lambda held: len(held._exit_callbacks)
    ),
}  # fmt: skip

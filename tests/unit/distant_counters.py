"""Counters that a function reaches by a name made at run time, through a library, or in an object of C.

Out: by name, a function that makes a counter: it gives another number at each call.
"""

from __future__ import annotations

import concurrent.futures
import decimal
import inspect
import logging
import math
import re
import struct
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import torch
from library_counters import Count, add_first, of_a_generator, on
from torch import nn

LISTED, TABLE = [0], {"n": [0]}
HERE = sys.modules[__name__]


#: What counters of this file add to libraries.
ADDED = ((math, "counted"), (torch, "counted"), (np, "counted"), (nn.Module, "stages_seen"), (nn.Linear, "called"))


def on_math() -> Count:
    math.counted = {0: 0}  # type: ignore[attr-defined]

    def count() -> float:
        math.counted[0] += 1  # type: ignore[attr-defined]
        return math.counted[0]  # type: ignore[attr-defined]

    return count


def on_torch() -> Count:
    torch.counted = [0]  # type: ignore[attr-defined]

    def count() -> float:
        torch.counted[0] += 1  # type: ignore[attr-defined]
        return torch.counted[0]  # type: ignore[attr-defined]

    return count


def on_numpy() -> Count:
    np.counted = Counter()  # type: ignore[attr-defined]

    def count() -> float:
        np.counted["a"] += 1  # type: ignore[attr-defined]
        return np.counted["a"]  # type: ignore[attr-defined]

    return count


def on_a_class() -> Count:
    nn.Module.stages_seen = deque([1] * 7 + [9] * 99)  # type: ignore[assignment]
    return lambda: nn.Module.stages_seen.popleft()  # type: ignore[operator,union-attr]


def on_the_class_of() -> Count:
    held = nn.Linear(1, 1)
    nn.Linear.called = 0  # type: ignore[assignment]

    def count() -> float:
        type(held).called += 1  # type: ignore[operator]
        return held.called  # type: ignore[return-value]

    return count


def on_a_named_logger() -> Count:
    logging.getLogger("far.away").n = 0  # type: ignore[attr-defined]

    def count() -> float:
        held: Any = logging.getLogger("far." + "away")
        held.n += 1
        return held.n

    return count


def of_a_logger(name: str, make: Callable[[], Any], step: Callable[[Any], float]) -> Callable[[], Count]:
    def counter() -> Count:
        setattr(logging.getLogger("far.off"), name, make())
        return lambda: step(getattr(logging.getLogger("far.off"), name))

    return counter


def by_globals() -> Count:
    def count() -> float:
        add_first(globals()["LIST" + "ED"])
        return globals()["LIST" + "ED"][0]

    return count


def by_vars() -> Count:
    def count() -> float:
        add_first(vars(HERE)["LIST" + "ED"])
        return vars(HERE)["LIST" + "ED"][0]

    return count


def by_getattr() -> Count:
    def count() -> float:
        held = getattr(HERE, "TAB" + "LE")["n"]
        held[0] += 1
        return held[0]

    return count


def by_the_module_s_dictionary() -> Count:
    def count() -> float:
        add_first(HERE.__dict__["LIST" + "ED"])
        return HERE.__dict__["LIST" + "ED"][0]

    return count


def by_sys_modules() -> Count:
    def count() -> float:
        held: Any = sys.modules["distant" + "_counters"]
        held.LISTED[0] += 1
        return held.LISTED[0]

    return count


def by_a_frame() -> Count:
    def count() -> float:
        add_first(sys._getframe().f_globals["LIST" + "ED"])
        return sys._getframe().f_globals["LIST" + "ED"][0]

    return count


def by_a_function_s_globals() -> Count:
    def count() -> float:
        add_first(by_eval.__globals__["LIST" + "ED"])
        return by_eval.__globals__["LIST" + "ED"][0]

    return count


def by_inspect() -> Count:
    def count() -> float:
        held = inspect.getmodule(by_eval).__dict__["LIST" + "ED"]
        add_first(held)
        return held[0]

    return count


def of_a_reentrant_lock() -> Count:
    held = threading.RLock()

    def count() -> float:
        held.acquire()
        return float(repr(held).partition("count=")[2].split()[0])

    return count


def by_eval() -> Count:
    def count() -> float:
        eval("LISTED.append(0)")
        return eval("len(LISTED)")

    return count


def of_subclasses() -> Count:
    class Base:
        pass

    kept = []

    def count() -> float:
        kept.append(0)
        type(f"Kind{len(kept)}", (Base,), {"itself": Base})
        return 1.0 * len(Base.__subclasses__())

    return lambda hidden=count: hidden()


def of_a_text() -> Count:
    def documented() -> None:
        """0"""

    def count() -> float:
        documented.__doc__ = str(int(documented.__doc__ or 0) + 1)
        return int(documented.__doc__)

    return count


def of_annotations() -> Count:
    def annotated() -> None: ...

    annotated.__annotations__ = {"n": 0}

    def count() -> float:
        annotated.__annotations__["n"] += 1
        return annotated.__annotations__["n"]

    return count


def of_a_coroutine() -> Count:
    class Step:
        def __await__(self) -> Any:
            for n in [1] * 7 + [9] * 99:  # noqa: UP028
                yield n

    async def stages() -> None:
        await Step()

    held = stages()
    return lambda: held.send(None)


def of_an_async_generator() -> Count:
    async def stages() -> AsyncIterator[float]:
        for n in [1] * 7 + [9] * 99:
            yield n

    held = stages()

    def count() -> float:
        try:
            held.__anext__().send(None)  # type: ignore[attr-defined]
        except StopIteration as stop:
            return stop.value
        return 0.0

    return count


def of_a_lock(make: Callable[[], Any]) -> Callable[[], Count]:
    def counter() -> Count:
        held = make()
        return lambda: 1.0 if held.acquire(blocking=False) else 9.0

    return counter


def of_decimals() -> Count:
    def count() -> float:
        decimal.getcontext().prec += 1
        return decimal.getcontext().prec - 28

    return count


def of_a_future() -> Count:
    held: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
    held.set_result([0])

    def count() -> float:
        add_first(held.result())
        return held.result()[0]

    return count


#: Name: makes a counter.
DISTANT: dict[str, Callable[[], Count]] = {
    "a dictionary on a module of Python": on_math,
    "a list on a module of torch": on_torch,
    "a counter on a module of NumPy": on_numpy,
    "a queue on a class of torch": on_a_class,
    "a class of a library's object": on_the_class_of,
    "a logger by its name": on_a_named_logger,
    "a list of a logger by its name": of_a_logger(
        "held", lambda: [0], lambda held: held.append(0) or float(len(held))
    ),
    "globals by name": by_globals,
    "vars of a module": by_vars,
    "getattr of a module": by_getattr,
    "the dictionary of a module": by_the_module_s_dictionary,
    "sys.modules": by_sys_modules,
    "eval": by_eval,
    "globals of a frame": by_a_frame,
    "globals of a function": by_a_function_s_globals,
    "inspect": by_inspect,
    "a reentrant lock": of_a_reentrant_lock,
    "subclasses": of_subclasses,
    "the text of a function": of_a_text,
    "annotations of a function": of_annotations,
    "a coroutine": of_a_coroutine,
    "an async generator": of_an_async_generator,
    "a lock": of_a_lock(threading.Lock),
    "matches": of_a_generator(lambda: (float(m.start()) for m in re.finditer("a", "a" * 99))),
    "an iterator of matches": on(
        lambda: re.finditer("a", "a" * 99), next, lambda held: 9.0 if next(held).start() > 16 else 1.0
    ),
    "an iterator of structures": on(
        lambda: struct.iter_unpack("b", bytes(range(99))), next, lambda held: 9.0 if next(held)[0] > 16 else 1.0
    ),
    "an iterator of memory": on(
        lambda: iter(memoryview(bytes(range(99)))), next, lambda held: 9.0 if next(held) > 16 else 1.0
    ),
    "the precision of decimals": of_decimals,
    "the result of a future": of_a_future,
}  # fmt: skip

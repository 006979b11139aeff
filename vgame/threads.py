"""Threads of our own: they share loops and tiles, while the library's threads rest.

In: work in parts whose results do not depend on who does them. Out: the parts' results, in order.

A library's threads (OpenMP) go on spinning for milliseconds after each of its parallel regions, on the cores that our loops need. So
within a step each of our threads calls the library with one thread, and nobody spins.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from typing import TypeVar

Result = TypeVar("Result")

#: Elements of a pointwise loop that are worth a thread.
WORTH = 1 << 17

#: How many threads share the work of this place; 0: as many as the library has.
_sharing: ContextVar[int] = ContextVar("sharing", default=0)


def threads() -> int:
    """How many threads may share the work of this place: all of them, or one where it is already shared."""
    return _sharing.get() or _all()


def _all() -> int:
    """As many as torch has, or the processors of a process that has not loaded it: hashing alone is no reason to."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else len(os.sched_getaffinity(0))


def _set_library(count: int) -> None:
    """The library's number of threads, which is one of this thread of the process: others have numbers of their own."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


@contextmanager
def ours() -> Iterator[None]:
    """Within the block the library computes with one thread, and what is shared by us has all of them."""
    if _sharing.get():
        yield
        return
    count = _all()
    token = _sharing.set(count)
    _set_library(1)
    try:
        yield
    finally:
        _set_library(count)
        _sharing.reset(token)


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="vgame")


def each(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """The jobs' results, in order; every thread takes the next job that waits, and shares nothing of it any further."""
    helpers = min(threads(), len(jobs)) - 1
    if helpers < 1:
        return [job() for job in jobs]
    results: dict[int, Result] = {}
    waiting = deque(enumerate(jobs))

    def work() -> None:
        token = _sharing.set(1)
        try:
            while waiting:
                try:
                    place, job = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                results[place] = job()
        finally:
            waiting.clear()  # after an error nobody goes on
            _sharing.reset(token)

    def help_out() -> None:
        _set_library(1)
        work()

    with ours():
        pool = _helpers(threads() - 1)
        others = [pool.submit(copy_context().run, help_out) for _ in range(helpers)]
        try:
            work()
        finally:
            failures = [other.exception() for other in others]
    for failure in failures:
        if failure:
            raise failure
    return [results[place] for place in range(len(jobs))]


def share(count: int, size: int, run: Callable[[int, int], Result], worth: int | None = None) -> list[Result]:
    """[run(first, last), ...] over 0..count-1 in order; an item has `size` elements; `worth` (WORTH) are worth a thread."""
    parts = max(1, min(threads(), count, count * size // (worth or WORTH)))
    edges = [count * i // parts for i in range(parts + 1)]
    return each([partial(run, *edges[i : i + 2]) for i in range(parts)])

"""vgame's own threads. They share loops and tiles, while the library's threads are idle.

In: work in parts whose results do not depend on the thread. Out: the parts' results, in order.

A library's threads (OpenMP) keep spinning for milliseconds after each of its parallel regions, on the cores that
vgame's loops need. So within a step each of vgame's threads calls the library with one thread, and none spins.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from queue import SimpleQueue
from threading import Lock, Thread
from types import ModuleType
from typing import TypeVar

Result = TypeVar("Result")
Runner = Callable[[Sequence[Callable[[], None]]], object]  # runs jobs, now or later: `each`, or `Later.start`

#: Minimum number of elements of a pointwise loop for each thread.
WORTH = 1 << 17

#: Number of threads that share work in this context; 0: as many as the library has.
_sharing: ContextVar[int] = ContextVar("sharing", default=0)


def threads() -> int:
    """Number of threads that may share work in this context: all of them, or one if the work is already shared."""
    return _sharing.get() or _all()


def _torch() -> ModuleType | None:
    """torch, if this process has loaded it: hashing alone does not need it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_num_threads") else None  # another thread may be loading it


def _all() -> int:
    """torch's number of threads; or the number of processors, if this process has not loaded torch."""
    if torch := _torch():
        return torch.get_num_threads()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_library(count: int) -> None:
    """The library's number of threads. Other threads of the process keep theirs; one that has none yet begins with
    this."""
    if torch := _torch():
        torch.set_num_threads(count)


@contextmanager
def ours() -> Iterator[None]:
    """In this context the library computes with one thread, and shared work has all of them."""
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


class _Helpers:
    """Threads that do offered work when they are called. Ctrl-C cannot interrupt such a call midway and leave a lock
    held, as it can in a ThreadPoolExecutor."""

    def __init__(self, count: int) -> None:
        self.calls: SimpleQueue[None] = SimpleQueue()
        for number in range(count):
            Thread(target=self._work, name=f"vgame_{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            self.calls.get()
            _help()


@cache
def _helpers(count: int) -> _Helpers:
    return _Helpers(count)


@contextmanager
def _alone() -> Iterator[None]:
    """The library's settings for a job, in any thread: no threads of its own, no gradients, subnormal numbers kept."""
    torch = _torch()
    if not torch:
        yield
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    with torch.no_grad():
        yield


class _Offer:
    """Work for the first free thread: a helper, or its owner if no helper has taken it."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run, self.context, self.error = run, copy_context(), None
        self._free, self._going_on = Lock(), Lock()
        self._going_on.acquire()

    def _claim(self) -> bool:
        """Take the work; False if another thread has taken it."""
        return self._free.acquire(blocking=False)

    def do(self) -> None:
        """Do the work, unless another thread has taken it."""
        if not self._claim():
            return
        try:
            self.context.run(self._work)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):  # an interrupt of this thread, not an error of the work
                raise
        finally:
            del self.run, self.context
            self._going_on.release()

    def _work(self) -> None:
        _sharing.set(1)
        with _alone():
            self.run()

    def goes_on(self) -> bool:
        """Whether the work has begun and not ended."""
        return self._free.locked() and self._going_on.locked()

    def withdraw(self) -> None:
        """After this call the work cannot begin; if it had begun, it has ended."""
        if self._claim():
            del self.run, self.context
            self._going_on.release()
        with self._going_on:
            pass


#: Work that helpers do first, and work that they do when there is no other.
_urgent: deque[_Offer] = deque()
_patient: deque[_Offer] = deque()


def _offer(to: deque[_Offer], runs: Sequence[Callable[[], object]]) -> list[_Offer]:
    offers, helpers = [_Offer(run) for run in runs], _helpers(threads() - 1)
    to.extend(offers)
    try:
        for _ in offers:
            helpers.calls.put(None)
    except BaseException:
        _withdraw(offers)
        raise
    return offers


def _withdraw(offers: Sequence[_Offer]) -> None:
    for offer in offers:
        offer.withdraw()


def _forget() -> None:
    """A forked process has none of the helpers."""
    _urgent.clear()
    _patient.clear()
    _helpers.cache_clear()


os.register_at_fork(after_in_child=_forget)


def _help() -> None:
    """A helper does offered work until none is left."""
    while _do_next(_urgent) or _do_next(_patient):
        pass


def _do_next(offers: deque[_Offer]) -> bool:
    """Whether there was an offer; another thread may have begun it."""
    try:
        offer = offers.popleft()
    except IndexError:
        return False
    offer.do()
    return True


def _raise_first(offers: Sequence[_Offer]) -> None:
    for offer in offers:
        if offer.error:
            raise offer.error


def each(jobs: Sequence[Callable[[], Result]], patient: bool = False) -> list[Result]:
    """The jobs' results, in order; each thread takes the next waiting job, and does not share its work further.

    patient: whether this thread, while it waits for the others, may do work offered for later (`Later`), in its own
    scratch memory.
    """
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
            waiting.clear()  # after an error no thread goes on
            _sharing.reset(token)

    with ours():
        others = _offer(_urgent, [work] * helpers)
        try:
            work()
            while patient and any(other.goes_on() for other in others) and _do_next(_patient):
                pass
        finally:
            _withdraw(others)
    _raise_first(others)
    return [results[place] for place in range(len(jobs))]


class Later:
    """Jobs whose results are not needed yet: helpers do them when nothing is urgent."""

    def __init__(self) -> None:
        self._offers: list[_Offer] = []

    def start(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Offer the jobs to the helpers; if there are none, do the jobs."""
        if threads() < 2:
            each(jobs)
        else:
            self._offers = _offer(_patient, jobs)

    def finish(self) -> None:
        """Do the jobs that have not begun, wait for the rest."""
        offers = self._offers
        with ours():
            for offer in offers:
                offer.do()
        self.stop()
        _raise_first(offers)

    def stop(self) -> None:
        """After this call no job begins, and those that had begun have ended."""
        _withdraw(self._offers)
        self._offers = []


def portions(count: int, size: int, worth: int | None = None) -> list[tuple[int, int]]:
    """0..count-1 in parts (first, last) for the threads. An item has `size` elements; each thread gets at least `worth`
    (WORTH) of them."""
    parts = max(1, min(threads(), count, count * size // (worth or WORTH)))
    edges = [count * i // parts for i in range(parts + 1)]
    return [(edges[i], edges[i + 1]) for i in range(parts)]


def bind_share(
    count: int, size: int, run: Callable[[int, int], object], worth: int | None = None
) -> Callable[[], object]:
    """A function that computes `share`, divided once."""
    jobs = [partial(run, *part) for part in portions(count, size, worth)]
    return jobs[0] if len(jobs) == 1 else partial(each, jobs)


def share(count: int, size: int, run: Callable[[int, int], Result], worth: int | None = None) -> list[Result]:
    """[run(first, last), ...] over 0..count-1 in order, in `portions`."""
    return each([partial(run, *part) for part in portions(count, size, worth)])

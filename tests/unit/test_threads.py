"""vgame's own threads: order, errors, shared and untouched settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import pairwise

import pytest
import torch

from vgame.arithmetic.workspace import copy_shared
from vgame.system.threads import Later, _all, _helpers, _offer, _patient, each, ours, share, threads

CALLER = threading.current_thread()
MARK: ContextVar[str] = ContextVar("mark", default="nobody's")


@pytest.fixture(autouse=True)
def three_threads(threads_come_back: None) -> None:
    torch.set_num_threads(3)


def test_results_come_in_order_from_several_threads() -> None:
    together = threading.Barrier(3, timeout=60)
    names = each([lambda: (together.wait(), threading.current_thread().name)[1] for _ in range(3)])
    assert len(set(names)) == 3
    assert each([lambda i=i: i * i for i in range(50)]) == [i * i for i in range(50)]


def test_shares_cover_everything_once() -> None:
    for count, size, parts in ((10, 1, 1), (10, 5, 2), (2, 1000, 2), (1000, 1, 3), (0, 1, 1)):
        found = share(count, size, lambda first, last: (first, last), 20)
        assert len(found) == parts and found[0][0] == 0 and found[-1][1] == count
        assert all(left[1] == right[0] for left, right in pairwise(found))


def test_inside_a_job_there_is_one_thread_for_vgame_and_one_for_the_library() -> None:
    together = threading.Barrier(3, timeout=60)

    def look() -> tuple[int, int]:
        together.wait()
        return threads(), torch.get_num_threads()

    assert each([look] * 3) == [(1, 1)] * 3
    assert threads() == torch.get_num_threads() == 3
    with ours():
        assert (threads(), torch.get_num_threads()) == (3, 1)
    assert threads() == torch.get_num_threads() == 3


@pytest.mark.parametrize("bad", range(3))
def test_an_error_is_raised_after_all_threads_have_stopped(bad: int) -> None:
    together, ended = threading.Barrier(3, timeout=60), []

    def job(place: int) -> None:
        together.wait()
        if place == bad:
            raise KeyError(place)
        ended.append(place)

    with pytest.raises(KeyError, match=str(bad)):
        each([lambda place=place: job(place) for place in range(3)])
    assert sorted(ended) == [place for place in range(3) if place != bad]
    assert threads() == torch.get_num_threads() == 3
    assert each([lambda: 1] * 3) == [1, 1, 1]


def test_helpers_run_in_the_callers_context() -> None:
    together = threading.Barrier(3, timeout=60)
    token = MARK.set("the caller's")
    assert each([lambda: (together.wait(), MARK.get())[1]] * 3) == ["the caller's"] * 3
    MARK.reset(token)


@pytest.mark.parametrize("shape", [(), (5,), (3, 100), (40, 2, 3), (0, 7), (2, 3, 2)])
def test_threads_copy_every_word(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.system.threads.WORTH", 1)
    source = torch.randn(shape[::-1]).permute(tuple(reversed(range(len(shape)))))
    assert torch.equal(copy_shared(torch.empty(shape), source), source)


# --- later ---


@pytest.fixture
def busy() -> Iterator[threading.Event]:
    """Both helpers do deferred work until the event."""
    arrived, enough, later = threading.Barrier(3, timeout=60), threading.Event(), Later()
    later.start([lambda: (arrived.wait(), enough.wait(60))] * 2)
    arrived.wait()
    yield enough
    enough.set()
    later.finish()


def test_the_owner_does_work_that_no_helper_has_started(busy: threading.Event) -> None:
    done, later = [], Later()
    later.start([lambda: done.append((threading.current_thread(), threads()))] * 3)
    later.finish()
    assert done == [(threading.current_thread(), 1)] * 3
    assert threads() == torch.get_num_threads() == 3
    later.finish()
    assert len(done) == 3


def test_stopped_work_is_not_started(busy: threading.Event) -> None:
    done, later = [], Later()
    later.start([lambda: done.append(1)] * 3)
    later.stop()
    offers = later._offers = _offer(_patient, [lambda: done.append(1)] * 2)
    offers[0].withdraw()
    later.stop()  # also after an interrupt in between
    busy.set()
    later.finish()
    each([lambda: None] * 3)
    assert not done


def test_urgent_work_does_not_wait_for_deferred_work(busy: threading.Event) -> None:
    """All helpers are busy: the caller does its jobs alone."""
    assert each([threading.current_thread] * 5) == [threading.current_thread()] * 5


def test_helpers_do_deferred_work() -> None:
    done = threading.Barrier(2, timeout=60)
    later = Later()
    later.start([done.wait])
    done.wait()
    later.finish()


@pytest.mark.parametrize("bad", range(3))
def test_an_error_of_deferred_work_is_raised_at_its_end(bad: int) -> None:
    later, ended = Later(), []

    def job(place: int) -> None:
        if place == bad:
            raise KeyError(place)
        ended.append(place)

    later.start([lambda place=place: job(place) for place in range(3)])
    with pytest.raises(KeyError, match=str(bad)):
        later.finish()
    assert sorted(ended) == [place for place in range(3) if place != bad]
    assert threads() == torch.get_num_threads() == 3


def test_a_waiting_owner_does_deferred_work() -> None:
    """The helpers' jobs end only after the new deferred work is done, so the caller has to do it."""
    caller, did, later = threading.current_thread(), [], Later()
    together, offered, over = threading.Barrier(4, timeout=60), threading.Event(), threading.Event()

    def offer() -> None:
        torch.get_num_threads()  # starts with the last setting of another thread
        torch.set_num_threads(3)
        together.wait()
        later.start([lambda: (did.append(threading.current_thread()), over.set())])
        offered.set()

    def job() -> None:
        together.wait()
        assert (offered if threading.current_thread() is caller else over).wait(60)

    other = threading.Thread(target=offer)
    other.start()
    each([job] * 3, patient=True)
    other.join()
    assert did == [caller]


def test_helpers_keep_subnormal_numbers_and_need_no_gradients() -> None:
    """For all settings of the thread that started them."""
    together, made = threading.Barrier(3, timeout=60), []

    def job() -> tuple[bool, bool]:
        together.wait()
        return bool((torch.full((16,), 2.0**-140) * 0.5 == 2.0**-141).all()), torch.is_grad_enabled()

    def first() -> None:
        torch.get_num_threads(), torch.set_num_threads(3)
        torch.set_flush_denormal(True)
        each([together.wait] * 3)
        made.append(True)

    _helpers.cache_clear()
    maker = threading.Thread(target=first)
    maker.start()
    maker.join()
    helpers = [found for found, who in each([lambda: (job(), threading.current_thread())] * 3) if who is not CALLER]
    assert made and helpers == [(True, False)] * 2


def test_where_the_system_names_no_processors_of_a_process_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS, Windows."""
    monkeypatch.setattr("vgame.system.threads._torch", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert _all() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert _all() == 1

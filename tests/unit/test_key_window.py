"""The shortest key window: the trainer defers and answers all requests in time, however the base fee moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vgame.chain.records import Exchange, Phase, Request
from vgame.delivery.rules import MOST_REQUESTS, Snapshot, selling
from vgame.job.terms import FINAL, INCLUSION, KEPT_OUT, REQUESTS, needed_key_window

PRICE = 50
HIGH, LOW = PRICE + 1, PRICE


class Fees:
    """The base fee that the trainer sees, and the base fee in the block of its call, by the number of calls sent
    before."""

    @staticmethod
    def high(sent: int) -> tuple[int, int]:
        return HIGH, HIGH

    @staticmethod
    def low(sent: int) -> tuple[int, int]:
        return LOW, LOW

    @staticmethod
    def hovering(sent: int) -> tuple[int, int]:
        """The base fee is at the price again in the block of each `defer`, and above it in the block of each
        `answer`."""
        return (LOW, HIGH) if sent % 2 else (HIGH, LOW)

    @staticmethod
    def falling(after: int) -> Callable[[int], tuple[int, int]]:
        return lambda sent: (HIGH, HIGH) if sent < after else (LOW, LOW)


def is_late(window: int, fees: Callable[[int], tuple[int, int]], inclusion: int, kept_out: int, begin: int = 0) -> bool:
    """Whether one of the largest number of requests, all made at once, is ever late within three windows. The trainer
    sends one transaction at a time; the first one waits for a pending transaction, and is kept out of blocks for
    `kept_out`."""
    spec = SimpleNamespace(key_window=window)
    job = SimpleNamespace(phase=Phase.DELIVERING, spec=spec, since=0)
    requests = {n: Request(n, 0, n, 300, PRICE, 0, 0, 0, False) for n in range(MOST_REQUESTS)}
    now, sent, first = 1, 0, True
    while requests and now < 3 * window:
        seen, meets = fees(sent) if now >= begin else (HIGH, HIGH)
        exchange = Exchange(b"o" * 32, 10 * window, 0, 0, 0, len(requests), 0)
        s = Snapshot(7, now, seen, job, exchange, tuple(requests.values()))
        duty = next((d for d in selling(s) if d.due and d.request is not None), None)
        if duty is None:
            ends = [t + 1 for r in requests.values() for t in (r.since + window // 2, r.deferred_at + window)]
            now = min((t for t in [*ends, begin] if t > now), default=3 * window)
            continue
        now += inclusion + first * (inclusion + kept_out)
        sent, first, r = sent + 1, False, duty.request
        assert r is not None
        if any(now > other.since + window for other in requests.values()):
            return True
        drops = meets > PRICE and r.deferred_at and now > r.deferred_at + window
        if duty.call == "answer" or drops:
            requests.pop(r.index)
        elif meets > PRICE:
            requests[r.index] = replace(r, since=now, deferred_at=r.deferred_at or now)
    return False


MOVES = {"high": Fees.high, "low": Fees.low, "hovering": Fees.hovering} | {
    f"falling after {n}": Fees.falling(n) for n in (1, 20, 63, 64, 65, 100)
}


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize(("inclusion", "kept_out"), [(INCLUSION, KEPT_OUT), (60, 86_400), (INCLUSION, 0)])
def test_all_requests_are_deferred_and_answered_in_time(moves: str, inclusion: int, kept_out: int) -> None:
    assert REQUESTS == MOST_REQUESTS
    window = needed_key_window(inclusion, kept_out)
    for begin in (0, window // 2, window - window // 4):
        assert not is_late(window, MOVES[moves], inclusion, kept_out, begin)


def test_finality_and_one_transaction_a_request_are_too_short() -> None:
    """A window of finality, one transaction for each request, and the time for which transactions are kept out."""
    short = FINAL + REQUESTS * INCLUSION + KEPT_OUT
    assert is_late(short, Fees.high, INCLUSION, KEPT_OUT) and is_late(short, Fees.hovering, INCLUSION, KEPT_OUT)
    needed = needed_key_window(INCLUSION, KEPT_OUT)
    assert not is_late(needed, Fees.hovering, INCLUSION, KEPT_OUT)
    assert is_late(needed - 6 * INCLUSION, Fees.hovering, INCLUSION, KEPT_OUT, needed // 2), "no second too many"


@pytest.mark.parametrize("inclusion", [0, 1, 5, 15, 60])
def test_a_confirmation_becomes_final_within_the_window(inclusion: int) -> None:
    for kept_out in (0, KEPT_OUT, 86_400):
        assert needed_key_window(inclusion, kept_out) >= FINAL + inclusion + kept_out

"""Limits on the effects of one endpoint: computation, attempts to send, fees, alarms, records."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from test_long_looks import Slow
from wide import of_many

from vgame.agents.status import Alarm, Shown, _report_alarms
from vgame.chain.connection import Chain
from vgame.chain.look import COMPUTED, GAP, SENDS, TRIES
from vgame.chain.turns import MOST, PATIENCE, has_computed_long
from vgame.dispute.player import one_of
from vgame.dispute.stakes import Stakes
from vgame.errors import ChainError, NotYet, Paused


def test_computing_without_effect_ends_the_duties_of_a_look(urls: list[str], clock: list[float]) -> None:
    """One endpoint may invent hundreds of disputes, and each makes the role execute an interval again."""
    slow, done = Slow(Chain(urls), clock, 0.01, 0.01, 0.01), list[int]()

    def duty(seconds: float, n: int) -> bool:
        clock[0] += seconds
        slow.ask()
        done.append(n)
        return False

    def look(seconds: float) -> list[int]:
        slow.chain.turn()
        done.clear()
        assert not one_of([partial(duty, seconds, n) for n in range(9)], partial(has_computed_long, slow.chain))
        return [*done]

    assert look(COMPUTED) == [0]
    assert look(COMPUTED / 2) == [0, 1]
    assert look(GAP / 2) == [*range(9)]
    assert look(COMPUTED) == [0]


def test_with_one_endpoint_all_duties_are_tried(urls: list[str], clock: list[float]) -> None:
    chain, done = Chain(urls[0]), list[int]()

    def duty(n: int) -> bool:
        clock[0] += 10 * COMPUTED
        return bool(done.append(n))

    one_of([partial(duty, n) for n in range(3)], partial(has_computed_long, chain))
    assert done == [0, 1, 2]


def test_one_attempt_to_send_ends_with_the_time_of_all(urls: list[str], clock: list[float]) -> None:
    """The fee of a transaction that only the look's endpoint accepts is raised up to 20 times, once a minute."""
    chain = Chain(urls)
    chain.turn()
    assert chain.turns
    begin = clock[0]

    def send() -> Any:
        while True:
            clock[0] += 20
            chain.ask(lambda: chain.web3.eth.block_number)

    with pytest.raises(NotYet, match="transactions had no effect, or took long"):
        chain.turns.attempt(send)
    assert SENDS * PATIENCE <= clock[0] - begin <= SENDS * PATIENCE + 20


def test_attempts_that_fail_at_once_end_too(urls: list[str], clock: list[float]) -> None:
    """Each attempt sends requests to the other endpoints, until one of them limits their number. A call that waits is
    not an attempt."""
    chain, made = Chain(urls), list[int]()
    assert chain.turns

    def fails() -> Any:
        made.append(1)
        raise ChainError("too little money")

    def waits() -> Any:
        raise Paused("a move")

    chain.turn()
    for _ in range(100):
        with suppress(Paused):
            chain.turns.attempt(waits)
    for _ in range(100):
        with suppress(ChainError, NotYet):
            chain.turns.attempt(fails)
    assert len(made) == TRIES


@pytest.mark.parametrize("seconds", of_many([1.3, 2.6], 2.6))
def test_slow_endpoints_are_not_all_left_out(urls: list[str], clock: list[float], seconds: float) -> None:
    """Beside a quick one, which may be the hostile one: at least every second look is at another one."""
    slow, looks = Slow(Chain(urls), clock, seconds, 0.02, seconds), list[int]()
    while len(looks) < 200:
        looks.append(slow.look(24)[0])
        clock[0] += 15
    assert sum(endpoint != 1 for endpoint in looks) >= 90


@pytest.mark.parametrize("answering", [2, 3])
def test_of_two_fees_the_lower_one_is_offered(urls: list[str], answering: int) -> None:
    """One of two endpoints, or of three while one is away, could make the role offer the highest fee that it allows."""
    chain, replies = Chain(urls[:answering] if answering == 2 else urls), {0: 7, 1: 500, 2: None}

    def question(_: Any) -> int:
        if (found := replies[chain.endpoint]) is None:
            chain.lost = True
            raise ChainError("no answer")
        return found

    for _ in range(2 * answering):
        chain.turn()
        with suppress(ChainError):
            chain.ask(lambda: question(None))
    for _ in range(2):
        chain.turn()
        assert chain.median(question, lower=True) == 7


@pytest.mark.parametrize("patience", [PATIENCE, MOST])
def test_endpoints_that_refuse_lengthen_no_look(urls: list[str], clock: list[float], patience: float) -> None:
    """Outside its own look, each endpoint refuses requests above a limit (429), so too few answer; more time would not
    help."""
    slow = Slow(Chain(urls), clock, 0.3, 0.3, 0.3)
    chain, turns = slow.chain, slow.chain.turns
    assert turns
    turns.patience = patience

    def question(eth: Any) -> int:
        clock[0] += 0.3
        if chain.endpoint != turns.look.own:
            chain.lost = True
            raise ChainError("too many requests")
        return eth.block_number

    for _ in range(60):
        slow.look(2)
        with pytest.raises(NotYet):
            chain.median(question)
    assert turns.patience == PATIENCE


def test_an_alarm_is_reported_again_when_most_endpoints_confirm_it(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One endpoint could invent so many alarms that the first report of a true one is lost. `over` is reported when no
    endpoint shows the alarm."""
    chain, reported, standing = Chain(urls), list[tuple[str, str, Any]](), Shown()
    shows = {0: ["true"], 1: ["invented", "true"], 2: ["true"]}
    alarms = lambda *_: [Alarm("clock", name, name, 0) for name in shows[chain.endpoint]]  # noqa: E731
    monkeypatch.setattr("vgame.agents.status.alarms", alarms)
    reporter: Any = SimpleNamespace(emit=lambda e, _, **f: reported.append((e, f["job"], f.get("confirmed"))))
    look = partial(_report_alarms, SimpleNamespace(chain=chain), reporter, "", None, (), standing)
    for _ in range(6):
        look()
    expected = [("alarm", "true", False), ("alarm", "true", True), ("alarm", "invented", False)]
    assert sorted(reported) == sorted(expected) and reported.index(expected[0]) < reported.index(expected[1])
    shows[1] = shows[2] = []
    for _ in range(3):
        look()
    assert reported[3:] == [("over", "invented", None)]
    shows[0] = []
    for _ in range(3):
        look()
    assert reported[4:] == [("over", "true", None)]


def test_one_endpoint_invents_no_stake(urls: list[str]) -> None:
    """`AlreadyDisputed` counts, as a stake of another process, once more than half of the endpoints have returned
    it."""
    chain = Chain(urls)
    stakes = Stakes(SimpleNamespace(chain=chain, wallet=SimpleNamespace()))  # type: ignore[arg-type]
    for n in range(2_000):
        stakes.believe(f"{n:0128x}")
    assert not stakes.claims and len(stakes.refused) == 1_000
    chain.turn()
    stakes.believe(f"{1_999:0128x}")
    assert [*stakes.claims] == [f"{1_999:0128x}"]

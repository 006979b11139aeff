"""A client's `vgame job close` and `vgame job post` beside one false endpoint of three."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bonus_stage import Stage, Trained, trained  # noqa: F401 (a fixture)
from frauds import SETUP, SPEC, SUM, word_lie
from scene import Play, Scene
from test_bonus_agreed import Three
from test_delivery_agents import SPEC as SALE
from test_delivery_agents import Sides
from test_delivery_few_lies import Turns

from vgame.agents.client import close_job, post_job
from vgame.chain import agreed
from vgame.chain.connection import RefusedError
from vgame.chain.records import Phase
from vgame.errors import ChainError, ContractError, EndpointError, NotYet

Lie = Callable[[pytest.MonkeyPatch, Any, Callable[[], bool]], None]


def shows_no_credits(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.credits
    patch.setattr(game, "credits", lambda account: 0 if lies() else usual(account))


def shows_an_old_time(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual, early = game.chain.block, game.job_began
    patch.setattr(game.chain, "block", lambda which=None: replace(b := usual(which), time=early if lies() else b.time))


def refuses_each_call(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.send

    def send(*args: Any, **options: Any) -> Any:
        if lies():
            raise ContractError("TooEarly", ())
        return usual(*args, **options)

    patch.setattr(game, "send", send)


def invents_credits(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.credits
    patch.setattr(game, "credits", lambda account: 10**21 if lies() else usual(account))


def reports_what_it_does_not_send(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.send
    patch.setattr(game, "send", lambda *args, **options: {"status": 1} if lies() else usual(*args, **options))


def sends_and_fails(problem: Exception, patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.send

    def send(*args: Any, **options: Any) -> Any:
        found = usual(*args, **options)
        if lies():
            game.wallet.before(bytes.fromhex(found["transactionHash"][2:]))  # the fast chain gives another hash
            raise problem
        return found

    patch.setattr(game, "send", send)


sends_and_lags = partial(sends_and_fails, EndpointError("a state without it: the move counts as not made"))
sends_and_refuses = partial(sends_and_fails, RefusedError("daily request count exceeded"))
shows_no_block = partial(sends_and_fails, KeyError("blockNumber"))
LIES = (
    shows_no_credits, shows_an_old_time, refuses_each_call, invents_credits, reports_what_it_does_not_send,
    sends_and_lags, sends_and_refuses, shows_no_block,
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.2)


def close_beside(patch: pytest.MonkeyPatch, play: Play, game: Any, false: int, lie: Lie) -> tuple[Phase, int]:
    turns = Three()
    game.job_began = play.job.since
    with patch.context() as beside:
        lie(beside, game, lambda: turns.at == false)
        beside.setattr(game.chain, "turns", turns)
        found = close_job(game, play.id)
    assert game.credits(game.wallet.address) == 0
    return found


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_withholds_no_reward(scene: Scene, monkeypatch: pytest.MonkeyPatch, false: int, lie: Lie) -> None:
    play = scene.post(SETUP)
    scene.chain.advance(SPEC.accept_window + 1)
    assert close_beside(monkeypatch, play, play.client, false, lie) == (Phase.EXPIRED, SPEC.reward)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_protects_no_late_trainer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, false: int, lie: Lie
) -> None:
    play = scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    play.auditor().step()
    play.advance(SPEC.trainer_budget + 1)
    assert close_beside(monkeypatch, play, play.client, false, lie) == (Phase.CONVICTED, SPEC.reward)


def shows_a_delegate(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.is_delegate
    patch.setattr(game, "is_delegate", lambda job, account: lies() or usual(job, account))


def shows_a_trainer(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual, own = game.job, game.wallet.address
    patch.setattr(game, "job", lambda job: replace(j := usual(job), trainer=own if lies() else j.trainer))


@pytest.mark.parametrize("lie", [*LIES, shows_a_delegate, shows_a_trainer])
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_keeps_no_client_from_closing_a_delivery(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, false: int, lie: Lie
) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim()
    sides.play.advance(SALE.confirm_window + SALE.key_window + 1)
    phase, amount = close_beside(monkeypatch, sides.play, sides.play.client, false, lie)
    assert phase is Phase.UNDELIVERED and amount >= SALE.reward


def test_a_stranger_may_end_the_job_first(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the call; the client still withdraws its credits."""
    play = scene.post(SETUP)
    scene.chain.advance(SPEC.accept_window + 1)
    game, stranger = play.client, scene.game()
    usual = game.send

    def send(name: str, *args: Any, **options: Any) -> Any:
        if name == "expire":
            stranger.send(name, *args)
        return usual(name, *args, **options)

    monkeypatch.setattr(game, "send", send)
    assert close_job(game, play.id) == (Phase.EXPIRED, SPEC.reward)


def test_endpoints_that_disagree_about_credits_invent_none(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two endpoints shows 1,000 ether."""
    play = scene.post(SETUP)
    scene.chain.advance(SPEC.accept_window + 1)
    turns = Turns(2, 2)
    with monkeypatch.context() as patch:
        invents_credits(patch, play.client, lambda: turns.at == 0)
        patch.setattr(play.client.chain, "turns", turns)
        with pytest.raises(NotYet, match=r"1 of the endpoints agree on the job's phase and the credits .*2 are needed"):
            close_job(play.client, play.id)
    assert close_job(play.client, play.id) == (Phase.EXPIRED, SPEC.reward)


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_sets_no_reported_time(scene: Scene, monkeypatch: pytest.MonkeyPatch, false: int) -> None:
    """It shows another window, or an invented text in place of the job."""
    play = scene.post(SETUP)
    game, turns = play.client, Three()
    usual = game.jobs

    def jobs(names: list[bytes]) -> list[Any]:
        if turns.at == false and long:
            return [replace(job, spec=replace(job.spec, accept_window=10**9)) for job in usual(names)]
        if turns.at == false:
            raise ContractError("nothing is wrong\njob 5 is expired, 1.000000 ether withdrawn", ())
        return usual(names)

    monkeypatch.setattr(game, "jobs", jobs)
    monkeypatch.setattr(game.chain, "turns", turns)
    for long in (True, False):  # noqa: B007
        with pytest.raises(ChainError, match="is created and cannot be ended yet") as caught:
            close_job(game, play.id)
        assert 0 < int(re.search(r"at least (\d+) s", str(caught.value))[1]) <= SPEC.accept_window  # type: ignore[index]


def shows_the_order(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.job
    patch.setattr(game, "job", lambda job: replace(usual(job), phase=Phase.CLAIMED) if lies() else usual(job))


def shows_no_ether(patch: pytest.MonkeyPatch, game: Any, lies: Callable[[], bool]) -> None:
    usual = game.chain.balance
    patch.setattr(game.chain, "balance", lambda account: 0 if lies() else usual(account))


@pytest.mark.parametrize(
    "lie",
    [shows_the_order, shows_no_ether, reports_what_it_does_not_send, sends_and_lags, sends_and_refuses, shows_no_block],
)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_prevents_no_order(
    system: Any,
    trained: Trained,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    false: int,
    lie: Lie,
) -> None:
    game, turns = Stage(system, trained).client, Three()
    with monkeypatch.context() as patch:
        lie(patch, game, lambda: turns.at == false)
        patch.setattr(game.chain, "turns", turns)
        job = post_job(game, trained.bundle, 78)
    assert game.job(job).phase is Phase.CREATED
    with pytest.raises(ChainError, match="this order exists already"):
        post_job(game, trained.bundle, 78)


def test_a_receipt_alone_orders_nothing(
    system: Any,
    trained: Trained,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One endpoint shows it as a success."""
    game = Stage(system, trained).client
    monkeypatch.setattr(game.chain, "turns", Three())
    monkeypatch.setattr(game, "send", lambda *_, **__: {"status": 1})
    with pytest.raises(NotYet, match=r"receipt of `createJob` was shown, but most endpoints do not show its effect"):
        post_job(game, trained.bundle, 77)

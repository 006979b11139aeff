"""A client's `vgame job close` and `vgame job post` beside one false endpoint of three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bonus_stage import Stage, Trained, trained  # noqa: F401 (a fixture)
from frauds import SETUP, SPEC, SUM, word_lie
from scene import Play, Scene
from test_bonus_agreed import Three
from test_delivery_agents import SPEC as SALE
from test_delivery_agents import Sides

from vgame.agents.client import close_job, post_job
from vgame.chain import agreed
from vgame.chain.records import Phase
from vgame.errors import ContractError, NotYet

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


LIES = (shows_no_credits, shows_an_old_time, refuses_each_call)


def close_beside(patch: pytest.MonkeyPatch, play: Play, game: Any, false: int, lie: Lie) -> tuple[Phase, int]:
    turns = Three()
    game.job_began = play.job.since
    lie(patch, game, lambda: turns.at == false)
    patch.setattr(game.chain, "turns", turns)
    found = close_job(game, play.id)
    patch.undo()
    assert game.credits(game.wallet.address) == 0
    return found


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_keeps_no_reward(scene: Scene, monkeypatch: pytest.MonkeyPatch, false: int, lie: Lie) -> None:
    play = scene.post(SETUP)
    scene.chain.advance(SPEC.accept_window + 1)
    assert close_beside(monkeypatch, play, play.client, false, lie) == (Phase.EXPIRED, SPEC.reward)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_saves_no_late_trainer(
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


def test_a_receipt_alone_orders_nothing(
    system: Any,
    trained: Trained,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One endpoint shows it as a success."""
    monkeypatch.setattr(agreed, "WAIT", 0.2)
    game = Stage(system, trained).client
    monkeypatch.setattr(game.chain, "turns", Three())
    monkeypatch.setattr(game, "send", lambda *_, **__: {"status": 1})
    with pytest.raises(NotYet, match=r"receipt of `createJob`, but most endpoints do not show its effect"):
        post_job(game, trained.bundle, 77)

"""The wei that a command reports as withdrawn were paid by its own transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bonus_stage import Stage, Trained
from frauds import SETUP, SPEC
from scene import Play, Scene

from vgame.agents.client import close_job
from vgame.chain import agreed
from vgame.chain.records import Phase
from vgame.errors import ContractError, NotYet

REFUSES = "refuses to pay them now: another transaction of this account has withdrawn them, or an endpoint lags"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "WAIT", 0.2)


@pytest.fixture
def play(scene: Scene) -> Play:
    """An order that a stranger has ended; the contract owes its client the reward."""
    play = scene.post(SETUP)
    scene.chain.advance(SPEC.accept_window + 1)
    scene.game().send("expire", play.id)
    return play


def replaced(patch: pytest.MonkeyPatch, game: Any, change: Callable[..., Any]) -> None:
    """`withdraw` is sent with `change(usual)`."""
    usual = game.send
    patch.setattr(
        game,
        "send",
        lambda name, *args: change(lambda: usual(name, *args)) if name == "withdraw" else usual(name, *args),
    )


def test_two_processes_do_not_both_report_the_reward(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    game = play.client
    other = play.scene.game(game.wallet)
    closed = []

    def later(usual: Callable[[], Any]) -> Any:
        if not closed:
            closed.append(close_job(other, play.id))
        return usual()

    replaced(monkeypatch, game, later)
    with pytest.raises(NotYet, match=REFUSES):
        close_job(game, play.id)
    assert closed == [(Phase.EXPIRED, SPEC.reward)]


def test_a_withdrawal_that_a_lagging_node_refuses_is_not_reported(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the refusal it shows no credits either: its state is older than that of the first look."""
    game, behind, usual = play.client, [], play.client.credits

    def refuse(_: object) -> None:
        behind.append(True)
        raise ContractError("NothingToWithdraw", ())

    with monkeypatch.context() as patch:
        replaced(patch, game, refuse)
        patch.setattr(game, "credits", lambda account: 0 if behind else usual(account))
        with pytest.raises(NotYet, match=REFUSES):
            close_job(game, play.id)
    assert close_job(game, play.id) == (Phase.EXPIRED, SPEC.reward)


def test_credits_that_some_nodes_of_an_endpoint_show_are_withdrawn(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    game, usual, reads = play.client, play.client.credits, iter([True, True])
    monkeypatch.setattr(game, "credits", lambda account: 0 if next(reads, False) else usual(account))
    assert close_job(game, play.id) == (Phase.EXPIRED, SPEC.reward)


def test_a_withdrawal_is_tried_again_after_the_refusal_of_a_lagging_node(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = iter([True])

    def refuse(usual: Callable[[], Any]) -> Any:
        if next(behind, False):
            raise ContractError("NothingToWithdraw", ())
        return usual()

    replaced(monkeypatch, play.client, refuse)
    assert close_job(play.client, play.id) == (Phase.EXPIRED, SPEC.reward)


def test_a_bonus_is_not_reported_as_returned_while_the_escrow_holds_it(
    system: Any, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last call goes to a lagging node."""
    stage = Stage(system, trained)
    stage.chain.advance(stage.client.job(stage.job).spec.accept_window + 1)
    stage.client.send("expire", stage.job)
    mine, usual = stage.escrow, stage.escrow._send

    def send(name: str, *args: Any) -> Any:
        if name == "withdraw":
            raise ContractError("NothingOwed", ())
        return usual(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(mine, "_send", send)
        with pytest.raises(NotYet, match=REFUSES):
            mine.close(stage.id)
    assert mine.close(stage.id) == "returned" and mine.credits(stage.client.wallet.address) == 0

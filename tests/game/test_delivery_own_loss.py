"""A trainer that is late with its key or an answer: it does not end its own delivery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from exchange import Exchange
from scene import Scene
from test_delivery_agents import SPEC, Sides
from test_delivery_few_lies import Turns

from vgame.agents.client import close_job
from vgame.chain.records import ZERO_ADDRESS, Phase
from vgame.errors import ChainError, NotYet


@pytest.mark.parametrize("late", ["with the key", "with an answer"])
@pytest.mark.parametrize("command", ["vgame trainer", "vgame trainer --delegate"])
def test_a_late_trainer_does_not_end_its_own_delivery(scene: Scene, tmp_path: Path, late: str, command: str) -> None:
    """Its key, or its answer, counts until another account ends the delivery."""
    sides = Sides(scene, tmp_path)
    sides.claim()
    game = sides.game
    if "delegate" in command:
        game = sides.play.scene.game()
        sides.game.send("setDelegate", sides.play.id, game.wallet.address, True)
    if late == "with an answer":
        Exchange(sides.play, sides.game, None, None, []).request(1, 2)
        sides.play.advance(SPEC.key_window + 1)
    else:
        sides.receive()
        sides.play.advance(SPEC.confirm_window + SPEC.key_window + 1)
    usual, is_delegate, turns = game.job, game.is_delegate, Turns(3, 3)
    for _ in range(2):  # the second time, the first of three endpoints shows another trainer
        with pytest.raises(ChainError, match=r"is late .* counts until .*; run `vgame trainer( --delegate)?` now"):
            close_job(game, sides.play.id)
        game.chain.turns = turns  # type: ignore[assignment]
        game.job = lambda job: replace(usual(job), trainer=usual(job).trainer if turns.at else ZERO_ADDRESS)
        game.is_delegate = lambda job, account: turns.at > 0 and "delegate" in command
    game.chain.turns, game.job, game.is_delegate = None, usual, is_delegate
    assert sides.play.phase is Phase.DELIVERING
    game.chain.turns = Turns(2, 1)  # type: ignore[assignment]  # the one that answers shows a stranger's account
    game.job = lambda job: replace(usual(job), trainer=ZERO_ADDRESS)
    game.is_delegate = lambda job, account: False
    with pytest.raises(NotYet, match=r"1 of the endpoints show .* 2 are needed"):
        close_job(game, sides.play.id)
    game.chain.turns, game.job, game.is_delegate = None, usual, is_delegate
    assert sides.play.phase is Phase.DELIVERING
    sides.until(Phase.REVEALED)

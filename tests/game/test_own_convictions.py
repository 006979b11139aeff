"""`vgame job close` by an account that has a part in the conviction: the auditor's own dispute comes first, the trainer
does not convict itself."""

from __future__ import annotations

import pytest
from frauds import LIE, SETUP, SPEC
from scene import Scene

from vgame.agents.client import close_job
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Phase
from vgame.errors import ChainError


def test_an_auditor_convicts_in_its_own_dispute(scene: Scene) -> None:
    """An older one is that of the trainer's accomplice, which would get the prize."""
    play = scene.claimed(SETUP, LIE)
    play.auditor(None, FalseAccuser, idle=True).step()
    honest = play.auditor()
    honest.step()
    play.advance(SPEC.trainer_budget + 3 * SPEC.slot)
    assert close_job(honest.game, play.id)[0] is Phase.CONVICTED
    assert play.client.verdict(play.id).winner == honest.address


@pytest.mark.parametrize("who", ["trainer", "delegate", "trainer and client"])
def test_a_late_trainer_does_not_convict_itself(scene: Scene, who: str) -> None:
    play = scene.post(SETUP)
    play.trainer = play.new_trainer()
    if who == "trainer and client":
        play.trainer.game.wallet = play.client.wallet
    play.trainer.accept()
    play.trainer.claim()
    caller = play.trainer.game
    if who == "delegate":
        caller = scene.game()
        play.trainer.game.send("setDelegate", play.id, caller.wallet.address, True)
    play.auditor(None, FalseAccuser, idle=True).step()
    play.advance(SPEC.trainer_budget + 3 * SPEC.slot)
    with pytest.raises(ChainError, match="is out of time in a dispute, and ending it would cost its bond"):
        close_job(caller, play.id)
    assert play.phase is Phase.CLAIMED
    assert close_job(scene.game(), play.id) == (Phase.CONVICTED, 0)

"""A word decided in one dispute is decided in all disputes at its place: no auditor has another move there."""

from __future__ import annotations

import pytest
from frauds import SETUP, Mistaken, word_lie
from scene import Scene

from vgame.chain.records import Level, Phase, Status, Turn
from vgame.errors import ContractError

LIE = word_lie(6, 0, 0, 1)[0]


def test_nothing_below_a_decided_word_can_be_selected(scene: Scene) -> None:
    """Two accomplices contest one right word; the trainer proves it in one dispute, and the other is over. The word has
    no partial sums: 32 zero bytes name none."""
    play = scene.claimed(SETUP)
    accomplices = [play.auditor(LIE, Mistaken) for _ in range(2)]
    proof = play.run_until("prove", play.trainer, *accomplices)
    for number, accomplice in enumerate(accomplices):
        while play.dispute(number).level is not Level.ELEMENT:
            accomplice.step()
    second = 1 - proof.args[1]
    d = play.dispute(second)
    assert [each.level for each in play.disputes()] == [Level.ELEMENT] * 2
    proof.send(play.trainer.game)
    assert play.dispute(second).status is Status.OPEN
    owner = next(a for a in accomplices if a.address == d.auditor)
    with pytest.raises(ContractError) as refused:
        owner.game.send("selectPartial", play.id, second, d.position, bytes(32), 0, [])
    assert (refused.value.name, refused.value.args_) == ("NotYourTurn", (Turn.AUDITOR_EXPIRED,))
    assert play.run_to_end(play.trainer) is Phase.FINAL

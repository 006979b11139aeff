"""Bonds and fees of non-convicting disputes, and withdrawals (docs/protocol.md): to the wei."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import Bluffer, Forcer
from outcomes import prize
from revm_node import RICH
from scene import PAYEE_MODES, Scene, payee_game
from test_payments import FEE, LIE, SETUP, SPEC, convict, gained
from test_trees import PaddedRun

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase
from vgame.errors import ContractError

# ---- bonds and fees of the others ----


def test_fees_inside_beside_and_below_the_place(scene: Scene) -> None:
    """Refunded if the dispute's node contains the conviction; the node of a dispute without a move contains every
    place."""
    play = scene.claimed(SETUP, LIE)  # decided at step 6, in the second checkpoint
    idle, inside = play.auditor(None, FalseAccuser, idle=True), play.auditor(None, Forcer, step=6)
    beside, near = (play.auditor(None, Forcer, step=step) for step in (1, 5))
    honest = play.auditor()
    for player in (idle, beside, near, inside):
        player.step()
    for _ in range(100):
        for player in (play.trainer, beside, near, inside, honest):
            if play.phase is Phase.CLAIMED:
                player.step()
    assert play.verdicts == [("Convicted", 4, "element")]
    levels = [(d.level, d.height, d.index) for d in play.disputes()[:4]]
    assert levels == [(Level.RUN, 2, 0), (Level.SEGMENT, 0, 1), (Level.SEGMENT, 0, 2), (Level.SEGMENT, 0, 3)]
    play.run(honest, idle, inside, beside, near)
    assert [gained(play, p) for p in (idle, inside, beside, near)] == [0, 0, -FEE, -FEE]
    assert gained(play, honest) == prize(SPEC, "element")
    assert play.client.burnt() == SPEC.trainer_bond - SPEC.trainer_bond // 2 + 2 * FEE


def test_fees_below_the_place_are_burnt(scene: Scene) -> None:
    """The root is convicted by a clock: a crowd of the cheat that moved further down cannot be distinguished from other
    auditors."""
    play = scene.claimed(SETUP, LIE)
    beside, late = play.auditor(None, Forcer, step=1), play.auditor()
    for player in (beside, play.trainer, beside, late):
        player.step()
    play.advance(SPEC.trainer_budget + 10 * SPEC.slot)
    scene.game().send("timeout", play.id, 0)
    play.run(beside, late)
    assert play.client.verdict(play.id).level is Level.RUN
    assert [gained(play, p) for p in (beside, late)] == [prize(SPEC, "timeout"), 0]


def test_an_auditor_without_possible_selection_is_refunded_its_fee(scene: Scene) -> None:
    """The cheat never opens the root."""
    play = scene.claimed(SETUP, LIE, Bluffer, silent={"reveal"})
    idle, honest = play.auditor(None, FalseAccuser, idle=True), play.auditor()
    for player in (idle, honest):
        player.step()
    convict(play, honest)
    play.run(idle, honest)
    won = play.verdicts[0][1]
    assert [gained(play, p) for p in (idle, honest)] == [prize(SPEC, "timeout") * (won == n) for n in (0, 1)]


def test_padding_convicts_at_its_own_place(scene: Scene) -> None:
    """After a conviction for the padding of the run tree a crowd below the root gets no fees back."""
    play = scene.claimed(SETUP, None, PaddedRun)
    crowd = [play.auditor(None, Forcer, step=step) for step in (1, 5)]
    for player in (*crowd, play.trainer, *crowd):
        player.step()
    honest = play.auditor()
    play.run(play.trainer, honest)
    (verdict,) = play.verdicts
    v = play.client.verdict(play.id)
    assert verdict[::2] == ("Convicted", "opening") and (v.level, v.height, v.index) == (Level.RUN, 0, 3)
    for number in (0, 1):
        scene.game().send("refund", play.id, number)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0, 0]


def test_a_dispute_above_the_convicting_padding_is_refunded_its_fee(scene: Scene) -> None:
    """The node of the third and fourth leaf of a run tree that has three."""
    setup = replace(SETUP, depth=1)
    play = scene.claimed(setup, None, PaddedRun)
    beside, above = (play.auditor(None, FalseAccuser, step_wanted=step) for step in (1, setup.steps))
    for player in (beside, above, play.trainer, beside, above):
        player.step()
    assert [(d.height, d.index) for d in play.disputes()] == [(1, 0), (1, 1)]
    play.run(play.trainer, play.auditor())
    v = play.client.verdict(play.id)
    assert (play.verdicts[0][0], v.level, v.height, v.index) == ("Convicted", Level.RUN, 0, 3)
    for number in (0, 1):
        scene.game().send("refund", play.id, number)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0, SPEC.fee]


# ---- withdrawals ----


@pytest.mark.parametrize("mode", PAYEE_MODES)
def test_a_withdrawal_has_a_bound(scene: Scene, mode: str) -> None:
    """For any use of the recipient's 100,000 gas; its return data are not copied."""
    play, payee = scene.post(SETUP), payee_game(scene, mode).wallet.address
    game = play.client
    play.advance(SPEC.accept_window + 1)
    scene.game().send("expire", play.id)
    bounded = game._request("withdraw", (payee,)) | {"gas": 170_000}
    if mode in ("TAKE", "REENTER"):
        game._run(bounded)
        game.send("withdraw", payee)
        assert scene.chain.balance(payee) == SPEC.reward
        return
    with pytest.raises(ContractError, match="PaymentRefused"):  # it is not out of gas
        game._run(bounded)
    assert game.credits(game.wallet.address) == SPEC.reward
    game.send("withdraw", RICH[2])
    assert game.credits(game.wallet.address) == 0

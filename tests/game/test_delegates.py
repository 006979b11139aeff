"""A trainer's delegates: they answer disputes in its place, and can do nothing else."""

from __future__ import annotations

import pytest
from frauds import SETUP, SPEC, SUM, Mistaken, state_lie, word_lie
from scene import Call, Play, Scene

from vgame.agents.client import set_delegate
from vgame.chain.records import Phase
from vgame.dispute.delegate import Delegate
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ContractError, Over

ERROR = word_lie(6, SUM, 4, 1)[0]  # an auditor's: it names an element of a long sum


def named(play: Play, lies: object = None, cls: type[Player] = Delegate) -> Delegate:
    """A second machine with an account of its own, named by the trainer."""
    second = cls(play.scene.game(), play.id, play.machine(lies))
    play.trainer.game.send("setDelegate", play.id, second.address, True)
    return second


@pytest.mark.parametrize("last", ["reveal", "postSegment", "postTrace", "openLeaf", "postPartials"])
def test_a_delegate_defends_a_trainer_that_is_down(scene: Scene, last: str) -> None:
    """The first machine goes down before its move; the second makes this move and all later ones. The money is the
    trainer's."""
    play = scene.claimed(SETUP)
    second, accuser = named(play), play.auditor(ERROR, Mistaken)
    play.run_until(last, play.trainer, accuser)
    assert play.run_to_end(second, accuser) is Phase.FINAL
    assert [(name, number) for name, number, _ in play.verdicts] == [("Dismissed", 0)]
    pay = SPEC.reward + SPEC.trainer_bond + SPEC.auditor_bond // 2
    assert play.client.credits(play.trainer.address) == pay and play.client.credits(second.address) == 0


def test_without_a_delegate_a_trainer_that_is_down_is_convicted(scene: Scene) -> None:
    """The damaged twin: the same outage without a named second machine."""
    play = scene.claimed(SETUP)
    accuser = play.auditor(ERROR, Mistaken)
    play.run_until("postSegment", play.trainer, accuser)
    second = Delegate(scene.game(), play.id, SETUP.machine())
    with pytest.raises(Abstain, match="is no delegate of job"):
        second.step()
    assert play.run_to_end(accuser) is Phase.CONVICTED


def test_a_tie_is_answered_too(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    second, accuser = named(play), play.auditor(state_lie(6, 5, 0)[0], Mistaken)
    assert play.run_to_end(second, accuser) is Phase.FINAL


def test_trainer_and_delegate_may_play_at_once(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    assert play.run_to_end(named(play), play.trainer, play.auditor(ERROR, Mistaken)) is Phase.FINAL


@pytest.mark.parametrize("move", ["postSegment", "postTrace", "postPartials"])
def test_a_removed_delegate_or_that_of_another_job_cannot_move(scene: Scene, move: str) -> None:
    play, other = scene.claimed(SETUP), scene.claimed(SETUP)
    second, foreign = named(play), named(other)
    call = play.run_until(move, play.trainer, play.auditor(ERROR, Mistaken))
    play.trainer.game.send("setDelegate", play.id, second.address, False)
    for stranger in (second, foreign):
        with pytest.raises(ContractError, match="NotTrainer"):
            call.send(stranger.game)
    play.trainer.game.send("setDelegate", play.id, second.address, True)
    call.send(second.game)


def test_a_delegate_can_do_nothing_else(scene: Scene) -> None:
    """It does not claim, name delegates or get money, and it accepts no job that the trainer has not accepted."""
    play = scene.post(SETUP)
    play.trainer = play.new_trainer()
    early = Delegate(scene.game(), play.id, SETUP.machine())
    assert early.step() is False and play.phase is Phase.CREATED
    play.trainer.accept()
    second = named(play)
    assert second.step() is False and play.phase is Phase.ACCEPTED
    run = second.run_tree()
    last = second.checkpoint(len(second.machine.checkpoints))
    claim = Call("postClaim", (play.id, run.root, *last, bytes(32), bytes(32)))
    for call in (claim, Call("setDelegate", (play.id, second.address, True))):
        with pytest.raises(ContractError, match="NotTrainer"):
            call.send(second.game)
    claim.send(play.trainer.game)
    play.pass_window()
    assert second.step() and play.phase is Phase.FINAL
    with pytest.raises(ContractError, match="NothingToWithdraw"):
        second.game.send("withdraw", second.address)


def test_a_delegate_posts_nothing_for_a_claim_of_another_run(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    second = named(play, ERROR)
    play.auditor(ERROR, Mistaken).step()
    with pytest.raises(Abstain, match="differs from the run in this store"):
        second.step()


def test_a_delegate_of_an_expired_job_has_nothing_to_defend(scene: Scene) -> None:
    play = scene.post(SETUP)
    Trainer(scene.game(), play.id, SETUP.machine()).accept()
    play.advance(SPEC.claim_window + 1)
    play.client.send("expire", play.id)
    with pytest.raises(Over, match="nothing to defend"):
        Delegate(scene.game(), play.id, SETUP.machine()).step()


def test_a_delegate_reports_the_trainers_clocks(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    second, accuser = named(play), play.auditor(ERROR, Mistaken)
    play.run_until("postSegment", play.trainer, accuser)
    assert "s are left of the own clock of dispute 0" in second.hurry()


@pytest.mark.parametrize("allowed", [True, False])
def test_only_the_trainers_own_call_counts(scene: Scene, allowed: bool) -> None:
    """Most accounts are no delegates, so that alone does not show that a call had its effect."""
    play = scene.claimed(SETUP)
    account = scene.wallet().address
    with pytest.raises(ContractError, match="NotTrainer"):
        set_delegate(scene.game(), play.id, account, allowed)
    set_delegate(play.trainer.game, play.id, account, allowed)
    assert play.trainer.game.is_delegate(play.id, account) is allowed

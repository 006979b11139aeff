"""Attacks on fee, guardian and queue that fail: each would succeed if one line of the contract were missing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from frauds import LIE, Forcer, Mistaken, word_lie
from frauds import SETUP as FREE
from outcomes import prize
from refusals import NO_BASIS
from scene import ETHER, Play, Scene, Setup, payee_game
from test_duties import step_all

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase, Status, Turn
from vgame.commit.trees import reveal_depth
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError, VgameError

FEE = ETHER // 50 + 1
SETUP = replace(FREE, terms={"fee": FEE})
MOST = 2**96 - 1


def rich(play: Play, *players: Auditor) -> None:
    """Accounts that can pay any fee."""
    for player in players:
        play.scene.chain.node.set_balance(player.address, 2**100)


@pytest.mark.parametrize("fee", [0, 1, 10 * ETHER, MOST])
def test_a_fee_of_any_size_is_burnt_or_refunded_to_the_wei(scene: Scene, fee: int) -> None:
    """Also one above every bond: no account gains from it, and no sum overflows."""
    setup = replace(FREE, terms={"fee": fee})
    play = scene.claimed(setup, LIE)
    idle, beside, honest = (
        play.auditor(None, FalseAccuser, idle=True),
        play.auditor(None, Forcer, step=1),
        play.auditor(),
    )
    rich(play, idle, beside, honest)
    step_all(idle, beside, play.trainer, beside)
    play.run_to_end(play.trainer, honest, idle, beside)
    spec = setup.spec
    assert [play.paid(p) - spec.stake for p in (idle, beside)] == [0, -fee]  # the idle one gave the trainer no slot
    assert play.paid(honest) == spec.stake + spec.trainer_bond // 2
    assert play.client.burnt() == spec.trainer_bond - spec.trainer_bond // 2 + fee


@pytest.mark.parametrize("fee", [1, MOST])
def test_a_false_accuser_burns_the_fee(scene: Scene, fee: int) -> None:
    """The trainer has no share in it; otherwise it would accuse itself to recover the burnt half."""
    setup = replace(FREE, terms={"fee": fee})
    play = scene.claimed(setup)
    accuser = play.auditor(LIE, Mistaken)
    rich(play, accuser)
    assert play.run_to_end(play.trainer, accuser) is Phase.FINAL
    spec = setup.spec
    assert play.paid(accuser) == 0
    assert play.paid(play.trainer) == spec.reward + spec.trainer_bond + spec.auditor_bond // 2
    assert play.client.burnt() == spec.auditor_bond - spec.auditor_bond // 2 + fee


def test_a_sybil_in_all_roles_loses_half_of_the_bond(scene: Scene) -> None:
    """Client, trainer, guardian and convicting auditor are one account: a second dispute beside the conviction gains
    nothing."""
    wallet = scene.wallet()
    setup = replace(FREE, terms={"fee": FEE, "guardian": wallet.address})
    spec, play = setup.spec, scene.post(setup, wallet)
    play.trainer = Trainer(scene.game(wallet), play.id, play.machine(LIE))
    play.trainer.accept()
    play.trainer.claim()
    beside = Forcer(scene.game(wallet), play.id, play.machine(None), step=1)
    beside.challenge(ClaimView(beside, play.job))
    own = Mistaken(scene.game(), play.id, play.machine(None))
    own.challenge(ClaimView(own, play.job))
    play.run_to_end(play.trainer, own)
    play.run(Mistaken(scene.game(wallet), play.id, play.machine(None)))
    assert play.phase is Phase.CONVICTED and play.job.open == 0
    assert play.client.burnt() >= spec.trainer_bond - spec.trainer_bond // 2
    total_paid = play.paid(play.trainer) + play.paid(own)
    assert total_paid == spec.reward + play.job.disputes * spec.stake + spec.trainer_bond // 2


@pytest.mark.parametrize("mode", ["REFUSE", "BURN", "REENTER"])
def test_a_guardian_that_refuses_ether_blocks_no_move(scene: Scene, mode: str) -> None:
    """Refunds call no account, and any account may call them; a second refund of the same dispute is refused."""
    payee = payee_game(scene, mode)
    setup = replace(FREE, terms={"fee": FEE, "guardian": payee.wallet.address})
    play = scene.claimed(setup, LIE)
    payee.send("challenge", play.id, int(Level.RUN), 0, play.job.run_root, NO_BASIS, value=setup.spec.stake)
    honest, beside = play.auditor(), play.auditor(None, Forcer, step=1)
    step_all(beside, play.trainer, beside)
    play.run(play.trainer, honest)
    stranger = scene.game()
    for number, d in enumerate(play.disputes()):
        if d.status is Status.OPEN:
            stranger.send("refund", play.id, number)
        with pytest.raises(ContractError, match="DisputeClosed"):
            stranger.send("refund", play.id, number)
    owed = setup.spec.stake + prize(setup.spec, "element")
    assert (play.client.credits(payee.wallet.address), play.paid(beside)) == (owed, setup.spec.stake - FEE)
    assert play.client.verdict(play.id).winner == payee.wallet.address


def test_without_a_guardian_no_dispute_is_favoured(scene: Scene) -> None:
    """The address 0 of an order without a guardian is no account whose dispute is favoured."""
    play = scene.claimed(SETUP, LIE)
    beside, honest = play.auditor(None, Forcer, step=1), play.auditor()
    step_all(beside, play.trainer, beside)
    play.run(play.trainer, honest)
    scene.game().send("refund", play.id, 0)
    assert play.client.verdict(play.id).winner == honest.address and play.events("Refunded")[0][1]["fee"] == 0


def test_repeated_single_disputes_at_one_place_are_answered_each_time(scene: Scene) -> None:
    """A place decided for the only dispute is not stored: no mark of it is left, and the next dispute pays as much."""
    play = scene.claimed(SETUP)
    for number in range(3):
        wrong = play.auditor(word_lie(6, 1, 4)[0], Mistaken)
        call = play.run_until("prove", wrong, play.trainer)
        assert play.client.turn(play.id, number)[0] is Turn.TRAINER
        call.send(play.trainer.game)
        assert play.verdicts[number] == ("Dismissed", number, "element") and play.job.open == 0
    idle = [play.auditor(None, FalseAccuser, idle=True) for _ in range(2)]
    step_all(*idle)
    assert play.job.queue == 0  # the root is open since the first of them
    assert play.client.credits(play.trainer.address) == 3 * (SETUP.spec.auditor_bond // 2)


def test_an_early_opening_creates_no_duty(scene: Scene) -> None:
    """The mark is not set for a node that was opened before, and not removed twice if it is opened again."""
    play = scene.claimed(SETUP)
    tree, stranger = play.trainer.run_tree(), scene.game()
    children = tree.descendants(tree.height, 0, reveal_depth(tree.height, SETUP.depth))
    crowd = [play.auditor(None, FalseAccuser, idle=True) for _ in range(3)]
    step_all(*crowd[:2])
    assert play.job.queue == 1
    for _ in range(2):
        stranger.send("reveal", play.id, int(Level.RUN), tree.height, children)
        assert play.job.queue == 0
    step_all(crowd[2])
    assert (play.job.queue, play.dispute(2).others) == (0, 0)


def test_disputes_that_share_a_place_and_then_separate(scene: Scene) -> None:
    """Together they are one duty, separated one each: no dispute has a slot for a place that it shares."""
    setup = Setup(FREE.program, steps=16, interval=4, depth=1, terms={"fee": FEE})
    play = scene.claimed(setup)
    crowd = [play.auditor(None, Forcer, step=step) for step in (1, 1, 5, 9, 13, 13)]
    step_all(*crowd)
    for distinct in (1, 2, 4):
        assert play.job.queue == distinct and max(d.others for d in play.disputes()) == distinct - 1
        for _ in range(distinct):
            play.trainer.step()
        assert play.job.queue == 0
        step_all(*crowd)
    assert play.job.queue == 4


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_moves_miscounts_the_queue(scene: Scene, seed: int) -> None:
    """Idle and active accusers, answers to any dispute, timeouts by strangers: the ghost counts duties and money after
    each transaction."""
    dice = random.Random(seed)
    clocks = {"trainer_budget": dice.choice([200, 2000]), "auditor_budget": dice.choice([60, 300])}
    shape = {"interval": dice.choice([1, 2, 3]), "depth": dice.choice([1, 2, 3])}
    play = scene.claimed(Setup(FREE.program, steps=dice.choice([3, 7]), terms=clocks | {"fee": FEE}, **shape))
    count = dice.randint(2, 6)
    crew = [play.auditor(None, FalseAccuser, idle=i % 3 == 2, step_wanted=dice.randrange(4)) for i in range(count)]
    stranger = scene.game()
    for _ in range(60):
        kind = dice.random()
        try:
            if kind < 0.35:
                play.trainer.step()
            elif kind < 0.8:
                dice.choice(crew).step()
            elif kind < 0.9:
                play.advance(dice.choice([1, 30, 70]))
            elif play.job.disputes:
                stranger.send("timeoutMany", play.id, [dice.randrange(play.job.disputes) for _ in range(3)])
        except VgameError:
            pass
    assert play.job.disputes and all(cause == "timeout" for name, _, cause in play.verdicts if name == "Convicted")

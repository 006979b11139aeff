"""Fees, prices and the guardian: who has a fee back, and what a move is paid at a price of gas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import Bluffer, Forcer, Mistaken
from payment_scene import (  # noqa: F401  fixtures
    FEE,
    FIRST,
    LIE,
    MOVE,
    POOL,
    PRICE,
    SETUP,
    SPEC,
    a_price_of_gas,
    deployed_scene,
    gained,
    rounds,
    stipend,
)
from refused_money import Other
from revm_node import RevmNode
from scene import Scene, due
from test_trees import PaddedRun
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind, Tree
from vgame.dispute.auditor import Auditor


@pytest.mark.parametrize("price", [0, 1, 2047, 2048, 4095, 10**9, 20 * 10**9 + 77, 2**42 - 1, 2**42, 10**18])
def test_the_price_is_remembered_in_16_bits(scene: Scene, price: int) -> None:
    """Rounded down, by less than 0.1 %."""
    scene.chain.node.base_fee = price
    play = scene.claimed(SETUP, LIE)
    due(play.auditor()).send(scene.game())
    packed = play.dispute().price
    kept = (packed & 0x7FF) << (packed >> 11)
    assert kept <= price and kept >= min(price, 2**42 - 2**31) * 0.999


def test_refunds_after_the_reward_are_bonds_alone(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    first, late = play.auditor(), play.auditor()
    for _ in rounds(play):
        for player in (play.trainer, first, late):
            if play.phase is Phase.CLAIMED and (call := due(player)):
                call.send(player.game)
    play.advance(SPEC.reward_window + 1)
    scene.game().send("payReward", play.id)
    number = 1 - play.verdicts[0][1]
    scene.game().send("refund", play.id, number)
    assert play.paid((first, late)[number]) == SPEC.stake


def test_moves_in_cheap_blocks_are_not_paid_at_a_dear_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody challenges at ten times the base fee of the moves that follow: the stipend stays below the gas of the
    moves."""
    play = scene.claimed(SETUP, FIRST)
    auditor = play.auditor()
    monkeypatch.setattr(scene.chain.node, "base_fee", 10 * PRICE)
    assert auditor.step() and play.dispute().moves == 0
    assert play.dispute().price > 0
    dear = play.dispute().price
    monkeypatch.setattr(scene.chain.node, "base_fee", PRICE)
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")] and play.dispute().price < dear
    assert gained(play, auditor) == stipend(play, 0)


@pytest.mark.parametrize("guarded", [False, True], ids=["stranger", "guardian"])
def test_who_is_honest_while_the_cheat_convicts_itself_elsewhere(scene: Scene, guarded: bool) -> None:
    """It pays the fee, for nothing tells it from the crowd of the cheat; the guardian has fee and gas back."""
    wallet = scene.wallet()
    setup = replace(SETUP, terms=SETUP.terms | ({"guardian": wallet.address} if guarded else {}))
    words = {place: word for lie in (LIE, FIRST) for place, word in lie.words.items()}
    play = scene.claimed(setup, Lies(words=words))
    honest = Auditor(scene.game(wallet), play.id, play.machine(None))
    own = play.auditor(None, Mistaken)
    own.machine = play.machine(FIRST)  # it contests the second lie alone
    for _ in rounds(play):
        for player in (play.trainer, own):
            player.step()
        if play.job.disputes < 2 or play.dispute(1).moves < 2:
            honest.step()
    assert play.verdicts == [("Convicted", 0, "element")]
    play.run_to_end(play.trainer, honest, own)
    assert gained(play, honest) == (stipend(play, 1) if guarded else -FEE)


def test_the_guardian_has_its_fee_back_once(scene: Scene) -> None:
    """Of two disputes beside the conviction the guardian pays the fee of one; as the winner it has had it."""
    wallet = scene.wallet()
    setup = replace(SETUP, terms=SETUP.terms | {"guardian": wallet.address})
    play = scene.claimed(setup, LIE)
    beside = [Forcer(scene.game(wallet), play.id, play.machine(None), step=step) for step in (1, 7)]
    for player in (*beside, play.trainer, *beside):
        player.step()
    honest = play.auditor()
    play.run(play.trainer, honest)
    assert [v[::2] for v in play.verdicts] == [("Convicted", "element")]
    for number in (0, 1):
        scene.game().send("refund", play.id, number)
    amounts = [(a["fee"], a["stipend"] > 0) for _, a in play.events("Refunded")]
    assert amounts == [(FEE, True), (0, False)] and play.client.verdict(play.id).guarded


def test_the_guardian_that_convicts_has_had_its_fee(scene: Scene) -> None:
    """Its other dispute is a stranger's."""
    wallet = scene.wallet()
    play = scene.claimed(replace(SETUP, terms=SETUP.terms | {"guardian": wallet.address}), LIE)
    guardian = Auditor(scene.game(wallet), play.id, play.machine(None))
    for _ in rounds(play):
        play.trainer.step()
        if (call := due(guardian)) and call.name == "selectElement":
            root = play.job.run_root
            guardian.game.send("challenge", play.id, int(Level.RUN), 0, root, bytes(32), value=SPEC.stake)
            call.send(guardian.game)
            break
        guardian.step()
    for _ in rounds(play):
        guardian.turn(play.job, 0, play.dispute(0)) or play.trainer.step()  # that posts the sum's blocks
    assert play.verdicts == [("Convicted", 0, "element")]
    scene.game().send("refund", play.id, 1)
    assert [(a["fee"], a["stipend"]) for _, a in play.events("Refunded")] == [(0, 0)]


def test_who_could_name_nothing_has_its_fee_back(scene: Scene) -> None:
    """The cheat never opens the root: nobody could say more."""
    play = scene.claimed(SETUP, LIE, Bluffer, silent={"reveal"})
    idle, honest = play.auditor(None, FalseAccuser, idle=True), play.auditor()
    for player in (idle, honest):
        player.step()
    play.run_to_end(play.trainer, honest, idle)
    assert [v[::2] for v in play.verdicts] == [("Convicted", "timeout")]
    assert sorted((gained(play, idle), gained(play, honest))) == [0, 2 * MOVE]


@pytest.mark.parametrize("guesses", [1, 2])
def test_each_guess_at_the_place_of_a_fraud_costs_a_fee(scene: Scene, guesses: int) -> None:
    """The leaves of the run tree are public once its root is open: a commitment to them but for one leaf needs no run,
    and may be right. What it can win, half a bond, is for each other guess to pay."""
    play = scene.claimed(SETUP, LIE)
    opener = play.auditor(None, FalseAccuser, idle=True)
    for player in (opener, play.trainer):
        player.step()
    leaves = play.events("Revealed")[0][1]["children"][: play.job.checkpoints]
    crowd = []
    for place in range(1, 1 + guesses):
        guess = play.auditor(cls=Other, tree=Tree(Kind.RUN, [*leaves[:place], b"\x5a" * 32, *leaves[place + 1 :]]))
        guess.game.send(
            "challenge", play.id, int(Level.RUN), 0, play.job.run_root, guess.commitment(b""), value=SPEC.stake
        )
        crowd.append(guess)
    honest = play.auditor()
    play.run(play.trainer, honest)
    for number, dispute in enumerate(play.disputes()):
        if dispute.auditor != honest.address:
            honest.game.send("refund", play.id, number)
    play.run_to_end(play.trainer, honest)
    assert [gained(play, player) for player in (opener, *crowd)] == [-FEE] * (1 + guesses)
    assert gained(play, honest) == POOL


def test_moves_of_one_second_are_paid_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract makes many moves in one transaction, each for less than a transaction costs."""
    play = scene.claimed(SETUP, FIRST)
    first, copy = play.auditor(), play.auditor()
    for _ in rounds(play):
        if (call := due(first)) and call.name == "selectElement":
            break
        for player in (first, play.trainer):
            player.step()
    at = scene.chain.now()
    monkeypatch.setattr(RevmNode, "now", property(lambda _: at))  # all blocks from here have one time
    for _ in rounds(play):
        call = due(copy)
        call.send(copy.game) if call else play.trainer.step()  # that posts the sum's blocks
    assert play.verdicts == [("Convicted", 1, "element")]
    assert (play.dispute(1).moves, play.dispute(1).turn_at) == (1, at + 1) and gained(play, copy) == 3 * MOVE


def test_padding_convicts_at_its_own_place(scene: Scene) -> None:
    """A cheat that is convicted for the padding of its run tree pays no fees back to a crowd below the root."""
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

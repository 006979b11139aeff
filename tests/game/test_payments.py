"""Who is paid what on a conviction: each strategy of the table in docs/security.md section 3, played on the chain at a
price of gas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from frauds import SETUP as FREE
from frauds import SUM, Bluffer, Forcer, Mistaken, word_lie
from refused_money import Other
from revm_node import RevmNode
from scene import ETHER, Play, Scene, due, fast_scene
from test_trees import PaddedRun
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind, Tree
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.errors import ContractError

FEE = ETHER // 50 + 1
SETUP = replace(FREE, terms={"fee": FEE})
SPEC = SETUP.spec
LIE = word_lie(6, SUM, 4, 1)[0]
FIRST = word_lie(3, SUM, 4, 1)[0]  # in the first checkpoint: nothing is left of it
PRICE = 1000 * 2**14  # in wei; it has 16 bits
MOVE = 50_000 * PRICE
POOL = SPEC.trainer_bond // 2


@pytest.fixture(scope="module")
def deployed_scene() -> Scene:
    """A game that sees a base fee."""
    scene = fast_scene()
    scene.chain.node.show_base_fee(scene.address)
    return scene


@pytest.fixture(autouse=True)
def a_price_of_gas(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.chain.node, "base_fee", PRICE)


def gained(play: Play, player: Auditor) -> int:
    """What a player has beyond its bonds and fees."""
    return play.paid(player) - SPEC.stake * sum(d.auditor == player.address for d in play.disputes())


def rounds(play: Play) -> Iterator[int]:
    """Until the claim is convicted."""
    for number in range(100):
        if play.phase is not Phase.CLAIMED:
            return
        yield number
    raise AssertionError("no conviction")


def stipend(play: Play, number: int) -> int:
    return (play.dispute(number).moves + 2) * MOVE


def test_honest_on_the_path_of_a_conviction(scene: Scene) -> None:
    """Its gas, and the rest of the half of the bond for having known: with something left of the place."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")] and play.dispute().moves > 5
    assert gained(play, auditor) == POOL and play.client.verdict(play.id).pool == POOL - stipend(play, 0)
    assert play.client.burnt() == SPEC.trainer_bond - POOL


def test_honest_where_nothing_is_left_of_the_conviction(scene: Scene) -> None:
    """No knowledge can be shown there; the gas comes back."""
    play = scene.claimed(SETUP, FIRST)
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]
    assert gained(play, auditor) == stipend(play, 0) > 5 * MOVE


@pytest.mark.parametrize("lies", [LIE, FIRST], ids=["second", "first"])
@pytest.mark.parametrize("silent", ["reveal", "postSegment", "postTrace", "openLeaf"])
def test_nobody_has_a_share_in_a_timeout(scene: Scene, lies: object, silent: str) -> None:
    """A squatter with an arbitrary commitment came first and copies every move; whoever convicts, an outage is no
    lottery."""
    play = scene.claimed(SETUP, lies, Bluffer, silent={silent})
    squatter = play.auditor(cls=Other, tree=Tree(Kind.RUN, [b"\x5a" * 32] * 3))
    honest = play.auditor()
    play.run_to_end(play.trainer, squatter, honest)
    assert [v[::2] for v in play.verdicts] == [("Convicted", "timeout")]
    scene.game().send("payReward", play.id)
    assert gained(play, squatter) <= stipend(play, 0) and gained(play, honest) <= 0
    v = play.client.verdict(play.id)
    assert v.best == 0 and play.client.burnt() == SPEC.trainer_bond - POOL + v.pool


def test_silence_is_no_knowledge_for_anybody(scene: Scene) -> None:
    """Not for the auditor that knew, and not for a squatter at the root, where there is no sibling at all."""
    play = scene.claimed(SETUP, LIE, Bluffer, silent={"reveal"})
    squatter = play.auditor(cls=Other, tree=Tree(Kind.RUN, [b"\x5a" * 32] * 3))
    due(squatter).send(squatter.game)
    play.advance(SPEC.trainer_budget + 1)
    scene.game().send("timeout", play.id, 0)
    root, own = play.job.run_root, squatter.tree.root
    with pytest.raises(ContractError, match="NotEligible"):
        squatter.game.send("proveKnowledge", play.id, 0, (squatter.salt(own), own, own, [], root, []))


def test_what_was_known_is_not_paid_after_a_timeout(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract refuses what would be knowledge behind any other cause; agents do not even ask."""
    play = scene.claimed(SETUP, LIE, Bluffer, silent={"postSegment"})
    honest = play.auditor()
    play.run(play.trainer, honest)
    play.wait_for_clocks()
    scene.game().send("timeout", play.id, 0)
    verdict = replace(play.client.verdict(play.id), cause="element")
    with monkeypatch.context() as patched:
        patched.setattr(honest.game, "verdict", lambda _: verdict)
        k = ClaimView(honest, play.job).knowledge(play.dispute(0))
    assert k is not None
    with pytest.raises(ContractError, match="NotEligible"):
        honest.game.send("proveKnowledge", play.id, 0, k)


@pytest.mark.parametrize("place", [0, 1])
def test_a_squatter_is_never_paid_for_knowing(scene: Scene, place: int) -> None:
    """It came first, copies every move, and committed to arbitrary leaves: at the first checkpoint there is nothing to
    compare, behind it the left siblings are not its own."""
    play = scene.claimed(SETUP, FIRST if place == 0 else LIE)
    squatter = play.auditor(cls=Other, tree=Tree(Kind.RUN, [b"\x5a" * 32] * 3))
    honest = play.auditor()
    for _ in rounds(play):
        for player in (squatter, honest, play.trainer):
            if play.phase is Phase.CLAIMED and (call := due(player)):
                call.send(player.game)
    assert play.verdicts == [("Convicted", 0, "element")]  # even with the last word
    k = squatter.knowledge(play.trainer.run_tree(), place)
    with pytest.raises(ContractError, match="NotEligible"):
        squatter.game.send("proveKnowledge", play.id, 0, k)
    play.run_to_end(honest, squatter)
    assert gained(play, squatter) == stipend(play, 0)
    assert gained(play, honest) == (0 if place == 0 else POOL - stipend(play, 0))


def test_who_enters_where_the_children_are_public_has_no_share(scene: Scene) -> None:
    """S_0 is equal in every segment, so a commitment to any later state would compare a left sibling."""
    play = scene.claimed(SETUP, FIRST)
    honest = play.auditor()
    play.run_until("postTrace", honest, play.trainer)
    copy = play.auditor(cls=Other, tree=Tree(Kind.SEGMENT, [*play.trainer.machine.segment(1)[:2], b"\x5a" * 32]))
    root = play.client.segment_root(play.id, 1)
    copy.game.send("challenge", play.id, int(Level.SEGMENT), 1, root, copy.commitment(b""), value=SPEC.stake)
    for _ in rounds(play):
        for player in (copy, honest, play.trainer):
            if play.phase is Phase.CLAIMED and (call := due(player)):
                call.send(player.game)
    k = copy.knowledge(play.trainer.segment_tree(1), 2)
    with pytest.raises(ContractError, match="NotEligible"):
        copy.game.send("proveKnowledge", play.id, 1, k)


def test_a_run_tree_that_was_committed_to_below_the_run_has_no_share(scene: Scene) -> None:
    """Who enters at the segment has seen the run's checkpoints: a tree of these with another leaf at the fraud would
    compare them."""
    play = scene.claimed(SETUP, LIE)
    honest = play.auditor()
    play.run_until("postTrace", honest, play.trainer)
    claimed = play.trainer.run_tree()
    copy = play.auditor(cls=Other, tree=Tree(Kind.RUN, [claimed.node(0, 0), b"\x5a" * 32, claimed.node(0, 2)]))
    root = play.client.segment_root(play.id, 2)
    copy.game.send("challenge", play.id, int(Level.SEGMENT), 2, root, copy.commitment(b""), value=SPEC.stake)
    for _ in rounds(play):
        for player in (copy, honest, play.trainer):
            if play.phase is Phase.CLAIMED and (call := due(player)):
                call.send(player.game)
    assert [v[2] for v in play.verdicts] == ["element"] and play.dispute(1).moves
    with pytest.raises(ContractError, match="NotEligible"):
        copy.game.send("proveKnowledge", play.id, 1, copy.knowledge(claimed, 1))


def test_idle_and_off_the_path(scene: Scene) -> None:
    """Bond back, and the fee is burnt: who named another checkpoint cost time, who named nothing could have, and may
    have been a guess."""
    play = scene.claimed(SETUP, LIE)
    idle, beside = play.auditor(None, FalseAccuser, idle=True), play.auditor(None, Forcer, step=1)
    near = play.auditor(None, Forcer, step=5)  # in the same segment, before the place
    for player in (idle, beside, near):
        player.step()
    honest = play.auditor()
    for _ in rounds(play):
        for player in (play.trainer, beside, near, honest):
            if play.phase is Phase.CLAIMED:
                player.step()
    assert play.verdicts == [("Convicted", 3, "element")] and play.dispute(2).moves == 2
    play.run_to_end(play.trainer, honest, idle, beside, near)
    assert [gained(play, p) for p in (idle, beside, near)] == [-FEE, -FEE, -FEE]
    assert gained(play, honest) == POOL
    assert play.client.burnt() == SPEC.trainer_bond - POOL + 3 * FEE


def test_a_follower_on_the_path_gains_nothing_and_the_first_that_knew_has_the_rest(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    first, second = play.auditor(), play.auditor()
    play.run_to_end(play.trainer, first, second)
    convicted = play.verdicts[0][1]
    paid = stipend(play, 1) if convicted == 1 else 0
    assert gained(play, second) == paid and gained(play, first) == POOL - paid


def test_convicting_oneself_costs_half_the_bond_at_any_price(scene: Scene) -> None:
    """Stipends and the share come out of one half."""
    scene.chain.node.base_fee = 10**13  # beyond what is remembered
    play = scene.claimed(SETUP, LIE)
    own = [play.auditor() for _ in range(4)]
    play.run_to_end(play.trainer, *own)
    back = play.paid(play.trainer) + sum(gained(play, a) for a in own)
    assert back <= POOL


def test_a_false_accuser_loses_its_bond(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    accuser = play.auditor(LIE, Mistaken)
    play.run_to_end(play.trainer, accuser)
    assert gained(play, accuser) == -SPEC.stake
    assert play.client.burnt() == SPEC.auditor_bond - SPEC.auditor_bond // 2 + FEE
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond + SPEC.auditor_bond // 2


def test_a_stipend_is_less_than_what_the_moves_cost() -> None:
    """And about half of it at least: what real transactions need at least and at most."""
    calls = json.loads((Path(__file__).resolve().parents[2] / "docs" / "gas.json").read_text())["calls"]
    moves = ("select", "selectOperator", "selectElement", "selectBlock")
    counted = dict.fromkeys(moves, 50000) | {"challenge": 100_000, "prove": 200_000}
    for name, gas in counted.items():
        assert gas < calls[name]["least"] and calls[name]["most"] < 2.2 * gas


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

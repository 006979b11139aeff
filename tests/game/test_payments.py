"""Who is paid what on a conviction: each strategy of the table in docs/security.md section 3, played on the chain at a
price of gas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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
from scene import Scene, due

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind, Tree
from vgame.dispute.claim_view import ClaimView
from vgame.errors import ContractError


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

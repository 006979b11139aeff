"""Attacks on fees, grace and the auditor's stakes (docs/attacks.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import SETUP, SUM, Curious, word_lie
from scene import ETHER, Play, Scene
from test_divergence import BAD
from toy import INFINITY, Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Dispute, Level, Phase, Status
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView, Entry

FEE = ETHER // 100


class Piece(FalseAccuser):
    """An accuser that challenges at a posted segment."""

    segment = 0

    def challenge(self, view: ClaimView) -> bool:
        if not self.accused:
            entry = Entry(Level.SEGMENT, self.segment)
            place = (int(entry.level), entry.where, view.claimed_root(entry), view.basis(entry))
            self.game.send("challenge", self.id, *place, value=view.job.spec.stake)
            self.accused = True
        return True


def diverged(scene: Scene, stop: int, interval: int = 3) -> Play:
    """A false claim "diverged": its last segment and the trace of its last step are posted, though no node of the run
    tree was opened."""
    setup = replace(SETUP, steps=8, interval=interval, depth=1, terms={"fee": FEE})
    return scene.claimed(setup, Lies(words={(stop, *BAD): INFINITY}))


def test_a_crowd_below_the_place_of_a_conviction_pays_for_its_time(scene: Scene) -> None:
    """The crowd waits in the last segment; an accomplice at the root of the run gets no answer, and this convicts above
    all of them."""
    play = diverged(scene, 5)
    assert play.job.diverged_at == 5 and play.job.checkpoints == 1
    crowd = [play.auditor(None, Piece, step_wanted=step) for step in (4, 4)]
    for player in crowd:
        player.segment = 2
        for mover in (player, play.trainer, player):
            mover.step()
    assert [(d.level, d.height) for d in play.disputes()] == [(Level.SEGMENT, 0)] * 2
    root = play.auditor(None, FalseAccuser, idle=True)
    root.step()
    play.advance(play.setup.spec.trainer_budget + 10 * play.setup.spec.slot)
    scene.game().send("timeout", play.id, 2)
    assert play.verdicts == [("Convicted", 2, "timeout")] and play.client.verdict(play.id).level is Level.RUN
    for number in (0, 1):
        scene.game().send("refund", play.id, number)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0, 0]


@pytest.mark.parametrize("stop", [4, 5, 6, 8])
@pytest.mark.parametrize("entry", [Level.RUN, Level.SEGMENT])
def test_a_dispute_waiting_at_a_root_of_a_diverged_claim_is_refunded_its_fee(
    scene: Scene, stop: int, entry: Level
) -> None:
    """The step that diverged lies behind the last leaf of the run and of the last segment, however many leaves they
    have."""
    play = diverged(scene, stop)
    if entry is Level.RUN:
        idle = play.auditor(None, FalseAccuser, idle=True)
    elif stop == 4:
        return  # a segment without a step cannot be contested
    else:
        idle = play.auditor(None, Piece, step_wanted=4)
        idle.segment = play.job.checkpoints + 1
    idle.step()
    assert (play.dispute().entry, play.dispute().index) == (entry, 0)
    honest = play.auditor()
    play.run(play.trainer, honest)
    assert (play.verdicts[0][0], play.client.verdict(play.id).step) == ("Convicted", stop)
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [FEE]


def test_a_mover_beside_a_place_after_the_checkpoints_pays(scene: Scene) -> None:
    """Only the root stands for all: a node of the run tree does not contain the posts of the claim "diverged" beside
    it."""
    play = diverged(scene, 8)
    moved = play.auditor(None, FalseAccuser, step_wanted=1)
    for player in (moved, play.trainer, moved):
        player.step()
    d = play.dispute()
    assert (d.level, d.height, play.job.checkpoints) == (Level.RUN, 0, 2)
    play.run(play.trainer, play.auditor())
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0]


@pytest.mark.parametrize("step", [4, 5])
def test_a_mover_beside_a_place_after_the_last_segment_pays(scene: Scene, step: int) -> None:
    """The same in the tree of the last segment, which has three leaves: also in the node of the third."""
    play = diverged(scene, 6)
    moved = play.auditor(None, Piece, step_wanted=step)
    moved.segment = play.job.checkpoints + 1
    for player in (moved, play.trainer, moved):
        player.step()
    d = play.dispute()
    assert (d.level, d.height, d.index) == (Level.SEGMENT, 1, step - 4)
    play.run(play.trainer, play.auditor())
    assert (play.verdicts[0][0], play.client.verdict(play.id).step) == ("Convicted", 6)
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0]


def test_a_mover_to_the_last_of_three_checkpoints_pays(scene: Scene) -> None:
    """Its node has room for a fourth: the step that diverged is not in it."""
    play = diverged(scene, 7, interval=2)
    moved = play.auditor(None, FalseAccuser, step_wanted=5)
    for player in (moved, play.trainer, moved):
        player.step()
    d = play.dispute()
    assert (d.level, d.height, d.index, play.job.checkpoints) == (Level.RUN, 1, 1, 3)
    play.run(play.trainer, play.auditor())
    assert (play.verdicts[0][0], play.client.verdict(play.id).step) == ("Convicted", 7)
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0]


class Waiting(Auditor):
    """An accuser that waits at a node above an operator's record."""

    def move(self, view: ClaimView, number: int, d: Dispute) -> bool:
        return (d.level, d.height) != (Level.TRACE, 1) and super().move(view, number, d)


def test_a_dispute_waiting_in_a_trace_above_the_conviction_is_refunded_its_fee(scene: Scene) -> None:
    """A trace has more operators than its segment has states."""
    setup = replace(SETUP, steps=8, interval=2, depth=1, terms={"fee": FEE})
    play = scene.claimed(setup, word_lie(6, SUM, 4, 1)[0])
    waits, honest = play.auditor(cls=Waiting), play.auditor()
    for _ in range(40):
        if (d := play.disputes()) and (d[0].level, d[0].height) == (Level.TRACE, 1):
            break
        waits.step()
        play.trainer.step()
    play.run(play.trainer, honest)
    assert (play.verdicts[0][0], play.client.verdict(play.id).operator) == ("Convicted", SUM)
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [FEE]


def test_a_dispute_beside_and_below_the_conviction_is_refunded_its_bond(scene: Scene) -> None:
    """In the same tree, one node further down than the conviction: the two heights must not be subtracted."""
    play = scene.claimed(replace(SETUP, steps=8, interval=2, depth=1, terms={"fee": FEE}), Lies())
    beside = play.auditor(None, FalseAccuser, step_wanted=1)
    for player in (beside, play.trainer, beside, play.trainer, beside):
        player.step()
    other = play.auditor(None, FalseAccuser, step_wanted=7)
    other.step()
    other.step()
    assert [(d.level, d.height, d.index) for d in play.disputes()] == [(Level.RUN, 0, 0), (Level.RUN, 1, 1)]
    play.advance(play.setup.spec.trainer_budget + 10 * play.setup.spec.slot)
    scene.game().send("timeout", play.id, 1)
    assert (play.verdicts, play.client.verdict(play.id).height) == ([("Convicted", 1, "timeout")], 1)
    scene.game().send("refund", play.id, 0)
    assert [a["fee"] for _, a in play.events("Refunded")] == [0]


def test_an_auditor_stakes_once_at_a_time(scene: Scene) -> None:
    """Accomplices make the trainer post many wrong segments. Each stake beside the first would lose by its own clock,
    or pay a fee."""
    setup = replace(SETUP, terms={"fee": FEE})
    play = scene.claimed(setup, Lies(shown={(step, SUM, 4): 12345 for step in (2, 5, 8)}))
    crowd = [play.auditor(None, FalseAccuser, step_wanted=step) for step in (2, 5, 8)]
    for _ in range(6):
        for player in (*crowd, play.trainer):
            if play.phase is Phase.CLAIMED and not play.client.segment_root(play.id, 3):
                player.step()
    honest = play.auditor(cls=Curious)  # or it would stake nothing here
    most = 0
    for _ in range(60):
        if play.phase is not Phase.CLAIMED:
            break
        honest.step()
        most = max(most, sum(d.auditor == honest.address and d.status is Status.OPEN for d in play.disputes()))
        if play.phase is Phase.CLAIMED:
            play.trainer.step()
    assert (play.phase, most) == (Phase.CONVICTED, 1)
    play.run_to_end(honest)
    assert play.paid(honest) >= setup.spec.stake


def test_roots_of_the_claim_are_contested_before_later_posts(scene: Scene) -> None:
    """Of a claim "diverged" the last segment and trace, despite later posts of accomplices."""
    play = diverged(scene, 8)
    accuser = play.auditor(None, FalseAccuser, step_wanted=2)
    for _ in range(12):
        if play.client.segment_root(play.id, 1) != bytes(32):
            break
        accuser.step()
        play.trainer.step()
    assert play.client.segment_root(play.id, 1) != bytes(32)
    honest = play.auditor()
    honest.step()
    d = play.dispute(play.job.disputes - 1)
    assert d.auditor == honest.address and (d.entry, d.step) in {(Level.SEGMENT, 6), (Level.TRACE, 8)}

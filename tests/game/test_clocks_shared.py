"""Clocks of simultaneous disputes: an opening for one counts for all, and each awaited duty adds grace."""

from __future__ import annotations

from clock_moves import at, branch, refused
from frauds import LIE, SETUP, SPEC, Forcer
from scene import Call, Scene, due

from vgame.chain.records import Level, Phase, Turn

# ---- one reveal for many disputes ----


def test_a_shared_reveal_uses_no_other_players_clock(scene: Scene) -> None:
    """A node opened for one dispute is open in the next: its auditor's clock starts with its own move, the trainer's
    does not start."""
    play = scene.claimed(SETUP, LIE)
    first, second = play.auditor(), play.auditor()
    play.run_until("postTrace", first, play.trainer)  # everything above the step's trace is open
    play.advance(200)
    assert play.dispute(0).turn_at + 200 <= scene.chain.now()
    due(second).send(second.game)
    while play.dispute(1).level is not Level.SEGMENT or play.dispute(1).height:
        turn, deadline = play.client.turn(play.id, 1)
        assert (turn, deadline) == (Turn.AUDITOR, scene.chain.now() + play.dispute(1).auditor_left)
        at(scene, scene.chain.now() + 10)
        left = play.dispute(1).auditor_left
        due(second).send(second.game)
        assert play.dispute(1).auditor_left == left - 10
        assert play.dispute(1).trainer_left == SPEC.trainer_budget
    assert play.client.turn(play.id, 1)[0] is Turn.TRAINER


def test_an_early_opening_by_another_account_costs_no_player(scene: Scene) -> None:
    """Opened before the node is even contested: neither clock ran."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    tree = play.trainer.run_tree()
    reveal = Call("reveal", (play.id, int(Level.RUN), 2, tree.descendants(2, 0, 2)))
    reveal.send(scene.game())
    opened = play.client.opened(play.id, Level.RUN, 2, tree.root)
    assert opened == scene.chain.now()
    play.advance(1000)
    reveal.send(scene.game())
    assert play.client.opened(play.id, Level.RUN, 2, tree.root) == opened  # I5
    due(auditor).send(auditor.game)
    assert play.client.turn(play.id, 0) == (Turn.AUDITOR, scene.chain.now() + SPEC.auditor_budget)
    due(auditor).send(auditor.game)
    d = play.dispute()
    assert (d.trainer_left, d.auditor_left) == (SPEC.trainer_budget, SPEC.auditor_budget - 1)


def test_a_segment_counts_from_its_post_even_if_its_root_was_revealed_before(scene: Scene) -> None:
    """I13: a reveal of the same hash by another account is no post, so the auditor's clock does not run yet."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    tree = play.trainer.segment_tree(2)
    scene.game().send("reveal", play.id, int(Level.SEGMENT), 2, tree.descendants(2, 0, 2))
    post = play.run_until("postSegment", auditor, play.trainer)
    assert play.client.turn(play.id, 0)[0] is Turn.TRAINER
    play.advance(SPEC.trainer_budget - 30)
    post.send(play.trainer.game)
    assert play.client.turn(play.id, 0) == (Turn.AUDITOR, scene.chain.now() + SPEC.auditor_budget - 1)


def test_two_disputes_wait_for_one_opening(scene: Scene) -> None:
    """Both clocks of the trainer run for the same duty, and one move stops both; each dispute charges from its own
    turn."""
    play = scene.claimed(SETUP, LIE)
    auditors = play.auditor(), play.auditor()
    for auditor in auditors:
        at(scene, scene.chain.now() + 50)
        due(auditor).send(auditor.game)
    at(scene, scene.chain.now() + 100)
    play.trainer.step()
    for auditor in auditors:
        due(auditor).send(auditor.game)
    first, second = SPEC.trainer_budget - 150, SPEC.trainer_budget - 100  # no grace: both wait for one duty
    assert [d.trainer_left for d in play.disputes()] == [first, second]


def test_posted_roots_serve_every_dispute_that_enters_there(scene: Scene) -> None:
    """The children of the root came with the post: the trainer owes nothing, the auditor's clock starts with the
    challenge."""
    play = scene.claimed(SETUP, LIE)
    play.run_until("selectOperator", play.auditor(), play.trainer)
    roots = (
        (Level.SEGMENT, 2, play.client.segment_root(play.id, 2)),
        (Level.TRACE, 6, play.client.trace_root(play.id, 6)),
    )
    for number, (level, where, root) in enumerate(roots, 1):
        play.advance(100)
        basis = (0, roots[0][2], bytes(32))
        Call("challenge", (play.id, int(level), where, root, basis), SPEC.auditor_bond).send(scene.game())
        assert play.client.turn(play.id, number) == (Turn.AUDITOR, scene.chain.now() + SPEC.auditor_budget)


# ---- the queue ----


def test_the_grace_is_a_slot_for_each_other_awaited_duty(scene: Scene) -> None:
    """Counted at the auditor's move: it does not change when other disputes end or begin."""
    play = scene.claimed(SETUP, LIE)
    idle = [play.auditor(None, Forcer, step=step) for step in (1, 5, 8)]
    for accuser in idle:
        accuser.step()
    play.trainer.step()
    for accuser in idle:
        accuser.step()  # each names its checkpoint
    assert [d.others for d in play.disputes()] == [0, 1, 2] and play.job.queue == 3
    auditor = play.auditor()
    due(auditor).send(auditor.game)
    assert (play.dispute(3).others, play.job.open) == (0, 4)  # at the root, which is open
    due(auditor).send(auditor.game)
    assert (play.dispute(3).others, play.job.queue) == (2, 3)  # with the second it waits for one segment
    d = play.dispute(3)
    assert play.client.turn(play.id, 3) == (Turn.TRAINER, d.turn_at + 2 * SPEC.slot + d.trainer_left)
    play.run_until("select", play.trainer, auditor)
    assert play.dispute(3).trainer_left == d.trainer_left  # the segment came within the grace
    play.advance(SPEC.auditor_budget + 10)
    for number in range(3):
        if play.client.turn(play.id, number)[0] is Turn.AUDITOR_EXPIRED:
            scene.game().send("timeout", play.id, number)
    assert play.dispute(3).others == 2


def test_the_grace_is_used_up_before_the_budget(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    other, auditor = play.auditor(None, Forcer, step=1), play.auditor()
    for player in (other, play.trainer, other, auditor):
        player.step()
    due(auditor).send(auditor.game)
    d = play.dispute(1)
    assert (d.others, d.height) == (1, 0)
    post = play.run_until("postSegment", play.trainer)
    post = Call(post.name, (play.id, 1, d.position, play.trainer.segment_post(play.job, 2)))
    for late in (0, 1, SPEC.trainer_budget):
        with branch(scene):
            at(scene, d.turn_at + SPEC.slot + late)
            post.send(play.trainer.game)
            view = auditor.view()
            assert auditor.turn(view, view.open_mine[0])  # its own move, though the other dispute is over at the last
            assert play.dispute(1).trainer_left == d.trainer_left - late
    at(scene, d.turn_at + SPEC.slot + d.trainer_left + 1)
    refused(post, play.trainer.game, "NotYourTurn", Turn.TRAINER_EXPIRED)


def test_a_dispute_ends_within_its_two_budgets_and_its_graces(scene: Scene) -> None:
    """Both sides wait as long as they can without losing, beside two idle disputes: the duration is still bounded."""
    play = scene.claimed(SETUP, LIE)
    idle = [play.auditor(None, Forcer, step=step) for step in (1, 8)]
    for player in (*idle, play.trainer, *idle):
        player.step()
    auditor = play.auditor()
    start, deep = scene.chain.now(), 0
    due(auditor).send(auditor.game)
    while play.phase is Phase.CLAIMED:
        for player in (play.trainer, auditor):
            turn, deadline = play.client.turn(play.id, 2) if play.phase is Phase.CLAIMED else (None, 0)
            if turn is (Turn.TRAINER if player is play.trainer else Turn.AUDITOR):
                d = play.dispute(2)
                deep += turn is Turn.TRAINER and d.others > 0
                at(scene, max(deadline - 40, scene.chain.now() + 1))
                view = auditor.view()
                auditor.turn(view, view.standings[2]) if player is auditor else player.answer(play.job, 2, d)
                scene.chain.node.next_time = None
    assert play.verdicts[-1] == ("Convicted", 2, "element")
    assert scene.chain.now() - start <= SPEC.trainer_budget + SPEC.auditor_budget + deep * 2 * SPEC.slot
    assert deep > 5

"""Clocks: at each deadline the second before, the second itself, the one after; who is charged for what
(docs/protocol.md section 3)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from frauds import SETUP, SUM, Forcer, Mistaken, state_lie, word_lie
from scene import Call, Play, Scene, due
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.game import Game
from vgame.chain.records import Level, Phase, Turn
from vgame.dispute.player import Player
from vgame.errors import ContractError

SPEC = SETUP.spec
LIE = word_lie(6, SUM, 4, 1)[0]


def at(scene: Scene, time: int) -> None:
    """The next transaction is in a block of this time."""
    assert time > scene.chain.now()
    scene.chain.node.next_time = time


@contextmanager
def branch(scene: Scene) -> Iterator[None]:
    """What happens inside is undone."""
    node, ghost = scene.chain.node, scene.ghost
    point, memory = node.snapshot(), ghost.memory()
    yield
    node.revert(point)
    ghost.remember(memory)


def refused(call: Call, game: Game, error: str, *args: object) -> None:
    with pytest.raises(ContractError) as caught:
        call.send(game)
    assert (caught.value.name, caught.value.args_) == (error, args)


# ---- deadlines of a job ----


@pytest.mark.parametrize("phase", ["accept", "claim"])
def test_a_duty_of_the_job_ends_where_expiry_begins(scene: Scene, phase: str) -> None:
    """F6: there is no second in which both calls are accepted, and none in which neither is."""
    play = scene.post(SETUP)
    play.trainer = play.new_trainer()
    if phase == "claim":
        play.trainer.accept()
        call = due(play.trainer)
    else:
        call = Call("acceptJob", (play.id,), SPEC.trainer_bond)
    expire = Call("expire", (play.id,))
    until = play.job.since + (SPEC.claim_window if phase == "claim" else SPEC.accept_window)
    for time in (until - 1, until, until + 1):
        with branch(scene):
            at(scene, time)
            if time <= until:
                refused(expire, play.client, "TooEarly", time, until + 1)
                call.send(play.trainer.game)
            else:
                refused(call, play.trainer.game, "TooLate", time, until)
                expire.send(scene.game())
                assert play.phase is Phase.EXPIRED
                bond = SPEC.trainer_bond // 2 if phase == "claim" else 0
                assert play.client.credits(play.client.wallet.address) == SPEC.reward + bond
                assert play.paid(play.trainer) == 0


def test_a_challenge_ends_where_finality_begins(scene: Scene) -> None:
    """A7, T18, F6."""
    play = scene.claimed(SETUP)
    accuser = play.auditor(LIE)
    challenge, finalize = due(accuser), Call("finalize", (play.id,))
    until = play.job.since + SPEC.challenge_window
    for time in (until - 1, until, until + 1):
        with branch(scene):
            at(scene, time)
            if time <= until:
                refused(finalize, scene.game(), "TooEarly", time, until + 1)
                challenge.send(accuser.game)
                play.pass_window()
                refused(finalize, scene.game(), "DisputesOpen", 1)
            else:
                refused(challenge, accuser.game, "TooLate", time, until)
                finalize.send(scene.game())
                assert play.phase is Phase.FINAL


def test_a_trace_can_be_challenged_while_the_window_is_open_and_not_after(scene: Scene) -> None:
    """A dispute that is still open when the window ends opens nothing new; its own verdict counts at any time."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    play.run_until("selectBlock", play.trainer, auditor)
    due(auditor).send(auditor.game)
    until = play.job.since + SPEC.challenge_window
    late = Call(
        "challenge", (play.id, int(Level.TRACE), 6, play.client.trace_root(play.id, 6), bytes(32)), SPEC.auditor_bond
    )
    at(scene, until)
    late.send(scene.game())
    refused(late, auditor.game, "TooLate", until + 1, until)


def test_knowledge_is_shown_until_the_reward_is_paid(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    play.run_until("proveKnowledge", play.trainer, auditor)
    show, pay = due(auditor), Call("payReward", (play.id,))
    until = play.job.since + SPEC.reward_window
    for time in (until - 1, until, until + 1):
        with branch(scene):
            at(scene, time)
            if time <= until:
                refused(pay, scene.game(), "TooEarly", time, until + 1)
                show.send(auditor.game)
                play.run_to_end(auditor)
                assert play.paid(auditor) == SPEC.auditor_bond + SPEC.trainer_bond // 2
            else:
                refused(show, auditor.game, "TooLate", time, until)
                pay.send(scene.game())
                assert play.client.burnt() == SPEC.trainer_bond  # nobody showed anything: both halves


# ---- deadlines of a dispute ----


def moves(play: Play, *players: Player) -> Iterator[tuple[Player, Call]]:
    """Every move of a dispute, before it is made; it is made afterwards."""
    while play.phase is Phase.CLAIMED:
        for player in players:
            call = due(player)
            if call and play.phase is Phase.CLAIMED:
                yield player, call
                call.send(player.game)


ELEMENT_MOVES = {
    "reveal", "select", "postSegment", "postTrace", "selectOperator", "openLeaf", "selectElement", "postPartials",
    "selectBlock", "prove",
}  # fmt: skip
STATE_MOVES = {"reveal", "select", "postSegment", "postTrace", "selectState", "tie"}


@pytest.mark.parametrize(
    "lie,cause,names",
    [(LIE, "element", ELEMENT_MOVES), (state_lie(6, SUM, 4)[0], "opening", STATE_MOVES)],
    ids=["element", "state"],
)
def test_at_every_move_the_last_second_counts_and_the_next_one_does_not(
    scene: Scene, lie: Lies, cause: str, names: set[str]
) -> None:
    """F6 at each node of a whole dispute: the move in the second of the deadline, the timeout by a stranger one second
    later."""
    play = scene.claimed(SETUP, lie)
    auditor, stranger = play.auditor(), scene.game()
    due(auditor).send(auditor.game)
    timeout, seen = Call("timeout", (play.id, 0)), []
    for player, call in moves(play, play.trainer, auditor):
        trainers = player is play.trainer
        turn, deadline = play.client.turn(play.id, 0)
        assert turn is (Turn.TRAINER if trainers else Turn.AUDITOR)
        d = play.dispute()
        if trainers:
            assert deadline == d.turn_at + d.others * SPEC.slot + d.trainer_left
        with branch(scene):
            at(scene, deadline)
            refused(timeout, stranger, "NotExpired", turn)
            call.send(player.game)
        with branch(scene):
            at(scene, deadline + 1)
            if call.name not in ("reveal", "openLeaf"):  # these belong to the claim, not to a dispute
                refused(call, player.game, "NotYourTurn", Turn.TRAINER_EXPIRED if trainers else Turn.AUDITOR_EXPIRED)
            timeout.send(stranger)
            outcome = ("Convicted", 0, "timeout") if trainers else ("Dismissed", 0, "timeout")
            assert play.verdicts == [outcome]
        seen.append(call.name)
    assert play.verdicts == [("Convicted", 0, cause)]
    assert set(seen) == names


def test_a_late_opening_does_not_save_the_trainer(scene: Scene) -> None:
    """F2: the overrun is computed, not remembered: timeout before or after the late reveal, the verdict is the same."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    reveal = play.run_until("reveal", auditor, play.trainer)
    deadline = play.client.turn(play.id, 0)[1]
    at(scene, deadline + 1)
    reveal.send(play.trainer.game)
    assert play.client.turn(play.id, 0)[0] is Turn.TRAINER_EXPIRED
    auditor.step()
    assert play.verdicts == [("Convicted", 0, "timeout")]


def test_both_clocks_stand_while_the_other_side_thinks(scene: Scene) -> None:
    """Each side is charged for its own seconds only, at every move of a dispute with random pauses."""
    dice = random.Random(5)
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    due(auditor).send(auditor.game)
    start = play.dispute()
    turn_at, trainer_left, auditor_left, opened = start.turn_at, SPEC.trainer_budget, SPEC.auditor_budget, 0
    for player, _ in moves(play, play.trainer, auditor):
        at(scene, scene.chain.now() + dice.choice((1, 1, 2, 7, 30, 30)))
        time = scene.chain.node.next_time
        d = play.dispute()
        assert (d.turn_at, d.trainer_left, d.auditor_left) == (turn_at, trainer_left, auditor_left)
        if player is auditor:
            trainer_left -= opened - turn_at
            auditor_left -= time - opened
            turn_at = time
        else:
            opened = time
    assert trainer_left < SPEC.trainer_budget - 50 and auditor_left < SPEC.auditor_budget - 50


@pytest.mark.parametrize("margin,cause", [(30, "element"), (0, "timeout")])
@pytest.mark.parametrize("honest", ["trainer", "auditor"])
def test_a_budget_is_for_the_whole_dispute(scene: Scene, honest: str, margin: int, cause: str) -> None:
    """T9, A4: whoever waits to its last second once has none left, right as it may be; with some left it wins."""
    play = scene.claimed(SETUP, None if honest == "trainer" else LIE)
    auditor = play.auditor(*((LIE, Mistaken) if honest == "trainer" else ()))
    player = play.trainer if honest == "trainer" else auditor
    call = play.run_until("reveal" if honest == "trainer" else "select", auditor, play.trainer)
    at(scene, play.client.turn(play.id, 0)[1] - margin)
    call.send(player.game)
    play.run(auditor, play.trainer)
    wins = {"trainer": "Dismissed", "auditor": "Convicted"}
    loses = {"trainer": "Convicted", "auditor": "Dismissed"}
    # its next dispute is kept in time
    again = [("Convicted", 1, "element")] if honest == "auditor" and not margin else []
    assert play.verdicts == [((wins if margin else loses)[honest], 0, cause), *again]


def test_after_ten_budgets_everything_can_still_be_ended(scene: Scene) -> None:
    """F9, F10: nobody moves for ages; one call ends each dispute, one the job."""
    play = scene.claimed(SETUP)
    accusers = [play.auditor(None, FalseAccuser, step_wanted=step) for step in (1, 5, 8)]
    for rounds, accuser in enumerate(accusers):
        for _ in range(rounds + 1):
            accuser.step()
            play.trainer.step()
    play.advance(10 * (SPEC.trainer_budget + SPEC.auditor_budget + SPEC.challenge_window))
    stranger = scene.game()
    for number in range(3):
        turn = play.client.turn(play.id, number)[0]
        assert turn is Turn.AUDITOR_EXPIRED
        stranger.send("timeout", play.id, number)
    stranger.send("finalize", play.id)
    assert play.phase is Phase.FINAL


# ---- one reveal for many disputes ----


def test_a_shared_reveal_does_not_eat_anybody_elses_clock(scene: Scene) -> None:
    """What was opened for one dispute is open in the next: its auditor's clock starts with its own move, the trainer's
    not at all."""
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


def test_an_early_opening_by_a_stranger_costs_nobody_anything(scene: Scene) -> None:
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
    """I13: a reveal of the same hash by a stranger is no post, so the auditor's clock does not run yet."""
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
    first, second = SPEC.trainer_budget - 150, SPEC.trainer_budget - 100  # no grace: both wait for one thing
    assert [d.trainer_left for d in play.disputes()] == [first, second]


def test_what_was_posted_is_open_to_whoever_enters_there(scene: Scene) -> None:
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
        Call("challenge", (play.id, int(level), where, root, bytes(32)), SPEC.auditor_bond).send(scene.game())
        assert play.client.turn(play.id, number) == (Turn.AUDITOR, scene.chain.now() + SPEC.auditor_budget)


# ---- the queue ----


def test_the_grace_is_a_slot_for_each_other_thing_that_is_awaited(scene: Scene) -> None:
    """Counted when the auditor moves; it neither shrinks when others end nor grows when others come."""
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
    post = Call(post.name, (play.id, 1, play.trainer.segment_post(play.job, 2)))
    for late in (0, 1, SPEC.trainer_budget):
        with branch(scene):
            at(scene, d.turn_at + SPEC.slot + late)
            post.send(play.trainer.game)
            due(auditor).send(auditor.game)
            assert play.dispute(1).trainer_left == d.trainer_left - late
    at(scene, d.turn_at + SPEC.slot + d.trainer_left + 1)
    refused(post, play.trainer.game, "NotYourTurn", Turn.TRAINER_EXPIRED)


def test_a_dispute_ends_within_its_two_budgets_and_its_graces(scene: Scene) -> None:
    """Both sides wait as long as they can without losing, under two idle disputes: bounded all the same."""
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
                player.turn(play.job, 2, d) if player is auditor else player.answer(play.job, 2, d)
                scene.chain.node.next_time = None
    assert play.verdicts[-1] == ("Convicted", 2, "element")
    assert scene.chain.now() - start <= SPEC.trainer_budget + SPEC.auditor_budget + deep * 2 * SPEC.slot
    assert deep > 5

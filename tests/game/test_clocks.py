"""Clocks: at each deadline the second before, the second itself, the one after; the charges of each side
(docs/protocol.md section 3)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from clock_moves import at, branch, refused
from frauds import LIE, SETUP, SPEC, SUM, Mistaken, state_lie
from scene import Call, Play, Scene, due
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase, Turn
from vgame.dispute.player import Player

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
    """After the window, a dispute that is still open allows no new challenge; its own verdict counts at any time."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    play.run_until("selectPartial", play.trainer, auditor)
    due(auditor).send(auditor.game)
    until = play.job.since + SPEC.challenge_window
    basis = (0, play.client.segment_root(play.id, 2), bytes(32))
    late = Call(
        "challenge", (play.id, int(Level.TRACE), 6, play.client.trace_root(play.id, 6), basis), SPEC.auditor_bond
    )
    at(scene, until)
    late.send(scene.game())
    refused(late, auditor.game, "TooLate", until + 1, until)


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
    "selectPartial", "prove",
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
    """F6 at each node of a whole dispute: the move in the second of the deadline, the timeout by another account one
    second later."""
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
    """F2: the overrun is computed, not stored: a timeout before or after the late reveal gives the same verdict."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    reveal = play.run_until("reveal", auditor, play.trainer)
    deadline = play.client.turn(play.id, 0)[1]
    at(scene, deadline + 1)
    reveal.send(play.trainer.game)
    assert play.client.turn(play.id, 0)[0] is Turn.TRAINER_EXPIRED
    auditor.step()
    assert play.verdicts == [("Convicted", 0, "timeout")]


def test_each_clock_stands_during_the_other_sides_turn(scene: Scene) -> None:
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
    """T9, A4: a side that once waits to its last second has no time left and loses, even if it is right; with time left
    it wins."""
    play = scene.claimed(SETUP, None if honest == "trainer" else LIE)
    auditor = play.auditor(*((LIE, Mistaken) if honest == "trainer" else ()))
    player = play.trainer if honest == "trainer" else auditor
    call = play.run_until("reveal" if honest == "trainer" else "select", auditor, play.trainer)
    at(scene, play.client.turn(play.id, 0)[1] - margin)
    call.send(player.game)
    again = [("Convicted", 1, "element")] if honest == "auditor" and not margin else []
    auditor = play.auditor() if again else auditor  # another one, whose dispute is kept in time
    play.run(auditor, play.trainer)
    play.advance(1)
    play.run(auditor, play.trainer)
    wins = {"trainer": "Dismissed", "auditor": "Convicted"}
    loses = {"trainer": "Convicted", "auditor": "Dismissed"}
    assert play.verdicts == [((wins if margin else loses)[honest], 0, cause), *again]


def test_after_ten_budgets_disputes_and_job_can_still_be_ended(scene: Scene) -> None:
    """F9, F10: no move for years; one call ends each dispute, one the job."""
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

"""The trainer's queue: each awaited opening is one duty, for any number of disputes; a place is decided once for
all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import LIE, SETUP, SPEC, SUM, Bluffer, Forcer, Mistaken, state_lie, word_lie
from ghost import ALONE
from scene import ETHER, Call, Play, Scene, due

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase, Status, Turn


def step_all(*players) -> None:
    for player in players:
        player.step()


def test_a_single_dispute_sets_no_mark(scene: Scene) -> None:
    """Its openings cost no gas for the queue; the second dispute sets the mark of the first one's duty."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    while play.phase is Phase.CLAIMED and play.job.disputes < 2:
        step_all(auditor)
        assert play.job.queue == ALONE and play.dispute().others == 0
        if play.client.turn(play.id, 0)[0] is Turn.TRAINER and play.dispute().level is Level.SEGMENT:
            play.auditor(None, FalseAccuser, idle=True).step()
            assert (play.job.queue, play.dispute(1).others) == (1, 0)
        play.trainer.step()
    assert play.job.queue == 0
    play.run_to_end(play.trainer, auditor)
    assert play.phase is Phase.CONVICTED


def test_an_idle_crowd_adds_no_time_for_a_cheat(scene: Scene) -> None:
    """200 challengers that never move: the honest auditor's dispute has no grace at any of its duties. The same holds
    for 1,000: all of them wait for one root, and after its opening for no duty."""
    play = scene.claimed(SETUP, LIE)
    crowd = [play.auditor(None, FalseAccuser, idle=True) for _ in range(200)]
    step_all(*crowd)
    assert play.job.queue == 1
    honest = play.auditor()
    graces = set()
    while play.phase is Phase.CLAIMED:
        due(honest).send(honest.game) if play.job.disputes == 200 or play.client.turn(play.id, 200)[
            0
        ] is Turn.AUDITOR else None
        graces.add(play.dispute(200).others)
        if play.phase is Phase.CLAIMED:
            play.trainer.answer(play.job, 200, play.dispute(200))
    assert graces == {0} and play.verdicts == [("Convicted", 200, "element")]


def crowded(scene: Scene, count: int, fee: int) -> Play:
    """A wrong claim of `count` checkpoints; a crowd has selected each of them except the honest auditor's."""
    setup = replace(SETUP, steps=2 * count, interval=2, depth=8, terms={"fee": fee, "challenge_window": 100_000})
    play = scene.claimed(setup, LIE)
    crowd = [play.auditor(None, Forcer, step=2 * c + 1) for c in range(count) if c != 2]
    step_all(*crowd, play.trainer, *crowd)
    return play


def test_an_active_crowd_pays_for_its_delay(scene: Scene) -> None:
    """With the fee that `vgame terms` proposes, B * D * slot / challengeWindow, a delay of t burns B * t /
    challengeWindow."""
    count, duties = 40, 12
    bond = SPEC.trainer_bond
    fee = bond * duties * SPEC.slot // 100_000
    play = crowded(scene, count, fee)
    honest = play.auditor()
    others = []
    while play.phase is Phase.CLAIMED:
        turn = play.client.turn(play.id, count - 1)[0] if play.job.disputes == count else Turn.AUDITOR
        due(honest).send(honest.game) if turn is Turn.AUDITOR else play.trainer.answer(
            play.job, count - 1, play.dispute(count - 1)
        )
        if turn is Turn.AUDITOR and play.phase is Phase.CLAIMED:
            others.append(play.dispute(count - 1).others)
    assert play.verdicts == [("Convicted", count - 1, "element")] and len(others) <= duties and max(others) == count - 1
    for number in range(count - 1):
        scene.game().send("refund", play.id, number)
    delay = sum(others) * SPEC.slot
    burnt = play.client.burnt() - (bond - bond // 2)  # beside the half of the convicted trainer's bond
    assert burnt == (count - 1) * fee >= bond * delay // 100_000 * 0.99


@pytest.mark.parametrize(
    "fraud", [word_lie(6, 1, 4), word_lie(6, SUM, 4, 1), state_lie(6, 2, 5)], ids=["element", "block", "tie"]
)
def test_a_place_is_decided_once(scene: Scene, fraud) -> None:
    """Two auditors make the same mistake: one proof answers both, and the second dispute can be ended at once, with the
    same cause."""
    play = scene.claimed(SETUP)
    wrong = [play.auditor(fraud[0], Mistaken) for _ in range(2)]
    for _ in range(100):
        step_all(*wrong)
        call = due(play.trainer)
        call.send(play.trainer.game)
        if call.name in ("prove", "tie", "tieUnchanged"):
            break
        assert play.job.queue <= 1  # both wait for the same duty
    (first, cause) = play.verdicts[0][1:]
    assert play.client.turn(play.id, 1 - first)[0] is Turn.AUDITOR_EXPIRED and play.job.queue == 0
    stranger = scene.game()
    stranger.send("timeoutMany", play.id, [0, 1])
    assert play.verdicts == [("Dismissed", first, cause), ("Dismissed", 1 - first, cause)]
    # Later disputes find it decided.
    late = play.auditor(fraud[0], Mistaken)
    for _ in range(100):
        step_all(late)
        if play.dispute(2).status is not Status.OPEN or play.client.turn(play.id, 2)[0] is Turn.AUDITOR_EXPIRED:
            break
        play.trainer.step()
    scene.game().send("timeout", play.id, 2)
    assert play.verdicts[-1] == ("Dismissed", 2, cause)
    assert play.run_to_end(play.trainer) is Phase.FINAL


def test_a_mark_does_not_outlive_its_dispute(scene: Scene) -> None:
    """One of two disputes waits for a proof and is answered when it is the only one left: the place counts again for
    later disputes."""
    play = scene.claimed(SETUP)
    wrong, idle = play.auditor(word_lie(6, 1, 4)[0], Mistaken), play.auditor(None, FalseAccuser, idle=True)
    step_all(wrong, idle)
    call = play.run_until("prove", play.trainer, wrong)
    assert play.job.queue == 1
    play.advance(SPEC.auditor_budget + 1)
    number = next(n for n, d in enumerate(play.disputes()) if d.auditor == idle.address)
    scene.game().send("timeout", play.id, number)
    assert (play.job.open, play.job.queue) == (1, 1)
    if play.client.turn(play.id, 1 - number)[0] is Turn.TRAINER:
        call.send(play.trainer.game)
        assert play.job.queue == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_clock_that_starts_first_is_served_first(scene: Scene, seed: int) -> None:
    """Also against the numbers of the disputes."""
    play = scene.claimed(SETUP, LIE, Bluffer)
    crowd = [play.auditor(None, Forcer, step=step) for step in (1, 5, 8)]
    step_all(*crowd, play.trainer)
    for player in reversed(crowd):
        player.step()
    starts = [d.turn_at + d.others * SPEC.slot for d in play.disputes()]
    assert starts == sorted(starts, reverse=True)
    call = due(play.trainer)
    assert call.name == "postSegment" and call.args[1] == 2


def test_a_challenge_costs_bond_and_fee(scene: Scene) -> None:
    setup = replace(SETUP, terms={"fee": ETHER // 100})
    play = scene.claimed(setup, LIE)
    call = due(play.auditor())
    assert call.value == setup.spec.stake == SPEC.auditor_bond + ETHER // 100
    game = scene.game()
    for value in (SPEC.auditor_bond, call.value + 1):
        with pytest.raises(Exception, match="WrongValue"):
            Call(call.name, call.args, value).send(game)

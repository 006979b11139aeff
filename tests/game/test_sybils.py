"""A crowd of idle disputes on a chain with 12-second blocks: an agent's order of work follows its own clocks."""

from __future__ import annotations

from typing import Any

import pytest
from frauds import LIE, SETUP, wrong_word
from scene import Play, Scene, Setup, fast_scene
from toy import Lies

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import LOST, Phase, Status, Turn
from vgame.dispute.player import DISPUTE_GAS, RESERVE, Player

WRONG_TRACE = Lies(shown={(6, 2, 128): wrong_word(6, 2, 128)})
BLOCK = 12
CROWDS = [60, pytest.param(500, marks=pytest.mark.nightly)]


@pytest.fixture(scope="module")
def crowded() -> Scene:
    """Without the ghost, which looks at every dispute after every transaction."""
    return fast_scene()


def slow(player: Player, meanwhile: Any) -> None:
    """Each transaction of the player takes a block, and the others see it before it is included."""
    usual = player.game.send

    def send(name: str, *args: Any, value: int = 0) -> Any:
        meanwhile(name)
        assert player.game.chain.advance(BLOCK - 1)
        return usual(name, *args, value=value)

    player.game.send = send


def crowd(play: Play, count: int) -> None:
    """The crowd challenges, and never moves again."""
    for _ in range(count):
        play.auditor(None, FalseAccuser, idle=True).step()


def wait(play: Play) -> None:
    play.advance(BLOCK)


@pytest.mark.parametrize("count", CROWDS)
def test_idle_disputes_do_not_use_up_an_auditors_clock(crowded: Scene, count: int) -> None:
    """The cheat answers as soon as the auditor has begun to end the disputes whose time is over."""
    setup = Setup(SETUP.program, steps=8, terms={"auditor_budget": 10 * BLOCK, "trainer_budget": 1000, "slot": 60})
    play = crowded.claimed(setup, LIE)
    crowd(play, count)
    auditor = play.auditor()
    auditor.step()
    slow(auditor, lambda name: play.trainer.step() if name.startswith("timeout") else None)
    play.trainer.step()
    while auditor.step():
        pass
    play.advance(setup.spec.auditor_budget)  # the crowd's time is over, the auditor's own clock stands
    for _ in range(50):
        if play.phase is not Phase.CLAIMED:
            break
        auditor.step() or play.trainer.step() or wait(play)
    assert play.phase is Phase.CONVICTED
    assert play.dispute(count).status is Status.WON and play.dispute(count).auditor == auditor.address


@pytest.mark.parametrize("count", CROWDS)
def test_idle_disputes_do_not_use_up_an_honest_trainers_clock(crowded: Scene, count: int) -> None:
    """An accuser moves as soon as the trainer has begun to end the disputes whose time is over."""
    setup = Setup(SETUP.program, steps=8, terms={"auditor_budget": 1000, "trainer_budget": 15 * BLOCK, "slot": BLOCK})
    play = crowded.claimed(setup)
    crowd(play, 1)
    play.trainer.step()  # it opens the root for all of them
    crowd(play, count - 1)
    play.advance(setup.spec.auditor_budget - 5 * BLOCK)
    accuser = play.auditor(None, FalseAccuser, step_wanted=5)
    accuser.step()
    play.advance(6 * BLOCK)
    slow(play.trainer, lambda name: accuser.step() if name.startswith("timeout") else None)
    for _ in range(100):
        if not play.job.open:
            break
        play.trainer.step() or accuser.step() or wait(play)
    play.pass_window()
    assert play.run_to_end(play.trainer) is Phase.FINAL
    assert {d.status for d in play.disputes()} <= LOST


def test_the_trainers_overrun_in_another_dispute_convicts(scene: Scene) -> None:
    """The auditor calls `timeout` there, and does not wait for its own dispute."""
    play = scene.claimed(SETUP, LIE)
    crowd(play, 2)
    play.advance(10)
    auditor = play.auditor()
    auditor.step()
    play.advance(play.client.turn(play.id, 0)[1] + 1 - scene.chain.now())
    assert play.client.turn(play.id, 2)[0] is Turn.TRAINER
    auditor.step()
    assert play.verdicts == [("Convicted", 0, "timeout")]


def test_no_stake_if_a_timeout_of_another_dispute_convicts(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    crowd(play, 1)
    play.advance(play.client.turn(play.id, 0)[1] + 1 - scene.chain.now())
    play.auditor().step()
    assert play.verdicts == [("Convicted", 0, "timeout")] and play.job.disputes == 1


def test_an_honest_claim_is_not_convicted_by_an_auditor_because_its_time_is_over(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    crowd(play, 1)
    play.advance(play.client.turn(play.id, 0)[1] + 1 - scene.chain.now())
    assert play.auditor().step() is False


def test_ending_other_disputes_leaves_the_reserve_of_the_own_clock(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    crowd(play, 2)
    auditor = play.auditor()
    auditor.step()
    play.trainer.step()
    left = SETUP.spec.auditor_budget // RESERVE
    play.advance(SETUP.spec.auditor_budget - left)
    auditor.step()
    play.advance(left + 2)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR_EXPIRED
    assert play.dispute(2).auditor_left <= left and auditor.step() is False
    assert [d.status for d in play.disputes()] == [Status.OPEN] * 3


def test_the_reserve_counts_the_current_own_turn(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    crowd(play, 2)
    play.trainer.step()
    play.advance(10)
    auditor = play.auditor()
    auditor.step()
    play.advance(SETUP.spec.auditor_budget - 8)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR_EXPIRED and play.client.turn(play.id, 2)[0] is Turn.AUDITOR
    job = auditor.look()
    assert not auditor.sweep(job, auditor.standings(job))


def test_credits_are_withdrawn_before_the_money_for_gas_runs_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer is paid for each dispute that it wins, while others are open."""
    play = scene.claimed(SETUP)
    crowd(play, 2)
    play.trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    play.client.send("timeout", play.id, 0)
    game, address = play.trainer.game, play.trainer.address
    owed = game.credits(address)
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (10**9, 10**9))
    assert owed and play.trainer.refill() is False  # 100 ether are enough
    scene.chain.node.set_balance(address, 4 * DISPUTE_GAS * 10**9 - 1)
    assert play.trainer.step() and game.credits(address) == 0
    assert game.chain.balance(address) == 4 * DISPUTE_GAS * 10**9 - 1 + owed
    scene.chain.node.set_balance(address, 0)
    assert play.trainer.refill() is False  # nothing is owed

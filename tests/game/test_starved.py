"""A call without a visible effect, or with a fabricated estimate, does not delay any other duty."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from exchange import Exchange
from false_replies import invented_estimates, show_stale
from frauds import LIE, SETUP
from scene import deployed, embedded_chain
from test_delivery_agents import Sides
from test_watch import watch

import vgame.agents.staking
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.pauses import LONGEST, PAUSE, VAIN, Pauses
from vgame.chain.records import Phase, Status, Turn
from vgame.errors import LostRace, Paused, VgameError

BLOCK = 12


@pytest.mark.parametrize("hidden", [False, True])
def test_one_stale_dispute_costs_no_bond(hidden: bool) -> None:
    """It is shown as before its `reveal`, which succeeds again and again without effect. `hidden`: the opened node is
    not shown either."""
    with embedded_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer = play.trainer
        first, second = play.auditor(None, FalseAccuser, step_wanted=1), play.auditor(None, FalseAccuser, step_wanted=8)
        first.step()
        old = play.client.disputes(play.id)[0]
        trainer.step()
        second.step(), second.step()
        show_stale(trainer.game, 0, old)
        if hidden:
            trainer.game.opened = lambda *_: 0
        before = chain.web3.eth.get_transaction_count(trainer.address)
        with patch.object(chain, "is_development", False):
            for _ in range(60):
                for player in (trainer, second):
                    with suppress(VgameError):
                        player.step()
                play.advance(BLOCK)
                if play.phase is not Phase.CLAIMED:
                    break
        late = [s for s in play.client.disputes(play.id) if s.turn is Turn.TRAINER_EXPIRED]
        assert play.phase is not Phase.CONVICTED and not late
        assert chain.web3.eth.get_transaction_count(trainer.address) - before < 12


def test_a_false_credit_costs_no_bond() -> None:
    with embedded_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer, accuser = play.trainer, play.auditor(None, FalseAccuser)
        accuser.step()
        trainer.reserve = lambda: chain.balance(trainer.address) + 1  # a little more than it has
        trainer.game.credits = lambda address: 10**18
        with invented_estimates(chain):
            for _ in range(40):
                with suppress(VgameError):
                    trainer.step()
                play.advance(BLOCK)
        assert not any(s.turn is Turn.TRAINER_EXPIRED for s in play.client.disputes(play.id))
        assert trainer.withdrawn == 0


def test_one_stale_job_costs_no_other_dispute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    with embedded_chain() as chain:
        scene = deployed(chain)
        plays = [scene.claimed(SETUP, LIE) for _ in range(2)]
        service = watch(plays[0], Limits())

        def rounds(count: int) -> None:
            for _ in range(count):
                for retry in service.retry.values():
                    retry.until = 0.0
                service.round()

        rounds(3)
        plays[0].trainer.step()
        (old,) = plays[0].client.disputes(plays[0].id)
        rounds(1)
        plays[1].trainer.step()
        usual = service.game.disputes
        service.game.disputes = lambda job, first=0: [old] if job == plays[0].id else usual(job, first)
        with invented_estimates(chain):
            for _ in range(40):
                rounds(1)
                chain.advance(BLOCK)
        assert not any(s.turn is Turn.AUDITOR_EXPIRED for s in plays[1].client.disputes(plays[1].id))
        assert plays[1].dispute().status is not Status.LAPSED


def test_one_stale_request_costs_no_reward(tmp_path: Path) -> None:
    """An answered request is shown as open, and the estimate of its answer succeeds."""
    with embedded_chain() as chain:
        sides = Sides(deployed(chain), tmp_path)
        sides.claim()
        Exchange(sides.play, sides.game, None, None, []).request(2, 0, 4 * chain.block().base_fee)
        stale = sides.game.requests(sides.play.id)
        assert sides.trainer.step() and not sides.game.requests(sides.play.id)[0].open
        assert sides.receive() is None and sides.play.client.exchange(sides.play.id).confirmed_at
        sides.game.requests = lambda job: stale
        with invented_estimates(chain):
            for _ in range(70):
                with suppress(VgameError):
                    sides.trainer.step()
                if sides.play.phase is not Phase.DELIVERING:
                    break
                sides.play.advance(BLOCK)
        assert sides.play.phase in (Phase.REVEALED, Phase.FINAL)


def test_pauses_grow_to_a_limit_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, number, seconds = 0.0, 7, []
    pauses = Pauses(SimpleNamespace(is_development=False))
    monkeypatch.setattr("vgame.chain.pauses.time", SimpleNamespace(monotonic=lambda: now))

    def send(name: str, *args: object, fails: bool = False) -> None:
        nonlocal number
        number += 1
        with suppress(LostRace), pauses.sending(name, *args):
            pauses.signed(number, b"")
            pauses.included()
            if fails:
                raise LostRace(name)

    for _ in range(9):
        send("reveal", b"job", 3)
        assert pauses.waits("reveal", b"job", 3) and not pauses.waits("reveal", b"job", 4)
        with pytest.raises(Paused):
            send("reveal", b"job", 3)
        seconds.append(max(pause.end for pause in pauses.known.values()) - now)
        now += seconds[-1]
        assert not pauses.waits("reveal", b"job", 3)
    assert seconds == [min(PAUSE * 2**n, LONGEST) for n in range(9)]
    now += LONGEST + 1
    send("reveal", b"job", 3)
    now += PAUSE
    assert not pauses.waits("reveal", b"job", 3)


def test_after_many_calls_in_vain_all_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(SimpleNamespace(is_development=False))

    def send(number: int, fails: bool) -> None:
        with suppress(LostRace), pauses.sending("reveal", number):
            pauses.signed(number, b"")
            if fails:
                raise LostRace("reveal")

    for number in range(VAIN - 1):
        send(number, True)
    send(VAIN, False)
    for number in range(VAIN + 1, 2 * VAIN):
        assert not pauses.waits("answer", 0)
        send(number, True)
    send(2 * VAIN, True)
    assert pauses.waits("answer", 0)


def test_without_a_receipt_a_call_is_sent_again_with_its_number_only() -> None:
    pauses = Pauses(SimpleNamespace(is_development=False))
    with pauses.sending("reveal", 3):
        pauses.signed(7, b"")
    assert not pauses.waits("reveal", 3)
    with pauses.sending("reveal", 3):
        pauses.signed(7, b"")
        with pytest.raises(Paused):
            pauses.signed(8, b"")

"""The end of a dispute whose auditor's clock has run out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from chains import quick_chain
from frauds import LIE, SETUP
from scene import Play, Scene, deployed
from test_watch import watch

from vgame.agents.client import close_job
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.connection import Chain
from vgame.chain.records import Phase, Status, Turn
from vgame.dispute.auditor import Auditor
from vgame.errors import VgameError


def late_auditor(play: Play, later: int = 0) -> Auditor:
    """An auditor whose time in its dispute is over."""
    auditor = play.auditor()
    auditor.step()
    assert play.trainer.step()
    play.advance(play.job.spec.auditor_budget + later + 1)
    return auditor


def test_an_auditor_does_not_end_its_own_dispute() -> None:
    """Ending it would burn the bond; the conviction in another dispute returns it."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        late, other = late_auditor(play), play.auditor()
        assert not late.step() and play.dispute().status is Status.OPEN
        other.step()
        play.run(other, play.trainer)
        assert play.phase is Phase.CONVICTED
        late.step()
        assert play.client.credits(late.address) == SETUP.spec.stake
        assert play.dispute(0).status is Status.VOID


def test_an_auditor_ends_its_own_dispute_if_no_other_can_convict() -> None:
    """The window is over, no other dispute is open, and the trainer is gone: otherwise the claim would never end."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = late_auditor(play, SETUP.spec.challenge_window)
        assert auditor.step() and play.dispute().status is Status.LAPSED


def test_one_false_look_burns_no_own_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint shows a later time than the chain's, so the window seems over. Except on a development chain every
    look has to show this."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = late_auditor(play)
        monkeypatch.setattr(auditor.game.chain, "is_development", False)
        usual = auditor.game.chain.now
        monkeypatch.setattr(auditor.game.chain, "now", lambda: usual() + SETUP.spec.challenge_window)
        assert not auditor.step() and play.dispute().status is Status.OPEN


def test_a_trainer_ends_the_dispute_of_its_own_account() -> None:
    """An auditor with the trainer's key and another run."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        FalseAccuser(play.trainer.game, play.id, play.machine(None), idle=True).step()
        play.run(play.trainer)
        play.advance(SETUP.spec.auditor_budget + SETUP.spec.challenge_window + 1)
        play.run(play.trainer)
        assert play.phase is Phase.FINAL


def test_closing_a_job_burns_no_bond_on_one_false_look() -> None:
    """The look shows a later time; another auditor may still convict."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        late = late_auditor(play)
        usual = chain.now
        chain.now = lambda: usual() + SETUP.spec.challenge_window
        with suppress(VgameError):
            close_job(late.game, play.id)
        chain.now = usual
        assert play.dispute().status is Status.OPEN


def short_window(chain: Chain) -> tuple[Play, Any, Any, int]:
    """An auditor whose own dispute is over, another one with a dispute that can still convict, after the window; and
    the block before that second dispute."""
    play = deployed(chain).claimed(replace(SETUP, terms={"challenge_window": 600}), LIE)
    late = late_auditor(play)
    play.advance(max(0, play.job.since + 590 - chain.now()))
    before = chain.block().number
    other = play.auditor()
    other.step()
    play.advance(60)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR_EXPIRED
    assert play.client.turn(play.id, 1)[0] in (Turn.TRAINER, Turn.AUDITOR)
    return play, late, other, before


@pytest.mark.parametrize("how", ["a balancer with a node that stands still", "one altered reply"])
def test_closing_a_job_burns_no_bond_that_another_dispute_returns(how: str) -> None:
    with quick_chain() as chain:
        play, late, other, before = short_window(chain)
        game = late.game
        usual_job, usual_all, looks = game.job, game.all_disputes, []

        def job(which: bytes) -> Any:
            looks.append(which)
            if len(looks) > 1 or how == "one altered reply":
                return usual_job(which)
            with chain.at(before):
                return usual_job(which)

        def all_disputes(which: bytes, count: int | None = None) -> Any:
            if how == "one altered reply":
                for s in usual_all(which, count):
                    closed = replace(s, turn=None, dispute=replace(s.dispute, status=Status.DISMISSED))
                    yield closed if s.number == 1 else s
            else:
                with chain.at(before):
                    yield from list(usual_all(which, count))

        game.job, game.all_disputes = job, all_disputes
        with suppress(VgameError):
            close_job(game, play.id)
        del game.job, game.all_disputes
        play.run(other, play.trainer)
        assert play.phase is Phase.CONVICTED
        assert play.dispute(0).status is not Status.LAPSED, "the bond is burnt, though the claim was convicted"


def test_too_little_gas_for_a_dispute_is_enough_for_a_conviction(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another auditor's dispute has expired on the trainer's side: the call that ends it costs little."""
    play = scene.claimed(SETUP, LIE)
    play.auditor().step()
    play.advance(SETUP.spec.trainer_budget + 1)
    service, gwei = watch(play, Limits()), 10**9
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (gwei, gwei))
    scene.chain.node.evm.set_balance(service.game.wallet.address, 1_000_000 * 2 * gwei)
    for _ in range(3):
        service.round()
    assert play.phase is Phase.CONVICTED

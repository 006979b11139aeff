"""Other accounts and endpoints cannot add work to an auditor, make it decide on two states at once, or hide its
jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from frauds import SETUP, Forcer
from scene import Play, Scene
from test_watch import LIE, staked, watch

import vgame.agents.staking
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.records import Phase, Status, Turn


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clocks are long enough."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])


def named(*plays: Play) -> Limits:
    return Limits(jobs=frozenset(play.id for play in plays))


def calls(service: AuditorService) -> Counter[str]:
    """The calls of the contract in one round."""
    game, queries, usual = service.game, Counter[str](), type(service.game)._call
    game._call = lambda name, *args: queries.update([name]) or usual(game, name, *args)
    service.round()
    del game._call
    return queries


def again(service: AuditorService, play: Play, limits: Limits) -> AuditorService:
    """The auditor after a restart, with an empty memory."""
    fresh = watch(play, limits)
    fresh.game.wallet = service.game.wallet
    return fresh


def claim(play: Play, lies: Any = None) -> None:
    play.trainer = play.new_trainer(lies)
    play.trainer.accept()
    play.trainer.claim()


@pytest.mark.parametrize("how", ["job", "client", "hunt"])
def test_orders_of_others_cause_no_requests(scene: Scene, how: str) -> None:
    """The requests are a header, one list and one batch."""
    own = scene.claimed(SETUP)
    limits = {"job": named(own), "client": Limits(clients=frozenset({own.client.wallet.address})), "hunt": Limits()}
    service = watch(own, limits[how])
    service.round()
    before = calls(service)
    strangers = [scene.post(SETUP) for _ in range(100)]
    if how != "hunt":
        for play in strangers[:5]:
            claim(play, LIE)
    assert calls(service) == before and sum(before.values()) <= 2
    assert [*service.auditors] == ([] if how == "hunt" else [own.id])  # a right claim holds no place


def test_all_orders_of_a_named_client_are_played(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, later orders too; orders of other bundles are left out."""
    monkeypatch.setattr("vgame.chain.game.PAGE", 2)
    wallet = scene.wallet()
    plays = [scene.post(SETUP, wallet) for _ in range(5)]
    scene.post(replace(SETUP, seed=5), wallet)
    service = watch(plays[0], Limits(clients=frozenset({wallet.address})))
    service.round()
    assert [*service.auditors] == [play.id for play in plays]
    plays.append(scene.post(SETUP, wallet))
    claim(plays[-1], LIE)
    service.round()
    assert [*service.auditors] == [play.id for play in plays] and staked(plays[-1], service) == 1


def test_orders_changed_by_a_reorganisation_are_read_again(scene: Scene) -> None:
    node, wallet = scene.chain.node, scene.wallet()
    first = scene.post(SETUP, wallet)
    service = watch(first, Limits(clients=frozenset({wallet.address})))
    point = node.snapshot()
    gone = scene.post(SETUP, wallet)
    service.round()
    assert gone.id in service.auditors
    scene.ghost = None
    node.revert(point)
    scene.nonce += 10
    node.methods["eth_sendTransaction"] = type(node).send.__get__(node)
    node.send = node.methods["eth_sendTransaction"]
    new = [scene.post(SETUP, wallet) for _ in range(2)]
    service.round()
    assert {play.id for play in new} <= {*service.auditors}


def test_own_disputes_are_found_by_state_after_a_restart(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    before = watch(play, named(play))
    before.round()
    after = again(before, play, named(play))
    for _ in range(60):
        after.round()
        play.trainer.step()
    assert play.phase is Phase.CONVICTED and staked(play, before) == 1


def test_moves_of_all_jobs_are_made_by_deadline(scene: Scene) -> None:
    plays = [scene.claimed(SETUP, LIE) for _ in range(3)]
    service = watch(plays[0], named(*plays))
    for _ in plays:
        service.round()
    for play in (plays[1], plays[0], plays[2]):
        play.trainer.step()
        play.advance(10)
    order: list[bytes] = []
    usual = service.game.send
    service.game.send = lambda name, job, *args, **more: order.append(job) or usual(name, job, *args, **more)
    for _ in plays:
        service.round()
    assert order == [plays[1].id, plays[0].id, plays[2].id]


def test_a_round_sends_one_transaction(scene: Scene) -> None:
    plays = [scene.claimed(SETUP, LIE) for _ in range(3)]
    service, node = watch(plays[0], named(*plays)), scene.chain.node
    for expected in (1, 2, 3, 3):
        service.round()
        assert node.nonce(service.game.wallet.address.lower()) == expected
        assert sum(staked(play, service) for play in plays) == expected


def test_a_claim_whose_window_ends_first_does_not_wait_for_moves(scene: Scene) -> None:
    busy = scene.claimed(SETUP, LIE)
    service = watch(busy, Limits())
    service.round()
    late = scene.claimed(SETUP, LIE)
    late.advance(SETUP.spec.challenge_window - 100)
    busy.trainer.step()
    assert busy.client.turn(busy.id, 0)[0] in (Turn.AUDITOR, Turn.TRAINER_EXPIRED)
    service.round()
    service.round()
    assert staked(late, service) == 1


def test_a_failure_in_one_job_does_not_affect_the_others(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    broken, play = scene.claimed(SETUP, LIE), scene.claimed(SETUP, LIE)
    service = watch(play, named(broken, play))
    service.game.job = lambda job, read=service.game.job: 1 // 0 if job == broken.id else read(job)
    service.game.jobs = lambda jobs: [service.game.job(job) for job in jobs]
    for _ in range(60):
        service.round()
        play.trainer.step()
    assert play.phase is Phase.CONVICTED and not broken.disputes()
    assert "unforeseen ZeroDivisionError" in capsys.readouterr().out


def test_the_branch_changes_within_a_round(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """All reads belong to one block. After a header of a replaced branch nothing is sent."""
    play = scene.claimed(SETUP, LIE)
    service, node = watch(play, named(play)), scene.chain.node
    service.round()
    play.trainer.step()
    point, block = node.snapshot(), service.game.chain.block

    def header(which: Any = None) -> Any:
        found = block(which)
        if which == "latest":
            node.revert(point)
            play.advance(1)
        return found

    play.advance(5)
    service.game.chain.block = header
    before = node.nonce(service.game.wallet.address.lower())
    service.round()
    del service.game.chain.block
    assert node.nonce(service.game.wallet.address.lower()) == before
    assert "not currently canonical" in capsys.readouterr().out
    for _ in range(60):
        for retry in service.retry.values():
            retry.until = 0.0
        service.round()
        play.trainer.step()
    assert play.phase is Phase.CONVICTED


def test_ended_disputes_are_not_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was lost by time, so there is no further stake on that claim; other claims are disputed nevertheless."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *given: ["it is 1"] if given[-1] else [])
    first = scene.claimed(SETUP, LIE)
    service = watch(first, Limits())
    service.round()
    first.trainer.step()
    first.advance(SETUP.spec.auditor_budget + 1)
    first.trainer.step()
    assert [d.status for d in first.disputes()] == [Status.LAPSED]
    other = scene.claimed(SETUP, LIE)
    service.round()
    assert staked(other, service) == 1 and staked(first, service) == 1


def test_a_run_of_another_log_delays_no_other_claim(scene: Scene) -> None:
    """Mode logged, restarted with another log: its dispute cannot be continued, other claims can be disputed."""
    old, other = scene.claimed(SETUP, LIE), scene.claimed(SETUP, LIE)
    before = watch(old, named(old))
    before.round()
    after = again(before, other, named(old, other))
    after.computation.log_mismatch = lambda _, job, __: "another log" if job == old.id else ""
    for _ in range(60):
        after.round()
        other.trainer.step()
    assert other.phase is Phase.CONVICTED


def test_segments_posted_for_other_auditors_are_not_executed(scene: Scene) -> None:
    """A right claim with disputes of a crowd: the auditor's run computes no segment for them."""
    play = scene.claimed(SETUP)
    service = watch(play, named(play))
    machine = service.computation.history
    queries: list[int] = []
    machine.segment = lambda c, usual=machine.segment: queries.append(c) or usual(c)
    crowd = [play.auditor(None, Forcer, step=step) for step in (1, 5, 7)]
    for _ in range(20):
        for player in (*crowd, play.trainer):
            player.step()
        service.round()
    assert play.events("TracePosted") and not queries and staked(play, service) == 0

"""Batches of disputes: ended in one transaction, read in one request."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from frauds import LIE, SETUP, SPEC
from scene import Call, Play, Scene, deployed, embedded_chain, payee_game
from test_delivery_few_lies import Turns

from vgame.agents.client import close_job
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.game import PAGE
from vgame.chain.records import ZERO_ADDRESS, Job, Phase, Status, Turn
from vgame.errors import ChainError, VgameError


def idle(play: Play, count: int) -> list[FalseAccuser]:
    """Challengers that never move again."""
    players = [play.auditor(None, FalseAccuser, idle=True) for _ in range(count)]
    for player in players:
        player.step()
    return players


def run_out(play: Play) -> None:
    """Advance to the second after the auditors' clocks; there was no move since the last challenge."""
    play.trainer.step()
    play.advance(SPEC.auditor_budget + 2)


def test_one_call_ends_every_idle_dispute(scene: Scene) -> None:
    """Closed and young disputes, invalid and repeated numbers in the list have no effect."""
    play = scene.claimed(SETUP)
    idle(play, 5)
    run_out(play)
    stranger = scene.game()
    stranger.send("timeout", play.id, 1)
    idle(play, 1)
    stranger.send("timeoutMany", play.id, [1, 5, 3, 3, 9, 0, 2, 4])
    assert [d.status for d in play.disputes()] == [Status.LAPSED] * 5 + [Status.OPEN]
    assert play.verdicts == [("Dismissed", n, "timeout") for n in (1, 3, 0, 2, 4)]
    assert play.client.credits(play.trainer.address) == 5 * (SPEC.auditor_bond // 2)


def test_a_conviction_voids_the_rest_of_the_list(scene: Scene) -> None:
    """The trainer owes an answer and is late: later disputes in the list are void, not dismissed."""
    play = scene.claimed(SETUP, LIE)
    idle(play, 2)
    play.trainer.step()  # both wait for their auditors
    honest = play.auditor()
    honest.step()
    honest.step()  # and this one for the trainer
    play.advance(SPEC.auditor_budget + SPEC.trainer_budget + 3 * SPEC.slot)
    number = next(n for n, d in enumerate(play.disputes()) if d.auditor == honest.address)
    others = [n for n in range(3) if n != number]
    scene.game().send("timeoutMany", play.id, [others[0], number, others[1]])
    assert play.phase is Phase.CONVICTED
    assert play.verdicts == [("Dismissed", others[0], "timeout"), ("Convicted", number, "timeout")]
    assert play.dispute(others[1]).status is Status.OPEN
    scene.game().send("refund", play.id, others[1])


def test_an_account_that_closes_a_job_leaves_its_own_dispute_open(scene: Scene) -> None:
    """Its time is over, but a conviction in another dispute can still return the bond."""
    play = scene.claimed(SETUP, LIE)
    late = play.auditor()
    late.step()
    play.trainer.step()
    idle(play, 2)
    run_out(play)
    assert [play.client.turn(play.id, n)[0] for n in range(3)] == [Turn.AUDITOR_EXPIRED] * 3
    close_job(late.game, play.id)
    assert [d.status for d in play.disputes()] == [Status.OPEN] + [Status.LAPSED] * 2
    with pytest.raises(ChainError, match="cannot be ended"):
        close_job(late.game, play.id)
    assert play.dispute(0).status is Status.OPEN
    play.advance(SPEC.challenge_window)  # no other dispute can convict: otherwise the claim would never end
    close_job(late.game, play.id)
    assert play.dispute(0).status is Status.LAPSED


@pytest.mark.parametrize(("count", "answering"), [(2, 1), (3, 1), (3, 3)])
def test_a_false_endpoint_burns_no_bond_of_the_caller(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int, answering: int
) -> None:
    """The first endpoint is false, and may be the only one that answers. It shows the dispute of another account, and
    the end of the challenge window."""
    play = scene.claimed(SETUP, LIE)
    late = play.auditor()
    late.step()
    play.trainer.step()
    idle(play, 1)
    run_out(play)
    game, turns = late.game, Turns(count, answering)
    usual, usual_disputes = game.jobs, game.all_disputes

    def jobs(names: list[bytes]) -> list[Job]:
        early = [replace(job, open=1, claimed_at=job.claimed_at - 2 * SPEC.challenge_window) for job in usual(names)]
        return usual(names) if turns.at else early

    def disputes(*args: Any, **others: Any) -> Any:
        for found in usual_disputes(*args, **others):
            yield found if turns.at else replace(found, dispute=replace(found.dispute, auditor=ZERO_ADDRESS))

    monkeypatch.setattr(game, "jobs", jobs)
    monkeypatch.setattr(game, "job", lambda job: jobs([job])[0])
    monkeypatch.setattr(game, "all_disputes", disputes)
    monkeypatch.setattr(game.chain, "turns", turns)
    with suppress(VgameError):
        close_job(game, play.id)
    monkeypatch.undo()
    assert play.dispute(0).status is Status.OPEN


def test_a_conviction_comes_before_the_end_of_other_disputes(scene: Scene) -> None:
    """Ending all at once would burn the bonds of late auditors; the conviction returns them."""
    play = scene.claimed(SETUP, LIE)
    idle(play, 1)
    play.trainer.step()
    honest = play.auditor()
    honest.step()
    honest.step()
    play.advance(SPEC.auditor_budget + SPEC.trainer_budget + 3 * SPEC.slot)
    assert {play.client.turn(play.id, n)[0] for n in range(2)} == {Turn.AUDITOR_EXPIRED, Turn.TRAINER_EXPIRED}
    close_job(scene.game(), play.id)
    assert play.phase is Phase.CONVICTED and play.dispute(0).status is Status.OPEN


def test_a_contract_may_end_disputes(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    idle(play, 2)
    run_out(play)
    payee_game(scene, "TAKE").send("timeoutMany", play.id, [0, 1])
    assert play.job.open == 0


def check_standings(play: Play) -> None:
    """A page equals the single views."""
    shown = list(play.client.all_disputes(play.id))
    assert [s.dispute for s in shown] == play.disputes() and [s.number for s in shown] == list(range(len(shown)))
    for s in shown:
        if play.phase is Phase.CLAIMED and s.dispute.status is Status.OPEN:
            assert (s.turn, s.deadline) == play.client.turn(play.id, s.number)
        else:
            assert (s.turn, s.deadline) == (None, 0)


def test_disputes_are_read_in_pages(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    check_standings(play)
    idle(play, 4)
    auditor = play.auditor()
    while play.phase is Phase.CLAIMED:
        check_standings(play)
        auditor.step()
        play.trainer.step()
        if play.scene.chain.now() % 3 == 0:
            play.advance(20)
    check_standings(play)
    every = play.client.disputes(play.id)
    for first in range(7):
        for count in range(7):
            assert play.client.disputes(play.id, first, count) == every[first : first + count]
    assert play.client.disputes(play.id, 2**256 - 1, 2**256 - 1) == []
    assert play.client.disputes(play.id, 1, 2**256 - 1) == every[1:]


def test_a_page_is_small_enough_for_a_node(scene: Scene) -> None:
    """One page of open disputes costs a view less than 10 million gas, the least that common endpoints allow."""
    play = scene.claimed(SETUP)
    idle(play, 8)
    node, request = scene.chain.node, play.client._request("getDisputes", (play.id, 0, PAGE))
    node.call(request)
    assert node.evm.result.gas_used / 8 * PAGE < 10_000_000


def test_batches_over_json_rpc() -> None:
    """The real encoder and decoder, and a check of the receipt's effect."""
    with embedded_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        idle(play, 2)
        check_standings(play)
        assert [s.turn for s in play.client.disputes(play.id)] == [Turn.TRAINER] * 2
        run_out(play)
        Call("timeoutMany", (play.id, [0, 1])).send(play.scene.game())
        check_standings(play)
        assert play.job.open == 0

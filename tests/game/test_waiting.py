"""A call that waits or is seen late, a stake that was not recorded, a measurement that failed: none of them delays
another duty."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from false_replies import invented_estimates, invented_results, show_late
from frauds import LIE, SETUP
from scene import Scene
from test_stakes import begun
from test_watch import staked, watch

from vgame.agents.client import close_job
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain import wallet
from vgame.chain.records import Phase, Turn
from vgame.dispute.stakes import Stakes
from vgame.errors import StoreError, VgameError

BLOCK = 12


def rounds(service: Any, count: int, seconds: int = BLOCK) -> None:
    """Rounds of an auditor, with so much time after each."""
    for _ in range(count):
        for known in service.retry.values():
            known.until = 0.0
        with suppress(VgameError):
            service.round()
        service.game.chain.advance(seconds)


def test_a_recorded_stake_is_replaced_though_the_disk_fills(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stake is recorded and sent, and offers too little: the base fee has risen. Its replacement needs
    no record."""
    monkeypatch.setattr(wallet, "RECEIPT_TIMEOUT", 0.2)
    play, account = far.claimed(SETUP, LIE), far.wallet()
    service = begun(play, tmp_path / "store", account)
    usual, offers = far.chain.web3.eth.send_raw_transaction, list[bytes]()

    def send(raw: bytes) -> Any:
        offers.append(raw)
        if len(offers) > 1:
            return usual(raw)
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("no folder")  # from now on the disk takes nothing
        return b""  # it is pending, and too cheap to be included

    far.chain.web3.eth.send_raw_transaction = send
    try:
        end = play.job.since + SETUP.spec.challenge_window
        while far.chain.now() < end and not play.disputes():
            rounds(service, 1, 120)
    finally:
        far.chain.web3.eth.send_raw_transaction = usual
    assert offers and staked(play, service) == 1


def unmeasured(far: Scene) -> tuple[Any, Any, list[bool]]:
    play = far.claimed(SETUP, LIE)
    service, works = watch(play, Limits(jobs=frozenset({play.id}))), [False]
    run = service.computation
    run.known_pace = None

    def rehearse() -> None:
        if not works[0]:
            raise StoreError("the disk is full")

    run.rehearse = rehearse
    return play, service, works


def test_a_measurement_that_failed_costs_no_claim(far: Scene) -> None:
    """The disk is full until 200 s before the window ends."""
    play, service, works = unmeasured(far)
    end = play.job.since + SETUP.spec.challenge_window
    while end - far.chain.now() > 200:
        rounds(service, 1)
    works[0] = True
    while far.chain.now() < end:
        rounds(service, 1)
    assert staked(play, service) == 1


def test_an_auditor_reports_that_it_is_not_measured(far: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    _, service, _ = unmeasured(far)
    rounds(service, 5)
    assert "this device is not measured yet" in capsys.readouterr().out


def test_an_ended_role_sends_no_withdrawals_without_end(far: Scene) -> None:
    """The job is final and all is withdrawn. The endpoint still shows a credit, and that its withdrawal would
    succeed."""
    play, chain = far.claimed(SETUP), far.chain
    trainer = play.trainer
    play.pass_window()
    while play.phase is not Phase.FINAL or play.client.credits(trainer.address):
        with suppress(VgameError):
            trainer.step()
        chain.advance(BLOCK)
    game, ended = trainer.game, False
    game.credits = lambda _: 10**18

    count = chain.web3.eth.get_transaction_count(trainer.address)
    with invented_estimates(chain), invented_results(chain):
        for _ in range(300):
            try:
                acted = trainer.step()
                ended = trainer.has_ended(not acted)
            except VgameError:
                pass
            if ended:
                break
            chain.advance(BLOCK)
    sent = chain.web3.eth.get_transaction_count(trainer.address) - count
    assert ended, f"{sent} transactions in an hour, and no end"


def test_one_dispute_shown_as_run_out_silences_no_auditor(far: Scene) -> None:
    """A node shows the dispute of another auditor as run out on the trainer's side. Everything else that it shows is
    true, also that `timeout` would revert."""
    play = far.claimed(SETUP, LIE)
    play.auditor(None, FalseAccuser, step_wanted=1).step()
    service = watch(play, Limits(jobs=frozenset({play.id})))
    usual = service.game.disputes
    service.game.disputes = lambda *args: [
        replace(s, turn=Turn.TRAINER_EXPIRED) if s.number == 0 else s for s in usual(*args)
    ]
    rounds(service, 60)
    assert staked(play, service) == 1


def test_convictions_seen_late_do_not_delay_the_next(far: Scene) -> None:
    """One trainer is away in four jobs. The node shows each effect a block late, so each conviction counts as a failed
    one. A stranger with a dispute of its own ends the last job four blocks after it could be ended."""
    plays = [far.claimed(SETUP, LIE) for _ in range(4)]
    service = watch(plays[0], Limits(jobs=frozenset(play.id for play in plays)))
    rounds(service, 20)
    assert [staked(play, service) for play in plays] == [1] * 4
    strangers = [play.auditor(None, FalseAccuser, step_wanted=1) for play in plays]
    for stranger in strangers:
        stranger.step()
    far.chain.advance(SETUP.spec.trainer_budget + SETUP.spec.slot + 300)
    show_late(service.game)
    rounds(service, 4)
    for play, stranger in zip(plays, strangers, strict=True):
        if play.phase is Phase.CLAIMED:
            stranger.game.send("timeout", play.id, 1)
    won = [play.verdicts[0][1] == 0 for play in plays]
    assert all(won), won


@pytest.mark.parametrize("file", [False, True])
def test_two_services_on_one_wallet_stake_once(far: Scene, tmp_path: Path, file: bool) -> None:
    """Two auditors of one account in one process, each for one job; without a file (two bundles, `stakes=None`), or
    with the same one. A replica lags."""
    plays = [far.claimed(SETUP, LIE) for _ in range(2)]
    account, path = far.wallet(), tmp_path / "stakes.json" if file else None
    services = []
    for play in plays:
        service = watch(play, Limits(jobs=frozenset({play.id})), game=far.game(account))
        service.stakes = Stakes(service.game, path)
        services.append(service)
    first, before = services[0], plays[0].job
    first.game.job = lambda job: before
    first.game.jobs = lambda jobs: [before for _ in jobs]
    rounds(first, 10)
    assert staked(plays[0], first) == 1


def test_a_client_closes_two_jobs_one_after_the_other(far: Scene) -> None:
    """Orders that were not accepted, closed in one process: two withdrawals within 12 s."""
    first = far.post(SETUP)
    second = far.post(SETUP, first.client.wallet)
    far.chain.advance(SETUP.spec.accept_window + 2)
    assert close_job(first.client, first.id) == (Phase.EXPIRED, SETUP.spec.reward)
    assert close_job(second.client, second.id) == (Phase.EXPIRED, SETUP.spec.reward)


def test_a_race_in_one_job_leaves_no_other_open(far_embedded: Scene) -> None:
    """A stranger ends the idle dispute of the first job before the client."""
    plays = [far_embedded.claimed(SETUP) for _ in range(2)]
    client = plays[0].client
    for play in plays:
        play.auditor(None, FalseAccuser, step_wanted=1).step()
        play.trainer.step()
    far_embedded.chain.advance(SETUP.spec.auditor_budget + 1)
    usual, rival = client.wallet.send, far_embedded.wallet()

    def overtaken(to: Any, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        rival.send(to, data, value, gas)
        return usual(to, data, value, gas)

    client.wallet.send = overtaken
    assert close_job(client, plays[0].id)[0] is Phase.CLAIMED
    client.wallet.send = usual
    assert close_job(client, plays[1].id)[0] is Phase.CLAIMED
    assert [play.job.open for play in plays] == [0, 0]

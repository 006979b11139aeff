"""One stake on a claim, despite false replies, reorganisations, and counts that are too high or too low."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from false_replies import no_pauses
from frauds import SETUP
from scene import Play, Scene, deployed, embedded_chain
from test_stakes import begun, rounds
from test_watch import LIE, staked

import vgame.agents.staking
from vgame.agents.auditor_service import AuditorService
from vgame.chain import final
from vgame.chain.final import MOMENT
from vgame.chain.records import Status, Turn

OLD = 900  # seconds until a block is final here


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are long enough, and nothing depends on the time of a round."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    no_pauses(monkeypatch)


@pytest.fixture(scope="module")
def real() -> Iterator[Scene]:
    """A node with real nonces."""
    with embedded_chain() as chain:
        yield deployed(chain)


@pytest.fixture
def slow_finality(real: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the chain is final OLD seconds later."""
    monkeypatch.setattr(real.chain, "final_time", lambda most=OLD: real.chain.now() - most)
    monkeypatch.setattr(final, "time", SimpleNamespace(monotonic=real.chain.now))
    monkeypatch.setattr(real.chain, "is_development", False)


def looked(service: AuditorService) -> None:
    """A round without a stake: the endpoint has to show the state for some time first."""
    rounds(service)
    service.game.chain.advance(int(MOMENT) + 1)


def shown_as(service: AuditorService, **changes: Any) -> Callable[[], None]:
    """The endpoint shows every dispute with changed fields, and none as open; the returned function undoes this."""
    game, jobs, usual = service.game, service.game.jobs, service.game.disputes
    game.jobs = lambda ids: [replace(job, open=0) for job in jobs(ids)]
    game.disputes = lambda *args: [
        replace(s, dispute=replace(s.dispute, **changes), turn=None, deadline=0) for s in usual(*args)
    ]

    def end() -> None:
        del game.jobs, game.disputes

    return end


# ---- temporary replies of an endpoint ----


@pytest.mark.parametrize("status", [Status.LAPSED, Status.DISMISSED, Status.WON, Status.VOID, Status.NONE])
def test_an_open_dispute_shown_as_ended_is_no_reason_to_stake(scene: Scene, tmp_path: Path, status: Status) -> None:
    play = scene.claimed(SETUP, LIE)
    service = begun(play, tmp_path)
    rounds(service)
    end = shown_as(service, status=status)
    rounds(service, count=3)
    end()
    assert [d.status for d in play.disputes()] == [Status.OPEN]
    rounds(service)
    assert service.auditors[play.id].at_risk


def test_a_dispute_lost_by_time_is_the_last_one(
    scene: Scene, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also after a restart."""
    play = scene.claimed(SETUP, LIE)
    service = begun(play, tmp_path)
    rounds(service)
    play.trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR_EXPIRED
    play.trainer.step()
    rounds(service, count=3)
    rounds(begun(play, tmp_path, service.game.wallet), count=3)
    assert [d.status for d in play.disputes()] == [Status.LAPSED]
    assert capsys.readouterr().out.count("ran out of time in dispute 0") == 2


def hidden_and_denied(service: AuditorService, play: Play) -> Callable[[], None]:
    """The endpoint hides every dispute, and shows every transaction as failed; the returned function undoes this."""
    game, chain, receipt = service.game, service.game.chain, service.game.chain.receipt
    before = replace(play.job, disputes=0, open=0)
    game.job, game.jobs = (lambda job: before), (lambda jobs: [before for _ in jobs])
    chain.receipt = lambda *args: (found := receipt(*args)) and {**found, "status": 0}

    def end() -> None:
        del game.job, game.jobs, chain.receipt

    return end


def test_a_momentarily_altered_receipt_is_no_reason_to_stake(real: Scene, slow_finality: None, tmp_path: Path) -> None:
    """Once, and again after the time in which the shown state would be final."""
    play = real.claimed(SETUP, LIE)
    service = begun(play, tmp_path, real.wallet())
    looked(service)
    rounds(service)
    for _ in range(2):
        end = hidden_and_denied(service, play)
        rounds(service, count=3)
        end()
        assert staked(play, service) == 1
        real.chain.advance(OLD // 2 + 10)
        rounds(service)


# ---- reorganisations ----


def test_a_reverted_stake_is_sent_again(real: Scene, slow_finality: None, tmp_path: Path) -> None:
    play, wallet = real.claimed(SETUP, LIE), real.wallet()
    service, usual = begun(play, tmp_path, wallet), wallet.send
    looked(service)
    wallet.send = lambda to, data, value=0, gas=None: usual(to, data, value, 30_000)  # too little gas
    with suppress(Exception):
        rounds(service)
    del wallet.send
    assert not play.disputes()
    looked(service)
    rounds(service)
    assert staked(play, service) == 1


def lost_while_sending(service: AuditorService, lost: int) -> None:
    """A reorganisation loses the last transactions of the account after the next one has been signed."""
    chain, wallet, eth = service.game.chain, service.game.wallet, service.game.chain.web3.eth
    point = chain.web3.provider.make_request("evm_snapshot", [])["result"]
    for _ in range(lost):
        wallet.send(wallet.address, b"", 1)
    usual = eth.send_raw_transaction

    def send(raw: bytes) -> Any:
        eth.send_raw_transaction = usual
        chain.web3.provider.make_request("evm_revert", [point])
        chain.advance(1)
        return usual(raw)

    eth.send_raw_transaction = send


@pytest.mark.parametrize("lost", [1, 3])
def test_a_stake_behind_lost_transactions_is_sent_again(real: Scene, tmp_path: Path, lost: int) -> None:
    """A node may hold the first one, and include it as soon as its nonce is reached: then it reverts."""
    plays = [real.claimed(SETUP, LIE) for _ in range(2)]
    service = begun(plays[0], tmp_path, real.wallet())
    raw: list[bytes] = []
    eth = service.game.chain.web3.eth
    usual = eth.send_raw_transaction
    lost_while_sending(service, lost)
    send = eth.send_raw_transaction
    eth.send_raw_transaction = lambda signed: (raw.append(signed), send(signed))[1]
    rounds(service)
    service.game.wallet.pauses.known.clear()  # some seconds later
    rounds(service, count=2)
    service.named.named[plays[1].id] = None
    rounds(service, count=6)
    for _ in range(lost - 1):
        service.game.wallet.send(service.game.wallet.address, b"", 1)
    with suppress(Exception):
        usual(raw[0])
    rounds(service, count=3)
    assert [staked(play, service) for play in plays] == [1, 1]


@pytest.mark.parametrize("lie", [9, 100])
def test_a_momentarily_high_count_keeps_no_claim_from_its_stake(
    real: Scene, slow_finality: None, tmp_path: Path, lie: int
) -> None:
    """The first stake has a nonce that is never reached. The high count is shown twice."""
    play = real.claimed(SETUP, LIE)
    service = begun(play, tmp_path, real.wallet())
    eth = service.game.chain.web3.eth
    usual = eth.get_transaction_count
    for _ in range(2):
        eth.get_transaction_count = lambda *_: lie
        rounds(service, count=2)
        eth.get_transaction_count = usual
        rounds(service)
        real.chain.advance(int(MOMENT) // 2 + 1)
    real.chain.advance(int(MOMENT) + 1)
    rounds(service, count=3)
    assert staked(play, service) == 1


@pytest.mark.parametrize("low", [1, 2, 3])
def test_a_momentarily_low_count_keeps_no_claim_from_its_stake(
    real: Scene, slow_finality: None, tmp_path: Path, low: int
) -> None:
    """A node lags by some transactions of the account: that nonce is already used."""
    play = real.claimed(SETUP, LIE)
    service = begun(play, tmp_path, wallet := real.wallet())
    for _ in range(3):
        wallet.send(wallet.address, b"", 1)
    looked(service)
    eth = service.game.chain.web3.eth
    usual = eth.get_transaction_count
    eth.get_transaction_count = lambda *_: 3 - low
    with suppress(Exception):
        rounds(service)
    eth.get_transaction_count = usual
    assert not play.disputes()
    looked(service)
    rounds(service)
    assert staked(play, service) == 1


def test_false_finality_of_a_moment_causes_no_second_stake(
    real: Scene, slow_finality: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The auditor's dispute is hidden, its receipt denied, and the newest block declared final."""
    play = real.claimed(SETUP, LIE)
    service = begun(play, tmp_path, real.wallet())
    looked(service)
    rounds(service)
    end = hidden_and_denied(service, play)
    monkeypatch.setattr(real.chain, "final_time", lambda most=OLD: real.chain.now())
    rounds(service, count=3)
    end()
    assert staked(play, service) == 1

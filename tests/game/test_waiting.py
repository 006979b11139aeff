"""A call that waits, a stake that was not recorded, a measurement that failed: no other duty suffers from it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange import Exchange
from false_replies import altered, invented_estimates
from frauds import LIE, SETUP
from scene import Scene, deployed, embedded_chain
from test_delivery_agents import Partial, Sides, chunk_1_of_tensor_1
from test_stakes import begun
from test_starved import lag
from test_watch import staked, watch

import vgame.agents.staking
from vgame.agents import delivery, retry
from vgame.agents.client import close_job
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain import final, pauses, wallet
from vgame.chain.connection import Chain
from vgame.chain.records import Phase, Turn
from vgame.errors import ChainError, ContractError, StoreError, VgameError
from vgame.system.progress import Reporter

BLOCK = 12


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """An embedded chain that is not for development; the process has its clock."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    with embedded_chain() as chain:
        scene = deployed(chain)
        monkeypatch.setattr(chain, "is_development", False)
        for module in (final, pauses, retry):
            clock = SimpleNamespace(monotonic=chain.now, sleep=lambda seconds: chain.advance(max(1, int(seconds))))
            monkeypatch.setattr(module, "time", clock)
        yield scene


def rounds(service: Any, count: int, seconds: int = BLOCK) -> None:
    for _ in range(count):
        for known in service.retry.values():
            known.until = 0.0
        with suppress(VgameError):
            service.round()
        service.game.chain.advance(seconds)


# ---- stakes ----


def test_a_stake_that_was_never_sent_does_not_wait(far: Scene, tmp_path: Path) -> None:
    """The disk is full, so no stake can be recorded, and none is sent; other moves of the account go on. The disk is
    free again 100 s before the window ends."""
    play, account = far.claimed(SETUP, LIE), far.wallet()
    service = begun(play, tmp_path / "store", account)
    (tmp_path / "store").write_text("no folder")
    end = play.job.since + SETUP.spec.challenge_window
    while end - far.chain.now() > 110:
        rounds(service, 1)
        account.send(account.address, b"", 0, 30_000)  # a move in another job
    assert not play.disputes() and end - far.chain.now() > 60
    (tmp_path / "store").unlink()
    while far.chain.now() < end:
        rounds(service, 1, 2)
    assert staked(play, service) == 1


def test_a_recorded_stake_is_replaced_though_the_disk_fills(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stake is recorded and sent, and offers too little: the base fee has risen. Its replacement has the recorded
    number, so it is no second stake."""
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


# ---- measuring ----


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


def test_the_reason_without_a_measurement_is_true(far: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was ever staked, so there was no last dispute."""
    _, service, _ = unmeasured(far)
    rounds(service, 5)
    assert "before its last dispute" not in capsys.readouterr().out


# ---- delivery ----


class Late(Partial):
    """A server that is away, then refuses one chunk."""

    away = True

    def get(self, name: str, first: int, size: int) -> bytes:
        if self.away:
            raise OSError("server is away")
        return super().get(name, first, size)


def stale_view(sides: Sides, chain: Chain) -> Any:
    """The replica of a balancer that lags: returns a function that shows the present state of the delivery."""
    client, job = sides.play.client, sides.play.id
    exchange, requests = client.exchange(job), client.requests(job)
    usual = client.exchange, client.requests

    def show(old: bool) -> None:
        client.exchange = (lambda _: exchange) if old else usual[0]
        client.requests = (lambda _: requests) if old else usual[1]

    return show


def test_a_request_that_waits_does_not_decline_the_delivery(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 2 s. In the last tenth of the window one chunk is requested, and answered in the next block. One look
    at a replica that is 3 blocks behind shows no request, so it is due again and waits."""
    sides, chain = Late(far, tmp_path), far.chain
    fees = chain.fees()
    monkeypatch.setattr(chain, "fees", lambda: fees)
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(85)
    with suppress(VgameError, OSError):
        sides.receive()
    sides.wait(70)
    sides.away = False
    show = stale_view(sides, chain)
    with suppress(VgameError, OSError):
        sides.receive()
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.trainer.step() and not sides.game.requests(sides.play.id)[0].open
    sides.play.advance(2)
    show(True)
    with invented_estimates(chain), suppress(VgameError, OSError):
        sides.receive()
    show(False)
    for _ in range(5):
        with suppress(VgameError, OSError):
            sides.receive()
        sides.play.advance(2)
    assert sides.play.phase is not Phase.DECLINED and sides.play.client.exchange(sides.play.id).confirmed_at


def test_a_waiting_confirmation_is_no_busy_loop(far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote node shows the state before `confirm` for five minutes: `receive` looks every 15 s."""
    sides, chain = Sides(far, tmp_path), far.chain
    sides.claim()
    show = stale_view(sides, chain)
    show(True)
    monkeypatch.setattr(chain, "pause", lambda seconds, elsewhere=0.0: chain.advance(int(max(seconds, elsewhere))))
    looks, end = [0], chain.now() + 300
    reporter = Reporter()
    monkeypatch.setattr("vgame.agents.delivery.find_order", lambda *_: None)

    class Stop(BaseException):
        pass

    class Counted:
        def __init__(self, *_: Any) -> None:
            self.buyer = sides.buyer

        def ready(self) -> bool:
            if chain.now() >= end:
                raise Stop
            looks[0] += 1
            return self.buyer.ready()

    monkeypatch.setattr("vgame.delivery.buyer.Buyer", Counted)
    bundle = SimpleNamespace(program=SimpleNamespace(sources=[]), order=asdict(sides.play.setup.spec))
    with invented_estimates(chain), pytest.raises(Stop):
        delivery.receive(sides.play.client, bundle, sides.play.id, "http://localhost:1", tmp_path / "o", reporter)
    assert looks[0] <= 40


# ---- roles ----


def test_an_ended_role_sends_no_withdrawals_without_end(far: Scene) -> None:
    """The job is final and all is withdrawn. The endpoint goes on to show a credit, and that its withdrawal would
    pass."""
    play, chain = far.claimed(SETUP), far.chain
    trainer = play.trainer
    play.pass_window()
    while play.phase is not Phase.FINAL or play.client.credits(trainer.address):
        with suppress(VgameError):
            trainer.step()
        chain.advance(BLOCK)
    game, ended = trainer.game, False
    game.credits = lambda _: 10**18

    def passes(_: Any, usual: Any) -> Any:
        answer = usual()
        return {"jsonrpc": "2.0", "id": 1, "result": "0x"} if "error" in answer else answer

    count = chain.web3.eth.get_transaction_count(trainer.address)
    with invented_estimates(chain), altered(chain, "eth_call", passes):
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


def test_a_request_whose_effect_is_seen_late_does_not_decline_the_delivery(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last tenth of the window. The state directly after the receipt comes from a node one block behind."""
    sides = Late(far, tmp_path)
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(85)
    with suppress(VgameError, OSError):
        sides.receive()
    sides.wait(60)
    sides.away = False
    lag(sides.play.client)
    with suppress(VgameError, OSError):
        sides.receive()
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.play.phase is not Phase.DECLINED


def test_one_dispute_shown_as_run_out_silences_no_auditor(far: Scene) -> None:
    """A node shows the dispute of another auditor as run out on the trainer's side. All else that it shows is true,
    also that `timeout` would revert."""
    play = far.claimed(SETUP, LIE)
    play.auditor(None, FalseAccuser, step_wanted=1).step()
    service = watch(play, Limits(jobs=frozenset({play.id})))
    usual = service.game.disputes
    service.game.disputes = lambda job, first=0: [
        replace(s, turn=Turn.TRAINER_EXPIRED) if s.number == 0 else s for s in usual(job, first)
    ]
    rounds(service, 60)
    assert staked(play, service) == 1


def test_a_refusal_that_waits_does_not_decline_the_delivery(far: Scene, tmp_path: Path) -> None:
    """The trainer has not answered in time: `refused` gives the whole reward back. It reverts twice (the base fee of
    its block is above the price of the request), so it waits 24 s; meanwhile three quarters could be had."""
    sides, chain = Late(far, tmp_path), far.chain
    sides.claim()
    Exchange(sides.play, sides.game, None, None, []).request(1, 1, 4 * chain.block().base_fee)
    account = sides.play.client.wallet
    usual = account.send
    for left in (85, 70):
        sides.wait(left)
        account.send = lambda to, data, value=0, gas=None: usual(to, data, value, 30_000)
        with suppress(VgameError, OSError):
            sides.receive()
    account.send = usual
    for left in range(60, 0, -5):
        sides.wait(left)
        with suppress(VgameError, OSError):
            sides.receive()
    assert sides.play.phase is Phase.UNDELIVERED


# ---- a client with several jobs ----


def test_a_client_closes_two_jobs_one_after_the_other(far: Scene) -> None:
    """Orders that were not accepted, closed in one process: two withdrawals within 12 s."""
    first = far.post(SETUP)
    second = far.post(SETUP, first.client.wallet)
    far.chain.advance(SETUP.spec.accept_window + 2)
    assert close_job(first.client, first.id) == (Phase.EXPIRED, SETUP.spec.reward)
    assert close_job(second.client, second.id) == (Phase.EXPIRED, SETUP.spec.reward)


def test_a_race_in_one_job_leaves_no_other_open(far: Scene) -> None:
    """A stranger ends the idle dispute of the first job before the client."""
    plays = [far.claimed(SETUP) for _ in range(2)]
    client = plays[0].client
    for play in plays:
        play.auditor(None, FalseAccuser, step_wanted=1).step()
        play.trainer.step()
    far.chain.advance(SETUP.spec.auditor_budget + 1)
    usual, rival = client.wallet.send, far.wallet()

    def overtaken(to: Any, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        rival.send(to, data, value, gas)
        return usual(to, data, value, gas)

    client.wallet.send = overtaken
    with pytest.raises(ContractError, match="NoneExpired"):
        close_job(client, plays[0].id)
    client.wallet.send = usual
    with suppress(ChainError):
        close_job(client, plays[1].id)
    assert plays[1].job.open == 0


def test_a_waiting_withdrawal_is_prepared_once_in_a_round(far: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten jobs of an auditor have ended, and a credit comes shortly after a withdrawal. `withdraw` is one call of the
    account, which is not estimated, priced and numbered for each job in each round."""
    chain = far.chain
    plays = [far.claimed(SETUP) for _ in range(10)]
    service = watch(plays[0], Limits(jobs=frozenset(play.id for play in plays)))
    game = service.game
    usual = game.jobs
    game.jobs = lambda which: [replace(job, phase=Phase.CONVICTED) for job in usual(which)]
    game.credits = lambda _: 10**18
    with invented_estimates(chain):
        rounds(service, 1, 1)
        provider, asked = chain.web3.provider, list[str]()
        usual_request = provider.make_request

        def counted(name: str, params: Any) -> Any:
            asked.append(name)
            return usual_request(name, params)

        monkeypatch.setattr(provider, "make_request", counted)
        provider._request_func_cache = (None, None)
        rounds(service, 1, 1)
        provider.make_request, provider._request_func_cache = usual_request, (None, None)
    assert len(asked) <= 30, Counter(asked)

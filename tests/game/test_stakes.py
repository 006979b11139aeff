"""One stake on a claim, for all replies of an endpoint and all kills of the process; and never the money for the gas of
open disputes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from false_replies import no_pauses
from frauds import SETUP
from scene import Play, Scene, deployed, embedded_chain
from test_sybils import crowd
from test_watch import LIE, staked, watch

import vgame.agents.staking
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.records import Phase, Status, Turn
from vgame.chain.wallet import Wallet
from vgame.dispute.player import DISPUTE_GAS
from vgame.dispute.stakes import Stakes
from vgame.errors import StoreError

GWEI = 10**9


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are long enough, and nothing depends on the time of a round."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    no_pauses(monkeypatch)


def rounds(*services: AuditorService, count: int = 1) -> None:
    for _ in range(count):
        for service in services:
            for retry in service.retry.values():
                retry.until = 0.0
            service.round()


def begun(play: Play, store: Path, wallet: Any = None) -> AuditorService:
    """An auditor of one job, started with its account and its store."""
    service = watch(play, Limits(jobs=frozenset({play.id})))
    if wallet is not None:
        service.game = play.scene.game(wallet)
    service.stakes = Stakes.beside(store / "run", service.game)
    return service


def hidden(service: AuditorService, *plays: Play) -> Callable[[], None]:
    """Its endpoint shows no disputes of the jobs; the returned function undoes this."""
    game, before = service.game, {play.id: play.job for play in plays}
    game.job = before.__getitem__
    game.jobs = lambda jobs: [before[job] for job in jobs]

    def show() -> None:
        del game.job, game.jobs

    return show


# ---- an endpoint that hides the auditor's dispute ----


def test_a_hidden_dispute_causes_no_second_stake(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after a restart. Once it is shown it is played to its end."""
    play = scene.claimed(SETUP, LIE)
    service = begun(play, tmp_path)
    show = hidden(service, play)
    rounds(service, count=4)
    show()
    assert staked(play, service) == 1
    assert capsys.readouterr().out.count("contract has it: the endpoint lags") == 1
    again = begun(play, tmp_path, service.game.wallet)
    show = hidden(again, play)
    rounds(again, count=3)
    assert staked(play, service) == 1 and again.auditors[play.id].at_risk
    show()
    for _ in range(60):
        rounds(again)
        play.trainer.step()
    assert play.phase is Phase.CONVICTED and staked(play, service) == 1


def test_nothing_is_measured_while_a_dispute_is_hidden(scene: Scene, tmp_path: Path) -> None:
    """A lagging node shows neither the dispute nor its transaction, but its clock runs."""
    play, measured = scene.claimed(SETUP, LIE), list[int]()
    service, node, before = begun(play, tmp_path), scene.chain.node, play.job
    rounds(service)
    again = begun(play, tmp_path, service.game.wallet)
    again.computation.rehearse, again.computation.known_pace = lambda: measured.append(1), None
    again.game.job, again.game.jobs = lambda _: before, lambda jobs: [before for _ in jobs]
    count = node.methods["eth_getTransactionCount"]
    node.methods["eth_getTransactionCount"] = lambda *args: hex(int(count(*args), 16) - 1)
    rounds(again, count=3)
    node.methods["eth_getTransactionCount"] = count
    assert staked(play, service) == 1 and not measured


def test_gas_is_reserved_for_a_hidden_dispute(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin order's claim is staked on only with money for both."""
    plays = [scene.claimed(SETUP, LIE) for _ in range(2)]
    service = watch(plays[0], Limits())
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (GWEI, GWEI))
    each = 4 * DISPUTE_GAS * GWEI
    scene.chain.node.evm.set_balance(service.game.wallet.address, 2 * SETUP.spec.stake + each)
    show = hidden(service, *plays)
    rounds(service, count=4)
    show()
    assert sorted(staked(play, service) for play in plays) == [0, 1]


def test_a_dispute_falsely_shown_as_lost_is_no_reason_to_stake(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint shows the auditor's dispute as lost by time."""
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits())
    rounds(service)
    usual = service.game.disputes
    over = lambda *args: [replace(s, turn=Turn.AUDITOR_EXPIRED) for s in usual(*args)]  # noqa: E731
    monkeypatch.setattr(service.game, "disputes", over)
    rounds(service, count=3)
    assert staked(play, service) == 1


# ---- a process that is killed; on a node with real nonces ----


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def real() -> Iterator[Scene]:
    with embedded_chain() as chain:
        yield deployed(chain)


def killed(service: AuditorService, wallet: Wallet, where: str) -> None:
    """Run until the stake; the process ends before or after the node receives it."""
    chain = service.game.chain
    usual = chain.web3.eth.send_raw_transaction

    def send(raw: bytes) -> Any:
        if where == "sent":
            usual(raw)
        raise Killed

    chain.web3.eth.send_raw_transaction = send
    try:
        with pytest.raises(Killed):
            rounds(service)
    finally:
        chain.web3.eth.send_raw_transaction = usual
        wallet.before = None


def test_killed_before_the_stake_is_sent(real: Scene, tmp_path: Path) -> None:
    play, wallet = real.claimed(SETUP, LIE), real.wallet()
    killed(begun(play, tmp_path, wallet), wallet, "written")
    assert not play.disputes() and len(json.loads(next(tmp_path.iterdir()).read_bytes())) == 1
    again = begun(play, tmp_path, wallet)
    rounds(again)
    assert staked(play, again) == 1


def test_killed_before_the_stake_is_signed(real: Scene, tmp_path: Path) -> None:
    """Nothing is recorded: the next process has no dispute that may be hidden, and may measure its device."""
    play, wallet = real.claimed(SETUP, LIE), real.wallet()
    service = begun(play, tmp_path, wallet)
    with patch.object(wallet, "send", side_effect=Killed), pytest.raises(Killed):
        rounds(service)
    assert not begun(play, tmp_path, wallet).stakes.claims


def test_killed_after_the_stake_is_sent(real: Scene, tmp_path: Path) -> None:
    """After the restart the endpoint does not show the stake yet."""
    play, wallet = real.claimed(SETUP, LIE), real.wallet()
    killed(begun(play, tmp_path, wallet), wallet, "sent")
    again = begun(play, tmp_path, wallet)
    assert staked(play, again) == 1
    before = replace(play.job, disputes=0, open=0)
    real_job, again.game.job = again.game.job, lambda job: before
    rounds(again, count=3)
    again.game.job = real_job
    rounds(again)
    assert staked(play, again) == 1 and again.auditors[play.id].at_risk


def test_a_reverted_stake_is_sent_again(real: Scene, tmp_path: Path) -> None:
    play, wallet = real.claimed(SETUP, LIE), real.wallet()
    service = begun(play, tmp_path, wallet)
    rounds_before = service.game.wallet.send
    wallet.send = lambda to, data, value=0, gas=None: rounds_before(to, data, value, 30_000)  # too little gas
    with suppress(Exception):
        rounds(service)
    del wallet.send
    assert not play.disputes() and service.stakes.claims
    rounds(service, count=2)
    assert staked(play, service) == 1


def test_a_damaged_record_of_stakes_is_reported(scene: Scene, tmp_path: Path) -> None:
    play = scene.claimed(SETUP, LIE)
    service = begun(play, tmp_path)
    rounds(service)
    (path,) = tmp_path.iterdir()
    for damage in (b"", b"{", b"[1]", b'["x"]', b"3"):
        path.write_bytes(damage)
        with pytest.raises(StoreError, match=f"{path} cannot be read"):
            begun(play, tmp_path, service.game.wallet)


def test_a_full_disk_keeps_no_claim_from_its_stake(real: Scene, tmp_path: Path, caplog: Any) -> None:
    plays, wallet = [real.claimed(SETUP, LIE) for _ in range(2)], real.wallet()
    service = begun(plays[0], tmp_path / "store", wallet)
    (tmp_path / "store").write_text("no folder")
    rounds(service)
    assert staked(plays[0], service) == 1 and "is sent, but not recorded" in caplog.text
    (tmp_path / "store").unlink()
    service.named.named[plays[1].id] = None
    rounds(service, count=2)
    assert begun(plays[1], tmp_path / "store", wallet).stakes.jobs == dict.fromkeys(play.id for play in plays)


# ---- money for gas ----


@pytest.fixture
def dear(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> int:
    """The amount in wei that one dispute may need."""
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (GWEI, GWEI))
    return 4 * DISPUTE_GAS * GWEI


def with_money(scene: Scene, service: AuditorService, wei: int) -> None:
    scene.chain.node.evm.set_balance(service.game.wallet.address, wei)


@pytest.mark.parametrize("missing", [0, 1])
def test_no_stake_takes_the_gas_money_of_a_dispute(
    scene: Scene, dear: int, missing: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twins: the second one waits until the first one is won."""
    plays = [scene.claimed(SETUP, LIE) for _ in range(2)]
    service = watch(plays[0], Limits())
    with_money(scene, service, 2 * (SETUP.spec.stake + dear) - missing)
    rounds(service, count=3)
    assert [staked(play, service) for play in plays] == [1, 1 - missing]
    assert capsys.readouterr().out.count(f"{2 * dear} for the gas of 2 open disputes") == missing
    for _ in range(300):
        rounds(service)
        for play in plays:
            play.trainer.step()
        if all(play.phase is Phase.CONVICTED for play in plays):
            break
    assert [play.phase for play in plays] == [Phase.CONVICTED] * 2


@pytest.mark.parametrize("missing", [0, 1])
def test_one_bond_that_nearly_fills_the_wallet_is_not_staked(scene: Scene, dear: int, missing: int) -> None:
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits())
    with_money(scene, service, SETUP.spec.stake + dear - missing)
    rounds(service)
    assert staked(play, service) == 1 - missing


def test_missing_money_is_reported_once(scene: Scene, dear: int, monkeypatch: Any, capsys: Any) -> None:
    """The price of gas changes in every block."""
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits())
    with_money(scene, service, SETUP.spec.stake)
    for more in range(5):
        monkeypatch.setattr(scene.chain, "fees", lambda more=more, **_: (GWEI + more, GWEI))
        rounds(service)
    assert capsys.readouterr().out.count("send it some ether") == 1 and not play.disputes()


@pytest.mark.parametrize("more", [0, 20])
def test_idle_disputes_of_others_are_ended_with_spare_gas(scene: Scene, dear: int, more: int) -> None:
    """A cheat can open any number of them."""
    play = scene.claimed(SETUP, LIE)
    crowd(play, 3)
    play.trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    service = watch(play, Limits())
    with_money(scene, service, SETUP.spec.stake + (1 + more) * dear)
    rounds(service, count=6)
    ended = [d.status for d in play.disputes()[:3]]
    assert ended == [Status.LAPSED if more else Status.OPEN] * 3 and staked(play, service) == 1


@pytest.mark.parametrize("more", [0, 20])
def test_claims_that_end_by_other_disputes_are_ended_with_spare_gas(scene: Scene, dear: int, more: int) -> None:
    """In each twin an accomplice waits for a trainer that is out of time."""
    own, other = (scene.claimed(SETUP, LIE) for _ in range(2))
    crowd(other, 1)
    service = watch(own, Limits())
    with_money(scene, service, SETUP.spec.stake + (1 + more) * dear)
    rounds(service)
    assert staked(own, service) == 1
    own.trainer.step()
    rounds(service)
    scene.chain.advance(other.client.turn(other.id, 0)[1] + 1 - scene.chain.now())
    assert other.client.turn(other.id, 0)[0] is Turn.TRAINER_EXPIRED
    rounds(service)
    assert (other.phase is Phase.CONVICTED) == (more > 0)


# ---- the jobs that it plays ----


def test_an_auditor_plays_the_jobs_and_clients_that_it_is_given(scene: Scene) -> None:
    plays = [scene.claimed(SETUP, LIE) for _ in range(4)]
    named = Limits(jobs=frozenset({plays[1].id}), clients=frozenset({plays[2].client.wallet.address}))
    for limits, wanted in ((named, [0, 1, 1, 0]), (Limits(jobs=frozenset({bytes(32)})), [0] * 4), (Limits(), [1] * 4)):
        service = watch(plays[0], limits)
        rounds(service, count=4)
        assert [staked(play, service) for play in plays] == wanted


def test_an_auditor_reports_its_disputes() -> None:
    assert Limits().played == "all claims of this bundle, 8 at a time (--job and --client select jobs)"
    assert Limits(jobs=frozenset({b"\x01" * 32}), clients=frozenset({"0xA"})).played == (
        "job 0101010101010101, orders of 0xA"
    )

"""An endpoint that hides stakes costs an auditor no money that a dispute needs, few reverted stakes, and no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chains import quick_chain
from eth_account import Account
from eth_account.typed_transactions import TypedTransaction
from frauds import LIE, SETUP
from hexbytes import HexBytes
from lagging import BLOCK, DAY, Endpoint, at_endpoint, begun, round_of
from scene import Scene, Setup
from test_watch import staked

import vgame.agents.staking
from vgame.chain import wallet
from vgame.chain.records import Status, Turn
from vgame.dispute.player import DISPUTE_GAS
from vgame.dispute.stakes import Stakes
from vgame.errors import StoreError

GWEI = 10**9
WRITES = ("eth_getTransactionCount", "eth_sendRawTransaction", "eth_getTransactionReceipt", "eth_getBalance")


class Proxy(Endpoint):
    """Reads of the state go to a node that lags; counts, transactions and receipts to a correct one."""

    relay = False  # it includes no transaction that reverts

    def request(self, name: str, params: Any) -> Any:
        if self.relay and name == "eth_sendRawTransaction":
            raw = HexBytes(params[0])
            tx = TypedTransaction.from_bytes(raw).as_dict()
            call = {"from": Account.recover_transaction(raw), "to": "0x" + bytes(tx["to"]).hex()}
            call |= {"value": hex(tx["value"]), "data": "0x" + bytes(tx["data"]).hex(), "gas": hex(tx["gas"])}
            if "error" in self.usual("eth_call", [call, "latest"]):
                return {"jsonrpc": "2.0", "id": 1, "result": "0x" + "00" * 32}
        if self.limit is None or name not in WRITES:
            return super().request(name, params)
        limit, self.limit = self.limit, None
        try:
            return super().request(name, params)
        finally:
            self.limit = limit


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scene, Proxy]]:
    with at_endpoint(monkeypatch, Proxy, quick_chain) as found:
        yield found


def sent(scene: Scene, account: Any) -> int:
    return int(scene.chain.web3.eth.get_transaction_count(account.address))


def first_staked(end: Any, play: Any, service: Any) -> None:
    scene, endpoint = end
    for _ in range(10):
        if staked(play, service):
            return
        with endpoint.behind(lambda: endpoint.now() - 600):
            round_of(service)
        scene.chain.advance(BLOCK)
    raise AssertionError("no stake")


# ---- gas of a hidden dispute ----


def test_gas_of_a_hidden_dispute_while_its_stake_is_paused(end: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The reads come from a node that lags by 10 minutes. The dispute on claim 1 is open, but not shown. The claim of
    another job is not staked on with the money for its gas."""
    scene, endpoint = end
    first, second = scene.claimed(DAY, LIE), scene.claimed(DAY, LIE)
    account = scene.wallet()
    service = begun(first, tmp_path, account)
    scene.chain.advance(700)
    first_staked(end, first, service)
    service.named.named[second.id] = None
    usual = scene.chain.balance
    monkeypatch.setattr(service.staking, "dispute_gas", DISPUTE_GAS)
    price = 2 * DISPUTE_GAS * sum(scene.chain.fees())
    owned = DAY.spec.stake + price * 3 // 2  # one bond, and the gas of one and a half disputes
    monkeypatch.setattr(scene.chain, "balance", lambda address: owned if address == account.address else usual(address))
    seen = []
    for _ in range(480 // BLOCK):
        with endpoint.behind(lambda: endpoint.now() - 600):
            round_of(service)
        seen.append((len(service.staking.at_risk), sent(scene, account), *map(str, service.problems.values())))
        scene.chain.advance(BLOCK)
    assert staked(first, service) == 1
    assert staked(second, service) == 0, seen


def test_gas_of_a_dispute_that_the_contract_has(scene: Scene, tmp_path: Path, monkeypatch: Any) -> None:
    """A process with an empty store. The endpoint hides the dispute on claim 1, but the contract answers
    AlreadyDisputed: claim 2 is not staked on with the money for the gas of the dispute on claim 1."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    second = scene.claimed(SETUP, LIE)  # its window ends first
    scene.chain.advance(10)
    first = scene.claimed(SETUP, LIE)
    service = begun(first, tmp_path / "old")
    round_of(service)
    assert staked(first, service) == 1
    again = begun(first, tmp_path / "new", service.game.wallet)
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (GWEI, GWEI))
    each = 4 * DISPUTE_GAS * GWEI
    scene.chain.node.evm.set_balance(service.game.wallet.address, SETUP.spec.stake + each * 3 // 2)
    fresh = {play.id: replace(play.job, disputes=0, open=0) for play in (first, second)}
    again.game.job, again.game.jobs = fresh.__getitem__, lambda jobs: [fresh[job] for job in jobs]
    for _ in range(3):
        again.game.wallet.pauses.known.clear()
        round_of(again)
    assert "contract has it" in str(again.problems)
    again.named.named = {second.id: None, **again.named.named}
    for _ in range(3):
        again.game.wallet.pauses.known.clear()
        round_of(again)
    assert staked(second, again) == 0


# ---- reverted stakes ----


def test_reverted_stakes_behind_a_node_ten_minutes_late(end: Any, tmp_path: Path) -> None:
    """Reads from a node that lags by 10 minutes: not more than 5 stakes revert."""
    scene, endpoint = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    scene.chain.advance(700)
    first_staked(end, play, service)
    before = sent(scene, account)
    for _ in range(588 // BLOCK):
        with endpoint.behind(lambda: endpoint.now() - 600):
            round_of(service)
        scene.chain.advance(BLOCK)
    assert staked(play, service) == 1
    assert sent(scene, account) - before <= 5


def test_reverted_stakes_behind_a_stalled_node(end: Any, tmp_path: Path) -> None:
    """Reads from a node that is stalled for two hours, or a proxy that caches. The process has a receipt of its own
    stake."""
    scene, endpoint = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    scene.chain.advance(700)
    first_staked(end, play, service)
    before, stop = sent(scene, account), endpoint.now() - 600
    for _ in range(7200 // 120):
        with endpoint.behind(lambda: stop):
            round_of(service)
        scene.chain.advance(120)
    assert staked(play, service) == 1
    assert sent(scene, account) - before <= 10


# ---- a stake that a relay does not include ----


def test_a_stake_that_a_relay_drops_blocks_no_move(end: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The account has a dispute on claim 1. It stakes on claim 2; its node lags by 70 seconds, so the stake is not
    shown for 30 seconds. Sent again, it would be dropped by the relay, which includes nothing that reverts, and the
    wallet would wait for it, while it is the auditor's turn in the dispute on claim 1."""
    scene, endpoint = end
    setup = Setup(SETUP.program, steps=8, terms={"challenge_window": 20_000, "auditor_budget": 1100})
    first, second = scene.claimed(setup, LIE), scene.claimed(setup, LIE)
    account = scene.wallet()
    service = begun(first, tmp_path, account)
    scene.chain.advance(700)
    usual = scene.chain.receipt

    def receipt(digest: bytes, timeout: float) -> Any:
        if (found := usual(digest, 0)) is None and timeout:
            scene.chain.advance(60)
            found = usual(digest, 0)
        return found

    monkeypatch.setattr(scene.chain, "receipt", receipt)
    monkeypatch.setattr(wallet, "RAISES", 20)
    monkeypatch.setattr(endpoint, "relay", True)

    def lagging(seconds: int = 70) -> float:
        since = endpoint.now()
        with endpoint.behind(lambda: endpoint.now() - seconds):
            round_of(service)
        took = endpoint.now() - since
        scene.chain.advance(BLOCK)
        return took

    for _ in range(6):
        lagging(0)
    assert staked(first, service) == 1
    scene.chain.advance(80)
    service.named.named[second.id] = None
    while not staked(second, service):
        lagging()
    took = [lagging() for _ in range(3)]
    first.trainer.step()
    assert first.client.turn(first.id, 0)[0] is Turn.AUDITOR
    took += [lagging() for _ in range(3)]
    (dispute,) = first.disputes()
    assert first.client.turn(first.id, 0)[0] is not Turn.AUDITOR_EXPIRED and dispute.status is Status.OPEN, took


# ---- several processes, damaged records ----


def test_two_processes_with_one_store(scene: Scene, tmp_path: Path, monkeypatch: Any) -> None:
    """Two processes of one account and one bundle, for different jobs. Both are in the record."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    plays = [scene.claimed(SETUP, LIE) for _ in range(2)]
    account = scene.wallet()
    services = [begun(play, tmp_path, account) for play in plays]
    for service in services:
        round_of(service)
    assert [staked(play, service) for play, service in zip(plays, services, strict=True)] == [1, 1]
    assert set(Stakes.beside(tmp_path / "run", services[0].game).jobs) == {play.id for play in plays}


@pytest.mark.parametrize("damage", [b'["ab"]', b'["' + b"ab" * 20 + b'"]'])
def test_damaged_records(scene: Scene, tmp_path: Path, monkeypatch: Any, damage: bytes) -> None:
    """Damaged by a bad disk or a partial restore; also claims that are too short."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    play = scene.claimed(SETUP, LIE)
    service = begun(play, tmp_path)
    round_of(service)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    with pytest.raises(StoreError):
        Stakes.beside(tmp_path / "run", service.game)

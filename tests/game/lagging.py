"""A chain whose node lags or is stalled, and an auditor on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_account.typed_transactions import TypedTransaction
from frauds import SETUP
from hexbytes import HexBytes
from scene import Play, Scene, Setup, deployed, embedded_chain
from test_stakes import Killed, begun, killed
from test_watch import staked

from vgame.agents import retry, staking
from vgame.chain import final, pauses, wallet
from vgame.chain.records import Phase
from vgame.errors import VgameError

BLOCK = 12
DAY = Setup(SETUP.program, steps=8, terms={"challenge_window": 20_000})


class Endpoint:
    """A balancer on the way to the chain. While it is `behind`, its node shows the blocks up to a time only; it takes
    any transaction, but no block that it shows includes it. The chain's final block is 64 blocks old. While it `holds`,
    the first transaction with each number stays in its pool, until one that pays a tenth more replaces it."""

    def __init__(self, chain: Any) -> None:
        self.chain, self.times, self.limit, self.holds = chain, list[int](), None, False
        self.pool: dict[int, int] = {}  # by number: fee of the transaction that waits
        provider = chain.web3.provider
        self.usual = provider.make_request
        provider.make_request = self.request
        provider._request_func_cache = (None, None)

    def raw(self, name: str, *params: Any) -> Any:
        return self.usual(name, list(params))["result"]

    def head(self) -> int:
        number = int(self.raw("eth_blockNumber"), 16)
        while len(self.times) <= number:
            self.times.append(int(self.raw("eth_getBlockByNumber", hex(len(self.times)), False)["timestamp"], 16))
        return number

    def now(self) -> float:
        return float(self.times[self.head()])

    def number(self, limit: float) -> int:
        return max(n for n in range(self.head() + 1) if self.times[n] <= limit or n == 0)

    def shown(self) -> int:
        return self.head() if self.limit is None else self.number(self.limit())

    def request(self, name: str, params: Any) -> Any:
        shown = self.shown()
        params = list(params)
        for at, value in enumerate(params):
            if value == "finalized":
                params[at] = hex(self.number(self.times[shown] - 64 * BLOCK))
            elif value in ("latest", "pending") and self.limit is not None:
                params[at] = hex(shown)
        if self.holds and name == "eth_sendRawTransaction":
            tx = TypedTransaction.from_bytes(HexBytes(params[0])).as_dict()
            fee, waiting = tx["maxFeePerGas"], self.pool.get(tx["nonce"])
            if waiting is None:
                self.pool[tx["nonce"]] = fee
                return {"jsonrpc": "2.0", "id": 1, "result": "0x" + "00" * 32}
            if 10 * fee < 11 * waiting:
                error = {"code": -32000, "message": "replacement transaction underpriced"}
                return {"jsonrpc": "2.0", "id": 1, "error": error}
        if self.limit is None:
            return self.usual(name, params)
        answer = {"jsonrpc": "2.0", "id": 1}
        if name == "eth_blockNumber":
            return answer | {"result": hex(shown)}
        if name == "eth_sendRawTransaction":
            return answer | {"result": "0x" + "00" * 32}
        if name == "eth_getBlockByNumber" and int(params[0], 16) > shown:
            return answer | {"result": None}
        found = self.usual(name, params)
        if name == "eth_getTransactionReceipt" and (got := found.get("result")) and int(got["blockNumber"], 16) > shown:
            return answer | {"result": None}
        return found

    @contextmanager
    def behind(self, limit: Any) -> Iterator[None]:
        self.limit = limit
        try:
            yield
        finally:
            self.limit = None


@contextmanager
def at_endpoint(
    monkeypatch: pytest.MonkeyPatch, kind: type[Endpoint] = Endpoint, node: Callable[[], Any] = embedded_chain
) -> Iterator[tuple[Scene, Any]]:
    """A scene behind such an endpoint of a node; the process has its clock, and waits for no receipt."""
    monkeypatch.setattr(staking, "auditor_shortcomings", lambda *_: [])
    monkeypatch.setattr(wallet, "RECEIPT_TIMEOUT", 0.01)
    monkeypatch.setattr(wallet, "RAISES", 2)
    with node() as chain:
        scene, endpoint = deployed(chain), kind(chain)
        monkeypatch.setattr(chain, "is_development", False)
        for module in (final, pauses, retry):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=endpoint.now, sleep=lambda _: None))
        yield scene, endpoint


def round_of(service: Any) -> None:
    for known in service.retry.values():
        known.until = 0.0
    with suppress(VgameError):
        service.round()


def closes(play: Play) -> int:
    return play.job.since + play.setup.spec.challenge_window


def move(account: Any) -> None:
    """A move in another job of this account."""
    account.send(account.address, b"", 0, 30_000)


def killed_in_a_move(scene: Scene, account: Any, sent: bool) -> None:
    """A move in another job, which is not needed again; the process ends before or after the node receives it."""
    eth = scene.chain.web3.eth
    usual = eth.send_raw_transaction

    def send(raw: bytes) -> Any:
        if sent:
            usual(raw)
        raise Killed

    eth.send_raw_transaction = send
    try:
        with pytest.raises(Killed):
            move(account)
    finally:
        eth.send_raw_transaction = usual


def killed_in_a_stake(scene: Scene, service: Any, account: Any, where: str) -> None:
    """Looks until the stake is due; the process ends before ("written") or after ("sent") the node receives it."""
    for _ in range(2):
        round_of(service)
        scene.chain.advance(20)
    killed(service, account, where)


def restarted(play: Play, store: Path, account: Any) -> Any:
    account.before = None
    account.pauses = pauses.Pauses(account.chain)
    return begun(play, store, account)


def played(end: Any, play: Play, service: Any, seconds: float, step: int = BLOCK) -> None:
    scene, endpoint = end
    until = endpoint.now() + seconds
    while endpoint.now() < min(until, closes(play) - 30):
        round_of(service)
        scene.chain.advance(step)


def until_staked(end: Any, play: Play, service: Any) -> None:
    scene, _ = end
    for _ in range(40):
        if staked(play, service):
            return
        round_of(service)
        scene.chain.advance(BLOCK)
    raise AssertionError("no stake")


def convicted_by_another(end: Any, play: Play) -> None:
    scene, _ = end
    other = play.auditor()
    for _ in range(200):
        if play.phase is Phase.CONVICTED:
            return
        for player in (other, play.trainer):
            with suppress(VgameError):
                player.step()
        scene.chain.advance(BLOCK)
    raise AssertionError("not convicted")

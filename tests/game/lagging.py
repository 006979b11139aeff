"""A chain whose node lags or stands still, and an auditor on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from frauds import SETUP
from scene import Play, Scene, Setup
from test_stakes import Killed, begun
from test_watch import staked

from vgame.chain import pauses
from vgame.chain.records import Phase
from vgame.errors import VgameError

BLOCK = 12
DAY = Setup(SETUP.program, steps=8, terms={"challenge_window": 20_000})


class Endpoint:
    """A balancer on the way to the chain. While it is `behind`, its node shows the blocks up to a time only; it takes
    any transaction, but no block that it shows includes it. The chain's final block is 64 blocks old."""

    def __init__(self, chain: Any) -> None:
        self.chain, self.times, self.limit, self.pool = chain, list[int](), None, False
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


def unsent(scene: Scene, account: Any) -> None:
    """A move in another job, which is not needed again; killed between signing and sending."""
    eth = scene.chain.web3.eth
    usual = eth.send_raw_transaction
    eth.send_raw_transaction = lambda raw: (_ for _ in ()).throw(Killed())
    try:
        with pytest.raises(Killed):
            move(account)
    finally:
        eth.send_raw_transaction = usual


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


def pending_at(end: Any, account: Any) -> Any:
    """The node's pool holds the account's next transaction until another one with its number is included."""
    scene, _ = end
    eth = scene.chain.web3.eth
    usual, stuck = eth.get_transaction_count, eth.get_transaction_count(account.address)

    def count(address: str, which: Any = None) -> int:
        found = usual(address, which) if which else usual(address)
        return found + (which == "pending" and address == account.address and found == stuck)

    return patch.object(eth, "get_transaction_count", count)

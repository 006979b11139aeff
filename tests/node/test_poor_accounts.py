"""An account with too little money, beside one false endpoint of three: honest endpoints refuse because of the
account's own lack of money. That is no failure of theirs, so the false one, which invents each reply, does not become
the only one that answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP, SPEC
from lying import Truth
from proxy import LyingProxy, Request, served
from scene import Play, Scene
from web3 import Web3

from vgame.agents.client import close_job, post_job
from vgame.chain import agreed
from vgame.chain.abi import abi_type, full_abi
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet
from vgame.errors import ChainError

LITTLE = 10**13  # wei


def selector(name: str) -> str:
    entry = next(e for e in full_abi() if e["type"] == "function" and e["name"] == name)
    return Web3.to_hex(Web3.keccak(text=f"{name}({','.join(map(abi_type, entry['inputs']))})")[:4])


class Inventor:
    """Takes each transaction, sends none, and shows a success: `phase`, and credits until they are withdrawn. It shows
    another transaction's receipt for the first one, so that it is asked last."""

    def __init__(self, phase: Phase) -> None:
        self.phase, self.sent, self.credits, self.first = phase, dict[str, str](), 0, ""

    def lie(self, query: Request, truth: Truth) -> Request:
        method, data = query["method"], str(query["params"][:1])
        if method == "eth_getBalance":
            return {"result": hex(10**24)}
        if method == "eth_estimateGas":
            return {"result": hex(400_000)}
        if method == "eth_sendRawTransaction":
            digest = Web3.to_hex(Web3.keccak(hexstr=query["params"][0]))
            if not self.first:
                self.first = digest
                return {"result": digest}
            self.sent[digest], self.credits = data, 0 if selector("withdraw")[2:] in data else SPEC.reward
            return {"result": digest}
        if method == "eth_getTransactionReceipt" and query["params"][0] == self.first and not self.sent:
            return {"result": self.receipt("0x" + "77" * 32)}
        if method == "eth_getTransactionReceipt" and query["params"][0] in self.sent:
            return {"result": self.receipt(query["params"][0])}
        if method == "eth_getTransactionCount":
            return {"result": hex(int(truth()["result"], 16) + len(self.sent))}
        if self.sent and method == "eth_call" and selector("getJob") in data:
            return {"result": "0x" + f"{self.phase:064x}" + truth()["result"][66:]}
        if self.sent and method == "eth_call" and selector("credits") in data:
            return {"result": f"0x{self.credits:064x}"}
        return truth()

    @staticmethod
    def receipt(digest: str) -> dict[str, Any]:
        place = {"blockNumber": "0x1", "transactionIndex": "0x0", "blockHash": "0x" + "11" * 32}
        gas = dict.fromkeys(("gasUsed", "cumulativeGasUsed", "effectiveGasPrice"), "0x5208")
        return place | gas | {"transactionHash": digest, "status": "0x1", "logs": [], "type": "0x2"}


@pytest.fixture
def play(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """An order whose time is over; its client has little left."""
    monkeypatch.setattr(agreed, "WAIT", 0.5)
    play, chain = some_scene.post(SETUP), some_scene.chain
    chain.advance(SPEC.accept_window + 1)
    wallet = play.client.wallet
    price = 3 * sum(chain.fees())
    wallet.send(some_scene.wallet().address, b"", chain.balance(wallet.address) - LITTLE - 31_050 * price, 20_000)
    assert chain.balance(wallet.address) < 10**15
    yield play


@pytest.mark.parametrize("false", range(3))
@pytest.mark.parametrize("command", ["close", "post"])
def test_lack_of_money_is_reported(play: Play, command: str, false: int) -> None:
    inventor = Inventor(Phase.EXPIRED if command == "close" else Phase.CREATED)
    with ExitStack() as stack:
        proxies = [stack.enter_context(served(LyingProxy, play.scene.chain.url)) for _ in range(3)]
        for n, (proxy, _) in enumerate(proxies):
            proxy.lie = staticmethod(inventor.lie) if n == false else None
        chain = Chain([url for _, url in proxies])
        game = Game(chain, play.scene.address, Wallet(chain, play.client.wallet.key))
        with pytest.raises(ChainError, match=rf"{game.wallet.address} has \d+ wei.* are needed.*send it some ether"):
            if command == "close":
                close_job(game, play.id)
            else:
                post_job(game, bundle(), 4711)
    assert play.phase is Phase.CREATED


def bundle() -> Any:
    header = SETUP.program.header
    return SimpleNamespace(
        log=None, mode="correct", order=asdict(SPEC), name="a toy job", program=SimpleNamespace(header=header)
    )

"""An endpoint that alters replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from frauds import SETUP
from proxy import LyingProxy, Request, served
from scene import Play, Scene
from web3 import Web3

from vgame.chain.abi import full_abi
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.wallet import Wallet
from vgame.dispute.player import Player

Truth = Callable[[], Request]


@dataclass
class Table:
    """A play whose players all use one proxy."""

    play: Play
    proxy: type[LyingProxy]
    chain: Chain

    def seat(self, cls: type[Player], lies: Any = None) -> Player:
        wallet = self.play.scene.wallet()
        game = Game(self.chain, self.play.scene.address, Wallet(self.chain, wallet.key))
        player = cls(game, self.play.id, self.play.machine(lies))
        player.terms = self.play.setup.spec
        return player

    def again(self, player: Player) -> Player:
        """The player after a restart, with an empty memory."""
        game = Game(self.chain, self.play.scene.address, player.game.wallet)
        fresh = type(player)(game, player.id, player.machine)
        fresh.terms = player.terms
        return fresh

    def sent(self, player: Player) -> int:
        return int(self.play.scene.chain.web3.eth.get_transaction_count(player.address))


@contextmanager
def table(scene: Scene, claim: Any = None, play: Play | None = None) -> Iterator[Table]:
    """A posted claim (or the given play), behind a proxy that is still honest."""
    with served(LyingProxy, scene.chain.url) as (proxy, url):
        yield Table(play or scene.claimed(SETUP, claim), proxy, Chain(url))


def refuses(t: Table, player: Player, lie: Any, error: type[Exception], words: str) -> None:
    """While the endpoint lies the player reports it and sends nothing."""
    before = t.sent(player)
    t.proxy.lie = staticmethod(lie)
    for _ in range(2):
        with pytest.raises(error, match=words):
            player.step()
    t.proxy.lie = None
    assert t.sent(player) == before


def topic(name: str) -> str:
    entry = next(e for e in full_abi() if e["type"] == "event" and e["name"] == name)
    return Web3.to_hex(Web3.keccak(text=f"{name}({','.join(i['type'] for i in entry['inputs'])})"))


def selector(name: str, types: str) -> str:
    return Web3.to_hex(Web3.keccak(text=f"{name}({types})")[:4])


def chain_one(query: Request, truth: Truth) -> Request:
    """The same contracts on another chain, as on a fork."""
    return {"jsonrpc": "2.0", "id": query["id"], "result": "0x1"} if query["method"] == "eth_chainId" else truth()

"""A role decides on the state after one block, even if blocks are mined while it is read."""

from __future__ import annotations

from typing import Any

import pytest
from frauds import SETUP
from lying import Truth, table
from proxy import Request
from scene import Scene

from vgame.delivery.rules import read
from vgame.dispute.trainer import Trainer


@pytest.mark.parametrize("hashes", [True, False], ids=["by hash", "by number"])
def test_a_snapshot_is_of_one_block(some_scene: Scene, hashes: bool) -> None:
    """A node without hashes is queried by number."""
    named: list[Any] = []

    def lie(query: Request, truth: Truth) -> Request:
        if query["method"] == "eth_getBalance" and not hashes:
            return {"error": {"code": -32602, "message": "invalid argument: no hashes"}}
        if query["method"] == "eth_call":
            named.append(query["params"][1])
            some_scene.chain.advance(1)
        return truth()

    with table(some_scene, play=some_scene.post(SETUP)) as t:
        game = t.seat(Trainer).game
        t.proxy.lie = staticmethod(lie)
        found = read(game, t.play.id)
        assert len(named) == 3 and len(set(map(str, named))) == 1
        assert ("0x" + t.chain.block(found.number).digest.hex() in str(named[0])) is hashes
        assert found.now == t.chain.time_of(found.number) < t.chain.now()
        assert game.chain.web3.eth.default_block == "latest"


def test_reads_at_a_block_can_be_nested(some_scene: Scene) -> None:
    chain = some_scene.chain
    with chain.at(1), chain.pinned() as block:
        assert block.number == 1 and chain.now() == block.time
        with chain.at(0):
            assert chain.block().number == 0
        assert chain.block().number == 1

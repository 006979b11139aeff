"""The requests of a look of `vgame monitor`: orders of others cost only their place in a page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from frauds import SETUP
from proxy import Proxy, served
from scene import Scene

from vgame.agents.status import alarms, read_game
from vgame.chain.connection import Chain
from vgame.chain.game import Game


class Counting(Proxy):
    """Counts requests; with `alone`, accepts no batches."""

    count, alone = 0, False

    def do_POST(self) -> None:
        body = self.body()
        type(self).count += 1
        if self.alone and isinstance(json.loads(body), list):
            return self.reply(b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no batches"}}')
        self.reply(self.forward(body))


def looks(proxy: Any, game: Game, account: str) -> tuple[int, list[Any]]:
    list(alarms(game, account))  # the first look reads the old data
    before = proxy.count
    found = list(alarms(game, account))
    return proxy.count - before, found


@pytest.mark.parametrize("alone", [False, True], ids=["batches", "one by one"])
def test_orders_of_others_cost_no_requests(some_scene: Scene, alone: bool) -> None:
    play = some_scene.claimed(SETUP)
    with served(Counting, some_scene.chain.url) as (proxy, url):
        proxy.alone = alone
        game = Game(Chain(url), some_scene.address)
        few, before = looks(proxy, game, play.trainer.address)
        for _ in range(20):
            some_scene.post(SETUP)
        many, after = looks(proxy, game, play.trainer.address)
        assert many - few <= (22 if alone else 2)
        assert {a.kind for a in before} <= {a.kind for a in after}
        assert [j.job for j in read_game(game)][-1] != play.id.hex()
        assert game.jobs([play.id])[0] == some_scene.game().job(play.id)
        assert game.jobs([]) == []

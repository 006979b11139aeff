"""A node that keeps no old history: it answers searches of events with error 4444."""

from __future__ import annotations

import pytest
from frauds import LIE
from lying import Truth, table
from proxy import Request
from scene import Scene

from vgame.agents.due import read, trainer
from vgame.agents.status import alarms, read_game
from vgame.chain.game import Game
from vgame.errors import ChainError


def pruned(query: Request, truth: Truth) -> Request:
    if query["method"] == "eth_getLogs":
        return {"error": {"code": 4444, "message": "pruned history unavailable"}}
    return truth()


def test_roles_read_the_state_without_any_event(some_scene: Scene) -> None:
    with table(some_scene, LIE) as t:
        auditor = t.play.auditor()
        auditor.step()
        mine = t.play.client.wallet.address
        game = Game(t.chain, some_scene.address)
        t.proxy.lie, t.proxy.batches = staticmethod(pruned), False
        (job,) = (j for j in read_game(game, t.play.id))
        assert (job.phase, job.disputes[0].turn) == ("claimed", "trainer")
        assert t.play.id.hex() in {j.job for j in read_game(game, clients=[mine])}
        assert [d.call for d in trainer(read(game, t.play.id), None) if d.due] == ["reveal"]
        list(alarms(game, auditor.address, clients=[mine]))
        with pytest.raises(ChainError, match="pruned history"):
            read_game(game)

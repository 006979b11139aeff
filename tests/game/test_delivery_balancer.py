"""A balancer in front of a node that stands still: every other reply is of an old block. It harms no side. And a base
fee that is high in single blocks, which no look sees."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from exchange import KEY_WINDOW
from scene import Scene
from test_delivery_agents import MARGIN, Partial, chunk_1_of_tensor_1
from test_delivery_prices import FLOOR, deployed_scene, fee

from vgame.chain import final, pauses
from vgame.chain.records import Phase
from vgame.delivery import calls, looks, rules
from vgame.errors import VgameError

assert deployed_scene and fee  # fixtures


@pytest.fixture
def sides(scene: Scene, fee: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Partial:
    sides = Partial(scene, tmp_path)
    sides.claim()
    monkeypatch.setattr(scene.chain, "is_development", False)
    for module in (calls, final, looks, pauses):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=scene.chain.now))
    return sides


def half_stale(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every other reply is of the present block."""
    usual, old, replies = rules.read, rules.read(sides.game, sides.play.id), count()

    def read(game: object, job: bytes) -> rules.Snapshot:
        return old if next(replies) % 2 else usual(game, job)

    monkeypatch.setattr(looks, "read", read)


def test_the_key_goes_out_beside_a_node_that_stands_still(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    half_stale(sides, monkeypatch)
    sides.buyer.ready()
    key_by = sides.game.exchange(sides.play.id).confirmed_at + KEY_WINDOW
    while sides.play.phase is Phase.DELIVERING and sides.play.scene.chain.now() < key_by:
        with suppress(VgameError):
            sides.trainer.step()
        sides.play.advance(10)
    assert sides.play.phase is Phase.REVEALED


def test_it_is_declined_beside_a_node_that_stands_still(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 0)
    sides.refuse = lambda *_: True
    sides.wait(MARGIN + 20)
    half_stale(sides, monkeypatch)
    while sides.play.phase is Phase.DELIVERING and sides.left > 0:
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(4)
    assert sides.play.phase is Phase.DECLINED


def test_a_request_that_is_deferred_in_single_blocks_is_not_dropped(sides: Partial, fee) -> None:
    """Each look sees a base fee below the price. The trainer never answers: the reward comes back."""
    job, game = sides.play.id, sides.play.client
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(sides.game.exchange(job).until - sides.play.scene.chain.now() - 1)
    sides.play.scene.chain.node.evm.set_balance(game.wallet.address, 10**22)

    def look() -> None:
        with suppress(VgameError):
            sides.buyer.ready()

    def defer() -> None:
        fee(5 * FLOOR)
        with suppress(VgameError):
            sides.game.send("defer", job, 0)
        fee(FLOOR * 39 // 10)

    while not game.requests(job):
        look()
        sides.play.advance(20)
    first = game.requests(job)[0].since + KEY_WINDOW - 60
    fee(FLOOR * 39 // 10)
    deferred = 0
    while sides.play.phase is Phase.DELIVERING and game.requests(job)[0].open:
        assert sides.play.scene.chain.now() < first + 4 * KEY_WINDOW
        now = sides.play.scene.chain.now()
        if (deferred == 0 and now >= first) or (deferred == 1 and now >= first + KEY_WINDOW - 30):
            defer()
            deferred += 1
        if deferred == 2 and now >= first + KEY_WINDOW - 30:
            sides.play.advance(35)
            defer()
            deferred = 3
        look()
        sides.play.advance(20)
    assert not game.requests(job)[0].dropped and sides.play.phase is Phase.UNDELIVERED
    assert game.credits(game.wallet.address) >= sides.play.setup.spec.reward


def test_an_old_block_does_not_lengthen_a_look(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last tenth, in which little time is left to decline."""
    sides.wait(MARGIN - 1)
    now, ends = sides.play.scene.chain.now(), []
    sides.refuse = lambda *_: ends.append(sides.buyer._server.second) or True  # type: ignore[func-returns-value]
    monkeypatch.setattr(sides.play.scene.chain, "now", lambda: now - 500)
    with suppress(VgameError):
        sides.buyer.ready()
    assert ends and max(ends) <= now + MARGIN // 2

"""After one failed reply, block or call the client continues; it declines only for lasting reasons."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scene import Scene
from test_delivery_agents import MARGIN, Partial, chunk_1_of_tensor_1
from test_delivery_balancer import sides
from test_delivery_client import REPLY, SPEC, Slow
from test_delivery_prices import FLOOR, deployed_scene, fee

from vgame.chain.records import Phase
from vgame.delivery import buyer
from vgame.errors import DeliveryError, EndpointError, VgameError

assert deployed_scene and fee and sides  # fixtures

ENOUGH = 10**20


@pytest.mark.parametrize("time", [0, 2**40])
def test_one_false_time_makes_no_look_longer(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: int
) -> None:
    """A node that has just begun to synchronise shows the first block's time."""
    sides, usual, false = Slow(scene, tmp_path), scene.chain.now, [time]
    sides.claim()
    sides.drip = sides.spoiled = True
    monkeypatch.setattr(scene.chain, "now", lambda: false.pop() if false else usual())
    begun = usual()
    with pytest.raises(DeliveryError):
        sides.receive()
    assert usual() - begun <= SPEC.confirm_window // 2 + 2 * REPLY


def requested(sides: Partial) -> None:
    """One chunk is requested, in the last tenth."""
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(MARGIN + 60)
    while not sides.play.client.requests(sides.play.id):
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(20)
    sides.wait(MARGIN)
    for _ in range(3):
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(10)
    assert sides.play.phase is Phase.DELIVERING


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_price_that_cannot_be_paid_for_a_moment(sides: Partial, fee: Any, blocks: int) -> None:
    """In one block; the client declines if that lasts for half a minute."""
    balance = sides.play.scene.chain.node.evm.set_balance
    balance(sides.play.client.wallet.address, ENOUGH)
    requested(sides)
    balance(sides.play.client.wallet.address, 5 * 10**16)  # for a `decline`
    fee(4 * FLOOR + 1)
    for _ in range(blocks):
        with suppress(VgameError):
            sides.buyer.ready()
        if sides.play.phase is Phase.DELIVERING:
            sides.play.advance(10)
    assert (sides.play.phase is Phase.DECLINED) == (blocks > 1)
    if blocks > 1:
        return
    fee(FLOOR)
    for _ in range(100):
        with suppress(VgameError):
            sides.trainer.step()
        with suppress(VgameError):
            if sides.buyer.ready():
                return
        sides.play.advance(20)
    raise AssertionError(f"no state: {sides.play.phase}")


def test_an_error_of_refused_stops_nothing_else(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client still fetches; if the error lasts to the end, it declines."""
    requested_ranges, usual = [], sides.buyer.game.move
    sides.refuse = lambda name, *_: bool(requested_ranges.append(name)) or name != "chunks"

    def move(name: str, *args: object, **more: Any) -> Any:
        if name == "refused":
            raise EndpointError("unreadable")
        return usual(name, *args, **more)

    monkeypatch.setattr(sides.buyer.game, "move", move)
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 4)  # one is tried
    window = SPEC.key_window
    while not (asked := sides.play.client.requests(sides.play.id)):
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(20)
    monkeypatch.setattr(buyer, "overdue", late_from(asked[0].since + window // 4))
    sides.play.advance(window // 4 + 1)
    requested_ranges.clear()
    with pytest.raises(DeliveryError):
        sides.buyer.ready()
    assert "leaves" in requested_ranges
    while sides.play.phase is Phase.DELIVERING and sides.left > 0:
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(8)
    assert sides.play.phase is Phase.DECLINED


def late_from(second: int) -> Any:
    """`overdue`, by which an open request is late after this second, sooner than the windows of the tests allow."""
    usual = buyer.overdue

    def overdue(s: Any) -> Any:
        from vgame.delivery.rules import Duty

        return usual(s) or (Duty("refused", True, "", request=s.open[0]) if s.open and s.now > second else None)

    return overdue


@pytest.mark.parametrize("seconds,declined", [(30, False), (10_000, True)])
def test_logs_of_the_offer_that_are_hidden_in_the_last_tenth(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, seconds: int, declined: bool
) -> None:
    sides.wait(MARGIN - 5)
    contents, begun = sides.play.client.contents, sides.play.scene.chain.now()
    usual = contents.logs, contents.receipts
    while sides.play.phase is Phase.DELIVERING and sides.left > 0:
        hidden = sides.play.scene.chain.now() - begun < seconds
        contents.logs, contents.receipts = (lambda *_: [],) * 2 if hidden else usual
        with suppress(VgameError):
            sides.buyer.ready()
        if sides.game.exchange(sides.play.id).confirmed_at:
            break
        sides.play.advance(7)
    assert (sides.play.phase is Phase.DECLINED) == declined

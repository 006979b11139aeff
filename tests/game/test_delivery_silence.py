"""After the confirm window, and just before requests: a client that can pay raises its request, one failed look buys
nothing, and no look is longer than the complaint window allows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_delivery_agents as agents
from exchange import DELIVERY, KEY_WINDOW
from scene import Scene
from test_delivery_agents import Partial, chunk_1_of_tensor_1
from test_delivery_prices import FLOOR, deployed_scene, fee

from vgame.chain import final, pauses
from vgame.chain.records import Phase
from vgame.delivery import buyer, calls, looks
from vgame.delivery.calls import CALL_GAS
from vgame.delivery.sealed import Piece, Shape, read_offer
from vgame.errors import VgameError

assert deployed_scene and fee  # fixtures
Ordered = Callable[..., Partial]
RICH = 10**22


@pytest.fixture
def ordered(scene: Scene, fee: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ordered:
    """A claimed order with some terms, on a chain that is not for development; the client is rich."""

    def order(change: Any = None, **terms: int) -> Partial:
        monkeypatch.setattr(agents, "DELIVERY", replace(DELIVERY, terms=DELIVERY.terms | terms))
        sides = Partial(scene, tmp_path)
        sides.claim(change) if change else sides.claim()
        monkeypatch.setattr(scene.chain, "is_development", False)
        for module in (buyer, calls, final, looks, pauses):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=scene.chain.now))
        scene.chain.node.evm.set_balance(sides.play.client.wallet.address, RICH)
        return sides

    return order


def look(sides: Partial, problems: set[str] | None = None) -> None:
    try:
        sides.buyer.ready()
    except VgameError as problem:
        if problems is not None:
            problems.add(str(problem))


def requested(ordered: Ordered) -> Partial:
    """The budget allows one and a half base fees; the trainer withholds one chunk. The confirm window is nearly
    over."""
    sides = ordered(reward=46 * 10**15, diverged_pay=10**16)
    job, game = sides.play.id, sides.play.client
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(game.exchange(job).until - game.chain.now() - 1)
    while not game.requests(job):
        look(sides)
        sides.play.advance(20)
    return sides


def spikes(sides: Partial, set_fee: Callable[[int], None], problems: set[str]) -> None:
    """Three single blocks with a base fee above the price, with a `defer` in each, at the moments that drop it."""
    job, game = sides.play.id, sides.play.client
    now, count, first = game.chain.now, 0, 0

    def defer() -> None:
        set_fee(game.requests(job)[0].price * 21 // 20)
        with suppress(VgameError):
            sides.game.send("defer", job, 0)
        set_fee(FLOOR)

    while game.requests(job)[0].open and now() < game.exchange(job).until + 4 * KEY_WINDOW:
        r = game.requests(job)[0]
        times = (r.since + KEY_WINDOW - 60, first + KEY_WINDOW - 30, first + KEY_WINDOW + 6)
        if count < 3 and now() >= times[count]:
            defer()
            first, count = first or now(), count + 1
        look(sides, problems)
        sides.play.advance(20)


@pytest.mark.parametrize("owns", ["much", "what the request asked for"])
def test_after_the_window_no_money_is_reserved_for_a_decline(ordered: Ordered, fee: Any, owns: str) -> None:
    sides = requested(ordered)
    game = sides.play.client
    left = 2 * CALL_GAS * 2 * FLOOR - 106_000 * FLOOR  # gas is free on this chain: without that of the request
    game.chain.node.evm.set_balance(game.wallet.address, RICH if owns == "much" else left)
    spikes(sides, fee, set())
    assert not game.requests(sides.play.id)[0].dropped


def test_a_raise_that_fails_after_the_window_is_reported(ordered: Ordered, fee: Any) -> None:
    sides = requested(ordered)
    game = sides.play.client
    game.chain.node.evm.set_balance(game.wallet.address, CALL_GAS)
    spikes(sides, fee, problems := set())
    assert [p for p in problems if "are needed to raise the price of request 0: send it some ether" in p]


@pytest.mark.parametrize("away", [1, 2])
def test_a_server_that_is_away_for_a_moment_sells_no_answers(ordered: Ordered, away: int) -> None:
    """In one or two looks of the second half; a moment later it serves all. The budget would pay for all answers."""
    shape = Shape([s.elements for s in DELIVERY.program.states])
    every = sum(shape.gas_of(t, c) + 120_000 for t, n in enumerate(shape.chunks) for c in range(n))
    reward = every * FLOOR * 41 // 30
    sides = ordered(reward=reward, diverged_pay=reward // 3)
    sides.wait(DELIVERY.spec.confirm_window // 4)
    for seconds in (0, 5)[:away]:
        sides.play.advance(seconds)
        sides.refuse = lambda *_: True
        look(sides)
    sides.refuse = lambda *_: False
    sides.play.advance(30)
    look(sides)
    assert not sides.play.client.requests(sides.play.id)
    assert sides.play.client.exchange(sides.play.id).confirmed_at


def wrong_leaf(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.tensor == 0:
        cipher[0, 5] ^= 1


def test_a_look_is_shorter_than_the_complaint_window(ordered: Ordered) -> None:
    """Silence has confirmed. The server trickles; the key comes within one look, and the end of the delivery follows as
    soon as it can. A wrong leaf is on the client's disk."""
    complaint = 620  # of `vgame terms` for a small state
    sides = ordered(wrong_leaf, confirm_window=14_400, key_window=5_100, complaint_window=complaint)
    chain, game, job = sides.play.scene.chain, sides.play.client, sides.play.id
    sides.play.advance(14_400 + 60)
    seller, revealed = sides.trainer.seller, 0
    offer = read_offer(seller.public)[1]

    def refuse(name: str, first: int, size: int) -> bool:
        nonlocal revealed
        if name == "chunks" or (first == 0 and size <= 512):
            return False
        if game.job(job).phase is Phase.DELIVERING:
            sides.game.send("revealKey", job, astuple(offer), seller.key())
            revealed = chain.now()
        elif game.job(job).phase is Phase.REVEALED and chain.now() > revealed + complaint:
            sides.game.send("closeDelivery", job, int(Phase.REVEALED))
        sides.play.advance(59)  # a reply may take 60 seconds
        return True

    sides.refuse = refuse
    for _ in range(100):
        look(sides)
        with suppress(VgameError):
            sides.receive()
        if sides.play.phase in (Phase.UNDELIVERED, Phase.FINAL):
            break
        sides.play.advance(15)
    assert sides.play.phase is Phase.UNDELIVERED

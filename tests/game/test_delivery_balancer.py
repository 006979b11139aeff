"""A load balancer with a stalled node: every other reply is from an old block, and no side is harmed. Also a base fee
that is high only in single blocks, which no look sees."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from exchange import KEY_WINDOW
from scene import Scene
from test_delivery_agents import MARGIN, Partial, chunk_1_of_tensor_1
from test_delivery_prices import FLOOR, deployed_scene, fee

from vgame.chain import final, pauses
from vgame.chain.connection import Block
from vgame.chain.records import Phase
from vgame.delivery import calls, looks, rules
from vgame.delivery.calls import CALL_GAS
from vgame.delivery.rules import STEADY
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
    """From now on every other reply is from the block that is the newest now."""
    usual, old, replies = rules.read, rules.read(sides.game, sides.play.id), count()

    def read(game: object, job: bytes) -> rules.Snapshot:
        return old if next(replies) % 2 else usual(game, job)

    monkeypatch.setattr(looks, "read", read)


def test_the_key_is_revealed_beside_a_stalled_node(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    half_stale(sides, monkeypatch)
    sides.buyer.ready()
    key_by = sides.game.exchange(sides.play.id).confirmed_at + KEY_WINDOW
    while sides.play.phase is Phase.DELIVERING and sides.play.scene.chain.now() < key_by:
        with suppress(VgameError):
            sides.trainer.step()
        sides.play.advance(10)
    assert sides.play.phase is Phase.REVEALED


def test_the_client_declines_beside_a_stalled_node(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---- one false header: the time for which a condition has lasted does not depend on it ----


def seconds(sides: Partial) -> int:
    """The true time."""
    return int(sides.play.scene.chain.node.blocks[-1]["timestamp"], 16)


def false_headers(sides: Partial, monkeypatch: pytest.MonkeyPatch, is_false: Callable[[], bool], **shift: int) -> None:
    """From now on blocks have another time, or the newest one another number, where `is_false()`. The roles' own clocks
    are right."""
    chain, usual = sides.play.scene.chain, type(sides.play.scene.chain).block
    for module in (calls, final, looks, pauses):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: seconds(sides)))

    def block(which: int | str | None = None) -> Block:
        found = usual(chain, which)
        if (which is not None and "number" in shift) or chain.pin or not is_false():
            return found
        return replace(found, **{name: getattr(found, name) + by for name, by in shift.items()})

    monkeypatch.setattr(chain, "block", block)


@pytest.mark.parametrize("shift", [{"number": 10**6}, {"time": 10**6}, {"time": -(10**6)}], ids=str)
@pytest.mark.parametrize("which", range(8))
def test_one_false_header_delays_no_key(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, shift: dict[str, int], which: int
) -> None:
    """At any request of the first look after the confirmation."""
    sides.buyer.ready()
    replies = count()
    false_headers(sides, monkeypatch, lambda: next(replies) == which, **shift)
    assert revealed(sides, 10) < KEY_WINDOW * 3 // 4


@pytest.mark.parametrize("pause", [1, 3])
def test_the_key_is_revealed_beside_a_node_with_a_false_time(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, pause: int
) -> None:
    """One reply in four comes from this node."""
    dice = random.Random(7)
    sides.buyer.ready()
    false_headers(sides, monkeypatch, lambda: dice.randrange(4) == 0, time=-3600)
    assert revealed(sides, pause) < KEY_WINDOW


def revealed(sides: Partial, pause: int) -> int:
    """Seconds from the confirmation to the reveal of the key, with a look of the trainer after each pause."""
    begin = sides.game.exchange(sides.play.id).confirmed_at
    while sides.play.phase is Phase.DELIVERING and seconds(sides) <= begin + KEY_WINDOW:
        with suppress(VgameError):
            sides.trainer.step()
        sides.play.advance(pause)
    assert sides.play.phase is Phase.REVEALED
    return seconds(sides) - begin


@pytest.mark.parametrize("which", range(12))
def test_one_false_number_prevents_no_decline(sides: Partial, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """The server serves nothing; the number is in one reply, from the first look on in which the client may decline."""
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 0)
    sides.refuse = lambda *_: True
    sides.wait(MARGIN + 1)
    replies = count()
    false_headers(sides, monkeypatch, lambda: next(replies) == which, number=10**6)
    while sides.play.phase is Phase.DELIVERING and sides.left > 0:
        with suppress(VgameError):
            sides.buyer.ready()
        sides.play.advance(4)
    assert sides.play.phase is Phase.DECLINED


@pytest.mark.parametrize("times", [STEADY, 1], ids=["enough", "little"])
def test_a_raise_ends_a_deferral_with_the_available_money(sides: Partial, fee, times: int) -> None:
    """The base fee is above the price in the block of the deferral only."""
    job, game, node = sides.play.id, sides.play.client, sides.play.scene.chain.node
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(sides.play.setup.spec.confirm_window // 4)
    node.evm.set_balance(game.wallet.address, 10**22)
    while not game.requests(job):
        sides.is_refused()
        sides.play.advance(20)
    (request,) = game.requests(job)
    sides.play.advance(request.since + KEY_WINDOW - sides.play.scene.chain.now() - 1)
    fee(request.price + 1)
    game.send("defer", job, 0)
    fee(FLOOR)
    base, tip = game.chain.fees()
    calls = 2 * CALL_GAS * (2 * base + tip)
    rise = (STEADY - 1) * request.price * game.answer_gas(job, request.elements, request.chunk)
    node.evm.set_balance(game.wallet.address, calls + (rise if times > 1 else rise // 2))
    sides.play.advance(max(KEY_WINDOW // 2, game.exchange(job).until - sides.play.scene.chain.now()) + 1)
    sides.is_refused()
    (raised,) = game.requests(job)
    assert not raised.deferred_at and raised.price == max(request.price + 1, times * request.price)

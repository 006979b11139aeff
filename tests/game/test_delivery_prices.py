"""Requests with a price below the base fee: they wait, and do not delay other calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exchange import DELIVERY, KEY_WINDOW, Exchange
from scene import Scene, fast_scene
from test_delivery_agents import Sides

from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.dispute.player import DISPUTE_GAS
from vgame.errors import ChainError, DeliveryError

GWEI = 10**9
FLOOR = 16 * GWEI
Ask = Callable[[int, int, int], None]


@pytest.fixture(scope="module")
def deployed_scene() -> Scene:
    """A game whose delivery sees a base fee."""
    scene = fast_scene()
    scene.chain.node.show_base_fee(scene.game()._call("delivery"))
    return scene


@pytest.fixture
def fee(scene: Scene) -> Iterator[Callable[[int], None]]:
    """Sets the base fee, which the newest block shows."""
    node = scene.chain.node

    def set_fee(price: int) -> None:
        node.base_fee = scene.ghost.shown = price
        node.blocks[-1] = node.blocks[-1] | {"baseFeePerGas": hex(price), "mixHash": hex(price)}

    def append(*args: Any) -> None:
        make(*args)
        node.blocks[-1]["baseFeePerGas"] = hex(node.base_fee)

    make, node._append = node._append, append
    set_fee(FLOOR)
    yield set_fee
    del node._append
    set_fee(0)


@pytest.fixture
def sides(scene: Scene, fee: object, tmp_path: Path) -> Sides:
    sides = Sides(scene, tmp_path)
    sides.claim()
    return sides


@pytest.fixture
def ask(sides: Sides) -> Ask:
    """A request of the client's at a price."""

    def ask(tensor: int, chunk: int, price: int) -> None:
        Exchange(sides.play, sides.game, None, None, []).request(tensor, chunk, price)

    return ask


def sent(sides: Sides) -> list[tuple[str, int, int]]:
    events = [e for e in sides.game.events(job=sides.play.id) if e.name in ("Answered", "Deferred", "Dropped")]
    requests = [sides.game.requests(sides.play.id)[e.args["index"]] for e in events]
    return [(e.name, r.tensor, r.chunk) for e, r in zip(events, requests, strict=True)]


def look_through(sides: Sides, seconds: int) -> None:
    """The trainer looks every 30 seconds."""
    for _ in range(seconds // 30):
        while sides.trainer.step():
            pass
        sides.play.advance(30)


def test_a_request_below_the_base_fee_does_not_delay_the_next_one(sides: Sides, ask: Ask, fee) -> None:
    ask(1, 0, FLOOR)
    fee(FLOOR * 21 // 20)
    ask(1, 1, 4 * FLOOR)
    assert sides.trainer.step()
    assert sent(sides) == [("Answered", 1, 1)]
    look_through(sides, 2 * KEY_WINDOW)
    # once in half of a key window, and dropped a key window after the first time
    assert sent(sides)[1:] == [("Deferred", 1, 0)] * 3 + [("Dropped", 1, 0)]
    fee(FLOOR)
    sides.until(Phase.FINAL)
    assert sides.game.credits(sides.trainer.address) > DELIVERY.spec.reward + DELIVERY.spec.trainer_bond


def test_a_failed_answer_does_not_delay_the_next_one(sides: Sides, ask: Ask, fee) -> None:
    """For any cause of the failure."""
    ask(1, 0, FLOOR)
    ask(2, 0, FLOOR)
    attempt = sides.trainer.attempt

    def failing(name: str, *args: object, value: int = 0) -> bool:
        if name == "answer" and args[2] == 0:
            raise DeliveryError("cannot be answered")
        return attempt(name, *args, value=value)

    sides.trainer.attempt = failing
    assert sides.trainer.step() and sent(sides) == [("Answered", 2, 0)]
    with pytest.raises(DeliveryError, match="cannot be answered"):
        sides.trainer.step()
    sides.trainer.attempt = attempt
    sides.until(Phase.FINAL)


def test_a_deferred_request_waits_behind_older_ones(sides: Sides, ask: Ask, fee) -> None:
    """A deferral restarts the time of a request."""
    ask(1, 0, FLOOR)
    fee(FLOOR + 1)
    sides.play.advance(KEY_WINDOW // 4)
    ask(1, 1, FLOOR + 1)
    fee(FLOOR + 2)
    sides.play.advance(KEY_WINDOW // 4 + 10)
    assert sides.trainer.step() and sent(sides) == [("Deferred", 1, 0)]
    fee(FLOOR)
    while sides.trainer.step():
        pass
    assert sent(sides)[1:] == [("Answered", 1, 1), ("Answered", 1, 0)]


def test_many_requests_below_the_base_fee_do_not_delay_one_above_it(sides: Sides, ask: Ask, fee) -> None:
    for chunk in range(3):
        ask(1, chunk, FLOOR)
    ask(2, 0, FLOOR)
    fee(FLOOR + 1)
    ask(0, 0, FLOOR + 1)
    assert sides.trainer.step() and sent(sides) == [("Answered", 0, 0)]
    look_through(sides, KEY_WINDOW)
    assert sides.play.phase is Phase.DELIVERING
    assert sorted(sent(sides)[1:]) == [("Deferred", 1, 0), ("Deferred", 1, 1), ("Deferred", 1, 2), ("Deferred", 2, 0)]


def test_a_request_whose_time_is_over_is_answered_at_any_base_fee(sides: Sides, ask: Ask, fee) -> None:
    """It can no longer be deferred, and a falling base fee would cost reward and bond."""
    ask(1, 0, FLOOR)
    fee(2 * FLOOR)
    sides.play.advance(KEY_WINDOW)
    assert sides.trainer.step() and sent(sides) == [("Answered", 1, 0)]


@pytest.mark.parametrize("simulated", [0, None], ids=["without base fee", "with base fee"])
def test_defer_works_for_every_simulation_of_a_node(sides: Sides, ask: Ask, fee, simulated: int | None) -> None:
    """Some nodes simulate with a base fee of 0, where `defer` reverts; others with the block's, where it succeeds
    twice."""
    node, scene = sides.play.scene.chain.node, sides.play.scene
    ask(1, 0, FLOOR)
    fee(FLOOR + 1)
    call = node.call

    def simulate(tx: dict, block: str = "latest") -> str:
        real = node.base_fee
        fee(real if simulated is None else simulated)
        try:
            return call(tx, block)
        finally:
            fee(real)

    node.call = simulate
    node.methods["eth_call"] = simulate
    try:
        sides.trainer.game = Game(scene.chain, scene.address, sides.game.wallet)
        sides.play.advance(KEY_WINDOW // 2 + 1)
        assert sides.trainer.step() and sent(sides) == [("Deferred", 1, 0)]
        assert not sides.trainer.step()
    finally:
        del node.call
        node.methods["eth_call"] = node.call
    receipt = next(reversed(node.receipts.values()))
    assert int(receipt["gasUsed"], 16) < 60_000


def test_a_base_fee_that_falls_before_a_deferral_is_no_error(sides: Sides, ask: Ask, fee) -> None:
    """In the block of the call the price suffices again, so the call reverts and the request is answered."""
    node, scene = sides.play.scene.chain.node, sides.play.scene
    ask(1, 0, FLOOR)
    fee(FLOOR + 1)
    sides.play.advance(KEY_WINDOW // 2 + 1)
    game = Game(scene.chain, scene.address, sides.game.wallet)
    sides.trainer.game, send = game, game.wallet.send

    def falls(*args, **options):
        fee(FLOOR)
        return send(*args, **options)

    game.wallet.send = falls
    assert not sides.trainer.step() and not sent(sides)
    game.wallet.send = send
    assert sides.trainer.step() and sent(sides) == [("Answered", 1, 0)]
    assert node.base_fee == FLOOR


def test_payments_for_answers_pay_for_the_next_ones(sides: Sides, ask: Ask, fee) -> None:
    """A trainer with gas for a few answers withdraws the payments for them while it delivers."""
    for tensor, chunk in [(1, 0), (1, 1), (2, 0)]:
        ask(tensor, chunk, FLOOR)
    node, address = sides.play.scene.chain.node, sides.trainer.address
    node.evm.set_balance(address, DISPUTE_GAS * FLOOR)
    moves = []
    while sides.trainer.step():
        moves.append(len(sent(sides)))
    assert moves[:4] == [1, 1, 2, 2] and moves[-1] == 3  # an answer, a withdrawal, ...
    assert node.evm.get_balance(address) > 2 * DISPUTE_GAS * FLOOR


def test_no_bond_without_gas_for_the_first_answers(scene: Scene, fee, tmp_path: Path) -> None:
    sides = Sides(scene, tmp_path)
    bond, shape = DELIVERY.spec.trainer_bond, sides.trainer.seller.shape
    dearest = max(sides.game.answer_gas(sides.play.id, n, 0) for n in shape.elements)
    first, every = sides.trainer.seller.answers_gas()
    assert 5 * dearest <= first == every < 5.25 * dearest  # it has five chunks, fewer than FIRST_ANSWERS
    needed = bond + sides.trainer.reserve()
    assert sides.trainer.reserve() > first * 2 * FLOOR
    node = scene.chain.node
    node.evm.set_balance(sides.trainer.address, needed - 1)
    with pytest.raises(ChainError, match=f"{needed} are needed to accept"):
        sides.trainer.accept()
    node.evm.set_balance(sides.trainer.address, needed)
    sides.trainer.accept()
    assert sides.play.phase is Phase.ACCEPTED

"""Costs and payments of a delivery with a gas price, and the gas of its calls for states of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange import DELIVERY, KEY, KEY_WINDOW, ONE, Exchange, claim, offered
from revm_calls import calldata
from scene import Scene, Setup, fast_scene
from test_delivery import BIG, graft, owed, refuses, request_call, top_children
from toy import Operator, Program, State

from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet, calldata_floor
from vgame.commit.merkle import Kind, leaf_hash
from vgame.delivery.cipher import Pair, cipher_leaf, job_key, key_hash, keystream, parent
from vgame.delivery.sealed import Offer, Piece

SPEC = DELIVERY.spec
PRICE = 11 * 2**14
NODE_GAS, LEAF_GAS = 35_000, 55_000


@pytest.fixture(scope="module")
def deployed_scene() -> Scene:
    """A game whose delivery sees a base fee."""
    scene = fast_scene()
    scene.chain.node.show_base_fee(scene.game()._call("delivery"))
    return scene


@pytest.fixture
def fee(scene: Scene) -> Iterator[object]:
    """Sets the base fee."""
    node = scene.chain.node

    def set_fee(price: int) -> None:
        node.base_fee = scene.ghost.shown = price

    set_fee(PRICE)
    yield set_fee
    set_fee(0)


@pytest.fixture
def exchange(scene: Scene, fee: object, tmp_path: Path) -> Exchange:
    return offered(scene, tmp_path).finalize()


def test_an_answer_is_paid_at_the_base_fee_of_its_block(exchange: Exchange, fee) -> None:
    """Never more than the deposit, and never more than the cost: answers are no source of income."""
    x = exchange
    gas = x.gas(BIG, 0)
    x.request(BIG, 0, 3 * PRICE)
    fee(2 * PRICE)
    args = x.answer_args()
    used = gas_of(x.answer(), "answer", args)
    assert owed(x) == (gas * PRICE, gas * 2 * PRICE)
    assert gas <= used <= 1.02 * gas


def test_a_price_below_the_base_fee_is_refused(exchange: Exchange) -> None:
    refuses("PriceTooLow", *request_call(exchange, BIG, 0, PRICE - 1))


def test_a_request_waits_while_the_base_fee_is_above_its_price(exchange: Exchange, fee) -> None:
    x = exchange
    x.request(BIG, 0, PRICE)
    refuses("PriceHolds", x.trainer, "defer", x.id, 0)
    fee(PRICE + 1)
    x.play.advance(KEY_WINDOW - 1)
    refuses("PriceExceeded", x.client, "refused", x.id, 0)
    x.trainer.send("defer", x.id, 0)  # in the last second of its time
    assert x.client.requests(x.id)[0].deferred_at == x.client.requests(x.id)[0].since == x.play.scene.chain.now()
    fee(PRICE)
    x.play.advance(KEY_WINDOW - 1)
    refuses("TooEarly", x.client, "refused", x.id, 0)
    x.play.advance(2)
    x.client.send("refused", x.id, 0)
    assert x.phase is Phase.UNDELIVERED


@pytest.mark.parametrize("deferred", [False, True], ids=["never deferred", "deferred before"])
def test_a_late_answer_cannot_be_deferred(exchange: Exchange, fee, deferred: bool) -> None:
    """A base fee that rises after the request's time is no excuse: the request counts as refused once the fee falls."""
    x = exchange
    x.request(BIG, 0, PRICE)
    if deferred:
        fee(PRICE + 1)
        x.trainer.send("defer", x.id, 0)
    fee(PRICE + 1)
    late = x.client.requests(x.id)[0].since + KEY_WINDOW + 1
    x.play.advance(KEY_WINDOW)
    refuses("TooLate", x.trainer, "defer", x.id, 0)
    assert x.play.scene.chain.now() >= late - 1
    refuses("PriceExceeded", x.client, "refused", x.id, 0)
    fee(PRICE)
    x.client.send("refused", x.id, 0)
    assert x.phase is Phase.UNDELIVERED


def test_a_late_request_is_raised_or_answered(exchange: Exchange, fee) -> None:
    """The request blocks neither side while the base fee stays above its price."""
    x = exchange
    for chunk in (0, 1):
        x.request(BIG, chunk, PRICE)
    fee(PRICE + 1)
    x.play.advance(KEY_WINDOW + 1)
    for index in (0, 1):
        refuses("TooLate", x.trainer, "defer", x.id, index)
    x.answer(0)
    x.raise_price(1, PRICE + 1)
    fee(PRICE + 2)
    x.trainer.send("defer", x.id, 1)
    assert [(r.open, r.dropped) for r in x.client.requests(x.id)] == [(False, False), (True, False)]


def test_raising_a_price_restarts_the_time(exchange: Exchange, fee) -> None:
    """By the client alone, for the difference, also after the confirm window; the answer is paid at the new price."""
    x = exchange
    x.after_window(-10)
    x.request(BIG, 1, PRICE)
    gas = x.gas(BIG, 1)
    call = ("raise", x.id, 0, BIG, 1, 3 * PRICE)
    refuses("NotClient", x.trainer, *call, value=2 * PRICE * gas)
    for value in (0, 2 * PRICE * gas - 1, 3 * PRICE * gas):
        refuses("WrongValue", x.client, *call, value=value)
    for wrong in ((1, BIG, 1), (0, BIG, 0), (0, 0, 1)):  # decided on another list of requests
        refuses("NotRequested", x.client, "raise", x.id, *wrong, 3 * PRICE, value=2 * PRICE * gas)
    refuses("PriceTooLow", x.client, *call[:5], PRICE)
    fee(4 * PRICE)
    refuses("PriceTooLow", x.client, *call, value=2 * PRICE * gas)  # not above the base fee
    x.after_window(KEY_WINDOW - 20)
    x.raise_price(0, 5 * PRICE)
    (r,) = x.client.requests(x.id)
    assert (r.price, r.since, r.deferred_at) == (5 * PRICE, x.play.scene.chain.now(), 0)
    assert x.state().deposits == 5 * PRICE * gas
    x.play.advance(KEY_WINDOW - 1)
    refuses("TooEarly", x.client, "refused", x.id, 0)
    x.answer()
    assert owed(x) == (PRICE * gas, 4 * PRICE * gas)
    refuses("NotRequested", x.client, "raise", x.id, 0, BIG, 1, 9 * PRICE, value=4 * PRICE * gas)


def test_a_deferred_request_is_dropped_if_the_price_is_not_raised(exchange: Exchange, fee) -> None:
    """A key window after its first deferral, not its last one; then the key has its whole time."""
    x = exchange
    x.request(BIG, 0, PRICE)
    x.request(BIG, 1, PRICE)
    deposit = x.state().deposits
    fee(PRICE + 1)
    x.trainer.send("defer", x.id, 0)
    first = x.play.scene.chain.now()
    x.play.advance(KEY_WINDOW // 2)
    x.trainer.send("defer", x.id, 0)
    r = x.client.requests(x.id)[0]
    assert (r.deferred_at, r.since, r.open) == (first, x.play.scene.chain.now(), True)
    x.play.advance(first + KEY_WINDOW - x.play.scene.chain.now() - 1)
    x.trainer.send("defer", x.id, 0)  # in the last second of the window
    assert x.client.requests(x.id)[0].open and x.play.scene.chain.now() == first + KEY_WINDOW
    x.raise_price(1, PRICE + 5)
    x.trainer.send("defer", x.id, 0)
    r, other = x.client.requests(x.id)
    assert (r.open, r.dropped, other.open, other.dropped) == (False, True, True, False)
    assert r.answered_at == x.state().answered_at == x.play.scene.chain.now()
    assert x.client.events("Dropped", job=x.id)[0].args["deposit"] == deposit // 2 == owed(x)[0]
    for name in ("defer", "refused"):
        refuses("NotRequested", x.trainer, name, x.id, 0)
    x.answer(1)
    assert x.state().open == x.state().deposits == 0
    assert [(r.open, r.dropped) for r in x.client.requests(x.id)] == [(False, True), (False, False)]


def test_a_raise_ends_the_time_in_which_a_request_is_dropped(exchange: Exchange, fee) -> None:
    x = exchange
    x.request(BIG, 0, PRICE)
    fee(PRICE + 1)
    x.trainer.send("defer", x.id, 0)
    x.play.advance(KEY_WINDOW)
    x.raise_price(0, PRICE + 1)
    refuses("PriceHolds", x.trainer, "defer", x.id, 0)
    fee(PRICE + 2)
    x.trainer.send("defer", x.id, 0)
    assert x.client.requests(x.id)[0].open


def test_a_complaint_pays_no_more_than_its_gas(scene: Scene, fee, tmp_path: Path) -> None:
    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        cipher[0] ^= 1

    x = offered(scene, tmp_path, change=garble).finalize()
    x.confirm()
    x.reveal()
    stranger = scene.game()
    burnt = stranger.burnt()
    args = x.bad_leaf(2, 0)
    used = gas_of(stranger.send("badLeaf", *args), "badLeaf", args)
    paid = stranger.credits(stranger.wallet.address)
    assert paid == LEAF_GAS * PRICE < used * PRICE
    assert owed(x) == (SPEC.reward, 0) and stranger.burnt() - burnt == SPEC.trainer_bond - paid


@pytest.mark.parametrize("kind", ["badNode", "badLeaf"])
def test_the_cheapest_complaint_costs_more_than_its_payment(scene: Scene, fee, tmp_path: Path, kind: str) -> None:
    """The smallest tree; caller and client already have credits."""
    setup, least = (ONE, NODE_GAS) if kind == "badNode" else (TINY, LEAF_GAS)
    stranger, wallet, used = scene.game(), scene.wallet(), []
    for n in range(2):
        x = cheated(scene, tmp_path / str(n), setup, kind, wallet)
        args = complaint(x, kind)
        used.append(gas_of(stranger.send(kind, *args), kind, args))
        assert x.phase is Phase.UNDELIVERED and x.client.credits(wallet.address) == (n + 1) * SPEC.reward
    assert used[1] < used[0] - 30_000 and least < used[1]
    assert stranger.credits(stranger.wallet.address) == 2 * least * PRICE


TINY = replace(ONE, program=Program((Operator(1),), (State(1),)))


def cheated(scene: Scene, folder: Path, setup: Setup, kind: str, wallet: Wallet) -> Exchange:
    """A delivery to this wallet by a trainer that cheats."""

    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        cipher[0] ^= 1

    def lie(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        true[2] ^= 1

    if kind == "badLeaf":
        x = offered(scene, folder, setup, garble, wallet).finalize()
        x.confirm()
        x.reveal()
        return x
    honest, x = offered(scene, folder / "honest", setup), offered(scene, folder / "lie", setup, lie)
    return graft(scene, folder, honest, x, wallet).finalize()


def complaint(x: Exchange, kind: str) -> tuple[Any, ...]:
    if kind == "badLeaf":
        return x.bad_leaf(0, 0)
    return x.id, astuple(x.offer), top_children(x), (x.offer.final_state, 0, [])


def gas_of(receipt, name: str, args) -> int:
    """As on the main chain since Prague: at least the floor of the calldata."""
    return max(int(receipt["gasUsed"], 16), calldata_floor(bytes.fromhex(calldata(name, args)[2:])))


def test_the_recorded_gas_is_within_its_bounds() -> None:
    """docs/gas.json equals the measurement of scripts/gas.py."""
    record = json.loads((Path(__file__).resolve().parents[2] / "docs" / "gas.json").read_text())
    most = {name: call["most"] for name, call in record["delivery"].items()}
    assert most["postClaim"] - record["calls"]["postClaim"]["least"] <= 60_000
    bounds = {
        "revealKey": 60_000,
        "badLeaf": MOST,
        "badNode": MOST,
        "decline": 100_000,
        "confirm": 60_000,
        "refused": 100_000,
    }
    assert all(most[name] <= bound for name, bound in bounds.items())


# ---- states of any size ----

STATES, LEAVES = 24, 24  # levels: 2^24 tensors of 2^24 leaves
MOST = 250_000


class Deep:
    """One leaf at the end of a tree of the greatest height; all nodes beside its path are arbitrary."""

    def __init__(self, scene: Scene, tmp_path: Path, wrong: bool, false_node: bool = False) -> None:
        self.x = offered(scene, tmp_path)
        play = scene.post(DELIVERY)
        trainer = scene.game()
        trainer.send("acceptJob", play.id, value=SPEC.trainer_bond)
        self.content = np.random.default_rng(1).bytes(512)
        leaf = 2**LEAVES - 1
        cipher = bytes(a ^ b for a, b in zip(self.content, keystream(job_key(KEY, play.id), 2, leaf), strict=True))
        if wrong:
            cipher = bytes([cipher[0] ^ 1]) + cipher[1:]
        self.leaf, self.cipher, self.true = leaf, cipher, leaf_hash(Kind.TENSOR, self.content)
        random = np.random.default_rng(2)
        pair, self.path = Pair(cipher_leaf(cipher, 2, leaf), self.true), []
        self.height = STATES + LEAVES
        below = play.job.states.bit_length()  # three tensors: two levels of the state; all others are the tensor's
        for level in range(self.height):
            beside = Pair(random.bytes(32), random.bytes(32))
            self.path += [*beside]
            if level == 0:
                self.children = [*beside, *pair]
            pair = parent(Kind.STATE if level >= self.height - below else Kind.TENSOR, beside, pair)
            if level == 0 and false_node:
                pair = pair._replace(plain=bytes(32))
            if level == 0:
                self.over = pair.plain
        self.index = 2**self.height - 1
        offer = Offer(pair.plain, pair.cipher, key_hash(KEY, play.id))
        claim(trainer, play, offer)
        self.x = Exchange(play, trainer, offer, self.x.sealed, self.x.words).finalize()


def test_a_bad_leaf_of_the_largest_state(scene: Scene, tmp_path: Path) -> None:
    deep = Deep(scene, tmp_path, wrong=True)
    x = deep.x
    x.confirm()
    x.reveal()
    args = (x.id, astuple(x.offer), KEY, 2, deep.leaf, deep.cipher, (deep.true, deep.index, deep.path))
    used = gas_of(x.client.send("badLeaf", *args), "badLeaf", args)
    assert x.phase is Phase.UNDELIVERED and used <= MOST


def test_a_bad_node_of_the_largest_state(scene: Scene, tmp_path: Path) -> None:
    """The lowest one: over two leaves."""
    deep = Deep(scene, tmp_path, wrong=False, false_node=True)
    x = deep.x
    args = (x.id, astuple(x.offer), deep.children, (deep.over, deep.index >> 1, deep.path[2:]))
    used = gas_of(x.client.send("badNode", *args), "badNode", args)
    assert x.phase is Phase.UNDELIVERED and used <= MOST


def test_a_right_leaf_of_the_largest_state(scene: Scene, tmp_path: Path) -> None:
    deep = Deep(scene, tmp_path, wrong=False)
    x = deep.x
    x.confirm()
    x.reveal()
    refuses(
        "NothingWrong", x.client, "badLeaf", x.id, astuple(x.offer), KEY, 2, deep.leaf, deep.cipher,
        (deep.true, deep.index, deep.path),
    )  # fmt: skip

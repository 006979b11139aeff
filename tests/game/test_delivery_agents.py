"""Trainer and client deliver and receive by themselves, whatever the other side does; killed after every move they go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchange import DELIVERY, Exchange
from scene import Play, Scene

from vgame.agents.roles import close_job
from vgame.chain.game import Phase
from vgame.delivery.buyer import Buyer
from vgame.delivery.sealed import Change, Piece, seal
from vgame.delivery.seller import Seller
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ChainError, DeliveryError

SPEC = DELIVERY.spec
SIZES = [s.elements for s in DELIVERY.program.states]


class Sides:
    """A job whose trainer and client are the real ones; `fresh`: new objects, as after a restart."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.play: Play = scene.post(DELIVERY)
        self.folder, self.machine = folder, DELIVERY.machine()
        self.game = scene.game()
        self.fresh()

    def fresh(self) -> None:
        self.trainer = Trainer(self.game, self.play.id, self.machine)
        self.trainer.seller = Seller(self.folder / "seller", self.play.id, SIZES, self.words)
        self.buyer = Buyer(self.play.client, self.play.id, SIZES, self.get, self.folder / "buyer")

    def words(self) -> list[np.ndarray]:
        return [w.astype("<u4") for w in self.machine.state_words(DELIVERY.steps)]

    def get(self, name: str, first: int, size: int) -> bytes:
        return (self.trainer.seller.public / name).read_bytes()[first : first + size]

    def claim(self, change: Change | None = None) -> None:
        self.trainer.accept()
        if change:
            seller = self.trainer.seller
            seal(seller.words(), seller.shape, seller.key(make=True), self.play.id, seller.public, change)
        self.trainer.claim()
        self.play.pass_window()
        assert self.trainer.step()
        assert self.play.phase is Phase.DELIVERING

    def until(self, phase: Phase) -> None:
        for _ in range(40):
            if self.play.phase is phase:
                return
            if not self.trainer.step():
                self.play.advance(100)
        raise AssertionError(self.play.phase)


@pytest.fixture
def sides(scene: Scene, tmp_path: Path) -> Sides:
    return Sides(scene, tmp_path)


def test_an_honest_exchange_with_restarts(sides: Sides) -> None:
    sides.claim()
    sides.fresh()
    assert not sides.trainer.step()  # nobody has confirmed
    assert sides.buyer.receive() is None
    assert sides.play.client.exchange(sides.play.id).confirmed
    sides.fresh()
    sides.until(Phase.REVEALED)
    sides.fresh()
    received = sides.buyer.receive()
    for mine, theirs in zip(received, sides.machine.state_words(DELIVERY.steps), strict=True):
        assert np.array_equal(mine, theirs)
    sides.until(Phase.FINAL)
    sides.fresh()
    assert sides.buyer.receive() is not None
    assert sides.game.credits(sides.trainer.address) == SPEC.reward + SPEC.trainer_bond


def test_a_client_whose_trainer_gives_no_key_closes_the_job(sides: Sides) -> None:
    sides.claim()
    with pytest.raises(ChainError, match="owes"):
        close_job(sides.play.client, sides.play.id)
    sides.play.advance(SPEC.confirm_window + SPEC.key_window + 1)
    phase, amount = close_job(sides.play.client, sides.play.id)
    assert phase is Phase.UNDELIVERED and amount >= SPEC.reward


def test_a_silent_client(sides: Sides) -> None:
    sides.claim()
    sides.until(Phase.FINAL)


def test_requests_are_answered_before_the_key(sides: Sides) -> None:
    sides.claim()
    x = Exchange(sides.play, sides.game, None, None, [])
    for chunk in (2, 0):
        x.request(1, chunk)
    assert sides.buyer.receive() is None  # open requests: it does not confirm
    assert sides.trainer.step() and sides.trainer.step()
    assert [e.args["chunk"] for e in sides.game.events("Answered", sides.play.id)] == [2, 0]
    assert not sides.trainer.step()
    sides.until(Phase.FINAL)


def test_a_wrong_leaf_is_complained_about(sides: Sides) -> None:
    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        if piece.tensor == 2:
            cipher[3, 5] ^= 1

    sides.claim(garble)
    sides.buyer.receive()
    sides.until(Phase.REVEALED)
    with pytest.raises(DeliveryError, match="the trainer cheated"):
        sides.buyer.receive()
    assert sides.play.phase is Phase.UNDELIVERED
    with pytest.raises(DeliveryError, match="undelivered"):
        sides.buyer.receive()


def test_a_folder_that_is_not_the_offer_is_not_confirmed(sides: Sides) -> None:
    sides.claim()
    path = sides.trainer.seller.public / "leaves"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DeliveryError, match="not what was committed"):
        sides.buyer.receive()
    assert not sides.play.client.exchange(sides.play.id).confirmed


def test_a_trainer_without_a_folder_or_with_another_state_claims_nothing(sides: Sides) -> None:
    sides.trainer.accept()
    seller, sides.trainer.seller = sides.trainer.seller, None
    with pytest.raises(Abstain, match="nowhere to seal"):
        sides.trainer.claim()
    sides.trainer.seller = seller
    seal([w + 1 for w in seller.words()], seller.shape, seller.key(make=True), sides.play.id, seller.public)
    with pytest.raises(Abstain, match="holds the state"):
        sides.trainer.claim()
    assert sides.play.phase is Phase.ACCEPTED


def test_a_damaged_key_is_named(sides: Sides) -> None:
    seller = sides.trainer.seller
    assert len(seller.key(make=True)) == 32 and (seller.folder / "key").stat().st_mode & 0o077 == 0
    (seller.folder / "key").write_bytes(b"short")
    with pytest.raises(DeliveryError, match="holds 5 bytes"):
        seller.offer()
    assert not (seller.public / "key").exists()

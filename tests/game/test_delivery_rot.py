"""The client's files change after they were verified: lost data are not confirmed, damage of the disk does not count as
the trainer's, and it hides no wrong leaf of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange import DELIVERY, flip
from scene import Scene
from test_delivery_agents import MARGIN, SIZES, SPEC, Partial

from vgame.chain.records import Phase
from vgame.delivery import bulk
from vgame.delivery.buyer import Buyer
from vgame.delivery.fetch import Missing
from vgame.delivery.sealed import Piece, Shape
from vgame.errors import DeliveryError, NotYet, VgameError

LEAVES = Shape(SIZES).first_leaf[-1]


@pytest.fixture
def sides(scene: Scene, tmp_path: Path) -> Partial:
    return Partial(scene, tmp_path)


def wrong_leaf(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.tensor == 2:
        cipher[3, 5] ^= 1


def delete(folder: Path) -> None:
    for name in ("leaves", "hashes", "chunks"):
        (folder / name).unlink()


def cut(folder: Path) -> None:
    """In the middle of tensor 1; of tensor 2 nothing is left."""
    (folder / "leaves").write_bytes((folder / "leaves").read_bytes()[: 70 * 512])


ROT = {"a bit of leaves": flip("leaves", 1000), "a bit of hashes": flip("hashes", 40), "cut": cut}


def has_all(sides: Partial, found: list[np.ndarray] | None) -> bool:
    return found is not None and all(map(np.array_equal, found, sides.machine.state_words(DELIVERY.steps)))


# ---- before it is confirmed ----


def verified_early(sides: Partial) -> None:
    """In the challenge window."""
    sides.trainer.accept()
    sides.trainer.claim()
    sides.receive()
    sides.play.pass_window()
    assert sides.trainer.step()


@pytest.mark.parametrize("damage", [delete, *ROT.values()])
def test_lost_data_are_not_confirmed(sides: Partial, damage: Callable[[Path], None]) -> None:
    """The server is away by now; the trainer's answers replace the lost data."""
    verified_early(sides)
    damage(sides.buyer.folder)
    sides.refuse = lambda *_: True
    assert sides.receive() is None
    assert not sides.game.exchange(sides.play.id).confirmed_at
    sides.is_refused()
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    assert sides.requested_chunks()
    while sides.play.phase is Phase.DELIVERING:
        if not sides.trainer.step():
            sides.play.advance(20)
        with suppress(VgameError):
            sides.receive()
    assert has_all(sides, sides.receive())


def test_lost_data_are_fetched_again_and_confirmed(sides: Partial) -> None:
    verified_early(sides)
    delete(sides.buyer.folder)
    assert sides.receive() is None and not sides.game.exchange(sides.play.id).confirmed_at
    assert sides.receive() is None and sides.game.exchange(sides.play.id).confirmed_at


def test_a_client_without_the_data_and_a_trainer_declines(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 1)
    verified_early(sides)
    delete(sides.buyer.folder)
    sides.refuse = lambda *_: True
    sides.wait(MARGIN - 1)
    sides.receive()
    sides.is_refused()
    assert sides.play.phase is Phase.DECLINED


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found, usual = list[int](), bulk.cipher_leaves
    monkeypatch.setattr(bulk, "cipher_leaves", lambda own, *at: found.append(len(own)) or usual(own, *at))
    return found


@pytest.mark.parametrize("early", [True, False])
def test_data_are_hashed_once_more_for_the_confirmation_and_once_for_the_key(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    verified_early(sides) if early else sides.claim()
    found = hashed(monkeypatch)
    for _ in range(3):
        sides.receive()
    assert sum(found) == LEAVES and sides.game.exchange(sides.play.id).confirmed_at
    sides.until(Phase.REVEALED)
    found.clear()
    assert has_all(sides, sides.receive()) and sum(found) == LEAVES


def test_a_confirmation_on_its_way_is_not_verified_again(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    verified_early(sides)
    found = hashed(monkeypatch)
    game = sides.buyer.game
    monkeypatch.setattr(game, "was_sent", lambda name, *_: name == "confirm")
    monkeypatch.setattr(game, "move", lambda *_, **__: None)
    sides.receive()
    assert not found


# ---- with the key ----


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("rot", ROT)
def test_a_rotten_chunk_is_fetched_again(sides: Partial, rot: str, fresh: bool) -> None:
    sides.claim()
    sides.receive()
    ROT[rot](sides.buyer.folder)
    sides.until(Phase.REVEALED)
    if fresh:
        sides.fresh()
    else:
        with pytest.raises(Missing, match="has changed, or cannot be read"):
            sides.receive()
    assert has_all(sides, sides.receive())
    assert sides.play.phase is Phase.REVEALED


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("rot", ["a bit of leaves", "a bit of hashes"])
@pytest.mark.parametrize("away", [False, True])
def test_a_rotten_chunk_hides_no_wrong_leaf(sides: Partial, rot: str, fresh: bool, away: bool) -> None:
    sides.claim(wrong_leaf)
    sides.receive()
    ROT[rot](sides.buyer.folder)
    sides.until(Phase.REVEALED)
    sides.refuse = lambda *_: away
    if fresh:
        sides.fresh()
    with pytest.raises(DeliveryError, match=r"leaf 3 of tensor 2 .* the complaint has been sent"):
        sides.receive()
    assert sides.play.phase is Phase.UNDELIVERED


@pytest.mark.parametrize("fresh", [False, True])
def test_without_a_server_a_rotten_chunk_is_named_and_no_complaint_is_made(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """All other leaves are verified, and only once."""
    sides.claim()
    sides.receive()
    ROT["a bit of leaves"](sides.buyer.folder)
    sides.until(Phase.REVEALED)
    sides.refuse = lambda *_: True
    if fresh:
        sides.fresh()
    verified: list[int] = []
    usual = bulk.true_hashes
    monkeypatch.setattr(bulk, "true_hashes", lambda own: verified.append(len(own)) or usual(own))
    for _ in range(4):
        with pytest.raises(Missing) as found:
            sides.receive()
        assert found.value.chunks == [(1, 0)]
    assert sum(verified) == LEAVES - 64 and sides.play.phase is Phase.REVEALED


def test_a_hidden_key_delays_no_fetching(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.claim()
    sides.receive()
    ROT["cut"](sides.buyer.folder)
    sides.until(Phase.REVEALED)
    sides.fresh()
    usual = Buyer.key

    def hidden(_: Any) -> bytes:
        raise NotYet("hidden")

    monkeypatch.setattr(Buyer, "key", hidden)
    assert sides.buyer.ready()
    monkeypatch.setattr(Buyer, "key", usual)
    assert has_all(sides, sides.receive())

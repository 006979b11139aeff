"""The client with a server that serves little: the data on its disk and the trainer's answers suffice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from exchange import DELIVERY
from scene import Scene
from test_delivery_agents import Partial, chunk_1_of_tensor_1

from vgame.chain.records import Phase
from vgame.delivery import fetch as fetching
from vgame.delivery.sealed import Piece, Shape, read_offer, write_offer
from vgame.errors import ChainError, DeliveryError, NotYet

SPEC = DELIVERY.spec
SHAPE = Shape([s.elements for s in DELIVERY.program.states])
EVERY = [(t, c) for t, count in enumerate(SHAPE.chunks) for c in range(count)]


@pytest.fixture
def sides(scene: Scene, tmp_path: Path) -> Partial:
    return Partial(scene, tmp_path)


@pytest.mark.parametrize("served", ["nothing", "the pairs alone", "the pairs once"])
def test_a_small_state_arrives_by_requests_alone(sides: Partial, monkeypatch: pytest.MonkeyPatch, served: str) -> None:
    """Each chunk is requested once."""
    monkeypatch.setattr(fetching, "AWAY", 1)
    sides.refuse = lambda name, *_: served == "nothing" or name != "chunks"
    sides.claim()
    sides.is_refused()
    if served == "the pairs once":
        sides.refuse = lambda *_: True
    sides.wait(SPEC.confirm_window // 4)
    for _ in range(3):
        sides.is_refused()
    while sides.play.phase is Phase.DELIVERING:
        if not sides.trainer.step():
            sides.play.advance(20)
        try:
            sides.receive()
        except DeliveryError:
            continue
    assert sides.receive() is not None
    assert sorted(sides.requested_chunks()) == EVERY


def test_one_lost_chunk_is_requested_when_the_server_goes_away(sides: Partial) -> None:
    sides.refuse = chunk_1_of_tensor_1
    sides.claim()
    sides.is_refused()
    sides.refuse = lambda *_: True
    sides.fresh()
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.trainer.step() and sides.receive() is None
    assert sides.game.exchange(sides.play.id).confirmed_at


@pytest.mark.parametrize("kept", ["whole", "of another job", "damaged", "deleted"])
def test_the_offer_is_on_the_disk_too(sides: Partial, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    """An endpoint shows no logs to a restarted client. Only the offer on chain counts."""
    sides.claim()
    assert sides.receive() is None
    path, offer = sides.buyer.folder / "offer.json", sides.buyer.offer()
    if kept == "of another job":
        write_offer(path.parent, sides.play.id, replace(offer, cipher_root=bytes(32)))
    elif kept == "damaged":
        path.write_text(path.read_text()[1:])
    elif kept == "deleted":
        path.unlink()
    sides.fresh()
    contents = sides.play.client.contents
    contents._found.clear()
    with monkeypatch.context() as patch:
        for name in ("logs", "receipts"):
            patch.setattr(contents, name, lambda *_: [])
        if kept == "whole":
            assert sides.buyer.offer() == offer
        else:
            with pytest.raises((NotYet, ChainError)):
                sides.buyer.offer()
    assert sides.buyer.offer() == offer == read_offer(path.parent)[1]


@pytest.mark.parametrize("full", [False, True])
def test_a_restarted_client_complains_from_its_disk(
    sides: Partial, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Without a request to the server, and without a write."""

    def garbage(piece: Piece, true: object, cipher: object) -> None:
        cipher[:] ^= 90  # type: ignore[index]

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sides.claim(garbage)
    assert sides.receive() is None
    asked: list[str] = []
    sides.refuse = lambda name, *_: not asked.append(name)  # type: ignore[func-returns-value]
    while sides.play.phase is Phase.DELIVERING:
        if not sides.trainer.step():
            sides.play.advance(20)
    sides.fresh()
    if full:
        for name in ("_write", "write_atomic"):
            monkeypatch.setattr(fetching, name, no_room)
        monkeypatch.setattr(Path, "write_bytes", no_room)
    with pytest.raises(DeliveryError, match="the complaint has been sent"):
        sides.receive()
    assert sides.play.phase is Phase.UNDELIVERED and not asked

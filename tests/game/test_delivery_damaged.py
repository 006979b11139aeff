"""The trainer's folder is damaged after the claim: the trainer repairs it from its key and its state."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from exchange import DELIVERY, Exchange, flip
from scene import Scene
from test_delivery_agents import Partial

from vgame.chain.records import Phase
from vgame.delivery import bulk, seller
from vgame.errors import DeliveryError, VgameError

SPEC = DELIVERY.spec


def cut(public: Path) -> None:
    (public / "leaves").write_bytes((public / "leaves").read_bytes()[:-100])


DAMAGES = {
    "one bit of leaves": flip("leaves", 70 * 512),
    "one bit of hashes": flip("hashes", 70 * 32),
    "one bit of chunks": flip("chunks", 70),
    "leaves cut": cut,
    "chunks deleted": lambda public: (public / "chunks").unlink(),
    "hashes is a folder": lambda public: ((public / "hashes").unlink(), (public / "hashes").mkdir()),
    "offer.json deleted": lambda public: (public / "offer.json").unlink(),
    "one bit of offer.json": flip("offer.json", 2),
    "one digit of offer.json": lambda public: (public / "offer.json").write_text(another_root(public)),
}


def another_root(public: Path) -> str:
    head, tail = (public / "offer.json").read_text().split('"cipher_root": "')
    return head + '"cipher_root": "' + ("1" if tail[0] == "0" else "0") + tail[1:]


@pytest.fixture
def sides(scene: Scene, tmp_path: Path) -> Partial:
    return Partial(scene, tmp_path)


@pytest.mark.parametrize("damage", [d for d in DAMAGES if "folder" not in d])
def test_a_damaged_folder_costs_no_bond(sides: Partial, damage: str) -> None:
    """The client has nothing, the server gives nothing until the trainer has been asked for every chunk."""
    sides.claim()
    DAMAGES[damage](sides.trainer.seller.public)
    sides.refuse = lambda *_: True
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    while sides.play.phase is Phase.DELIVERING:
        if not sides.trainer.step():
            sides.play.advance(20)
        with suppress(VgameError):
            sides.receive()
    assert sides.play.phase is Phase.REVEALED and len(sides.requested_chunks()) == sum(sides.buyer.shape.chunks)
    assert all(map(np.array_equal, sides.receive(), sides.machine.state_words(DELIVERY.steps)))


@pytest.mark.parametrize("damage", ["leaves cut", "chunks deleted"])
def test_truncated_files_are_repaired(sides: Partial, damage: str) -> None:
    """Before any request, and also at a start."""
    sides.claim()
    public = sides.trainer.seller.public
    before = {path.name: path.read_bytes() for path in public.iterdir()}
    DAMAGES[damage](public)
    sides.trainer.step()
    assert {path.name: path.read_bytes() for path in public.iterdir()} == before
    DAMAGES[damage](public)
    sides.fresh()
    sides.trainer.seller.offer()
    assert {path.name: path.read_bytes() for path in public.iterdir()} == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_delays_the_key(sides: Partial, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Not even if the state cannot be sealed again, as long as the offer can be read."""
    sides.claim()
    assert sides.receive() is None
    DAMAGES[damage](sides.trainer.seller.public)
    if "offer.json" not in damage:
        monkeypatch.setattr(sides.trainer.seller, "words", lambda: [w + 1 for w in sides.words()])
    for _ in range(40):
        if sides.play.phase is Phase.REVEALED:
            break
        with suppress(DeliveryError, OSError):
            if sides.trainer.step():
                continue
        sides.play.advance(100)
    assert sides.receive() is not None


def test_a_look_hashes_no_more_than_the_chunk_of_its_answer(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.claim()
    sealed, hashed, usual = [], [], (seller.seal_files, bulk.cipher_leaves)
    monkeypatch.setattr(seller, "seal_files", lambda *args: sealed.append(1) or usual[0](*args))
    monkeypatch.setattr(bulk, "cipher_leaves", lambda leaves, *at: hashed.append(len(leaves)) or usual[1](leaves, *at))
    x = Exchange(sides.play, sides.game, None, None, [])
    for chunk in (2, 0, 1):
        x.request(1, chunk)
    while sides.trainer.step():
        pass
    assert not sealed and len(hashed) == 3
    DAMAGES["one bit of leaves"](sides.trainer.seller.public)
    x.request(1, 1)
    assert sides.trainer.step() and len(sealed) == 1


def test_a_disk_that_stays_damaged_delays_no_other_duty(sides: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing takes 100 s and does not help: a tenth of the time goes into it."""
    now, sealed = [1000.0], []
    monkeypatch.setattr(seller, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fails(*_: object) -> None:
        sealed.append(now[0])
        now[0] += 100
        raise OSError(errno.EIO, "Input/output error")

    sides.claim()
    DAMAGES["one bit of leaves"](sides.trainer.seller.public)
    x = Exchange(sides.play, sides.game, None, None, [])
    for chunk in (1, 0, 2):  # the first one cannot be answered
        x.request(1, chunk)
    monkeypatch.setattr(seller, "seal_files", fails)
    assert sides.trainer.step() and sides.trainer.step() and len(sealed) == 1
    for _ in range(200):
        with pytest.raises((OSError, DeliveryError), match=r"Input/output error|a moment ago, and is damaged still"):
            sides.trainer.step()
        now[0] += 10
    assert sealed == [1000.0, 2000.0, 3000.0]
    monkeypatch.undo()
    sides.trainer.seller._again = 0.0
    assert sides.trainer.step() and not sides.game.exchange(sides.play.id).open

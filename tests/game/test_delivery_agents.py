"""Trainer and client deliver and receive by themselves, for any behaviour of the other side; killed after every move
they resume."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from exchange import DELIVERY, Exchange
from scene import Play, Scene

from vgame.agents.client import close_job
from vgame.agents.status import _phase, read_job
from vgame.chain.records import Phase
from vgame.delivery.buyer import Buyer
from vgame.delivery.opening import WrongNode
from vgame.delivery.sealed import Change, Piece, seal, write_offer
from vgame.delivery.seller import Seller
from vgame.dispute.delegate import Delegate
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ChainError, ContractError, DeliveryError, Paused, Undelivered

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
        record = lambda t: DELIVERY.honest.source_record(t).as_tuple()  # noqa: E731
        self.buyer = Buyer(self.play.client, self.play.id, SIZES, self.get, self.folder / "buyer", record)

    def receive(self) -> list[np.ndarray] | None:
        """The next move of the client; the words once they have arrived."""
        if not self.buyer.ready():
            return None
        found: list[list[np.ndarray]] = [[] for _ in SIZES]
        self.buyer.receive(lambda piece, leaves: found[piece.tensor].append(leaves.reshape(-1)))
        return [np.concatenate(p).view("<u4")[:n] for p, n in zip(found, SIZES, strict=True)]

    def words(self) -> list[np.ndarray]:
        return [w.astype("<u4") for w in self.machine.state_words(DELIVERY.steps)]

    def get(self, name: str, first: int, size: int) -> bytes:
        return (self.trainer.seller.public / name).read_bytes()[first : first + size]

    def claim(self, change: Change | None = None) -> None:
        self.trainer.accept()
        if change:
            seller = self.trainer.seller
            seal(seller.words(), seller.shape, seller.make_key(), self.play.id, seller.public, change)
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
    assert not sides.trainer.step()  # no confirmation by any account
    assert sides.receive() is None
    assert sides.play.client.exchange(sides.play.id).confirmed_at
    sides.fresh()
    sides.until(Phase.REVEALED)
    sides.fresh()
    received = sides.receive()
    for mine, theirs in zip(received, sides.machine.state_words(DELIVERY.steps), strict=True):
        assert np.array_equal(mine, theirs)
    sides.until(Phase.FINAL)
    sides.fresh()
    assert sides.receive() is not None
    assert sides.game.credits(sides.trainer.address) == SPEC.reward + SPEC.trainer_bond


def test_a_client_whose_trainer_gives_no_key_closes_the_job(sides: Sides) -> None:
    sides.claim()
    with pytest.raises(ChainError, match="owes"):
        close_job(sides.play.client, sides.play.id)
    sides.play.advance(SPEC.confirm_window + SPEC.key_window + 1)
    phase, amount = close_job(sides.play.client, sides.play.id)
    assert phase is Phase.UNDELIVERED and amount >= SPEC.reward


def test_credits_that_a_node_shows_late_are_withdrawn_with_the_job(sides: Sides, monkeypatch) -> None:
    client, shown = sides.play.client, [0, 0]
    sides.claim()
    sides.play.advance(SPEC.confirm_window + SPEC.key_window + 1)
    usual = client.credits
    monkeypatch.setattr(client, "credits", lambda account: shown.pop() if shown else usual(account))
    assert close_job(client, sides.play.id)[1] >= SPEC.reward


def test_a_silent_client(sides: Sides) -> None:
    sides.claim()
    sides.until(Phase.FINAL)


def test_requests_are_answered_before_the_key(sides: Sides) -> None:
    sides.claim()
    x = Exchange(sides.play, sides.game, None, None, [])
    for chunk in (2, 0):
        x.request(1, chunk)
    assert sides.receive() is None  # requests are open: the client does not confirm
    assert sides.trainer.step() and sides.trainer.step()
    assert [e.args["index"] for e in sides.game.events("Answered", sides.play.id)] == [0, 1]
    assert not sides.trainer.step()
    sides.until(Phase.FINAL)


def test_a_wrong_leaf_is_complained_about(sides: Sides) -> None:
    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        if piece.tensor == 2:
            cipher[3, 5] ^= 1

    sides.claim(garble)
    sides.receive()
    sides.until(Phase.REVEALED)
    with pytest.raises(DeliveryError, match="the trainer cheated"):
        sides.receive()
    assert sides.play.phase is Phase.UNDELIVERED
    with pytest.raises(DeliveryError, match="undelivered"):
        sides.receive()


def test_a_folder_of_another_offer_is_not_confirmed(sides: Sides) -> None:
    sides.claim()
    path = sides.trainer.seller.public / "leaves"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DeliveryError, match="not what was committed"):
        sides.receive()
    assert not sides.play.client.exchange(sides.play.id).confirmed_at


def test_a_trainer_without_a_folder_or_with_another_state_claims_nothing(sides: Sides) -> None:
    sides.trainer.accept()
    seller, sides.trainer.seller = sides.trainer.seller, None
    with pytest.raises(Abstain, match="has no delivery folder"):
        sides.trainer.claim()
    sides.trainer.seller = seller
    seal([w + 1 for w in seller.words()], seller.shape, seller.make_key(), sides.play.id, seller.public)
    with pytest.raises(Abstain, match="holds the state"):
        sides.trainer.claim()
    assert sides.play.phase is Phase.ACCEPTED


def test_a_damaged_key_is_named(sides: Sides) -> None:
    seller = sides.trainer.seller
    assert len(seller.make_key()) == 32 and (seller.folder / "key").stat().st_mode & 0o077 == 0
    (seller.folder / "key").write_bytes(b"short")
    with pytest.raises(DeliveryError, match="holds 5 bytes"):
        seller.offer()
    assert not (seller.public / "key").exists()


def test_only_a_delegate_with_a_copy_of_the_folder_delivers(sides: Sides) -> None:
    sides.claim()
    second = Delegate(sides.play.scene.game(), sides.play.id, sides.machine)
    assert not second.step()
    second.seller = Seller(sides.folder / "second", sides.play.id, SIZES, sides.words)
    with pytest.raises(DeliveryError, match="key cannot be read"):
        second.step()
    second.seller.make_key()
    with pytest.raises(Abstain, match="another key or state"):
        second.step()
    shutil.copyfile(sides.trainer.seller.folder / "key", second.seller.folder / "key")
    sides.receive()
    while sides.play.phase is not Phase.REVEALED:  # it seals the state again, with the same key
        second.step() or sides.play.advance(100)
    assert sides.receive() is not None
    sides.play.advance(SPEC.complaint_window + 1)
    assert second.step() and sides.play.phase is Phase.FINAL
    assert sides.game.credits(sides.trainer.address) == SPEC.reward + SPEC.trainer_bond


def test_status_names_the_current_window(sides: Sides) -> None:
    sides.claim()
    client, name = sides.play.client, lambda: read_job(client, sides.play.id, sides.play.scene.chain.now())
    status = name()
    assert (status.phase, status.window, status.requests_open) == ("delivering", "confirm_window", 0)
    assert 0 < status.seconds_left <= SPEC.confirm_window
    Exchange(sides.play, sides.game, None, None, []).request(1, 2)
    assert name().requests_open == 1 and _phase(name()) == "delivering, confirm window, 1 requested"
    sides.play.advance(SPEC.confirm_window + 1)
    assert name().window == "key_window" and 0 < name().seconds_left < SPEC.key_window
    while sides.play.phase is not Phase.REVEALED:
        sides.trainer.step() or sides.play.advance(100)
    status = name()
    assert (status.window, status.phase) == ("complaint_window", "revealed")
    assert status.seconds_left <= SPEC.complaint_window
    sides.until(Phase.FINAL)
    assert (name().window, name().seconds_left) == (None, None)


def test_closing_reports_a_refused_request(sides: Sides) -> None:
    sides.claim()
    Exchange(sides.play, sides.game, None, None, []).request(1, 2)
    sides.play.advance(SPEC.key_window + 1)
    phase, amount = close_job(sides.play.client, sides.play.id)
    assert phase is Phase.UNDELIVERED and amount == SPEC.reward


# ---- the client's own calls if the trainer does not deliver ----

MARGIN = SPEC.confirm_window // 10


class Partial(Sides):
    """A server that refuses some leaves; `refuse`: (name, first, size) -> whether it refuses."""

    refuse = staticmethod(lambda name, first, size: False)

    def get(self, name: str, first: int, size: int) -> bytes:
        if self.refuse(name, first, size):
            raise DeliveryError("refused")
        return super().get(name, first, size)

    @property
    def left(self) -> int:
        """Seconds left of the confirm window."""
        return self.game.exchange(self.play.id).until - self.play.scene.chain.now()

    def wait(self, left: int) -> None:
        """Wait until so much of the confirm window is left."""
        self.play.advance(self.left - left)

    def is_refused(self) -> None:
        """One more try; data are missing."""
        with pytest.raises(DeliveryError, match="refused"):
            self.receive()

    def requested_chunks(self) -> list[tuple[int, int]]:
        return [(e.args["tensor"], e.args["chunk"]) for e in self.game.events("Requested", self.play.id)]


@pytest.fixture
def partial_sides(scene: Scene, tmp_path: Path) -> Partial:
    sides = Partial(scene, tmp_path)
    sides.claim()
    return sides


def chunk_1_of_tensor_1(name: str, first: int, size: int) -> bool:
    unit = {"leaves": 512, "hashes": 32}.get(name, 0)
    return bool(unit) and first < 129 * unit and 65 * unit < first + size


def test_a_missing_chunk_is_requested_and_its_answer_counts(partial_sides: Partial) -> None:
    """Not at once: the server may be unreachable for a while. The answer on chain is as good as a file."""
    sides = partial_sides
    sides.refuse = chunk_1_of_tensor_1
    sides.is_refused()
    assert not sides.requested_chunks()
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    sides.is_refused()
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.trainer.step()
    sides.fresh()
    assert sides.receive() is None and sides.play.client.exchange(sides.play.id).confirmed_at
    sides.until(Phase.REVEALED)
    for mine, theirs in zip(sides.receive(), sides.machine.state_words(DELIVERY.steps), strict=True):
        assert np.array_equal(mine, theirs)


def test_a_small_state_is_received_without_any_server(partial_sides: Partial) -> None:
    sides = partial_sides
    sides.refuse = lambda name, first, size: True
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    assert len(sides.requested_chunks()) == sum(sides.buyer.shape.chunks)
    while sides.trainer.step():
        pass
    assert sides.receive() is None
    sides.until(Phase.REVEALED)
    assert all(map(np.array_equal, sides.receive(), sides.machine.state_words(DELIVERY.steps)))


def test_a_trainer_that_is_gone_is_refused_and_the_reward_refunded(partial_sides: Partial) -> None:
    sides = partial_sides
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(MARGIN - 1)
    sides.is_refused()
    assert sides.requested_chunks() == [(1, 1)]  # all that is missing: it no longer declines
    sides.play.advance(SPEC.key_window + 2)
    assert sides.receive() is None and sides.play.phase is Phase.UNDELIVERED
    with pytest.raises(Undelivered):
        sides.receive()
    assert sides.play.client.credits(sides.play.client.wallet.address) == SPEC.reward


def test_a_client_declines_after_a_probe_if_more_is_missing_than_can_be_requested(
    partial_sides: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", 4)
    sides = partial_sides
    sides.refuse = lambda name, first, size: name != "chunks"
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    assert len(sides.requested_chunks()) == 1
    sides.trainer.step()
    sides.wait(MARGIN)
    sides.is_refused()
    assert sides.play.phase is Phase.DECLINED
    with pytest.raises(Undelivered, match="declined"):
        sides.receive()


def test_a_client_without_a_key_closes_the_job(partial_sides: Partial) -> None:
    sides = partial_sides
    assert sides.receive() is None
    sides.play.advance(SPEC.key_window + 2)
    assert sides.receive() is None
    with pytest.raises(Undelivered, match="undelivered"):
        sides.receive()


def test_a_wrong_true_hash_is_complained_about_without_the_key(sides: Sides) -> None:
    """The trainer grafts another tree under its final state; accounts other than the client may complain too."""

    def lie(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        if piece.tensor == 0:
            true[0] ^= 1

    sides.trainer.accept()
    seller = sides.trainer.seller
    offer = seal(seller.words(), seller.shape, seller.make_key(), sides.play.id, seller.public, lie)
    final = sides.machine.checkpoints[-1]
    write_offer(seller.public, sides.play.id, replace(offer, final_state=final))
    sides.trainer.claim()
    with pytest.raises(DeliveryError, match="when the claim is final"):
        sides.receive()
    sides.play.pass_window()
    assert sides.trainer.step()
    with pytest.raises(DeliveryError, match="complaint has been sent"):
        sides.receive()
    assert sides.play.phase is Phase.UNDELIVERED
    with pytest.raises(Undelivered, match="undelivered"):
        sides.receive()


def test_another_account_receives_but_neither_confirms_nor_requests(partial_sides: Partial) -> None:
    sides = partial_sides
    sides.buyer.game = sides.play.scene.game()
    assert sides.receive() is None and not sides.game.exchange(sides.play.id).confirmed_at
    sides.fresh()
    sides.buyer.game, sides.refuse = sides.play.scene.game(), chunk_1_of_tensor_1
    sides.buyer.folder = sides.folder / "other"
    sides.wait(MARGIN)
    sides.is_refused()
    assert not sides.requested_chunks() and sides.play.phase is Phase.DELIVERING


def test_a_complaint_that_waits_is_not_reported_as_sent(sides: Sides) -> None:
    def cheats() -> None:
        raise WrongNode([bytes(32)] * 4, (bytes(32), 0, []))

    sides.claim()
    with patch.object(sides.play.client, "send", side_effect=Paused("badNode")), pytest.raises(Paused):
        sides.buyer._complaining(cheats)
    late = patch.object(sides.play.client, "send", side_effect=ContractError("TooLate", ()))
    with late, pytest.raises(DeliveryError, match="the contract accepts no complaint now"):
        sides.buyer._complaining(cheats)

"""The client decides in time, with a slow server and with little money."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exchange import DELIVERY
from scene import Scene
from test_delivery_agents import MARGIN, Partial, Sides, chunk_1_of_tensor_1

from vgame.agents.client import post_job
from vgame.chain.records import JobSpec, Phase
from vgame.errors import ChainError, DeliveryError, VgameError

SPEC = DELIVERY.spec
GWEI = 10**9
REPLY = 59  # seconds that a server takes for each range


class Slow(Sides):
    """A slow server, until the trainer is paid; the trainer continues meanwhile. `spoiled`: the served leaves are not
    the ciphertext."""

    drip = spoiled = busy = False

    def get(self, name: str, first: int, size: int) -> bytes:
        if not self.drip or self.play.phase is Phase.FINAL:
            raise DeliveryError("server is away")
        self.play.advance(REPLY)
        if not self.busy:
            self.busy = True
            self.trainer.step()
            self.busy = False
        data = super().get(name, first, size)
        return bytes(len(data)) if self.spoiled and name != "chunks" else data

    def receive_to_the_end(self) -> bool:
        """Whether the client has the state."""
        for _ in range(60):
            try:
                if self.receive() is not None:
                    return True
            except VgameError:
                if self.play.phase in (Phase.FINAL, Phase.DECLINED, Phase.UNDELIVERED):
                    return False
            if not self.trainer.step():
                self.play.advance(20)
        raise AssertionError(self.play.phase)


@pytest.mark.parametrize("early", [True, False], ids=["in the challenge window", "in the confirm window"])
@pytest.mark.parametrize("spoiled", [True, False])
@pytest.mark.parametrize("requests", [1, 2, 64])
def test_a_slow_server_delays_no_client_beyond_its_window(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool, spoiled: bool, requests: int
) -> None:
    """For any number of requested chunks the client has the paid state or has declined."""
    monkeypatch.setattr("vgame.delivery.rules.MOST_REQUESTS", requests)
    sides = Slow(scene, tmp_path)
    sides.spoiled, sides.drip = spoiled, early
    if early:
        sides.trainer.accept()
        sides.trainer.claim()
        sides.play.advance(SPEC.challenge_window - 2 * REPLY)
        while sides.play.phase is Phase.CLAIMED:
            with pytest.raises(DeliveryError):
                sides.receive()
            sides.trainer.step()
        until = sides.game.exchange(sides.play.id).until
        assert until - scene.chain.now() > SPEC.confirm_window * 3 // 4
    else:
        sides.claim()
    sides.drip = True
    has = sides.receive_to_the_end()
    assert has or sides.play.phase is Phase.DECLINED
    if not has:
        assert sides.play.client.credits(sides.play.client.wallet.address) == SPEC.reward // 4


def test_a_look_ends_in_time_without_new_blocks(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes, but the chain makes no block."""
    sides, now, requested = Slow(scene, tmp_path), [0.0], []
    sides.claim()
    monkeypatch.setattr("vgame.delivery.buyer.time", SimpleNamespace(monotonic=lambda: now[0]))

    def get(name: str, first: int, size: int) -> bytes:
        now[0] += REPLY
        requested.append(name)
        return bytes(size)

    sides.buyer.get = get
    with pytest.raises(DeliveryError, match="time of this look is over"):
        sides.receive()
    assert len(requested) <= 1 + SPEC.confirm_window // 2 // REPLY


# ---- money ----


@pytest.fixture
def poor(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Partial:
    """A chunk is missing; agents calculate with a gas price; on the fast chain gas is free."""
    sides = Partial(scene, tmp_path)
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (20 * GWEI, GWEI), raising=False)
    return sides


def test_a_client_that_cannot_pay_a_request_declines(poor: Partial) -> None:
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**17)
    poor.wait(SPEC.confirm_window // 4)
    with pytest.raises(ChainError, match="needed to request chunk 1 of tensor 1 and still decline: send it some ether"):
        poor.receive()
    poor.wait(MARGIN - 1)
    poor.is_refused()
    assert poor.play.phase is Phase.DECLINED and not poor.requested_chunks()


def test_a_client_that_can_pay_some_requests_declines_for_the_others(poor: Partial) -> None:
    poor.refuse = lambda name, first, size: name != "chunks"
    gas = poor.game.answer_gas(poor.play.id, DELIVERY.program.states[1].elements, 0)
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 6 * gas * 20 * GWEI)
    poor.wait(MARGIN - 1)
    poor.is_refused()
    assert poor.play.phase is Phase.DECLINED and 0 < len(poor.requested_chunks()) < 5


def test_credits_pay_for_requests(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refunded reward of an earlier order has not been withdrawn."""
    sides = Partial(scene, tmp_path)
    earlier, address = sides.play, sides.play.client.wallet.address
    sides.trainer.accept()
    earlier.advance(SPEC.claim_window + 1)
    earlier.client.send("expire", earlier.id)
    sides.play = scene.post(DELIVERY, earlier.client.wallet)
    sides.fresh()
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (20 * GWEI, GWEI), raising=False)
    scene.chain.node.evm.set_balance(address, GWEI)
    sides.wait(SPEC.confirm_window // 4)
    sides.is_refused()
    assert sides.requested_chunks() == [(1, 1)] and sides.play.client.credits(address) == 0


@pytest.mark.parametrize("delivery", [True, False])
def test_no_order_without_gas_to_decline(scene: Scene, monkeypatch: pytest.MonkeyPatch, delivery: bool) -> None:
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (20 * GWEI, GWEI), raising=False)
    windows = {} if delivery else dict.fromkeys(("confirm_window", "key_window", "complaint_window"), 0)
    order = {f: getattr(SPEC, f) for f in JobSpec.__dataclass_fields__} | windows
    program = SimpleNamespace(header=DELIVERY.program.header)
    bundle = SimpleNamespace(order=order, mode="correct", log=None, name="", program=program)
    game = scene.game()
    gas = 41 * GWEI * (560_000 if delivery else 360_000)
    words = f"the reward of {SPEC.reward}, and {gas} for the gas to order" + (", and to decline" if delivery else ";")
    scene.chain.node.evm.set_balance(game.wallet.address, SPEC.reward + gas - 1)
    with pytest.raises(ChainError, match=words):
        post_job(game, bundle, 1)
    scene.chain.node.evm.set_balance(game.wallet.address, SPEC.reward + gas)
    assert game.job(post_job(game, bundle, 1)).phase is Phase.CREATED


# ---- the offer ----


def test_only_the_offer_that_was_fetched_is_confirmed(scene: Scene, tmp_path: Path) -> None:
    """A reorganisation undoes the claim; the next one seals the same state with another key, and serves nothing."""
    sides = Partial(scene, tmp_path)
    sides.trainer.accept()
    node, point, memory = scene.chain.node, scene.chain.node.snapshot(), scene.ghost.memory()
    sides.trainer.claim()
    sides.receive()
    assert sides.buyer.sealed
    node.revert(point)
    scene.ghost.remember(memory)
    (sides.trainer.seller.folder / "key").unlink()
    sides.trainer.claim()
    sides.play.pass_window()
    assert sides.trainer.step() and sides.play.phase is Phase.DELIVERING
    sides.refuse = lambda name, first, size: True
    sides.is_refused()
    assert not sides.game.exchange(sides.play.id).confirmed_at
    sides.refuse = lambda name, first, size: False
    assert sides.receive() is None and sides.game.exchange(sides.play.id).confirmed_at
    sides.until(Phase.REVEALED)
    assert sides.receive() is not None


def test_an_offer_that_changes_between_fetching_and_confirming(scene: Scene, tmp_path: Path) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim()
    fetch, game = sides.buyer.fetch, sides.buyer.game

    def meanwhile() -> None:
        fetch()
        game.exchange = lambda job: replace(type(game).exchange(game, job), offer=bytes(32))

    sides.buyer.fetch = meanwhile
    assert sides.receive() is None and not sides.game.exchange(sides.play.id).confirmed_at


def test_an_answered_chunk_is_not_requested_again(poor: Partial) -> None:
    """Nothing is served, so no answer can be verified before all are here; the account can pay each chunk once."""
    poor.refuse = lambda *_: True
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**19)
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    asked = len(poor.requested_chunks())
    assert asked == sum(poor.buyer.shape.chunks)
    poor.trainer.step()
    assert sum(r.open for r in poor.play.client.requests(poor.play.id)) == asked - 1
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**16)
    poor.wait(MARGIN - 1)
    poor.is_refused()
    assert poor.play.phase is Phase.DELIVERING and len(poor.requested_chunks()) == asked


def test_a_request_that_cannot_be_raised_is_declined_for(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer could drop it after the confirm window."""
    poor.refuse = chunk_1_of_tensor_1
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    assert len(poor.requested_chunks()) == 1
    price = poor.play.client.requests(poor.play.id)[0].price
    monkeypatch.setattr(poor.play.scene.chain, "fees", lambda **_: (2 * price, GWEI), raising=False)
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**16)
    poor.wait(MARGIN - 1)
    poor.is_refused()
    assert poor.play.phase is Phase.DECLINED


@pytest.mark.parametrize("call", ["request", "raise"])
def test_an_endpoints_error_is_no_reason_to_decline_at_once(
    poor: Partial, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The account has enough money; a node refuses the call. Half of the last tenth is left when it is declined."""
    game, move = poor.play.client, poor.play.client.move

    def refused(name: str, *args: object, value: int = 0) -> object:
        if name == call:
            raise ChainError("a node refused a request: nonce too low")
        return move(name, *args, value=value)

    poor.refuse = chunk_1_of_tensor_1
    game.chain.node.evm.set_balance(game.wallet.address, 10**20)
    if call == "raise":
        poor.wait(SPEC.confirm_window // 4)
        poor.is_refused()
        price = 2 * game.requests(poor.play.id)[0].price
        monkeypatch.setattr(game.chain, "fees", lambda **_: (price, GWEI), raising=False)
    monkeypatch.setattr(game, "move", refused)
    poor.wait(MARGIN - 1)
    with pytest.raises((ChainError, DeliveryError)):
        poor.receive()
    assert poor.play.phase is Phase.DELIVERING
    poor.wait(MARGIN // 2 - 1)
    with pytest.raises((ChainError, DeliveryError)):
        poor.receive()
    assert poor.play.phase is Phase.DECLINED

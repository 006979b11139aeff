"""A client whose node shows effects late or not at all, or whose calls wait: it requests, declines and confirms in
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange import Exchange
from false_replies import altered, invented_estimates, invented_results, show_late
from frauds import SETUP
from scene import Scene
from test_delivery_agents import Partial, Sides, chunk_1_of_tensor_1
from web3 import Web3

from vgame.agents import delivery
from vgame.chain.abi import abi_type, full_abi
from vgame.chain.records import Phase
from vgame.delivery import buyer, calls
from vgame.errors import DeliveryError, EndpointError, NotYet, VgameError
from vgame.system.progress import Reporter

PATIENCE = 12  # seconds until a missing chunk is requested, with the windows of these tests


class Away(Partial):
    """A server that is away, or refuses one chunk."""

    away = True
    refuse = staticmethod(chunk_1_of_tensor_1)

    def get(self, name: str, first: int, size: int) -> bytes:
        if self.away:
            raise OSError("server is away")
        return super().get(name, first, size)


def look(sides: Sides) -> None:
    with suppress(VgameError, OSError):
        sides.receive()


def looks(sides: Partial, pause: int = 15) -> None:
    """Looks of the client until it has confirmed or the confirm window is over; the trainer answers all requests."""
    exchange = lambda: sides.play.client.exchange(sides.play.id)  # noqa: E731
    while sides.left > 0 and sides.play.phase is Phase.DELIVERING and not exchange().confirmed_at:
        look(sides)
        with suppress(VgameError):
            sides.trainer.step()
        sides.play.advance(pause)


def pressed(far: Scene, folder: Path, left: int) -> Away:
    """Nine tenths of the confirm window are over. Until now the server was away; from now on it refuses one chunk."""
    sides = Away(far, folder)
    sides.claim()
    sides.wait(85)
    look(sides)
    sides.wait(left + PATIENCE)
    sides.away = False
    look(sides)  # a chunk that is missing for a moment is not requested
    sides.wait(left)
    return sides


def stale_view(sides: Sides) -> Callable[[bool], None]:
    """A replica with the present state of the delivery. The returned function shows it, or shows the newest state."""
    client, job = sides.play.client, sides.play.id
    exchange, requests = client.exchange(job), client.requests(job)
    usual = client.exchange, client.requests

    def show(stale: bool) -> None:
        client.exchange, client.requests = (lambda _: exchange, lambda _: requests) if stale else usual

    return show


# ---- requests ----


@pytest.mark.parametrize("price", ["the same price", "another price"])
def test_a_request_that_a_stale_replica_repeats_does_not_decline(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, price: str
) -> None:
    """Blocks of 2 s. One chunk is requested, and answered in the next block. One look at a replica that is 3 blocks
    behind shows no request."""
    chain = far.chain
    if price == "the same price":
        fees = chain.fees()
        monkeypatch.setattr(chain, "fees", lambda **_: fees)
    sides = pressed(far, tmp_path, 70)
    show = stale_view(sides)
    look(sides)
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.trainer.step() and not sides.game.requests(sides.play.id)[0].open
    sides.play.advance(2)
    show(True)
    with invented_estimates(chain), invented_results(chain):
        look(sides)
    show(False)
    looks(sides, 2)
    assert sides.play.phase is not Phase.DECLINED and sides.play.client.exchange(sides.play.id).confirmed_at


def test_a_request_that_is_seen_late_does_not_decline(far: Scene, tmp_path: Path) -> None:
    sides = pressed(far, tmp_path, 60)
    show_late(sides.play.client)
    look(sides)
    assert sides.requested_chunks() == [(1, 1)] and sides.play.phase is not Phase.DECLINED


class Slow(Partial):
    """Serves no leaf, and takes all the time that a look has for it. Then it refuses, so the list of missing chunks is
    complete."""

    def get(self, name: str, first: int, size: int) -> bytes:
        if name == "chunks":
            return super().get(name, first, size)
        self.play.advance(max(0, int(self.buyer._server.second - self.play.scene.chain.now())))
        raise DeliveryError("refused")


def test_requests_that_are_seen_late_are_all_made_in_one_look(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are few looks with requests."""
    monkeypatch.setattr(buyer, "time", SimpleNamespace(monotonic=far.chain.now))
    sides = Slow(far, tmp_path)
    sides.claim()
    show_late(sides.play.client)
    while not sides.requested_chunks():
        look(sides)
    look(sides)
    assert len({*sides.requested_chunks()}) == sum(sides.buyer.shape.chunks)


def test_a_request_that_was_never_signed_is_declined(far: Scene, tmp_path: Path) -> None:
    """A gateway replies with something unreadable to each estimate of `request`, and to nothing else."""
    sides = Away(far, tmp_path)
    sides.away = False
    sides.claim()
    inputs = next(e["inputs"] for e in full_abi() if e["type"] == "function" and e["name"] == "request")
    selector = Web3.to_hex(Web3.keccak(text=f"request({','.join(map(abi_type, inputs))})")[:4])

    def estimate(params: Any, usual: Any) -> Any:
        data = str(params[0].get("data", params[0].get("input", "")))
        return {"jsonrpc": "2.0", "id": 1, "result": "0x"} if data.startswith(selector) else usual()

    with altered(far.chain, "eth_estimateGas", estimate):
        look(sides)
        sides.wait(300)
        looks(sides)
    assert sides.play.phase is Phase.DECLINED


# ---- the whole reward, or three quarters ----


def test_an_offer_that_is_not_shown_is_declined(far: Scene, tmp_path: Path) -> None:
    """The endpoint has the newest states, but no old events (a pruned node): nothing can be fetched."""
    sides = Partial(far, tmp_path)
    sides.claim()
    usual = sides.play.client.content

    def content(name: str, *args: Any, **place: Any) -> Any:
        if name == "Offered":
            raise NotYet("the endpoint shows no such event")
        return usual(name, *args, **place)

    sides.play.client.content = content
    look(sides)
    sides.wait(300)
    looks(sides)
    assert sides.play.phase is Phase.DECLINED


def test_a_refusal_that_the_chain_rejects_stops_no_decline(far: Scene, tmp_path: Path) -> None:
    """A request was answered; the node still shows it as open and late. Everything else that it shows is true, also
    that `refused` would revert. The server is away."""
    sides = Away(far, tmp_path)
    sides.away = False
    sides.claim()
    sides.wait(870 + PATIENCE)
    look(sides)
    sides.wait(870)
    look(sides)
    assert sides.requested_chunks() == [(1, 1)]
    stale = sides.play.client.requests(sides.play.id)
    assert sides.trainer.step()
    sides.away = True
    sides.play.client.requests = lambda _: stale
    sides.wait(89)
    looks(sides)
    assert sides.play.phase is Phase.DECLINED


def refuse_in_vain(far: Scene, folder: Path, moments: Iterable[int]) -> Away:
    """The server is away, and the trainer has not answered the one request in time. `refused`, which gives the whole
    reward back, reverts at these times: the base fee of its block is above the price of the request."""
    sides = Away(far, folder)
    sides.claim()
    Exchange(sides.play, sides.game, None, None, []).request(1, 1, 4 * far.chain.block().base_fee)
    account = sides.play.client.wallet
    usual = account.send
    account.send = lambda to, data, value=0, gas=None: usual(to, data, value, 30_000)  # too little gas
    for left in moments:
        sides.wait(left)
        look(sides)
    account.send = usual
    return sides


def test_a_refusal_that_waits_does_not_decline(far: Scene, tmp_path: Path) -> None:
    sides = refuse_in_vain(far, tmp_path, (85, 70))
    for left in range(60, 0, -5):
        sides.wait(left)
        look(sides)
    assert sides.play.phase is Phase.UNDELIVERED


def test_a_refusal_that_waits_beyond_the_window_is_declined(far: Scene, tmp_path: Path) -> None:
    """Afterwards the trainer could answer late, give the key, and have the whole reward."""
    sides = refuse_in_vain(far, tmp_path, (85, 70, 45))
    for left in range(40, 0, -4):
        sides.wait(left)
        look(sides)
    assert sides.play.phase is Phase.DECLINED


def test_a_withdrawal_that_waits_is_no_lack_of_money(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's wallet is short, its money is in the contract: refunds of its other jobs, which come one by one. It
    has withdrawn the first one a moment ago, and the next one waits for 12 s."""
    gas = 100_000_000  # for `decline`: this node wants the gas of a whole block for an estimate
    monkeypatch.setattr(calls, "CALL_GAS", gas)
    sides = Away(far, tmp_path)
    client, account = sides.play.client, sides.play.client.wallet
    others = [far.post(SETUP, account) for _ in range(2)]
    sides.claim()  # the others have expired
    sides.wait(85)
    look(sides)
    sides.wait(60)
    sides.away = False
    stranger = far.game()
    stranger.send("expire", others[0].id)
    client.move("withdraw", account.address)
    stranger.send("expire", others[1].id)
    base, tip = far.chain.fees()
    spent = far.chain.balance(account.address) - gas * (2 * base + tip)
    account.send(stranger.wallet.address, b"", spent, 30_000)
    look(sides)
    assert sides.play.phase is not Phase.DECLINED and client.credits(account.address)


def test_a_call_for_a_request_that_the_state_does_not_show_ends_as_one_that_is_late(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node behind the same address shows the state before the request. It is the node's error."""
    of_requests = Web3.keccak(text="getRequests(bytes32)")[:4].hex()

    def without_requests(params: Any, usual: Callable[[], Any]) -> Any:
        data = params[0].get("data") or params[0]["input"]
        none = {"jsonrpc": "2.0", "id": 1, "result": "0x" + f"{32:064x}" + f"{0:064x}"}
        return none if str(data).removeprefix("0x").startswith(of_requests.removeprefix("0x")) else usual()

    sides = Sides(far, tmp_path)
    sides.claim()
    played, game = Exchange(sides.play, sides.game, None, None, []), sides.play.client
    price = 4 * far.chain.fees()[0]
    played.request(1, 0, price)
    value = price * played.gas(1, 0)
    with altered(far.chain, "eth_call", without_requests):
        with pytest.raises(EndpointError, match="shows a receipt of raise without error, but a state without it"):
            game.send("raise", sides.play.id, 0, 1, 0, 2 * price, value=value)
        assert not game._visible("defer", (sides.play.id, 0), far.chain.block().number)


# ---- confirmation ----


def test_a_waiting_confirmation_is_no_busy_loop(far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote node shows the state before `confirm` for five minutes: `receive` looks every 15 s."""
    sides, chain, seen = Sides(far, tmp_path), far.chain, list[int]()
    sides.claim()
    stale_view(sides)(True)
    end = chain.now() + 300
    monkeypatch.setattr(chain, "pause", lambda seconds, elsewhere=0.0: chain.advance(int(max(seconds, elsewhere))))
    monkeypatch.setattr("vgame.agents.delivery.find_order", lambda *_: None)

    class Stop(BaseException):
        pass

    class Counted:
        def __init__(self, *_: Any) -> None:
            pass

        def ready(self) -> bool:
            if chain.now() >= end:
                raise Stop
            seen.append(chain.now())
            return sides.buyer.ready()

    monkeypatch.setattr("vgame.delivery.buyer.Buyer", Counted)
    bundle = SimpleNamespace(program=SimpleNamespace(sources=[]), order=asdict(sides.play.setup.spec))
    with invented_estimates(chain), pytest.raises(Stop):
        delivery.receive(sides.play.client, bundle, sides.play.id, "http://localhost:1", tmp_path / "o", Reporter())
    assert 10 <= len(seen) <= 40

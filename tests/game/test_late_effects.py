"""Effects that an endpoint shows late or not at all, and calls that wait: a client requests, declines and confirms in
time, an auditor convicts, and stakes once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange import Exchange
from false_replies import altered, invented_estimates
from frauds import LIE, SETUP
from scene import Scene, deployed, embedded_chain
from test_delivery_agents import Partial, chunk_1_of_tensor_1
from test_starved import lag
from test_waiting import stale_view
from test_watch import staked, watch
from web3 import Web3

import vgame.agents.staking
from vgame.agents import retry
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain import final, pauses
from vgame.chain.abi import abi_type, full_abi
from vgame.chain.records import Phase
from vgame.delivery import buyer
from vgame.dispute.stakes import Stakes
from vgame.errors import DeliveryError, NotYet, VgameError

BLOCK = 12


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """An embedded chain that is not for development; the process has its clock."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    with embedded_chain() as chain:
        scene = deployed(chain)
        monkeypatch.setattr(chain, "is_development", False)
        for module in (final, pauses, retry):
            clock = SimpleNamespace(monotonic=chain.now, sleep=lambda seconds: chain.advance(max(1, int(seconds))))
            monkeypatch.setattr(module, "time", clock)
        yield scene


def left(sides: Partial) -> int:
    return sides.game.exchange(sides.play.id).until - sides.play.scene.chain.now()


def looks(sides: Partial, pause: int = 15) -> None:
    """Looks of the client until the confirm window is over; the trainer answers what is requested."""
    while left(sides) > 0 and sides.play.phase is Phase.DELIVERING:
        with suppress(VgameError, OSError):
            sides.receive()
        with suppress(VgameError):
            sides.trainer.step()
        sides.play.advance(pause)


class Slow(Partial):
    """Serves no leaf, and takes all the time that a look has for it. Then it refuses, so all that is missing is
    known."""

    def get(self, name: str, first: int, size: int) -> bytes:
        if name == "chunks":
            return super().get(name, first, size)
        rest = int(self.buyer._end - self.play.scene.chain.now())
        if rest > 0:
            self.play.advance(rest)
        raise DeliveryError("refused")


def test_requests_that_are_seen_late_are_all_made_in_one_look(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node shows each effect a block late. The trainer serves slowly, so there are few looks with requests."""
    monkeypatch.setattr(buyer, "time", SimpleNamespace(monotonic=far.chain.now))
    sides = Slow(far, tmp_path)
    sides.claim()
    lag(sides.play.client)
    looks(sides, 1)
    requested = len({*sides.requested_chunks()})
    assert sides.play.phase is Phase.DECLINED or requested == sum(sides.buyer.shape.chunks), (
        f"{requested} chunks requested, {sides.play.phase.name}"
    )


def test_a_request_that_never_gets_out_is_declined(far: Scene, tmp_path: Path) -> None:
    """A gateway replies with something unreadable to each estimate of `request`, and to nothing else: no transaction is
    signed."""
    sides = Partial(far, tmp_path)
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    selector = function_selector(sides.play.client, "request")

    def breaks(params: Any, usual: Any) -> Any:
        if str(params[0].get("data", params[0].get("input", ""))).startswith(selector):
            return {"jsonrpc": "2.0", "id": 1, "result": "0x"}
        return usual()

    with altered(far.chain, "eth_estimateGas", breaks):
        looks(sides)
    assert sides.play.phase is Phase.DECLINED


def function_selector(game: Any, name: str) -> str:
    inputs = next(e for e in full_abi() if e["type"] == "function" and e["name"] == name)["inputs"]
    return str(Web3.to_hex(Web3.keccak(text=f"{name}({','.join(map(abi_type, inputs))})")[:4]))


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
    looks(sides)
    assert sides.play.phase is Phase.DECLINED


class Away(Partial):
    """A server that is away from a moment on."""

    away = False

    def get(self, name: str, first: int, size: int) -> bytes:
        if self.away:
            raise OSError("server is away")
        return super().get(name, first, size)


def test_one_request_shown_as_late_stops_no_decline(far: Scene, tmp_path: Path) -> None:
    """A request was answered; the node goes on to show it as open, and as late. All else that it shows is true, also
    that `refused` would revert (NotRequested). The server is away: the client should decline."""
    sides = Away(far, tmp_path)
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    sides.wait(870)
    with suppress(VgameError):
        sides.receive()
    assert sides.requested_chunks() == [(1, 1)]
    open_ = sides.play.client.requests(sides.play.id)
    assert sides.trainer.step()
    sides.away = True
    sides.play.client.requests = lambda _: open_
    sides.wait(89)
    looks(sides)
    assert sides.play.phase is Phase.DECLINED


def test_a_request_that_a_stale_replica_repeats_does_not_decline(far: Scene, tmp_path: Path) -> None:
    """Blocks of 2 s. In the last tenth one chunk is requested, and answered. One look at a replica that is some blocks
    behind requests it again at another price."""
    sides, chain = Away(far, tmp_path), far.chain
    sides.claim()
    sides.refuse = chunk_1_of_tensor_1
    sides.away = True
    sides.wait(85)
    with suppress(VgameError, OSError):
        sides.receive()
    sides.wait(70)
    sides.away = False
    show = stale_view(sides, chain)
    with suppress(VgameError, OSError):
        sides.receive()
    assert sides.requested_chunks() == [(1, 1)]
    assert sides.trainer.step() and not sides.game.requests(sides.play.id)[0].open
    sides.play.advance(2)

    def passes(_: Any, usual: Any) -> Any:
        answer = usual()
        return {"jsonrpc": "2.0", "id": 1, "result": "0x"} if "error" in answer else answer

    show(True)
    with invented_estimates(chain), altered(chain, "eth_call", passes), suppress(VgameError, OSError):
        sides.receive()
    show(False)
    looks(sides, 2)
    assert sides.play.phase is not Phase.DECLINED and sides.play.client.exchange(sides.play.id).confirmed_at


def test_a_refusal_that_waits_to_the_end_does_not_cost_the_reward(far: Scene, tmp_path: Path) -> None:
    """The trainer serves nothing more and has not answered in time. `refused` reverts three times (the base fee of its
    block is above the price of the request), so it waits over the end of the window. Just before the end the client
    declines: afterwards the trainer could answer late, and give the key."""
    sides, chain = Away(far, tmp_path), far.chain
    sides.claim()
    Exchange(sides.play, sides.game, None, None, []).request(1, 1, 4 * chain.block().base_fee)
    sides.away = True
    account = sides.play.client.wallet
    usual = account.send
    for left_ in (85, 70, 45):
        sides.wait(left_)
        account.send = lambda to, data, value=0, gas=None: usual(to, data, value, 30_000)
        with suppress(VgameError, OSError):
            sides.receive()
    account.send = usual
    for left_ in range(40, 0, -4):
        sides.wait(left_)
        with suppress(VgameError, OSError):
            sides.receive()
    if sides.play.phase is Phase.DELIVERING:
        sides.wait(-1)
        for _ in range(100):  # the trainer is the first, the client looks every 15 s
            with suppress(VgameError):
                sides.trainer.step()
            with suppress(VgameError, OSError):
                sides.receive()
            if sides.play.phase in (Phase.FINAL, Phase.UNDELIVERED):
                break
            sides.play.advance(15)
    assert sides.play.phase in (Phase.DECLINED, Phase.UNDELIVERED), sides.play.phase


def test_a_withdrawal_that_waits_is_no_lack_of_money(
    far: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's wallet is short, its money is in the contract: refunds of its other jobs, which come one by one. It
    has withdrawn the first one a moment ago, and the next one waits for 12 s."""
    sides, chain = Away(far, tmp_path), far.chain
    monkeypatch.setattr(buyer, "CALL_GAS", 100_000_000)
    client, account = sides.play.client, sides.play.client.wallet
    others = [far.post(SETUP, account) for _ in range(2)]
    sides.claim()  # the others have expired
    sides.refuse = chunk_1_of_tensor_1
    sides.away = True
    sides.wait(85)
    with suppress(VgameError, OSError):
        sides.receive()
    sides.wait(60)
    sides.away = False
    stranger = far.game()
    stranger.send("expire", others[0].id)
    client.move("withdraw", account.address)  # of the first refund
    stranger.send("expire", others[1].id)
    base, tip = chain.fees()
    kept = 100_000_000 * (2 * base + tip)  # enough to decline: this node wants the gas of a whole block for that
    account.send(stranger.wallet.address, b"", chain.balance(account.address) - kept, 30_000)
    with suppress(VgameError, OSError):
        sides.receive()
    assert sides.play.phase is not Phase.DECLINED, (left(sides), client.credits(account.address))


def turns(service: Any, count: int, seconds: int = BLOCK) -> None:
    for _ in range(count):
        for known in service.retry.values():
            known.until = 0.0
        with suppress(VgameError):
            service.round()
        service.game.chain.advance(seconds)


def test_convictions_seen_late_do_not_delay_the_next(far: Scene) -> None:
    """One trainer is away in four jobs. The node shows each effect a block late, so each conviction counts as a failed
    one. A stranger with a dispute of its own ends the last job four blocks after it could be ended."""
    plays = [far.claimed(SETUP, LIE) for _ in range(4)]
    service = watch(plays[0], Limits(jobs=frozenset(play.id for play in plays)))
    turns(service, 20)
    assert [staked(play, service) for play in plays] == [1] * 4
    strangers = [play.auditor(None, FalseAccuser, step_wanted=1) for play in plays]
    for stranger in strangers:
        stranger.step()
    far.chain.advance(SETUP.spec.trainer_budget + SETUP.spec.slot + 300)
    lag(service.game)
    turns(service, 4)
    for play, stranger in zip(plays, strangers, strict=True):
        if play.phase is Phase.CLAIMED:
            stranger.game.send("timeout", play.id, 1)
    won = [play.verdicts[0][1] == 0 for play in plays]
    assert all(won), won


@pytest.mark.parametrize("file", [False, True])
def test_two_services_on_one_wallet_stake_once(far: Scene, tmp_path: Path, file: bool) -> None:
    """Two auditors of one account in one process, each for one job; without a file (two bundles, `stakes=None`), or
    with the same one. A replica lags."""
    plays = [far.claimed(SETUP, LIE) for _ in range(2)]
    account, path = far.wallet(), tmp_path / "stakes.json" if file else None
    services = []
    for play in plays:
        service = watch(play, Limits(jobs=frozenset({play.id})), game=far.game(account))
        service.stakes = Stakes(service.game, path)
        service.stakes.watch()
        services.append(service)
    first, before = services[0], plays[0].job
    first.game.job = lambda job: before
    first.game.jobs = lambda jobs: [before for _ in jobs]
    turns(first, 10)
    assert staked(plays[0], first) == 1

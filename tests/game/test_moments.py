"""Irreversible decisions do not follow from one reply, one moment or a full disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exchange import DELIVERY
from frauds import LIE, SETUP
from scene import Play, Scene, deployed, embedded_chain
from test_delivery_agents import SIZES, Sides
from test_failed_stakes import rounds
from test_watch import staked, watch

import vgame.agents.staking as staking
import vgame.delivery.received
from vgame.agents import roles
from vgame.agents.auditor_service import AuditorService
from vgame.agents.delivery import write_state
from vgame.agents.named_jobs import Limits
from vgame.agents.retry import Retry
from vgame.chain.final import MOMENT
from vgame.chain.records import Job, Phase, Request
from vgame.delivery import bulk, rules
from vgame.delivery.rules import Snapshot
from vgame.delivery.sealed import LEAF_BYTES
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain, DeliveryError, EndpointError, StoreError, VgameError
from vgame.system.progress import Reporter

SPEC = DELIVERY.spec


class StoppedError(BaseException):
    """The number of tries is reached."""


@pytest.fixture(scope="module")
def real() -> Iterator[Scene]:
    with embedded_chain() as chain:
        yield deployed(chain)


# ---- the trainer's bond ----


def computation(play: Play, refuses: bool, small_disk: bool = False) -> Any:
    """A run that refuses the order for its terms or for lack of disk space, or accepts it; failures are retried three
    times."""
    reporter, tries = Reporter(), [3]

    def refuse_bad_terms(_: int) -> None:
        if refuses:
            raise Abstain("trainer_budget is 1, 600 is needed")

    def refuse_small_disk(*_: object) -> None:
        if small_disk:
            raise StoreError("this run needs 20 GB more of its disk, 1 GB are free")

    def wait(_: Retry) -> None:
        tries[0] -= 1
        if not tries[0]:
            raise StoppedError

    return SimpleNamespace(
        bundle=SimpleNamespace(order=asdict(play.setup.spec)), history=play.setup.machine(), reporter=reporter,
        retry=Retry(reporter, 0.0, bears=VgameError), refuse_bad_terms=refuse_bad_terms, rehearse=lambda: None,
        refuse_small_disk=refuse_small_disk, run=lambda hurry: None, lock=lambda: None, wait=wait,
    )  # fmt: skip


def accepts(play: Play, game: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "find_order", lambda *_: None)
    monkeypatch.setattr(Retry, "wait", run.wait)
    roles.trainer_of(game, play.id, run)


@pytest.mark.parametrize("small_disk", [False, True], ids=["terms", "disk"])
@pytest.mark.parametrize("lies", [0, 1, 2, 3])
def test_no_bond_on_an_order_that_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, lies: int, small_disk: bool
) -> None:
    """For its terms, or for the disk. The first replies show the order as accepted."""
    play, game = scene.post(SETUP), scene.game()
    usual, left = game.job, [lies]

    def job(identity: bytes) -> Job:
        left[0] -= 1
        return replace(usual(identity), phase=Phase.ACCEPTED) if left[0] >= 0 else usual(identity)

    game.job = job
    with pytest.raises((Abstain, StoreError, StoppedError)):
        accepts(play, game, computation(play, not small_disk, small_disk), monkeypatch)
    assert play.phase is Phase.CREATED


def test_a_trainer_that_has_accepted_is_not_refused_for_its_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    play, game = scene.post(SETUP), scene.game()
    accepts(play, game, computation(play, refuses=False), monkeypatch)
    accepts(play, game, computation(play, refuses=False, small_disk=True), monkeypatch)
    assert play.phase is Phase.ACCEPTED


@pytest.mark.parametrize("field", ["blockNumber", "status", "transactionHash"])
def test_a_receipt_without_a_field_does_not_end_a_trainer(
    real: Scene, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    play, game, provider = real.post(SETUP), real.game(), real.chain.web3.provider
    usual, left = provider.make_request, [1]

    def make_request(method: str, params: Any) -> Any:
        reply = usual(method, params)
        if method == "eth_getTransactionReceipt" and reply.get("result") and left:
            left.pop()
            return {**reply, "result": {k: v for k, v in reply["result"].items() if k != field}}
        return reply

    monkeypatch.setattr(provider, "make_request", make_request)
    monkeypatch.setattr(provider, "_request_func_cache", (None, None))
    accepts(play, game, computation(play, refuses=False), monkeypatch)
    assert play.phase is Phase.ACCEPTED and play.job.trainer == game.wallet.address and not left
    provider._request_func_cache = (None, None)


# ---- the auditor's stake ----


def altered(service: AuditorService, change: Callable[[Job], Job]) -> Callable[[], None]:
    """The endpoint alters every job; the returned function undoes this."""
    game, jobs = service.game, service.game.jobs
    game.jobs = lambda ids: [change(job) for job in jobs(ids)]

    def end() -> None:
        del game.jobs

    return end


@pytest.mark.parametrize("change", [{"phase": Phase.FINAL}, {"disputes": 0, "open": 0}], ids=["phase", "disputes"])
def test_a_dispute_hidden_for_a_moment_makes_no_room(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path, change: dict[str, Any]
) -> None:
    plays = [scene.claimed(SETUP, LIE)]
    service = watch(plays[0], Limits(hunt=8))
    service.stakes = Stakes(service.game, tmp_path / "memory")
    rounds(service, 1)
    plays[0].advance(int(MOMENT) + 1)
    rounds(service, 1)
    plays.append(scene.claimed(SETUP, LIE))
    for _ in range(3):
        rounds(service, 1)
        plays[0].advance(10)
    end = altered(service, lambda job: replace(job, **change) if job.since == plays[0].job.since else job)
    rounds(service, 2)
    end()
    plays[0].advance(10)
    rounds(service, 2)
    assert [staked(play, service) for play in plays] == [1, 0]


def test_a_momentarily_low_fee_is_no_reason_to_stake(
    scene: Scene, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staking, "auditor_shortcomings", lambda *_: [])
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits(jobs=frozenset({play.id})))
    service.staking.dispute_gas = 10**15
    for dear in (True, False, True, False, True):
        monkeypatch.setattr(scene.chain, "fees", lambda dear=dear, **_: (10**12 * dear, 0))
        rounds(service, 1)
        play.advance(20)
    assert staked(play, service) == 0


# ---- the client's money ----


def snapshot(sides: Sides) -> Snapshot:
    return rules.read(sides.play.client, sides.play.id)


@pytest.mark.parametrize("ahead", [True, False], ids=["in a moment", "to the end"])
def test_a_delivery_is_declined_at_the_end_of_the_window_not_before(
    scene: Scene, elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """A header that is ahead of its time for a moment shows the end of the window."""
    sides = Sides(scene, tmp_path)
    sides.claim()
    monkeypatch.setattr(rules, "MOST_REQUESTS", 0)
    sides.buyer.get = lambda *_: (_ for _ in ()).throw(DeliveryError("the server is away"))
    exchange = sides.play.client.exchange

    def early(job: bytes) -> Any:
        return replace(exchange(job), until=scene.chain.now() + 30)

    if ahead:
        sides.play.client.exchange = early
        with suppress(VgameError):
            sides.buyer.ready()
        del sides.play.client.exchange
    for _ in range(8 if ahead else 400):
        with suppress(VgameError):
            sides.buyer.ready()
        if sides.play.phase is Phase.DECLINED:
            break
        sides.play.advance(10)
    assert sides.play.phase is (Phase.DELIVERING if ahead else Phase.DECLINED)


def test_the_terms_of_a_delivery_are_those_of_the_order(scene: Scene, tmp_path: Path) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim()
    sides.buyer.terms = SPEC
    usual = sides.play.client.job
    for change in ({"confirm_window": 10 * SPEC.confirm_window}, {"reward": 10 * SPEC.reward}):
        sides.play.client.job = lambda job, change=change: replace(
            found := usual(job), spec=replace(found.spec, **change)
        )
        with pytest.raises(EndpointError, match="other terms"):
            sides.buyer.ready()
    del sides.play.client.job
    sides.buyer.ready()
    assert snapshot(sides).exchange.confirmed_at


def wrong(piece: Any, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.tensor == len(SIZES) - 1:
        cipher[0, 0] ^= 1


@pytest.mark.parametrize("where", ["__enter__", "write"])
def test_a_full_disk_prevents_no_complaint(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim(wrong)
    assert sides.receive() is None
    sides.until(Phase.REVEALED)

    class Full:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Full:
            return self.full() if where == "__enter__" else self

        def __exit__(self, *_: object) -> None:
            pass

        def full(self, *_: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        write = full

    monkeypatch.setattr(vgame.delivery.received, "StateFile", Full)
    assert sides.buyer.ready()
    bundle: Any = SimpleNamespace(program=SimpleNamespace(sources=SIZES))
    with pytest.raises(VgameError, match="the complaint has been sent"):
        write_state(bundle, sides.buyer, tmp_path / "out")
    assert sides.play.phase is Phase.UNDELIVERED


def test_a_full_disk_in_the_confirm_window_is_declined(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim()

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sides.buyer, "fetch", full)
    for _ in range(400):
        with suppress(VgameError, OSError):
            sides.buyer.ready()
        if sides.play.phase is not Phase.DELIVERING:
            break
        sides.play.advance(10)
    assert sides.play.phase is Phase.DECLINED


def test_a_fabricated_answer_replaces_no_received_data(scene: Scene, tmp_path: Path) -> None:
    """All data are fetched and verified; after a restart the server is unreachable."""
    sides = Sides(scene, tmp_path)
    sides.claim()
    assert sides.receive() is None
    sides.until(Phase.REVEALED)
    sides.fresh()
    sides.buyer.get = lambda *_: (_ for _ in ()).throw(DeliveryError("the server is away"))
    game, piece = sides.buyer.game, sides.buyer.shape.chunk(1, 0)
    content, zeros = game.content, (bytes(piece.count * LEAF_BYTES), bytes(piece.count * bulk.HASH))
    game.requests = lambda job: [Request(0, 1, 0, 1, 1, 1, scene.chain.now(), 0, False)]
    game.content = lambda name, *args, **how: zeros if name == "Answered" else content(name, *args, **how)
    with suppress(VgameError):
        sides.receive()
    del game.requests, game.content
    assert sides.receive() is not None


# ---- the key ----


@pytest.mark.parametrize("lie", ["confirmed_at", "until"])
def test_a_momentarily_shown_confirmation_does_not_reveal_the_key(
    scene: Scene, elsewhere: None, tmp_path: Path, lie: str
) -> None:
    """The call contains the key, so even an estimate would reveal it."""
    sides = Sides(scene, tmp_path)
    sides.claim()
    usual, calls = sides.game.exchange, list[str]()
    send = sides.game.send
    sides.game.send = lambda name, *args, **how: (calls.append(name), send(name, *args, **how))[1]
    old = scene.chain.now() - 10 * SPEC.confirm_window
    sides.game.exchange = lambda job: replace(usual(job), **{lie: max(old, 1)})
    for _ in range(2):
        with suppress(VgameError):
            sides.trainer.step()
    del sides.game.exchange
    assert "revealKey" not in calls

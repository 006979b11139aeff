"""No node that lags, and no lost or pending transaction, keeps a false claim from its dispute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from frauds import LIE, SETUP
from lagging import (
    BLOCK,
    DAY,
    Endpoint,
    at_endpoint,
    closes,
    convicted_by_another,
    killed_in_a_move,
    killed_in_a_stake,
    move,
    played,
    restarted,
    round_of,
    until_staked,
)
from scene import Play, Scene
from test_stakes import begun
from test_watch import staked

from vgame.chain import wallet
from vgame.chain.records import Phase
from vgame.dispute.stakes import Stakes
from vgame.errors import VgameError


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scene, Endpoint]]:
    with at_endpoint(monkeypatch) as found:
        yield found


# ---- a node that stops ----


@pytest.mark.wide
@pytest.mark.parametrize("moves", [3, 12])
def test_stopped_node(end: Any, tmp_path: Path, moves: int) -> None:
    """A load balancer with two nodes. One is stalled from now on. The other one takes `moves` moves of the account
    (other disputes) in as many blocks, then fails for 11 minutes; then it answers alone, until the claim is final. The
    stalled node shows fewer transactions for 10 minutes by the auditor's clock, but no time passes on it."""
    scene, endpoint = end
    play, account = scene.claimed(DAY, LIE) if moves > 8 else scene.claimed(SETUP, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    scene.chain.advance(1350)  # the auditor was started late, or re-executed until now
    stop = endpoint.now()
    scene.chain.advance(BLOCK)
    for _ in range(moves):
        move(account)
        scene.chain.advance(BLOCK)
    for _ in range(680 // BLOCK):
        with endpoint.behind(lambda: stop):
            round_of(service)
        scene.chain.advance(BLOCK)
    assert closes(play) - endpoint.now() > 800
    while endpoint.now() < closes(play) - 30:
        round_of(service)
        scene.chain.advance(BLOCK if moves <= 8 else 120)
    assert staked(play, service) == 1, service.problems


# ---- a busy account at nodes that lag ----


def busy(end: Any, play: Play, service: Any, account: Any, seconds: int, lag: int) -> None:
    """A balancer with a good node and one that lags. The account plays other disputes (claims of one cheat): each look
    at the good node finds a move that is due, which is sent; each look at the other one finds none but sent ones."""
    scene, endpoint = end
    for _ in range(seconds // BLOCK):
        move(account)
        scene.chain.advance(BLOCK)
        with endpoint.behind(lambda: endpoint.now() - lag):
            round_of(service)


def test_busy_account_at_a_node_one_minute_behind(end: Any, tmp_path: Path) -> None:
    """Busy for 12 minutes; then both nodes show all, and 11 minutes are left. No move is lost, and the node never lags
    more than a minute; but in each look for 10 minutes some move was not shown yet."""
    scene, endpoint = end
    play, account = scene.claimed(SETUP, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    scene.chain.advance(1500)
    busy(end, play, service, account, 720, 60)
    assert closes(play) - endpoint.now() > 650
    while endpoint.now() < closes(play) - 30:
        round_of(service)
        scene.chain.advance(BLOCK)
    assert staked(play, service) == 1, service.problems


@pytest.mark.wide
@pytest.mark.parametrize("seconds", [720, 1000])
def test_busy_account_at_a_node_three_minutes_behind(end: Any, tmp_path: Path, seconds: int) -> None:
    """At most 16 moves are not shown."""
    scene, endpoint = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    busy(end, play, service, account, seconds, 200)
    while endpoint.now() < closes(play) - 30:
        round_of(service)
        scene.chain.advance(120)
    assert staked(play, service) == 1, service.problems


# ---- a stake whose number another transaction has used ----


def test_a_move_with_the_number_of_an_unsent_stake(end: Any, tmp_path: Path) -> None:
    """Killed before the stake is sent; then a move in another job gets its number. The stake is sent with another
    one."""
    scene, _ = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    killed_in_a_stake(scene, service, account, "written")
    service = restarted(play, tmp_path, account)
    move(account)
    for _ in range(5):
        round_of(service)
        scene.chain.advance(BLOCK)
    assert staked(play, service) == 1


# ---- transactions that were lost, or are pending ----


def test_restarts(end: Any, tmp_path: Path) -> None:
    """Killed before a move is sent; and the auditor is restarted every 9 minutes."""
    scene, endpoint = end
    play, account = scene.claimed(SETUP, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    killed_in_a_move(scene, account, sent=False)
    since = endpoint.now()
    while endpoint.now() < closes(play) - 30:
        if endpoint.now() - since > 540:
            service, since = restarted(play, tmp_path, account), endpoint.now()
        round_of(service)
        scene.chain.advance(BLOCK)
    assert staked(play, service) == 1


def test_unsent_stake_of_a_claim_that_is_over(end: Any, tmp_path: Path) -> None:
    """The lost transaction is a stake on a claim that another auditor has convicted meanwhile. It is never sent
    again."""
    scene, endpoint = end
    first, second = scene.claimed(SETUP, LIE), scene.claimed(SETUP, LIE)
    account = scene.wallet()
    service = begun(first, tmp_path, account)
    killed_in_a_stake(scene, service, account, "written")
    convicted_by_another(end, first)
    service = restarted(second, tmp_path, account)
    scene.chain.advance(int(closes(second) - endpoint.now()) - 800)
    while endpoint.now() < closes(second) - 30:
        round_of(service)
        scene.chain.advance(BLOCK)
    assert staked(second, service) == 1, service.problems


def test_pending_move_of_a_killed_process(end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after a move was sent, which is not needed again. The base fee has risen above its offer: it is pending
    until another one replaces it."""
    monkeypatch.setattr(wallet, "RAISES", 20)  # as outside of tests
    scene, endpoint = end
    play, account = scene.claimed(SETUP, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    endpoint.holds = True
    killed_in_a_move(scene, account, sent=True)
    service = restarted(play, tmp_path, account)
    played(end, play, service, 1000)
    assert endpoint.pool and staked(play, service) == 1, service.problems


# ---- reorganisations, false counts, several processes ----


def test_reorganisation_of_two_stakes(end: Any, tmp_path: Path) -> None:
    """A reorganisation loses the stakes on two claims, and one of the claims, which is not made again."""
    scene, endpoint = end
    second, first = scene.claimed(DAY, LIE), scene.post(DAY)
    first.trainer = first.new_trainer(LIE)
    first.trainer.accept()
    account = scene.wallet()
    point = endpoint.raw("evm_snapshot")
    first.trainer.claim()
    service = begun(first, tmp_path, account)
    until_staked(end, first, service)
    service.named.named[second.id] = None
    until_staked(end, second, service)
    endpoint.raw("evm_revert", point)
    del endpoint.times[int(endpoint.raw("eth_blockNumber"), 16) + 1 :]
    scene.chain.advance(BLOCK)
    assert first.phase is Phase.ACCEPTED and not staked(second, service)
    played(end, second, service, 1000)
    assert staked(second, service) == 1, service.problems


def test_pending_stake_of_a_claim_that_is_over(end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stake is pending: it offers too little gas. Meanwhile another auditor has convicted that claim, so it is not
    repeated."""
    monkeypatch.setattr(wallet, "RAISES", 20)  # as outside of tests
    scene, endpoint = end
    first, second = scene.claimed(SETUP, LIE), scene.claimed(DAY, LIE)
    account = scene.wallet()
    service = begun(first, tmp_path, account)
    endpoint.holds = True
    killed_in_a_stake(scene, service, account, "sent")
    endpoint.holds = False
    convicted_by_another(end, first)
    service = restarted(second, tmp_path, account)
    endpoint.holds = True
    played(end, second, service, 1000)
    assert endpoint.pool and staked(second, service) == 1, service.problems


def test_empty_record_at_a_node_one_minute_behind(end: Any, tmp_path: Path) -> None:
    """An account that has made moves before starts with an empty record: another bundle, a lost store, or another
    machine. Its node is 1 to 3 minutes behind, then correct."""
    scene, endpoint = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    move(account)
    scene.chain.advance(BLOCK)
    stop = endpoint.now()
    scene.chain.advance(BLOCK)
    move(account)
    scene.chain.advance(BLOCK)
    service = begun(play, tmp_path, account)
    for _ in range(150 // BLOCK):
        with endpoint.behind(lambda: min(endpoint.now() - 60, stop + max(0, endpoint.now() - stop - 120))):
            round_of(service)
        scene.chain.advance(BLOCK)
    played(end, play, service, 1000)
    assert staked(play, service) == 1, service.problems


def test_a_move_with_a_high_count(end: Any, tmp_path: Path) -> None:
    """While a move is sent, the count is 20 too high for a moment. The move has a number that is not reached."""
    scene, _ = end
    play, account = scene.claimed(DAY, LIE), scene.wallet()
    service = begun(play, tmp_path, account)
    eth = scene.chain.web3.eth
    usual = eth.get_transaction_count
    with (
        patch.object(eth, "get_transaction_count", lambda *which: usual(*which) + 20),
        patch.object(eth, "send_raw_transaction", lambda raw: bytes(32)),  # queued
        suppress(VgameError),
    ):
        move(account)
    played(end, play, service, 200)
    assert staked(play, service) == 1, service.problems


def of_bundle(play: Play, store: Path, name: str, account: Any) -> Any:
    service = restarted(play, store, account)
    service.stakes = Stakes.beside(store / name, service.game)
    return service


def test_two_bundles_of_one_account(end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of bundle X is killed after it has sent a stake, which is pending. The process of bundle Y replaces
    it. Then the process of X is started again."""
    monkeypatch.setattr(wallet, "RAISES", 20)  # as outside of tests
    scene, endpoint = end
    x, y = scene.claimed(DAY, LIE), scene.claimed(DAY, LIE)
    account = scene.wallet()
    service = of_bundle(x, tmp_path, "x", account)
    endpoint.holds = True
    killed_in_a_stake(scene, service, account, "sent")
    service = of_bundle(y, tmp_path, "y", account)
    played(end, y, service, 120)
    service = of_bundle(x, tmp_path, "x", account)
    played(end, x, service, 1000)
    assert endpoint.pool and [staked(play, service) for play in (x, y)] == [1, 1], service.problems


# ---- one false header ----


class FalseNumber(Endpoint):
    """The next reply about the newest block names a block that does not exist; all others are true."""

    lies = False

    def request(self, name: str, params: Any) -> Any:
        found = super().request(name, params)
        if not self.lies or name != "eth_getBlockByNumber" or params[0] != "latest":
            return found
        self.lies = False
        return found | {"result": dict(found["result"]) | {"number": hex(self.head() + 10**6)}}


@pytest.mark.parametrize("which", range(3))
def test_one_false_number_of_a_block_keeps_no_false_claim_from_its_dispute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: int
) -> None:
    with at_endpoint(monkeypatch, FalseNumber) as (scene, endpoint):
        play, account = scene.claimed(SETUP, LIE), scene.wallet()
        service = begun(play, tmp_path, account)
        scene.chain.advance(1500)
        for look in range(20):
            endpoint.lies = look == which
            round_of(service)
            scene.chain.advance(BLOCK)
        assert staked(play, service) == 1, service.problems

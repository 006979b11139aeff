"""The claims that an auditor hunts: right, ended, undone or temporarily altered claims do not keep it from a false
one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frauds import SETUP
from scene import Play, Scene
from test_watch import LIE, staked, watch

import vgame.agents.auditor_service
import vgame.agents.staking
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits, List
from vgame.chain.records import Phase


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clocks are long enough."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])


@pytest.fixture
def rewind(scene: Scene) -> Any:
    """Back to an earlier block, without the ghost, which has seen the later ones."""
    node = scene.chain.node
    scene.ghost = None
    node.methods["eth_sendTransaction"] = node.send = type(node).send.__get__(node)

    def to(point: Any) -> None:
        node.revert(point)
        scene.chain.advance(1)

    return to


def rounds(service: AuditorService, count: int = 4) -> None:
    """Each round checks everything that is due."""
    for _ in range(count):
        for retry in (*service.retry.values(), service.naming):
            retry.until = 0.0
        service.round()


def test_right_claims_take_no_place(scene: Scene) -> None:
    first = [scene.claimed(SETUP) for _ in range(3)]
    false = scene.claimed(SETUP, LIE)
    service = watch(false, Limits(hunt=2))
    rounds(service)
    assert staked(false, service) == 1 and not any(staked(play, service) for play in first)


def test_open_disputes_take_no_place(scene: Scene) -> None:
    """A cheat's first claims do not hide its next one; clocks and money are checked before each stake."""
    plays = [scene.claimed(SETUP, LIE) for _ in range(5)]
    service = watch(plays[0], Limits(hunt=2))
    rounds(service, 6)
    assert [staked(play, service) for play in plays] == [1] * 5


def test_the_claim_whose_time_ends_first_is_compared_first(scene: Scene) -> None:
    plays = [scene.post(SETUP) for _ in range(3)]
    for play in plays[::-1]:
        play.trainer = play.new_trainer(LIE)
        play.trainer.accept()
    for play in (plays[2], plays[0], plays[1]):
        play.trainer.claim()
        play.advance(50)
    service = watch(plays[0], Limits(hunt=1))
    order: list[bytes] = []
    usual = service.game.send
    service.game.send = lambda name, job, *args, **more: order.append(job) or usual(name, job, *args, **more)
    rounds(service)
    assert order == [plays[2].id, plays[0].id, plays[1].id]


@pytest.mark.parametrize("how", ["convicted", "over", "final"])
def test_finished_claims_take_no_place(scene: Scene, how: str) -> None:
    old = [scene.claimed(SETUP, LIE if how == "convicted" else None) for _ in range(3)]
    if how == "convicted":
        for play in old:
            assert play.run_to_end(play.trainer, play.auditor()) is Phase.CONVICTED
    else:
        old[-1].pass_window()
    if how == "final":
        for play in old:
            play.trainer.step()
    false = scene.claimed(SETUP, LIE)
    service = watch(false, Limits(hunt=2))
    rounds(service)
    assert staked(false, service) == 1


def test_a_restarted_auditor_hunts(scene: Scene) -> None:
    """It withdraws its credits first."""
    plays = [scene.claimed(SETUP, LIE) for _ in range(3)]
    service = watch(plays[0], Limits(hunt=2))
    for _ in range(200):
        rounds(service, 1)
        for play in plays:
            play.trainer.step()
        if all(play.phase is Phase.CONVICTED for play in plays):
            break
    rounds(service, 10)
    assert scene.game().credits(service.game.wallet.address) == 0
    assert not any(play.job.open for play in plays) and service.finished
    fresh = watch(plays[0], Limits(hunt=2))
    rounds(fresh)
    last = scene.claimed(SETUP, LIE)
    rounds(fresh)
    assert staked(last, fresh) == 1


def test_a_crowd_of_right_claims_is_compared_without_long_pauses(scene: Scene) -> None:
    """Their windows end before that of the false one."""
    for _ in range(9):
        scene.claimed(SETUP)
    false = scene.claimed(SETUP, LIE)
    service, pauses = watch(false, Limits(hunt=2)), list[float]()
    service.game.chain.pause = lambda seconds, elsewhere: pauses.append(elsewhere)
    try:
        for _ in range(5):
            rounds(service, 1)
            service.pause()
        assert staked(false, service) == 1 and pauses == [0.0] * 5
    finally:
        del service.game.chain.pause


def test_claims_that_cannot_be_compared_give_up_their_places(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """For example, their logs are missing; this is reported once."""
    foreign = [scene.claimed(SETUP) for _ in range(3)]
    false = scene.claimed(SETUP, LIE)
    service = watch(false, Limits(hunt=2))
    service.poll, missing = 60.0, {play.id for play in foreign}
    service.computation.log_mismatch = lambda _, job, __: "its log is missing" if job in missing else ""
    for _ in range(4):
        service.round()
    assert staked(false, service) == 1
    assert capsys.readouterr().out.count("its log is missing") == 3


class Clock:
    """The process's clock; a test lets its seconds pass."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (vgame.agents.retry, vgame.agents.named_jobs, vgame.agents.auditor_service):
        monkeypatch.setattr(module, "time", found)
    return found


def test_a_crowd_that_cannot_be_compared_delays_no_claim_for_long(
    scene: Scene, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its claims is tried again every five seconds, and each before the false one by its time."""
    foreign = [scene.claimed(SETUP) for _ in range(48)]
    false = scene.claimed(SETUP, LIE)
    service, missing = watch(false, Limits()), {play.id for play in foreign}
    service.poll = 0.2
    service.computation.log_mismatch = lambda _, job, __: "its log is missing" if job in missing else ""
    for _ in range(60):
        service.round()
        clock.now += 1
    assert staked(false, service) == 1
    assert capsys.readouterr().out.count("its log is missing") == len(foreign)


def test_claims_that_wait_for_the_own_run_delay_none_that_can_be_compared(scene: Scene, clock: Clock) -> None:
    waiting = [scene.claimed(SETUP) for _ in range(9)]
    false = scene.claimed(SETUP, LIE)
    service, machine = watch(false, Limits()), false.machine(None)
    late = {play.job.run_root for play in waiting}
    service.computation.history_of = lambda claim: None if claim.run_root in late else machine
    service.computation.compute_ahead = lambda engaged, until: True
    for _ in range(6):
        service.round()
        clock.now += 5
    assert staked(false, service) == 1


def test_unread_pages_are_read_without_long_pauses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgame.agents.named_jobs, "PAGE", 2)
    plays = [scene.claimed(replace(SETUP, terms={"challenge_window": 5000 + i})) for i in range(6)]
    service, pauses = watch(plays[0], Limits(hunt=2)), []
    monkeypatch.setattr(service.game.chain, "pause", lambda seconds, elsewhere: pauses.append(elsewhere))
    for _ in range(4):
        service.round()
        service.pause()
    assert pauses == [0.0, 0.0, 15.0, 15.0]


def test_claims_of_a_replaced_branch_take_no_place(scene: Scene, rewind: Any) -> None:
    account = scene.game()
    point = scene.chain.node.snapshot()
    ghosts = [scene.claimed(SETUP, LIE) for _ in range(3)]
    service = watch(ghosts[0], Limits(hunt=2), game=account)
    rounds(service)
    rewind(point)
    scene.nonce += 10
    false = scene.claimed(SETUP, LIE)
    rounds(service)
    assert staked(false, service) == 1


@pytest.mark.parametrize("last", ["the same", "another"])
def test_a_claim_replaced_in_the_middle_of_the_list_is_read(scene: Scene, rewind: Any, last: str) -> None:
    right, other, false = (scene.post(SETUP) for _ in range(3))
    for play, lie in ((right, None), (other, None), (false, LIE)):
        play.trainer = play.new_trainer(lie)
        play.trainer.accept()
    service = watch(right, Limits())
    point = scene.chain.node.snapshot()
    right.trainer.claim(), other.trainer.claim()
    rounds(service)
    rewind(point)
    for play in (false, other, right) if last == "the same" else (false, right, other):
        play.trainer.claim()
    rounds(service)
    assert staked(false, service) == 1


def test_a_claim_that_was_undone_and_made_differently_is_compared_again(scene: Scene, rewind: Any) -> None:
    """Right on one branch, false on the other."""
    play = scene.post(SETUP)
    play.trainer = play.new_trainer()
    play.trainer.accept()
    service, point = watch(play, Limits()), scene.chain.node.snapshot()
    play.trainer.claim()
    rounds(service)
    rewind(point)
    play.trainer.machine = play.machine(LIE)
    play.trainer.claim()
    rounds(service)
    assert staked(play, service) == 1


@pytest.mark.parametrize("change", [
    {"phase": Phase.FINAL}, {"phase": Phase.CONVICTED}, {"phase": Phase.NONE}, {"since": 1}, {"run_root": None},
])  # fmt: skip
def test_a_claim_that_is_temporarily_shown_as_another_is_hunted(scene: Scene, change: dict[str, Any]) -> None:
    """From the first look on, or from a later one: no claim is left out for good."""
    play = scene.claimed(SETUP, LIE)
    right = scene.claimed(SETUP).job.run_root
    service = watch(play, Limits())
    jobs = service.game.jobs
    change = {key: right if value is None else value for key, value in change.items()}
    service.game.jobs = lambda ids: [replace(job, **change) for job in jobs(ids)]
    rounds(service)
    service.game.jobs = jobs
    rounds(service)
    assert staked(play, service) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 2])
def test_a_hidden_order_of_the_client_is_played(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, place: int, more: int
) -> None:
    """In its place the endpoint showed an order that hashes to its identity but does not exist."""
    monkeypatch.setattr(List, "TAIL", 3 if more == 0 else 2)
    monkeypatch.setattr(List, "AGAIN", 300.0 if more == 0 else 0.0)
    wallet = scene.wallet()
    plays = [scene.post(SETUP, wallet) for _ in range(3 + more)]
    ids = [play.id for play in plays]
    service = watch(plays[0], Limits(clients=frozenset({wallet.address})))
    game, hidden = service.game, plays[place]
    fake = game.job_id(SETUP.spec, wallet.address, 777_777)
    orders, jobs = game.orders_of, game.jobs
    game.orders_of = lambda client, first=0: [fake if job == hidden.id else job for job in ids][first:]
    made_up = replace(hidden.job, nonce=777_777)
    game.jobs = lambda wanted: [made_up if job == fake else game.job(job) for job in wanted]
    rounds(service)
    assert hidden.id not in service.auditors and fake in service.auditors
    game.orders_of, game.jobs = orders, jobs
    hidden.trainer = hidden.new_trainer(LIE)
    hidden.trainer.accept()
    hidden.trainer.claim()
    rounds(service)
    assert staked(hidden, service) == 1 and fake not in service.auditors


def test_an_auditor_with_once_ends_only_after_all_pages_are_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.agents.named_jobs.PAGE", 2)
    first: Play = scene.claimed(SETUP)
    first.pass_window()
    first.trainer.step()
    for n in range(3):
        scene.claimed(replace(SETUP, terms={"challenge_window": 5000 + n}))
    false = scene.claimed(SETUP, LIE)
    service = watch(first, Limits())
    for _ in range(6):
        rounds(service, 1)
        assert not service.finished
    assert staked(false, service) == 1


def test_all_claims_are_looked_at_in_turn_in_one_request(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.agents.named_jobs.JOBS", 3)
    plays = [scene.claimed(SETUP) for _ in range(7)]
    service = watch(plays[0], Limits(hunt=1))
    rounds(service, 12)
    calls: list[list[bytes]] = []
    jobs = service.game.jobs
    service.game.jobs = lambda ids: calls.append([*ids]) or jobs(ids)
    rounds(service, 3)
    read = [found for found in calls if found]
    assert [len(found) for found in read] == [3, 3, 3]
    assert {job for found in read for job in found} == {play.id for play in plays}

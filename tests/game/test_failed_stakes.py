"""A failed stake, a claim that ended early, one altered reply: none keeps an auditor from a false claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP
from scene import Play, Scene
from test_watch import LIE, staked, watch

import vgame.agents.auditor_service as service_module
import vgame.agents.staking as staking
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.connection import RefusedError
from vgame.chain.records import Phase, Status, Turn
from vgame.dispute.stakes import Stakes
from vgame.errors import ContractError
from vgame.job.terms import Pace
from vgame.runs.pace import remember, remembered
from vgame.system.progress import Reporter


@pytest.fixture(autouse=True)
def room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks suffice for one dispute, but not for two at once."""
    too_short = ["auditor_budget is 1500, 2400 is needed"]
    monkeypatch.setattr(staking, "auditor_shortcomings", lambda *g: too_short if g[-1] else [])


def rounds(service: AuditorService, count: int) -> None:
    for _ in range(count):
        for retry in service.retry.values():
            retry.until = 0.0
        service.naming.until = 0.0
        service.round()


def fails_once(service: AuditorService, error: Exception) -> None:
    """The next stake fails before it is signed."""
    usual, left = service.game._send, [error]

    def send(name: str, args: tuple[Any, ...], value: int = 0) -> Any:
        if name == "challenge" and left:
            raise left.pop()
        return usual(name, args, value)

    service.game._send = send


@pytest.mark.parametrize(
    "error",
    [lambda: RefusedError("the endpoint refused a request: 429"), lambda: ContractError("WrongPhase", ())],
    ids=["refused", "behind"],
)
def test_a_failed_stake_is_repeated(scene: Scene, error: Callable[[], Exception]) -> None:
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits(jobs=frozenset({play.id})))
    fails_once(service, error())
    rounds(service, 5)
    assert staked(play, service) == 1


def test_a_lost_stake_is_repeated(scene: Scene) -> None:
    """Its block is replaced, and no node has the transaction any more."""
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits(jobs=frozenset({play.id})))
    point = scene.chain.node.snapshot()
    rounds(service, 1)
    assert staked(play, service) == 1
    scene.chain.node.revert(point)
    play.advance(5)
    rounds(service, 5)
    assert staked(play, service) == 1


def test_a_late_stake_takes_no_room(scene: Scene) -> None:
    """Its claim may stay open for ever: no account is obliged to finalize it."""
    decoy = scene.claimed(SETUP, LIE)
    service = watch(decoy, Limits(jobs=frozenset({decoy.id})))
    fails_once(service, RefusedError("500"))
    rounds(service, 1)
    decoy.pass_window()
    later = scene.claimed(SETUP, LIE)
    service.named.named[later.id] = None
    rounds(service, 5)
    assert staked(later, service) == 1 and staked(decoy, service) == 0


def convicted(scene: Scene) -> Play:
    play = scene.claimed(SETUP, LIE)
    assert play.run_to_end(play.trainer, play.auditor()) is Phase.CONVICTED
    return play


def test_claims_that_were_convicted_take_no_room(scene: Scene) -> None:
    convicted(scene)
    scene.chain.advance(100_000)
    last = scene.claimed(SETUP, LIE)
    service = watch(last, Limits(hunt=1))
    rounds(service, 10)
    assert staked(last, service) == 1


def test_one_altered_reply_is_not_remembered(scene: Scene) -> None:
    """A dispute that another auditor lost by time is shown once as the auditor's own, refuted by the contract."""
    play = scene.claimed(SETUP, LIE)
    other = play.auditor()
    other.step()
    play.trainer.step()
    play.advance(play.client.turn(play.id, 0)[1] + 1 - scene.chain.now())
    play.trainer.step()
    assert play.dispute().status is Status.LAPSED
    service = watch(play, Limits(jobs=frozenset({play.id})))
    usual, me = service.game.disputes, service.game.wallet.address

    def altered(*args: Any) -> Any:
        service.game.disputes = usual
        found = usual(*args)
        return [replace(s, dispute=replace(s.dispute, auditor=me, status=Status.DISMISSED)) for s in found]

    service.game.disputes = altered
    rounds(service, 5)
    assert staked(play, service) == 1


def test_an_auditor_does_not_end_before_it_has_read_the_list(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--once`: its jobs have ended, and the false claim is on a later page."""
    monkeypatch.setattr("vgame.agents.named_jobs.PAGE", 2)
    first = scene.claimed(SETUP)
    first.pass_window()
    first.trainer.step()
    assert first.phase is Phase.FINAL
    for window in range(5000, 5008):
        scene.claimed(replace(SETUP, terms={"challenge_window": window}))
    false = scene.claimed(SETUP, LIE)
    service = watch(first, Limits(hunt=8))
    for _ in range(20):
        rounds(service, 1)
        assert not service.finished
    assert staked(false, service) == 1


def test_an_auditor_does_not_end_while_a_list_is_hidden(scene: Scene) -> None:
    """The named job has ended; the client's other order was never shown."""
    done = convicted(scene)
    wallet = scene.wallet()
    false = scene.post(SETUP, wallet)
    service = watch(done, Limits(jobs=frozenset({done.id}), clients=frozenset({wallet.address})))
    usual = service.game.orders_of

    def refused(*_: Any) -> Any:
        raise RefusedError("the endpoint refused a request: 429")

    service.game.orders_of = refused
    rounds(service, 5)
    assert not service.finished
    service.game.orders_of = usual
    rounds(service, 5)
    assert not service.finished and false.id in service.auditors


class Measured:
    """A run that records when it is rehearsed, and when its pace is read."""

    def __init__(self, computation: Any, play: Play) -> None:
        self.computation, self.play, self.disputes = computation, play, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computation, name)

    def rehearse(self) -> None:
        self.disputes.append(len(self.play.disputes()))


def processes(play: Play, monkeypatch: pytest.MonkeyPatch) -> tuple[Measured, Callable[[Path], AuditorService]]:
    """(the run of one account, a function that starts a process of its auditor with a store)."""
    first = watch(play, Limits(jobs=frozenset({play.id})))
    run = Measured(first.computation, play)
    run.computation.bundle.identity, run.computation.run = bytes(32), lambda: None
    monkeypatch.setattr(service_module, "LocalRun", lambda *_: run)
    monkeypatch.setattr(service_module, "load_bundle", lambda _: SimpleNamespace(mode="correct"))
    monkeypatch.setattr(service_module, "find_order", lambda *_: None)
    monkeypatch.setattr(service_module, "count_moves", lambda _: SimpleNamespace(auditor_gas=1))

    def begin(store: Path) -> AuditorService:
        seat: Any = SimpleNamespace(log=None, published=[], bundle=None, store=store, poll=0.0)
        return service_module.auditor_of(first.game, seat, "cpu", Reporter(), first.limits)

    return run, begin


def test_a_restart_answers_before_it_measures(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of its dispute runs. An auditor without a dispute measures before its first stake."""
    play = scene.claimed(SETUP, LIE)
    run, begin = processes(play, monkeypatch)
    rounds(begin(tmp_path), 1)
    assert run.disputes == [0]
    play.trainer.step()
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR and run.disputes == [0]
    before = play.dispute().position
    rounds(begin(tmp_path), 1)
    assert play.dispute().position != before and run.disputes == [0]


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_measured_while_a_clock_of_a_dispute_runs(scene: Scene, tmp_path: Path, known: bool) -> None:
    """A second false claim comes after a restart: an earlier process's measurement is used, or nothing is staked."""
    play = scene.claimed(SETUP, LIE)
    path, limits = tmp_path / "memory", Limits(any_clocks=True)
    before = watch(play, limits)
    auditor = AuditorService(before.game, before.computation, Reporter(), 0.0, limits, Stakes(before.game, path))
    rounds(auditor, 1)
    second, run = scene.claimed(SETUP, LIE), Measured(before.computation, play)
    run.known_pace = before.computation.pace if known else None
    again = AuditorService(before.game, run, Reporter(), 0.0, limits, Stakes(before.game, path))
    rounds(again, 5)
    assert (staked(play, again), staked(second, again), run.disputes) == (1, int(known), [])
    assert play.run_to_end(play.trainer, SimpleNamespace(step=lambda: rounds(again, 1))) is Phase.CONVICTED
    rounds(again, 5)
    assert staked(second, again) == 1 and len(run.disputes) == 1 - known


def test_measurements_are_stored_for_this_device(tmp_path: Path) -> None:
    path, pace = tmp_path / "pace.json", Pace(0.5, 0.75, 2.0, 0.25)
    assert remembered(path, "cpu") is None
    remember(path, pace, "cpu")
    assert remembered(path, "cpu") == pace and remembered(path, "cuda") is None
    for damage in (b"", b"[]", b'{"on": 1}', path.read_bytes().replace(b"step", b"stop")):
        path.write_bytes(damage)
        assert remembered(path, "cpu") is None

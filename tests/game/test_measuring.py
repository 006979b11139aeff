"""An auditor measures its device when no clock of its own disputes runs, and at no other time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import LIE, SETUP
from scene import Play, Scene
from test_failed_stakes import processes, rounds
from test_watch import staked, watch

from vgame.agents import retry
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.connection import RefusedError
from vgame.chain.records import Phase, Status, Turn
from vgame.dispute.stakes import Stakes
from vgame.system.progress import Reporter


def looks(play: Play, service: AuditorService, count: int) -> None:
    """Rounds at intervals of a quarter of a minute."""
    for _ in range(count):
        rounds(service, 1)
        play.advance(15)


def show_no_claim(service: AuditorService, play: Play) -> None:
    before = replace(play.job, phase=Phase.ACCEPTED, disputes=0, open=0)
    service.game.jobs = lambda jobs: [before for _ in jobs]


def restarted(play: Play, tmp_path: Path, pace: bool, measured: list[int], named: bool = True) -> AuditorService:
    """The process after one that has staked. `pace`: whether the first process has stored it. `named`: whether the
    limits name the job; otherwise the auditor hunts it."""
    limits = Limits(jobs=frozenset({play.id}), any_clocks=True) if named else Limits(any_clocks=True)
    first = watch(play, limits)
    first.stakes = Stakes(first.game, tmp_path / "memory")
    looks(play, first, 4)
    assert staked(play, first) == 1
    run = first.computation
    run.rehearse, run.known_pace = lambda: measured.append(1), run.known_pace if pace else None
    return AuditorService(first.game, run, Reporter(), 0.0, limits, Stakes(first.game, tmp_path / "memory"))


@pytest.mark.parametrize("named", [False, True], ids=["hunted", "named"])
def test_a_restarted_auditor_measures_only_after_it_has_seen_its_disputes(
    scene: Scene, room_for_one: None, tmp_path: Path, named: bool
) -> None:
    """A failed reply, or a list that is not yet read, does not prove that no clock runs."""
    again = restarted(play := scene.claimed(SETUP, LIE), tmp_path, False, measured := list[int](), named)
    play.trainer.step()
    game = again.game

    def refused(*_: Any) -> Any:
        raise RefusedError("429")

    game.job = game.jobs = game.claims_of = refused
    rounds(again, 1)
    del game.job, game.jobs
    before = play.dispute().position
    rounds(again, 1)
    assert play.dispute().position != before and not measured


def test_disputes_that_are_hidden_for_a_moment_allow_no_measurement(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path
) -> None:
    """A process starts, and for a moment its endpoint shows the job before the claim."""
    again = restarted(play := scene.claimed(SETUP, LIE), tmp_path, False, measured := list[int]())
    show_no_claim(again, play)
    rounds(again, 1)
    del again.game.jobs
    while play.phase is not Phase.CONVICTED:
        assert not measured
        rounds(again, 1)
        play.trainer.step()
    looks(play, again, 4)
    assert measured == [1]


def test_a_restarted_auditor_behind_a_stopped_node_does_not_measure(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path
) -> None:
    """One of two balanced nodes stopped before the stake. The pace is known from the previous process."""
    again = restarted(play := scene.claimed(SETUP, LIE), tmp_path, True, measured := list[int]())
    show_no_claim(again, play)
    looks(play, again, 4)
    assert not measured


def test_an_auditor_that_has_lost_its_memory_answers_before_it_measures(
    scene: Scene, room_for_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/players.md section 2: store lost, or stuck: start the role with an empty store, or elsewhere with the same
    key. Its dispute waits for it."""
    play = scene.claimed(SETUP, LIE)
    run, begin = processes(play, monkeypatch)
    rounds(begin(tmp_path / "old"), 1)
    play.trainer.step()
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR
    before = play.dispute().position
    run.disputes.clear()
    rounds(begin(tmp_path / "new"), 1)
    assert play.dispute().position != before and not run.disputes


@pytest.mark.parametrize("seconds", [15, 1], ids=["a node elsewhere", "a node on loopback"])
def test_a_lost_dispute_keeps_no_restart_from_measuring(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """Its claim stands, and each look reports that it is not disputed again. Such a job is left out of looks for 5 s: a
    look without it shows no clock, and shows nothing against one."""
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=scene.chain.now))
    setup = replace(SETUP, terms={"challenge_window": 5000})
    play, twin = scene.claimed(setup, LIE), scene.claimed(setup, LIE)
    measured: list[int] = []
    first = restarted(play, tmp_path, False, measured)
    play.trainer.step()
    play.advance(setup.spec.auditor_budget + 1)
    play.trainer.step()
    assert play.dispute().status is Status.LAPSED and play.phase is Phase.CLAIMED
    limits = Limits(jobs=frozenset({play.id, twin.id}), any_clocks=True)
    stakes = Stakes(first.game, tmp_path / "memory")
    again = AuditorService(first.game, first.computation, Reporter(), 0.2, limits, stakes)
    for _ in range(600 // seconds):
        again.round()
        play.advance(seconds)
    assert measured == [1] and staked(twin, again) == 1


def test_a_failed_measurement_keeps_no_bond(scene: Scene, room_for_one: None, tmp_path: Path) -> None:
    """A conviction waits for the refund of the bond. The process restarts with another number of threads, and its
    device has no memory left for a rehearsal."""
    again = restarted(play := scene.claimed(SETUP, LIE), tmp_path, False, list[int]())
    other = play.auditor()
    play.advance(1)
    play.trainer.step()
    other.step()
    play.run(play.trainer, other)
    assert play.phase is Phase.CONVICTED

    def rehearse() -> None:
        raise RuntimeError("out of memory")

    again.computation.rehearse = rehearse
    before = scene.chain.balance(again.game.wallet.address)
    looks(play, again, 10)
    assert scene.chain.balance(again.game.wallet.address) > before

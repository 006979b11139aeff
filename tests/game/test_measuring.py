"""An auditor measures its device when no clock of its own disputes runs, and at no other time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frauds import LIE, SETUP
from scene import Play, Scene
from test_failed_stakes import rounds
from test_watch import staked, watch

from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.connection import RefusedError
from vgame.chain.records import Phase
from vgame.dispute.stakes import Stakes
from vgame.system.progress import Reporter


def looks(play: Play, service: AuditorService, count: int) -> None:
    """Rounds, a quarter of a minute apart."""
    for _ in range(count):
        rounds(service, 1)
        play.advance(15)


def show_no_claim(service: AuditorService, play: Play) -> None:
    before = replace(play.job, phase=Phase.ACCEPTED, disputes=0, open=0)
    service.game.jobs = lambda jobs: [before for _ in jobs]


def restarted(play: Play, tmp_path: Path, pace: bool, measured: list[int], named: bool = True) -> AuditorService:
    """The process after one that has staked. `pace`: is it known from the first one? `named`: is the job, or is it
    hunted?"""
    limits = Limits(jobs=frozenset({play.id}), any_clocks=True) if named else Limits(any_clocks=True)
    first = watch(play, limits)
    first.stakes = Stakes(first.game, tmp_path / "memory")
    first.stakes.watch()
    looks(play, first, 4)
    assert staked(play, first) == 1
    run = first.computation
    run.rehearse, run.known_pace = lambda: measured.append(1), run.known_pace if pace else None
    return AuditorService(first.game, run, Reporter(), 0.0, limits, Stakes(first.game, tmp_path / "memory"))


@pytest.mark.parametrize("named", [False, True], ids=["hunted", "named"])
def test_a_restart_measures_only_when_it_has_seen_its_disputes(
    scene: Scene, room_for_one: None, tmp_path: Path, named: bool
) -> None:
    """A failed reply, or a list that is not read so far, does not show that no clock runs."""
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


def test_a_moment_without_disputes_measures_nothing(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path
) -> None:
    """A process begins, and for a moment its endpoint shows the job as it was before the claim."""
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


def test_a_restart_beside_a_node_that_stands_still_measures_nothing(
    scene: Scene, elsewhere: None, room_for_one: None, tmp_path: Path
) -> None:
    """One of two balanced nodes stopped before the stake. The pace is known from the process before."""
    again = restarted(play := scene.claimed(SETUP, LIE), tmp_path, True, measured := list[int]())
    show_no_claim(again, play)
    looks(play, again, 4)
    assert not measured

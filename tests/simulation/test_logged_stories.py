"""Seeds of stories in mode `logged`: honest players lose nothing, broken players are found."""

from __future__ import annotations

import pytest
from broken_logged import BROKEN
from broken_seeds import found_by
from logged import BITS, Logged
from revm_calls import decode_log
from tape import Tape
from wide import of_many

DAILY = range(6)
SEEDS = range(300)  # each broken player is found among these


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Logged(Tape(seed)).play()


def test_the_players_use_logs() -> None:
    """Seed 3 has an auditor and a false sum."""
    story = Logged(Tape(3))
    assert not story.play() and all(story.view.job(job).spec.mode == BITS for job in story.jobs[1:])
    found = {decode_log(log).name for log in story.world.tree.logs(story.world.tree.head)}
    assert {"SegmentPosted", "Convicted"} <= found


@pytest.mark.parametrize("name", of_many(BROKEN, "posts no log", "compares claims without their logs"))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("logged", name, SEEDS) is not None

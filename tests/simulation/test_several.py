"""Seeds of stories in which each role is played twice: honest players lose nothing, broken players are found."""

from __future__ import annotations

import pytest
from broken_seeds import found_by
from broken_several import BROKEN
from several import Several
from tape import Tape
from wide import of_many

DAILY = range(12)
#: Each broken player except RARE is found among these seeds.
SEEDS = range(3_000)
RARE: set[str] = set()
QUICK = ["ends where another was faster", "counts its own transactions"]


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Several(Tape(seed)).play()


@pytest.mark.wide
def test_outside_the_envelope_no_error_is_unforeseen() -> None:
    found = {seed: Several(Tape(seed), inside=False).play() for seed in range(60)}
    assert not {seed: failures for seed, failures in found.items() if failures}


@pytest.mark.parametrize("name", of_many((name for name in BROKEN if name not in RARE), *QUICK))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("several", name, SEEDS) is not None


def test_one_tape_is_one_story() -> None:
    first = Several(tape := Tape(5))
    first.play()
    again = Several(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story

"""Seeds of stories in which each role queries three nodes in turn, one of them hostile: honest players lose nothing,
broken players are found."""

from __future__ import annotations

import pytest
from broken_chorus import BROKEN
from broken_seeds import found_by
from chorus import Chorus
from tape import Tape
from wide import of_many

DAILY = range(12)
#: Each broken player is found among these seeds.
SEEDS = range(1_000)
QUICK = ["uses the first endpoint alone", "takes the least count"]


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Chorus(Tape(seed)).play()


@pytest.mark.wide
def test_outside_the_envelope_no_error_is_unforeseen() -> None:
    found = {seed: Chorus(Tape(seed), inside=False).play() for seed in range(60)}
    assert not {seed: failures for seed, failures in found.items() if failures}


@pytest.mark.parametrize("name", of_many(BROKEN, *QUICK))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("chorus", name, SEEDS) is not None


def test_one_tape_is_one_story() -> None:
    first = Chorus(tape := Tape(5))
    first.play()
    again = Chorus(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story

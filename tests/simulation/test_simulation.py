"""Seeds of the simulator: vgame's players lose nothing, players with one rule broken are found."""

from __future__ import annotations

import pytest
from broken import TRAINERS
from story import Cast, Story
from tape import Tape, shorten
from wide import of_many

DAILY = range(0, 60)
RANGE = range(0, 300)  # in which each broken player is found
NAMES = {cls.__name__: cls for cls in TRAINERS}


def first_found(cast: Cast, seeds: range) -> int | None:
    return next((seed for seed in seeds if Story(Tape(seed), cast=cast).play()), None)


@pytest.mark.parametrize("first", [DAILY.start, DAILY.start + 30])
def test_inside_the_envelope_nothing_is_lost(first: int) -> None:
    found = {seed: Story(Tape(seed)).play() for seed in range(first, first + 30)}
    assert not {seed: said for seed, said in found.items() if said}


def test_outside_the_envelope_nothing_is_unforeseen() -> None:
    assert not [said for seed in range(20) if (said := Story(Tape(seed), inside=False).play())]


@pytest.mark.parametrize("name", of_many(NAMES, "NeverWithdraws", "NeverProves", "PostsAnotherSegment"))
def test_a_broken_trainer_is_found(name: str) -> None:
    assert first_found(Cast(trainer=NAMES[name]), RANGE) is not None


def test_one_tape_is_one_story() -> None:
    first, again = Story(tape := Tape(7)), None
    first.play()
    again = Story(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story


def test_a_tape_is_shortened() -> None:
    data = bytes(range(1, 200))
    short = shorten(data, lambda tape: 17 in tape and 130 in tape)
    assert short == bytes([17, 130])

"""Seeds of bonuses: honest players are paid the earned bonus or get their money back, broken players are found."""

from __future__ import annotations

import pytest
from bonuses import Bonuses
from broken_bonus import BROKEN
from broken_seeds import found_by
from tape import Tape
from wide import of_many

DAILY = range(12)
MENDED = (93,)  # a window that ends before the end of the evaluation is final
SEEDS = range(400)  # each broken player is found among these
QUICK = ["withdraws nothing", "gives back what is earned", "names the payer", "never pays", "promises again"]


@pytest.mark.parametrize("seed", [*DAILY, *MENDED])
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Bonuses(Tape(seed)).play()


@pytest.mark.wide
def test_outside_the_envelope_no_wei_is_lost_and_no_error_unforeseen() -> None:
    found = {seed: Bonuses(Tape(seed), inside=False).play() for seed in range(100)}
    assert not {seed: failures for seed, failures in found.items() if failures}


@pytest.mark.parametrize("name", of_many(BROKEN, *QUICK))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("bonus", name, SEEDS) is not None


def test_one_tape_is_one_story() -> None:
    first = Bonuses(tape := Tape(7))
    first.play()
    again = Bonuses(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story

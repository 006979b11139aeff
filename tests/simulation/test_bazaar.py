"""Seeds of sales in which trainer and client query three nodes in turn, one of them hostile: honest players lose
nothing, broken players are found."""

from __future__ import annotations

import pytest
from bazaar import Bazaar
from broken_bazaar import BROKEN
from broken_seeds import found_by
from tape import Tape
from wide import of_many

DAILY = range(6)
SEEDS = range(50)  # each broken player is found among these


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Bazaar(Tape(seed)).play()


@pytest.mark.parametrize("name", of_many(BROKEN, "uses the first endpoint alone"))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("bazaar", name, SEEDS) is not None

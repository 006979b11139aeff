"""Seeds of sales: trainer and client lose nothing, players with one rule broken are found."""

from __future__ import annotations

import pytest
from broken_sales import BROKEN
from broken_seeds import found_by
from sale import Sale
from tape import Tape
from wide import of_many

#: The last one: a stalled node must not keep a late client from its `decline`.
DAILY = [*range(24), 138]
#: Each broken player is found among these seeds, except RARE, and HARMLESS, which answers at the last moment, for less
#: than the cost of gas.
SEEDS = range(3_000)
HARMLESS = "never defer"
RARE = ["answers the first request only", "confirms unseen", "fetches without end", "keeps nothing to decline"]
QUICK = ["never answer", "never revealKey", "declines too early", "never requests"]


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Sale(Tape(seed)).play()


@pytest.mark.wide
def test_outside_the_envelope_no_error_is_unforeseen() -> None:
    found = {seed: Sale(Tape(seed), inside=False).play() for seed in range(60)}
    assert not {seed: failures for seed, failures in found.items() if failures}


@pytest.mark.parametrize("name", of_many((name for name in BROKEN if name not in (HARMLESS, *RARE)), *QUICK))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("sale", name, SEEDS) is not None


@pytest.mark.nightly
@pytest.mark.parametrize("name", RARE)
def test_a_rare_broken_player_is_found(name: str) -> None:
    assert found_by("sale", name, range(20_000)) is not None


def test_one_tape_is_one_story() -> None:
    first = Sale(tape := Tape(5))
    first.play()
    again = Sale(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story

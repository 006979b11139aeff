"""Seeds of the simulator: vgame's players lose nothing, players with one rule broken are found."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from broken import CASTS
from broken_seeds import PLAYERS, found_by
from story import Story
from tape import Tape, shorten
from wide import of_many

from vgame.chain.turns import has_computed_long

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import simulate

DAILY = range(12)
#: Each broken player except RARE is found among these seeds, most of them within the first hundred.
SEEDS = range(3_000)
RARE = {"FirstDisputeFirst", "LatestDisputeFirst"}
QUICK = ["NeverWithdraws", "PostsAnotherSegment", "NeverSweeps", "AccusesAll", "never challenge", "never withdraw"]


@pytest.mark.parametrize("seed", DAILY)
def test_inside_the_envelope_nothing_is_lost(seed: int) -> None:
    assert not Story(Tape(seed)).play()


@pytest.mark.wide
def test_outside_the_envelope_there_is_one_stake_on_a_claim() -> None:
    found = {seed: Story(Tape(seed), inside=False).play() for seed in range(30)}
    assert not {seed: failures for seed, failures in found.items() if failures}


@pytest.mark.parametrize("name", of_many((name for name in CASTS if name not in RARE), *QUICK))
def test_a_broken_player_is_found(name: str) -> None:
    assert found_by("dispute", name, SEEDS) is not None


@pytest.mark.parametrize("kind", [kind for kind in PLAYERS if kind != "dispute"])
def test_what_a_broken_player_replaces_exists(kind: str) -> None:
    """Names are texts in these tables, and most of the players are played only in `make wide`."""
    for name, broken in PLAYERS[kind].items():
        for place, attribute, _ in broken if isinstance(broken[0], tuple) else [broken]:
            assert hasattr(place, attribute), (name, place, attribute)


@pytest.mark.parametrize("kind", ["dispute", "sale", "several", "chorus", "bazaar", "logged"])
def test_a_story_runs_no_code_that_its_commit_excludes(kind: str) -> None:
    """The files that `simulate.commit` leaves out for this kind of story."""
    called: set[str] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != has_computed_long.__name__:  # always False with one endpoint
            called.add(frame.f_code.co_filename)

    for seed in range(5):
        story = simulate.STORIES[kind](Tape(seed), True)
        sys.setprofile(look)
        try:
            story.play()
        finally:
            sys.setprofile(None)
    paths = {Path(name).relative_to(simulate.ROOT).as_posix() for name in called if name.startswith(str(simulate.ROOT))}
    assert "vgame/chain/wallet.py" in paths and not paths.intersection(simulate.UNUSED[kind])
    if kind not in simulate.OF_DELIVERIES:
        assert not [path for path in paths if path.startswith("vgame/delivery/")]


def test_one_tape_is_one_story() -> None:
    first = Story(tape := Tape(7))
    first.play()
    again = Story(Tape(data=tape.used))
    again.play()
    assert first.world.story == again.world.story


def test_a_tape_is_shortened() -> None:
    assert shorten(bytes(range(1, 200)), lambda tape: 17 in tape and 130 in tape) == bytes([17, 130])

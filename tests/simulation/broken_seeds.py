"""The seeds that find players with one rule broken.

In: a kind of story, a player, a range of seeds. Out: a seed that finds it. The seed in broken_seeds.json is played
first, so that a test seldom has to search; `scripts/broken_players.py --tests` writes this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bazaar import Bazaar
from bonuses import Bonuses
from broken import CASTS
from broken_bazaar import BROKEN as OF_BAZAARS
from broken_bonus import BROKEN as OF_BONUSES
from broken_chorus import BROKEN as OF_CHORUSES
from broken_logged import BROKEN as OF_LOGGED
from broken_sales import BROKEN as OF_SALES
from broken_several import BROKEN as OF_SEVERAL
from chorus import Chorus
from logged import Logged
from sale import Sale
from several import Several
from story import Story
from tape import Tape

KNOWN = Path(__file__).with_name("broken_seeds.json")
PLAYERS: Mapping[str, Mapping[str, Any]] = {
    "bazaar": OF_BAZAARS,
    "bonus": OF_BONUSES,
    "chorus": OF_CHORUSES,
    "dispute": CASTS,
    "logged": OF_LOGGED,
    "sale": OF_SALES,
    "several": OF_SEVERAL,
}


def _patched(story: Callable[[Tape], Any]) -> Callable[[int, Any], Any]:
    def play(seed: int, broken: Any) -> Any:
        with patch.object(*broken):
            return story(Tape(seed)).play()

    return play


#: For each kind, a function that plays a seed with a broken player, and returns the failures.
PLAYS: Mapping[str, Callable[[int, Any], Any]] = {
    "bazaar": _patched(Bazaar),
    "bonus": lambda seed, broken: Bonuses(Tape(seed), patches=broken).play(),
    "chorus": _patched(Chorus),
    "dispute": lambda seed, broken: Story(Tape(seed), cast=broken).play(),
    "logged": _patched(Logged),
    "sale": lambda seed, broken: Sale(Tape(seed), patches=broken).play(),
    "several": lambda seed, broken: Several(Tape(seed), patches=broken).play(),
}


def found_by(kind: str, name: str, seeds: Iterable[int]) -> int | None:
    """A seed that finds this player, None if none of `seeds` does."""
    first = known()[kind].get(name)
    tried = seeds if first is None else (first, *seeds)
    return next((seed for seed in tried if PLAYS[kind](seed, PLAYERS[kind][name])), None)


def known() -> dict[str, dict[str, int]]:
    """The seeds of the file, by kind and player."""
    return json.loads(KNOWN.read_text())

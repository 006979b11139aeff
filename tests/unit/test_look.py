"""The time of a look, and the order of looks: no minority of the endpoints changes them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from vgame.chain.look import OTHERS, SENDS, STALE, look_at
from vgame.chain.turns import MOST, PATIENCE, Endpoint, Turns

LOOKS = 1_000


class Played:
    """Looks in turn. The first `false` endpoints use any part of their time and cause any number of requests to the
    others; an honest endpoint needs about `own` seconds in its own look, and `beside` seconds in the look of another
    honest one."""

    def __init__(self, count: int, false: int, own: float, beside: float, clock: list[float]) -> None:
        chain = SimpleNamespace(url="", secret="", lost=False, form="", checks=[], turns=None, use=lambda node: None)
        self.turns = Turns(chain, [Endpoint(f"{n}", f"{n}", None, lost=False) for n in range(count)])
        self.false, self.own, self.beside, self.clock = false, own, beside, clock
        self.draw = random.Random(count)
        self.finished = self.honest = 0

    def look(self, part: float) -> int:
        """Make one look; its endpoint. `part`: the share of its permitted time that a false endpoint uses."""
        look = self.turns.look
        for n in range(len(self.turns.all)):
            most, needs = look.limit(n), self.own if n == look.own else self.beside
            if n < self.false:
                look.spent[n] = part * min(most, 1e3)
            else:
                needed = 1e3 if look.own < self.false else needs * self.draw.uniform(0.7, 1.3)
                look.spent[n] = min(needed, most)
        if look.own >= self.false:
            self.honest += 1
            self.finished += look.spent[look.own] < look.patience
        self.clock[0] += look.spent[look.own] + 3
        self.turns.next()
        return look.own


COUNTS = [(2, 1), (3, 1), (4, 1), (5, 2), (7, 3)]


@pytest.mark.parametrize(("count", "false"), COUNTS)
@pytest.mark.parametrize("own", [1.0, 40.0, 100.0, 350.0])
@pytest.mark.parametrize("part", [0.0, 0.49, 1.0])
def test_no_minority_changes_the_time_of_looks(
    count: int, false: int, own: float, part: float, clock: list[float]
) -> None:
    """The time is at most four times the need of most endpoints, and enough for them. Of two endpoints none is a
    majority, so the time stays the same."""
    played = Played(count, false, own, own / OTHERS / 4, clock)
    for _ in range(LOOKS):
        played.look(part)
        assert played.turns.patience <= min(max(PATIENCE, 4 * own), MOST)
    assert count == 2 or played.finished > 0.9 * played.honest


@pytest.mark.parametrize(("count", "false"), COUNTS)
@pytest.mark.parametrize("part", [0.0, 0.49, 1.0])
def test_no_minority_keeps_looks_long(count: int, false: int, part: float, clock: list[float]) -> None:
    """The start: most endpoints were slow until now. A false endpoint uses its time in the looks of the others too."""
    played = Played(count, false, 1.0, 0.1, clock)
    played.turns.patience = MOST
    for _ in range(LOOKS):
        played.look(part)
    assert played.turns.patience == PATIENCE


@pytest.mark.parametrize(("count", "false"), COUNTS)
@pytest.mark.parametrize("own", [1.0, 25.0, 50.0])
def test_quick_endpoints_have_no_more_looks_than_slow_ones(
    count: int, false: int, own: float, clock: list[float]
) -> None:
    played = Played(count, false, own, 0.1, clock)
    looks = [played.look(0.0) for _ in range(LOOKS)]
    assert sum(n < false for n in looks) <= 1.15 * LOOKS * false / count


@pytest.mark.parametrize("patience", [PATIENCE, MOST])
def test_a_look_ends_however_long_its_replies_may_take(patience: float) -> None:
    """Its time is not renewed before all its limits are reached."""
    look, now = look_at(0, 3, 0.0, patience), 0.0
    while look.left(0) > 0:
        look.begin_request(now)
        now += 7
        look.end_request(0, now - 7, now, True)
    assert patience <= now < patience + 7
    look.begin_request(now + SENDS * patience)
    assert look.left(0) <= 0
    look.begin_request(now + STALE + (SENDS + 2) * patience)
    assert look.left(0) == patience


def test_a_failure_in_the_look_of_another_counts_against_no_endpoint(clock: list[float]) -> None:
    """Also while the role waits for a transaction."""
    turns = Played(3, 0, 1.0, 0.1, clock).turns
    turns.next()
    turns.look.begin_attempt(clock[0])
    turns.next()
    turns.chain.lost, turns.tried = True, True
    turns.next()
    assert turns.answering == 3 and all(e.until <= clock[0] for e in turns.all)

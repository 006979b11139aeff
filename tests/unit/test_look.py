"""The time of a look is what most endpoints need: no minority changes it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from vgame.chain.look import OTHERS
from vgame.chain.turns import LONGEST, MOST, PATIENCE, Endpoint, Turns

MOVES = 2_000


def turns_of(count: int) -> Turns:
    chain = SimpleNamespace(url="", secret="", lost=False, form="", checks=[], turns=None, use=lambda node: None)
    return Turns(chain, [Endpoint(f"{n}", f"{n}", None, lost=False) for n in range(count)])


def play(turns: Turns, false: int, own: float, beside: float, clock: list[float], draw: random.Random) -> None:
    """One look. The first `false` endpoints take what they like, and have the others asked as often as they like; an
    honest one takes `own` seconds in its look, `beside` in that of another honest one."""
    look = turns.look
    for n in range(len(turns.all)):
        most = look.limit(n)
        honest = own if n == look.own else beside
        free = n < false or look.own < false
        look.spent[n] = draw.choice([0.0, most / 2, most]) if free else min(honest, most)
    look.lacked = look.own < false and draw.random() < 0.5
    clock[0] += sum(look.spent)
    turns.next()


@pytest.mark.parametrize(("count", "false"), [(2, 1), (3, 1), (4, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize(("own", "beside"), [(1.0, 0.1), (20.0, 3.0), (100.0, 30.0)])
def test_no_minority_makes_looks_longer_or_shorter(
    count: int, false: int, own: float, beside: float, clock: list[float]
) -> None:
    """Of two endpoints not even one. A majority of honest ones has the time that it needs."""
    turns, draw, own_looks = turns_of(count), random.Random(count), list[float]()
    for move in range(MOVES):
        play(turns, false, own, beside, clock, draw)
        assert turns.patience <= min(max(PATIENCE, 2 * own, 2 * OTHERS * beside), MOST)
        if move > MOVES // 2 and turns.look.own >= false:
            own_looks.append(turns.patience)
    if 2 * false < count:
        assert min(own_looks) >= min(own, MOST)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_slow_endpoint_has_at_most_its_share_of_the_time(count: int, clock: list[float]) -> None:
    turns, shares = turns_of(count), [0.0] * count
    while sum(shares) < 100 * LONGEST:
        own = turns.look.own
        seconds = 59.0 if own == 0 else 0.5
        turns.look.spent[own] = seconds
        shares[own] += seconds
        clock[0] += seconds
        turns.next()
    assert 0.9 / count <= shares[0] / sum(shares) <= 1.1 / count

"""A look counts only if its time is consistent with other looks: a quarter of them may be false, two thirds stale."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from test_delivery_rules import UNTIL, at

from vgame.delivery import looks
from vgame.delivery.looks import APART, BETWEEN, KEPT, Looks
from vgame.errors import NotYet

BEGIN = UNTIL - 10_000
EVERY = 12.0  # seconds between two looks


class Role:
    """Looks every EVERY seconds at nodes that show a block with the clock's time plus `shift`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, development: bool = False) -> None:
        self.clock, self.shift, self.looks, self.number = 1_000.0, 0, Looks(), count(1)
        chain = SimpleNamespace(is_development=development, url="http://127.0.0.1", endpoint=0)
        self.game: Any = SimpleNamespace(chain=chain)
        monkeypatch.setattr(looks, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(looks, "read", lambda *_: replace(at(self.true + self.shift), number=next(self.number)))

    @property
    def true(self) -> int:
        """Time of the newest block."""
        return BEGIN + int(self.clock)

    def look(self, shift: int = 0, after: float = EVERY) -> bool:
        """Whether the next look counts."""
        self.clock, self.shift = self.clock + after, shift
        try:
            return self.looks.read(self.game, b"").now == self.true + shift
        except NotYet:
            return False


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch) -> Role:
    return Role(monkeypatch)


@pytest.mark.parametrize("shift", [APART + 1, 10**9, -2 * APART, -BEGIN])
def test_a_look_in_four_may_be_false(role: Role, shift: int) -> None:
    """After the first KEPT looks, every true look counts and no false one does."""
    counts = [role.look(shift if n % 4 == 1 else 0) for n in range(60)]
    assert counts[KEPT:] == [n % 4 != 1 for n in range(KEPT, 60)]


def test_two_looks_in_three_may_be_stale(role: Role) -> None:
    """From a stalled node behind the same address."""
    stands = role.true

    def look(n: int) -> bool:
        return role.look() if n % 3 == 0 else role.look(stands - role.true - int(EVERY))

    counts = [look(n) for n in range(90)]
    assert counts[30:] == [n % 3 == 0 for n in range(30, 90)]


@pytest.mark.parametrize("look", range(20))
def test_one_false_look_stops_few_true_ones(role: Role, look: int) -> None:
    counts = [role.look(10**9 if n == look else 0) for n in range(40)]
    assert sum(counts) >= 40 - 5 and all(counts[look + 6 :])


def test_the_replies_of_one_moment_are_one_look(role: Role) -> None:
    assert all(role.look() for _ in range(KEPT))
    assert not any(role.look(10**6, BETWEEN / 20) for _ in range(KEPT))
    assert role.look(0, BETWEEN)


def test_after_a_suspension_the_new_time_counts(role: Role) -> None:
    """The monotonic clock stops during a suspension."""
    assert all(role.look() for _ in range(KEPT))
    assert [role.look(3_600) for _ in range(6)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("every", [EVERY, 60.0])
def test_blocks_may_be_rare(role: Role, every: float) -> None:
    """One in ten minutes: only the first looks that show a new one do not count."""

    def old() -> int:
        return int(role.clock + every) % 600

    counts = [role.look(-old(), every) for _ in range(int(6_000 / every))]
    assert sum(counts) >= len(counts) - 4 * 11


def test_blocks_of_a_development_chain_have_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    role = Role(monkeypatch, development=True)
    assert all(role.look(shift) for shift in (0, 10**9, -BEGIN, 7))


def test_each_endpoint_is_compared_with_itself(role: Role) -> None:
    """A lying endpoint does not invalidate the looks at another one."""

    def looks(endpoint: int, shift: int) -> list[bool]:
        role.game.chain.endpoint = endpoint
        return [role.look(shift) for _ in range(5)]

    assert all(looks(0, 10**6)) and all(looks(1, 0)) and all(looks(0, 10**6))


def test_of_three_endpoints_the_middle_time_is_right(role: Role) -> None:
    """An endpoint that lies from its first look on counts until the others have shown their times."""

    def counts(endpoint: int, shift: int) -> bool:
        role.game.chain.endpoint = endpoint
        return role.look(shift)

    looks = [[counts(n, 10**6 if n == 1 else 0) for n in range(3)] for _ in range(10)]
    assert looks == [[True, True, True], *[[True, False, True]] * 9]

"""A node that stands still decides nothing; a false time does not make true replies worthless."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_delivery_rules import UNTIL, at

from vgame.delivery import looks
from vgame.delivery.looks import BLIND, LOOKS, Looks
from vgame.delivery.rules import Snapshot
from vgame.errors import NotYet


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(looks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """What the endpoint shows next; the last of it again and again."""
    replies: list[Snapshot] = []
    monkeypatch.setattr(looks, "read", lambda *_: replies.pop(0) if len(replies) > 1 else replies[0])
    return replies


def a_role(development: bool = False) -> Any:
    made = Looks(SimpleNamespace(is_development=development, url="http://127.0.0.1"))
    return lambda: made.read(None, b"")


def block(number: int, now: int = 0) -> Snapshot:
    return replace(at(now or UNTIL - 1_000 + 12 * number), number=number)


def test_a_node_that_stands_still_is_passed_over(clock: list[float], shown: list[Snapshot]) -> None:
    role, old = a_role(), block(70)
    shown += [block(94), old, block(95), old, block(95), *[old] * (LOOKS - 1), block(96)]
    assert [role().number for _ in range(5)] == [94, 70, 95, 95, 96]
    shown[:] = [old]
    with pytest.raises(NotYet, match="shows block 70 again after block 96"):
        role()


def test_true_blocks_count_after_one_with_a_false_time(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [block(94), block(94, 2**40), block(95), block(94, 2**40), block(96), block(97)]
    assert [role().now for _ in range(5)] == [b.now for b in (block(94), block(94, 2**40), *map(block, (95, 96, 97)))]


def test_one_that_alone_is_left_is_taken_after_a_while(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [block(94), block(95), block(94)]
    role(), role()
    clock[0] += BLIND - 1
    with pytest.raises(NotYet):
        role()
    clock[0] += 1
    assert role().number == 94 == role().number


def test_blocks_of_a_development_chain_may_be_undone(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role(development=True)
    shown += [block(94), block(95), block(94)]
    assert [role().number for _ in range(3)] == [94, 95, 94]

"""Looks only go forward: a reply of a node that lags decides nothing, and a false time blinds no role for long."""

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

OLD, NEW = replace(at(UNTIL - 300), number=70), replace(at(UNTIL - 12), number=94)


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


def test_a_node_that_lags_behind_a_balancer_is_passed_over(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [NEW, OLD, NEW, *[OLD] * (LOOKS - 1), replace(NEW, now=NEW.now + 12, number=95)]
    assert [role().number for _ in range(3)] == [94, 94, 95]


def test_a_look_at_older_blocks_only_says_nothing(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [NEW, OLD]
    role()
    with pytest.raises(NotYet, match="shows block 70, but has shown block 94"):
        role()
    shown[:] = [replace(NEW, number=93)]
    with pytest.raises(NotYet):
        role()
    shown[:] = [replace(NEW, number=93, now=NEW.now + 1)]  # of another branch
    assert role().number == 93


def test_a_false_time_blinds_a_role_for_a_moment_only(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [replace(NEW, now=2**40), NEW]
    role()
    clock[0] += BLIND - 1
    with pytest.raises(NotYet):
        role()
    clock[0] += 1
    assert role().now == NEW.now


def test_blocks_of_a_development_chain_may_be_undone(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role(development=True)
    shown += [NEW, OLD]
    assert [role().number, role().number] == [94, 70]

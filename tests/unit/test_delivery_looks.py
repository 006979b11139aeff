"""A node that lags or stands still decides nothing; a false number or time does not make true replies worthless."""

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


def test_a_node_that_lags_is_passed_over(clock: list[float], shown: list[Snapshot]) -> None:
    """Also one whose blocks are new to the role."""
    role = a_role()
    shown += [block(94), block(70), block(95), block(71), block(95), block(72), block(72), block(96)]
    assert [role().number for _ in range(4)] == [94, 95, 95, 96]
    shown[:] = [block(73)]
    with pytest.raises(NotYet, match="shows block 73 after block 96"):
        role()


def test_after_a_false_number_true_ones_count_after_a_while(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [block(94), block(2**40), block(95)]
    assert [role().number for _ in range(2)] == [94, 2**40]
    with pytest.raises(NotYet):
        role()
    clock[0] += BLIND
    assert role().number == 95 == role().number


@pytest.mark.parametrize("false", [0, 2**40])
@pytest.mark.parametrize("number", [94, 95])
def test_a_false_time_ends_nothing(clock: list[float], shown: list[Snapshot], number: int, false: int) -> None:
    """A past one is read again; after one in the future true ones still count."""
    role, lie = a_role(), replace(block(number), now=false)
    shown += [block(94), lie, *[block(95)] * (LOOKS + 1), block(96)]
    assert role() == block(94)
    believed = lie.now > block(94).now and number == 95
    assert role() == (lie if believed else block(95)) and role() == block(95)
    shown[:] = [block(96)]
    assert role() == block(96)


def test_times_that_contradict_each_other_stop_no_look(clock: list[float], shown: list[Snapshot]) -> None:
    role = a_role()
    shown += [block(94), *[replace(block(95), now=0)] * LOOKS, block(96)]
    assert [role().now for _ in range(3)] == [block(94).now, 0, block(96).now]


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

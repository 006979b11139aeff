"""Of many cases of one kind `make test` runs some; `make wide`, which CI runs too, has the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

#: The tests that take longest, one a line: `FILE::NAME`, or `FILE::NAME[2:]` for its cases after the second.
LONG = Path(__file__).with_name("wide.txt")
REST = "[2:]"
#: Tests that wait for blocks of real time, and compute little.
WAITING = ("test_typed_trades.py", "test_composed.py")


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of LONG as wide."""
    long, seen = set(LONG.read_text().splitlines()), Counter[str]()
    for item in items:
        name = item.nodeid.split("[")[0]
        seen[name] += 1
        if name in long or (seen[name] > 2 and name + REST in long):
            item.add_marker(pytest.mark.wide)


def begin_waiting(items: list[Any]) -> None:
    """Move the tests of WAITING to the front: at the end a worker would be alone with them."""
    items.sort(key=lambda item: item.path.name not in WAITING)


def of_many(cases: Iterable[Any], *daily: Any) -> list[Any]:
    """For `parametrize`: the cases, where all but the daily ones are wide."""
    cases = list(cases)
    assert set(daily) < set(cases), f"{set(daily) - set(cases)} are no cases"
    return [case if case in daily else pytest.param(*_values(case), marks=pytest.mark.wide) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)

"""Of many cases of one kind `make test` runs some; `make wide`, which CI runs too, has the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

#: The tests that take longest, one a line: `FILE` or `FILE::NAME`. With `[n:]`: of each such test the cases after the
#: first n.
LONG = Path(__file__).with_name("wide.txt")
#: Tests that wait for blocks of real time, and compute little.
WAITING = ("test_typed_trades.py", "test_composed.py")


def parsed(line: str) -> tuple[str, int]:
    """(file or test, number of its cases that are not wide) in a line of LONG."""
    name, bracket, count = line.partition("[")
    return name, int(count.removesuffix(":]")) if bracket else 0


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of LONG as wide."""
    long, seen = dict(map(parsed, LONG.read_text().splitlines())), Counter[str]()
    for item in items:
        test = item.nodeid.split("[")[0]
        seen[test] += 1
        if any(name in long and seen[test] > long[name] for name in (test, test.split("::")[0])):
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

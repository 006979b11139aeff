"""Of many cases of one kind `make test` runs some; `make wide`, which CI runs too, has the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def of_many(cases: Iterable[Any], *daily: Any) -> list[Any]:
    """For `parametrize`: the cases, where all but the daily ones are wide."""
    cases = list(cases)
    assert set(daily) < set(cases), f"{set(daily) - set(cases)} are no cases"
    return [case if case in daily else pytest.param(*_values(case), marks=pytest.mark.wide) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)

"""Constants of the error bounds, and counts of the elements settled by each tier (docs/numerics-products.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock

#: Unit roundoff of binary64, rounding to nearest.
UNIT = 2.0**-53
#: Covers every rounding in the computation of a bound, for up to 2^31 terms.
SLACK = 1 + 2.0**-19
#: Longest sum for which SLACK is proved.
MAX_TERMS = 1 << 31
#: An error that leaves no sum certain before the last digit.
NEVER_CERTAIN = math.inf
#: The "lowest bit" of zero: 2^1024 reads as infinity.
OF_ZERO = 1024


@dataclass(slots=True)
class Counts:
    """Numbers of elements settled by each tier: the bound (non-finite results too), the exactness test, the exact
    tier."""

    bound: int = 0
    exact: int = 0
    tier: int = 0

    @property
    def elements(self) -> int:
        return self.bound + self.exact + self.tier


_counts: ContextVar[Counts | None] = ContextVar("counts", default=None)
_one_at_a_time = Lock()


@contextmanager
def counting() -> Iterator[Counts]:
    """`with counting() as counts:` counts the certified sums of this thread and of its helper threads."""
    counts = Counts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


def is_counted() -> bool:
    """Whether counting is active; on a GPU it costs a wait for the device."""
    return _counts.get() is not None


def tally(elements: int, tested_exact: int, tier: int) -> None:
    """Record one finished group of elements; the remaining ones are settled by the bound."""
    counts = _counts.get()
    if counts is not None:
        with _one_at_a_time:
            counts.bound += elements - tested_exact - tier
            counts.exact += tested_exact
            counts.tier += tier

"""How long a loop goes on when the world does not answer: for ever, except where nothing can be done any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from vgame.errors import Abstain, Over, TooDear, VgameError
from vgame.report import Reporter

T = TypeVar("T")


class Patience:
    """A problem that may pass is said and waited for, longer each time; said again once in a while, with what is left of clocks that run
    meanwhile (`hurry`, a part of a sentence)."""

    AGAIN = 300.0  # seconds until a problem that stays is said again

    def __init__(
        self, reporter: Reporter, poll: float, longest: float = 15.0, hurry: Callable[[], str] = lambda: ""
    ) -> None:
        self.reporter, self.poll, self.longest, self.hurry = reporter, poll, longest, hurry
        self.delay, self.said, self.since = poll, "", 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: object) -> bool:
        if problem is None:
            self.delay, self.said = self.poll, ""
        if not isinstance(problem, VgameError) or isinstance(problem, Over):
            return False
        what = TooDear.__name__ if isinstance(problem, TooDear) else str(problem)  # a fee is another in every block
        if what != self.said or time.monotonic() - self.since > self.AGAIN:
            self.said, self.since, clock = what, time.monotonic(), ""
            with suppress(VgameError):
                clock = self.hurry()
            again = "" if isinstance(problem, Abstain) else " (trying again)"
            self.reporter.emit(
                "problem", f"{problem}{again}{clock and f'; {clock}'}", message=str(problem), clock=clock
            )
        time.sleep(self.delay)
        self.delay = min(2 * self.delay, self.longest)
        return True

    def insist(self, duty: Callable[[], T]) -> T:
        """Do it, however often it takes."""
        while True:
            with self:
                return duty()

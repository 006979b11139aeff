"""Retry with back-off until the job is over."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from vgame.errors import Abstain, Over, VgameError
from vgame.system.progress import Reporter

T = TypeVar("T")
QUIET_ROUND = 15.0  # seconds between two rounds at a remote node while the role has nothing open
QUIET = 5  # polls between two rounds of a role while there is no new block, and so no change


class Retry:
    """Errors are reported and retried after longer and longer pauses, except Over. A lasting problem is reported again
    once in a while, with the time left of running clocks (`hurry`, a part of a sentence). `bears`: the type of the
    retried errors; by default all, because data of an endpoint can raise anything."""

    AGAIN = 300.0  # seconds until a lasting problem is reported again

    def __init__(
        self,
        reporter: Reporter,
        poll: float,
        longest: float = 15.0,
        hurry: Callable[[], str] = lambda: "",
        bears: type[Exception] = Exception,
    ) -> None:
        self.reporter, self.poll, self.longest, self.hurry, self.bears = reporter, poll, longest, hurry, bears
        self.delay, self.reported, self.since = poll, "", 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: object) -> bool:
        if problem is None:
            self.delay, self.reported = self.poll, ""
            self.reporter.beat()
        if not isinstance(problem, self.bears) or isinstance(problem, Over):
            return False
        self.say(problem)
        self.wait()
        self.delay = min(2 * self.delay, self.longest)
        return True

    def say(self, problem: Exception) -> None:
        """Report a problem once, and again after AGAIN seconds if it lasts."""
        text = sentence(problem)
        what = re.sub(r"\d+", "", text)  # fees and amounts change in every block
        if what == self.reported and time.monotonic() - self.since <= self.AGAIN:
            return
        self.reported, self.since, clock = what, time.monotonic(), ""
        with suppress(Exception):
            clock = self.hurry()
        again = "" if isinstance(problem, Abstain) else " (trying again)"
        self.reporter.emit("problem", f"{text}{again}{clock and f'; {clock}'}", message=text, clock=clock)

    def wait(self) -> None:
        """Wait until the next try."""
        time.sleep(self.delay)

    def insist(self, duty: Callable[[], T]) -> T:
        """Try the duty until it succeeds; returns its result."""
        while True:
            with self:
                return duty()


class Deferred(Retry):
    """A failed duty is skipped until its next try is due, so that other duties need not wait."""

    until = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.until

    def wait(self) -> None:
        self.until = time.monotonic() + self.delay


def sentence(problem: BaseException) -> str:
    """The text of an error; for an unforeseen one also its type and the line of vgame that raised it."""
    if isinstance(problem, VgameError):
        return str(problem)
    root = Path(__file__).parents[1]
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if Path(f.filename).is_relative_to(root)]
    place = f" at {Path(frames[-1].filename).relative_to(root.parent)}:{frames[-1].lineno}" if frames else ""
    return f"unforeseen {type(problem).__name__}{place}: {' '.join(str(problem).split())[:200]}"

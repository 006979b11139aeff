"""How long a loop goes on when the world does not answer: for ever, except where nothing can be done any more."""

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
QUIET_ROUND = 15.0  # seconds between two rounds at a node elsewhere while nothing of the role's own is open
QUIET = 5  # polls between two rounds of a role while no block comes: what it looks at has not changed


class Retry:
    """Failures are reported and retried after ever longer pauses, unless all is over. They are reported again once in a
    while, with what is left of clocks that run meanwhile (`hurry`, a part of a sentence). `bears`: the errors that it
    does this for; whatever an endpoint shows can raise any."""

    AGAIN = 300.0  # seconds until a problem that stays is said again

    def __init__(
        self,
        reporter: Reporter,
        poll: float,
        longest: float = 15.0,
        hurry: Callable[[], str] = lambda: "",
        bears: type[Exception] = Exception,
    ) -> None:
        self.reporter, self.poll, self.longest, self.hurry, self.bears = reporter, poll, longest, hurry, bears
        self.delay, self.said, self.since = poll, "", 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: object) -> bool:
        if problem is None:
            self.delay, self.said = self.poll, ""
            self.reporter.beat()
        if not isinstance(problem, self.bears) or isinstance(problem, Over):
            return False
        self.say(problem)
        self.wait()
        self.delay = min(2 * self.delay, self.longest)
        return True

    def say(self, problem: Exception) -> None:
        """Once, and again where it stays."""
        text = sentence(problem)
        what = re.sub(r"\d+", "", text)  # fees and amounts are others in every block
        if what == self.said and time.monotonic() - self.since <= self.AGAIN:
            return
        self.said, self.since, clock = what, time.monotonic(), ""
        with suppress(Exception):
            clock = self.hurry()
        again = "" if isinstance(problem, Abstain) else " (trying again)"
        self.reporter.emit("problem", f"{text}{again}{clock and f'; {clock}'}", message=text, clock=clock)

    def wait(self) -> None:
        """Until the next try."""
        time.sleep(self.delay)

    def insist(self, duty: Callable[[], T]) -> T:
        """Do it, however often it takes."""
        while True:
            with self:
                return duty()


class Deferred(Retry):
    """What failed is left out until its time comes: nothing else has to wait for it."""

    until = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.until

    def wait(self) -> None:
        self.until = time.monotonic() + self.delay


def sentence(problem: BaseException) -> str:
    """What went wrong; where nobody foresaw it, with its kind and the line of vgame that it came from."""
    if isinstance(problem, VgameError):
        return str(problem)
    root = Path(__file__).parents[1]
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if Path(f.filename).is_relative_to(root)]
    place = f" at {Path(frames[-1].filename).relative_to(root.parent)}:{frames[-1].lineno}" if frames else ""
    return f"unforeseen {type(problem).__name__}{place}: {' '.join(str(problem).split())[:200]}"

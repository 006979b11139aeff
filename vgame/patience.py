"""How long a loop goes on when the world does not answer: for ever, except where nothing can be done any more."""

from __future__ import annotations

import time

from vgame.errors import Abstain, Over, VgameError
from vgame.report import Reporter


class Patience:
    """A problem that may pass is said once and waited for, longer each time: clocks run on while a role is down."""

    def __init__(self, reporter: Reporter, poll: float, longest: float = 15.0) -> None:
        self.reporter, self.poll, self.longest = reporter, poll, longest
        self.delay, self.said = poll, ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: object) -> bool:
        if problem is None:
            self.delay, self.said = self.poll, ""
        if not isinstance(problem, VgameError) or isinstance(problem, Over):
            return False
        if str(problem) != self.said:
            self.said = str(problem)
            again = "" if isinstance(problem, Abstain) else " (trying again)"
            self.reporter.emit("problem", f"{problem}{again}", message=self.said)
        time.sleep(self.delay)
        self.delay = min(2 * self.delay, self.longest)
        return True

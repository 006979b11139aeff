"""How long a player waits before it sends the same call again.

An endpoint can show the state before a move for as long as it likes, and estimate that the move would pass. Sent again,
the move reverts or has no effect, and costs gas each time. So the same call waits, and other duties go first.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

#: Seconds after the first time: a block, in which an honest node shows the effect. Twice as long each time, to LONGEST.
PAUSE, LONGEST = 12.0, 600.0
#: An endpoint can invent disputes for these calls, and no own clock depends on them: they share one pause, which begins
#: after a revert only.
TIMEOUTS = frozenset({"timeout", "timeoutMany"})


class Pauses:
    """The pauses of one account's calls in one job."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[float, float]] = {}  # seconds, and when they are over

    def waits(self, name: str, *args: object) -> bool:
        return time.monotonic() < self.known.get(_call(name, args), (0.0, 0.0))[1]

    def begin(self, name: str, *args: object) -> None:
        """It was sent just now. Long after its last pause it is new: a reorganisation may undo each move once more."""
        call, now = _call(name, args), time.monotonic()
        seconds, over = self.known.get(call, (0.0, now))
        seconds = PAUSE if not seconds or now > over + LONGEST else min(2 * seconds, LONGEST)
        self.known[call] = seconds, now + seconds

    def end(self, name: str, *args: object) -> None:
        self.known.pop(_call(name, args), None)


def _call(name: str, args: tuple[object, ...]) -> Hashable:
    return "timeouts" if name in TIMEOUTS else (name, hash(repr(args)))

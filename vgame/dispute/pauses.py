"""The pause before a player sends the same call again.

An endpoint can show the state before a move for any length of time, and estimate that the move would succeed. A
repeated move reverts or has no effect, and costs gas each time. So the same call waits, and other duties go first.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

#: Seconds after the first call: one block, after which an honest node shows the effect. Doubled each time, up to
#: LONGEST.
PAUSE, LONGEST = 12.0, 600.0
#: An endpoint can invent disputes for these calls, and no own clock depends on them. So they share one pause, which
#: begins only after a revert.
TIMEOUTS = frozenset({"timeout", "timeoutMany"})


class Pauses:
    """The pauses of one account's calls in one job."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[float, float]] = {}  # by call: length of the pause, and its end

    def waits(self, name: str, *args: object) -> bool:
        return time.monotonic() < self.known.get(_call(name, args), (0.0, 0.0))[1]

    def begin(self, name: str, *args: object) -> None:
        """Begin the pause of a call that was just sent. Long after its last pause a call counts as new, because a
        reorganisation may undo any move again."""
        call, now = _call(name, args), time.monotonic()
        seconds, over = self.known.get(call, (0.0, now))
        seconds = PAUSE if not seconds or now > over + LONGEST else min(2 * seconds, LONGEST)
        self.known[call] = seconds, now + seconds

    def end(self, name: str, *args: object) -> None:
        self.known.pop(_call(name, args), None)


def _call(name: str, args: tuple[object, ...]) -> Hashable:
    return "timeouts" if name in TIMEOUTS else (name, hash(repr(args)))

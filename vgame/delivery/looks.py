"""Looks of a role at one delivery, without those whose time does not fit the others.

In: snapshots of an endpoint, which may be many nodes behind one address, and may lie. Out: those of nodes that neither
stand still nor are ahead of the clock. The last looks of an endpoint decide which time is right, not its newest block:
a quarter of them can be false, and two thirds old.
"""

from __future__ import annotations

import time
from collections import defaultdict

from vgame.chain.game import Game
from vgame.delivery.rules import Snapshot, read
from vgame.errors import NotYet

LOOKS = 3  # reads in a row, before a look is given up: the next one may reach another node
KEPT = 12  # looks of an endpoint that are compared
BETWEEN = 3.0  # seconds between two of them: the replies of one moment are one look
APART = 120  # seconds by which a block's time may differ, at most a twentieth of the confirm window


class Looks:
    """Block times that each endpoint has shown lately. On a development chain any time is right."""

    def __init__(self) -> None:
        self.shown: dict[int, list[tuple[float, int]]] = defaultdict(list)  # monotonic clock and block time

    def read(self, game: Game, job: bytes) -> Snapshot:
        """How a delivery stands; NotYet if the block's time does not fit those of the last looks."""
        for _ in range(LOOKS):
            s = read(game, job)
            if game.chain.is_development or not (why := self._misfit(s, self.shown[game.chain.endpoint])):
                return s
        raise NotYet(
            f"{game.chain.url} shows block {s.number} of second {s.now}, {why} its other blocks: a node behind it lags "
            "or lies; use another endpoint if this continues"
        )

    def _misfit(self, s: Snapshot, shown: list[tuple[float, int]]) -> str:
        """Is the time before or after those that were shown before? Empty if not."""
        now, why = time.monotonic(), ""
        apart = min(APART, s.job.spec.confirm_window // 20 or APART)
        if shown and s.now < _fresh([second for _, second in shown]) - apart:
            why = "before"
        elif shown and s.now - now > _fresh([second - clock for clock, second in shown]) + apart:
            why = "after"
        if not shown or now - shown[-1][0] >= BETWEEN:
            shown.append((now, s.now))
            del shown[:-KEPT]
        return why


def _fresh(values: list[float]) -> float:
    """The greatest value that more than a quarter of the looks reach."""
    return sorted(values, reverse=True)[len(values) // 4]

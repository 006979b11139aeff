"""Looks of a role at one delivery, without those whose time does not fit the others.

In: snapshots of an endpoint, which may be many nodes behind one address, and is untrusted. Out: snapshots of nodes that
neither lag nor are ahead of the clock. The right time follows from the last looks at an endpoint, not from its newest
block: a quarter of these looks can be false, and two thirds old.
"""

from __future__ import annotations

import time
from collections import defaultdict

from vgame.chain.game import Game
from vgame.delivery.rules import Snapshot, read
from vgame.errors import NotYet

LOOKS = 3  # reads in a row, before a look is given up: the next one may reach another node
KEPT = 12  # looks of an endpoint that are compared
BETWEEN = 3.0  # minimum seconds between two of them: the replies of one moment count as one look
APART = 120  # seconds by which a block's time may differ, at most a twentieth of the confirm window


class Looks:
    """Block times that each endpoint has shown lately; of three or more endpoints, the median is right. On a
    development chain any time is accepted."""

    def __init__(self) -> None:
        self.shown: dict[int, list[tuple[float, int]]] = defaultdict(list)  # monotonic clock and block time

    def read(self, game: Game, job: bytes) -> Snapshot:
        """A snapshot of a delivery; NotYet if the block's time does not fit those of the last looks."""
        for _ in range(LOOKS):
            s = read(game, job)
            if game.chain.is_development or not (why := self._misfit(s, game.chain.endpoint)):
                return s
        raise NotYet(
            f"{game.chain.url} shows block {s.number} of second {s.now}, {why} the other blocks: a node behind it lags "
            "or lies; use another endpoint if this continues"
        )

    def _misfit(self, s: Snapshot, endpoint: int) -> str:
        """`before` or `after`, if the time does not fit the earlier ones of this endpoint, or those of most endpoints;
        otherwise empty."""
        shown, now, why = self.shown[endpoint], time.monotonic(), ""
        apart = min(APART, s.job.spec.confirm_window // 20 or APART)
        if shown and s.now < _fresh([second for _, second in shown]) - apart:
            why = "before"
        elif shown and s.now - now > _fresh([second - clock for clock, second in shown]) + apart:
            why = "after"
        elif len(ahead := sorted(second - clock for clock, second in (ring[-1] for ring in self._rings()))) > 2:
            beside = s.now - now - ahead[len(ahead) // 2]
            why = "before" if beside < -apart else "after" if beside > apart else ""
        if not shown or now - shown[-1][0] >= BETWEEN:
            shown.append((now, s.now))
            del shown[:-KEPT]
        return why

    def _rings(self) -> list[list[tuple[float, int]]]:
        return [ring for ring in self.shown.values() if ring]


def _fresh(values: list[float]) -> float:
    """The greatest value that more than a quarter of the looks reach."""
    return sorted(values, reverse=True)[len(values) // 4]

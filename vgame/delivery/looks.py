"""Looks of a role at one delivery, each at a block that it has not left behind.

In: snapshots of an endpoint, which may be many nodes behind one address. Out: those of blocks that follow the last one.
A lower number comes from a node that lags or stands still: it neither decides anything nor ends what has lasted. A time
that goes back as the number goes on is false, or the last one's was; it is read again.
"""

from __future__ import annotations

import time

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.delivery.rules import Snapshot, read
from vgame.errors import NotYet

LOOKS = 3  # reads in a row, before a look is given up
#: Seconds without a block that follows, after which a lower one is taken: the last number may have been false.
BLIND = 120.0


class Looks:
    """The last block that a role has seen, by number and time. On a development chain blocks may be undone."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.at = chain, 0.0
        self.last: Snapshot | None = None

    def read(self, game: Game, job: bytes) -> Snapshot:
        """How a delivery stands; NotYet if the endpoint shows only lower blocks than the last one."""
        for left in range(LOOKS - 1, -1, -1):
            s = read(game, job)
            if self._follows(s) and (self._is_later(s) or not left):
                break
        else:
            if time.monotonic() - self.at < BLIND:
                raise NotYet(
                    f"{self.chain.url} shows block {s.number} after block {self.last.number if self.last else 0}: a "
                    "node behind it lags; use another endpoint if this continues"
                )
        self.last, self.at = s, time.monotonic()
        return s

    def _follows(self, s: Snapshot) -> bool:
        return self.chain.is_development or self.last is None or s.number >= self.last.number

    def _is_later(self, s: Snapshot) -> bool:
        if self.chain.is_development or self.last is None:
            return True
        return s.now == self.last.now if s.number == self.last.number else s.now > self.last.now

"""Looks of a role at one delivery, which only go forward.

In: snapshots of an endpoint, which may be many nodes behind one address. Out: the newest; a reply from a block before
one that was seen says nothing, so it neither decides anything nor ends what has lasted.
"""

from __future__ import annotations

import time

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.delivery.rules import Snapshot, read
from vgame.errors import NotYet

LOOKS = 3  # reads in a row, before a look is given up
#: Seconds without a newer block after which an older one is taken. A reply of a false time must not blind a role.
BLIND = 120.0


class Looks:
    """The newest block that a role has seen, by its time and number. On a development chain blocks may be undone."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.newest, self.at = chain, (0, 0), 0.0

    def read(self, game: Game, job: bytes) -> Snapshot:
        """How a delivery stands; NotYet if the endpoint shows only blocks before the newest."""
        for _ in range(LOOKS):
            s = read(game, job)
            if (s.now, s.number) >= self.newest or self.chain.is_development:
                break
        else:
            if time.monotonic() - self.at < BLIND:
                raise NotYet(
                    f"{self.chain.url} shows block {s.number}, but has shown block {self.newest[1]}: a node behind it "
                    "lags; use another endpoint if this continues"
                )
        self.newest, self.at = (s.now, s.number), time.monotonic()
        return s

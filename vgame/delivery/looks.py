"""Looks of a role at one delivery, each at a block that it has not left behind.

In: snapshots of an endpoint, which may be many nodes behind one address. Out: those of new blocks. A block that was
seen before the last one comes from a node that stands still: it neither decides anything nor ends what has lasted. A
new block counts, also if its time is before the last one's: that one's time may be false.
"""

from __future__ import annotations

import time
from collections import deque

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.delivery.rules import Snapshot, read
from vgame.errors import NotYet

LOOKS = 3  # reads in a row, before a look is given up
#: Seconds without a new block after which one that was left behind is taken.
BLIND = 120.0
#: Blocks that are remembered: those of a day at least.
REMEMBERED = 1 << 14


class Looks:
    """The blocks that a role has seen, by number and time. On a development chain blocks may be undone."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.at = chain, 0.0
        self.seen: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # the last one is at the end

    def read(self, game: Game, job: bytes) -> Snapshot:
        """How a delivery stands; NotYet if the endpoint shows only blocks that were left behind."""
        for _ in range(LOOKS):
            s = read(game, job)
            block = s.number, s.now
            if self.chain.is_development or block not in self.seen or block == self.seen[-1]:
                break
        else:
            if time.monotonic() - self.at < BLIND:
                raise NotYet(
                    f"{self.chain.url} shows block {s.number} again after block {self.seen[-1][0]}: a node behind it "
                    "stands still; use another endpoint if this continues"
                )
            self.seen.remove(block)
        if block not in self.seen:
            self.seen.append(block)
        self.at = time.monotonic()
        return s

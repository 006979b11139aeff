"""What cannot be taken back is decided on a final state, and on what every look shows for long enough.

In: a game. Out: jobs as of the last block that no reorganisation undoes. The newest block may be an old one, of another
branch, or made up for a moment; a role that goes on looking loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from math import inf

from vgame.chain.connection import FINALITY, Block, Chain
from vgame.chain.game import Game
from vgame.chain.records import Job, Phase

MOMENT = 30.0  # seconds: a false reply that lasts for less decides nothing where finality is too late


def final_jobs(game: Game, jobs: Sequence[bytes]) -> tuple[list[Job] | None, int]:
    """Jobs as of the last final block, and its second; None where one of them cannot be so by then."""
    with game.chain.final() as second:
        found = game.jobs(jobs)
        verdicts = [
            game.verdict(i) if job.phase is Phase.CONVICTED else None for i, job in zip(jobs, found, strict=True)
        ]
    fits = all(job.could_be(second, verdict) for job, verdict in zip(found, verdicts, strict=True))
    return found if fits else None, second


class Lasting:
    """What every look has shown, and since when by the own clock: an endpoint may call any block final, and give it any
    time. On a development chain the first look counts."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.first: dict[Hashable, tuple[Block, float]] = {}  # the newest block of the first look, and when it was

    def held(self, what: Hashable, so: bool = True) -> float:
        """Seconds for which each look has shown it. `so`: does this look show it? One that does not begins anew, and a
        branch that replaces the first one's block."""
        if not so:
            self.first.pop(what, None)
            return 0.0
        first, since = self.first.setdefault(what, (self.chain.block(), time.monotonic()))
        if self.chain.block(first.number) != first:
            del self.first[what]
            return 0.0
        return inf if self.chain.is_development else time.monotonic() - since

    def shown(self, what: Hashable, so: bool = True) -> bool:
        """Has each look shown it since a block that is final by now, and for FINALITY seconds?"""
        held = self.held(what, so)
        return held >= FINALITY and self.first[what][0].time <= self.chain.final_time()

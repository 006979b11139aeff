"""Irreversible decisions need a final state, and the same reply in every look for long enough.

In: a game. Out: jobs in the state after the last final block, which no reorganisation undoes. The newest block may be
old, of another branch, or invented for a moment; a role that waits for another look loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from math import inf

from vgame.chain.connection import FINALITY, Chain
from vgame.chain.game import Game
from vgame.chain.records import Job, Phase

MOMENT = 30.0  # seconds that a reply must last for decisions that cannot wait for finality


def final_jobs(game: Game, jobs: Sequence[bytes]) -> tuple[list[Job] | None, int]:
    """Jobs in the state after the last final block, and its time; None instead of the jobs if one is not possible at
    that time."""
    with game.chain.final() as second:
        found = game.jobs(jobs)
        verdicts = [
            game.verdict(i) if job.phase is Phase.CONVICTED else None for i, job in zip(jobs, found, strict=True)
        ]
    fits = all(job.could_be(second, verdict) for job, verdict in zip(found, verdicts, strict=True))
    return found if fits else None, second


class Lasting:
    """Conditions that every look has shown, for how long by the own clock: an endpoint may call any block final, and
    give it any time. On a development chain one look is enough."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.since: dict[Hashable, float] = {}  # by condition: the monotonic clock at the first look that showed it
        self.times: dict[Hashable, int] = {}  # least time of a newest block since then

    def held(self, what: Hashable, so: bool = True) -> float:
        """Seconds for which each look has shown a condition. `so`: does this look show it? If not, the time begins
        again."""
        if not so:
            self.since.pop(what, None)
            self.times.pop(what, None)
            return 0.0
        since = self.since.setdefault(what, time.monotonic())
        return inf if self.chain.is_development else time.monotonic() - since

    def shown(self, what: Hashable, so: bool = True) -> bool:
        """Has each look shown a condition for FINALITY seconds, and since a block that is final now? A block with a
        false time, however late, does not count beside the next one: the least time does."""
        held = self.held(what, so)
        if not so:
            return False
        newest = self.chain.block().time
        self.times[what] = min(newest, self.times.get(what, newest))
        return held >= FINALITY and self.times[what] <= self.chain.final_time()

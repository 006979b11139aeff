"""Irreversible decisions need a final state, and the same reply in every look for long enough.

In: a game. Out: jobs in the state after the last final block, which no reorganisation undoes. The newest block may be
old, of another branch, or invented for a moment; a role that waits for another look loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
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


def most(chain: Chain) -> int:
    """More than half of the endpoints: needed for irreversible decisions."""
    return (len(chain.turns.all) if chain.turns else 1) // 2 + 1


def most_answering(chain: Chain) -> int:
    """More than half of the endpoints that answer: enough at the last moment, after which waiting costs more."""
    return (chain.turns.answering if chain.turns else 1) // 2 + 1


def one(_: Chain) -> int:
    """One endpoint is enough for a stake: it names the root that it disputes, so a false reply costs gas, but no
    bond."""
    return 1


class Lasting:
    """How long all looks have shown a condition, by this machine's clock: an endpoint may call any block final, and
    give it any time. The looks at each endpoint count separately. On a development chain one look is enough."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        #: By condition and endpoint: the monotonic clock at the first look that showed it, and at the last one.
        self.spans: dict[Hashable, dict[int, tuple[float, float]]] = {}
        self.times: dict[Hashable, int] = {}  # by condition and endpoint: earliest time of a newest block since then

    def held(self, what: Hashable, so: bool = True, of: Callable[[Chain], int] = most) -> float:
        """Seconds for which each look at enough endpoints (`of`) has shown a condition. `so`: does this look show it?
        If not, this endpoint's time begins again. An endpoint without a look for FINALITY seconds does not count."""
        at, now, spans = self.chain.endpoint, time.monotonic(), self.spans.setdefault(what, {})
        if not so:
            spans.pop(at, None)
            self.times.pop((what, at), None)
            return 0.0
        spans[at] = spans.get(at, (now, now))[0], now
        if self.chain.is_development:
            return inf
        lately = [last - first for first, last in spans.values() if now - last <= FINALITY]
        seconds = sorted(lately, reverse=True)
        needed = of(self.chain)
        return seconds[needed - 1] if needed <= len(seconds) else 0.0

    def shown(self, what: Hashable, so: bool = True) -> bool:
        """Has each look shown a condition for FINALITY seconds, and since a block that is final now? The earliest block
        time since the first look counts, so one block with a false late time has no effect."""
        held, key = self.held(what, so), (what, self.chain.endpoint)
        if not so:
            return False
        newest = self.chain.block().time
        self.times[key] = min(newest, self.times.get(key, newest))
        return held >= FINALITY and self.times[key] <= self.chain.final_time()

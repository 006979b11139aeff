"""What cannot be taken back is decided on a final state, and on what every look shows for as long as finality takes.

In: a game. Out: jobs as of the last block that no reorganisation undoes. The newest block may be an old one, of another
branch, or made up for a moment; a role that goes on looking loses nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vgame.chain.connection import Block, Chain
from vgame.chain.game import Game
from vgame.chain.records import Job


def final_jobs(game: Game, jobs: Sequence[bytes]) -> tuple[list[Job] | None, int]:
    """Jobs as of the last final block, and its second; None where one of them cannot be so by then."""
    with game.chain.final() as time:
        found = game.jobs(jobs)
    return found if all(job.could_be(time) for job in found) else None, time


class Lasting:
    """What every look has shown since a block that is final by now. A false reply, or a branch, that lasts for less
    than finality does not count."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.first: dict[Hashable, Block] = {}  # the newest block of the first look

    def shown(self, what: Hashable, so: bool = True) -> bool:
        """Was it shown in each look for long enough? `so`: does this look show it? One that does not begins anew."""
        if not so:
            self.first.pop(what, None)
            return False
        first = self.first.setdefault(what, self.chain.block())
        if self.chain.block(first.number) != first:
            del self.first[what]
            return False
        return first.time <= self.chain.final_time()

"""What cannot be taken back is decided on a final state: that a job has ended, or that nothing is left to do in it.

In: a game. Out: jobs as of the last block that no reorganisation undoes. The newest block may be an old one, of another
branch, or made up for a moment; a role that goes on looking loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgame.chain.game import Game
from vgame.chain.records import Job


def final_jobs(game: Game, jobs: Sequence[bytes]) -> tuple[list[Job] | None, int]:
    """Jobs as of the last final block, and its second; None where one of them cannot be so by then."""
    with game.chain.final() as time:
        found = game.jobs(jobs)
    return found if all(job.could_be(time) for job in found) else None, time

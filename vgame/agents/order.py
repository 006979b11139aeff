"""Does a bundle belong to the order of a job on chain?"""

from __future__ import annotations

from vgame.chain.anywhere import anywhere
from vgame.chain.game import Game
from vgame.chain.records import Job, JobSpec, Phase
from vgame.errors import Abstain, ChainError
from vgame.job.bundle import Bundle


def find_order(game: Game, bundle: Bundle, job: bytes) -> Job:
    """The job; Abstain unless the bundle is, byte for byte, the ordered one."""
    return anywhere(game.chain, lambda: _order(game, bundle, job))


def _order(game: Game, bundle: Bundle, job: bytes) -> Job:
    state = game.job(job)
    if state.phase is Phase.NONE:
        raise ChainError(f"there is no job {job.hex()} at {game.address}; check the job and the chain")
    if not is_ordered(game, bundle, job, state):
        raise Abstain(
            f"the bundle is not the one that job {job.hex()} orders (its identity differs): get the right one"
        )
    return state


def is_ordered(game: Game, bundle: Bundle, job: bytes, state: Job) -> bool:
    """Does the job order this bundle? The job's id is recomputed, not read."""
    return game.job_id(JobSpec(**bundle.order), state.client, state.nonce) == job

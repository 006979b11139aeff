"""Is a bundle what a job on the chain ordered?"""

from __future__ import annotations

from vgame.chain.game import Game
from vgame.chain.records import Event, JobSpec
from vgame.errors import Abstain, ChainError
from vgame.job.bundle import Bundle


def find_order(game: Game, bundle: Bundle, job: bytes) -> Event:
    """The job's creation event; abstains unless the bundle is byte for byte what was ordered."""
    events = game.events("JobCreated", job)
    if not events:
        raise ChainError(f"there is no job {job.hex()} at {game.address}; check the job and the chain")
    if (event := next((e for e in events if matches(game, bundle, e)), None)) is None:
        raise Abstain(f"the bundle is not what job {job.hex()} ordered (its identity differs): get the right one")
    return event


def matches(game: Game, bundle: Bundle, event: Event) -> bool:
    """Is the bundle what this JobCreated event ordered? The identity is recomputed, not read."""
    spec = JobSpec(**bundle.order)
    return game.job_id(spec, event.args["client"], event.args["nonce"]) == event.args["job"]

"""What trainer and auditor share: a wallet, a job, moves that may already have been made by somebody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from vgame.errors import ContractError, EndpointError
from vgame.game.game import Dispute, Game, Job, JobSpec, Phase, Status, Turn
from vgame.game.machine import Machine

log = logging.getLogger(__name__)

#: The contract's way of saying that the move is already made, or that the dispute or the job ended meanwhile: success for an honest player.
HARMLESS = frozenset(
    {
        "AlreadyPaid",
        "DisputeClosed",
        "NoneExpired",
        "NotExpired",
        "NotYourTurn",
        "NothingToWithdraw",
        "WrongLevel",
        "WrongPhase",
    }
)


class Player:
    """Plays one job for the wallet of `game`, from what `machine` computed. `terms`: those of the bundle, whose hash the job is."""

    terms: JobSpec | None = None
    side: Turn
    #: Windows of the spec in which this side may act, by phase.
    windows: Mapping[Phase, Sequence[tuple[str, str]]]

    def __init__(self, game: Game, job: bytes, machine: Machine) -> None:
        self.game, self.id, self.machine = game, job, machine

    def look(self) -> Job:
        """The job as the chain shows it now; its terms are what was ordered, whatever an endpoint says."""
        job = self.game.job(self.id)
        if self.terms is not None and job.phase is not Phase.NONE and job.spec != self.terms:
            raise EndpointError(
                f"{self.game.chain.url} shows other terms for job {self.id.hex()[:16]} than the bundle that hashes to it: nothing is done "
                "on its word; use another endpoint"
            )
        return job

    @property
    def address(self) -> str:
        assert self.game.wallet is not None
        return self.game.wallet.address

    def attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """Send a move; True if it was made, False if it was not needed any more."""
        try:
            self.game.send(name, *args, value=value)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            log.info("%s was not needed any more: %s", name, error)
            return False
        return True

    def turn_of(self, number: int) -> Turn | None:
        """Whose turn it is; None if the dispute has just ended."""
        try:
            return self.game.turn(self.id, number)[0]
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return None

    def hurry(self) -> str:
        """Which of the own clocks ends first, and how much of it is left; empty if none runs, or if the endpoint is away."""
        if self.game.chain.lost:
            return ""
        job, now = self.look(), self.game.chain.now()
        ends = [(job.since + getattr(job.spec, window), what) for window, what in self.windows.get(job.phase, ())]
        for number in range(job.disputes if job.phase is Phase.CLAIMED else 0):
            d = self.game.dispute(self.id, number)
            if d.status is Status.OPEN and self.plays(job, d):
                turn, end = self.game.turn(self.id, number)
                ends += [(end, f"the own clock of dispute {number}")] if turn is self.side else []
        left = [(end - now, what) for end, what in ends if end >= now]
        return f"{min(left)[0]} s are left of {min(left)[1]}" if left else ""

    def plays(self, job: Job, d: Dispute) -> bool:
        """Is it a dispute of this player's?"""
        return self.address == (job.trainer if self.side is Turn.TRAINER else d.auditor)

    def withdraw(self) -> bool:
        """Take what the contract owes."""
        return bool(self.game.credits(self.address)) and self.attempt("withdraw", self.address)


def each(duties: Iterable[Callable[[], bool]]) -> bool:
    """Do all duties, whatever becomes of one of them; True if any did something. The first error is raised when all are through."""
    acted, problems = False, []
    for duty in duties:
        try:
            acted |= duty()
        except (
            Exception
        ) as problem:  # what an endpoint shows can raise anything: the other duties are done all the same
            problems.append(problem)
    if problems:
        raise problems[0]
    return acted

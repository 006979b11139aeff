"""Common base of trainer and auditor: a wallet, a job, and moves that another account may already have made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Dispute, Job, JobSpec, Phase, Standing, Status, Turn
from vgame.commit.machine import Machine
from vgame.errors import ContractError, EndpointError, Paused, VgameError

log = logging.getLogger(__name__)

#: Errors by which the contract shows that the move was already made, or that the dispute or the job has ended. They
#: count as success.
HARMLESS = frozenset(
    {
        "DisputeClosed",
        "Elsewhere",
        "NoneExpired",
        "NotExpired",
        "NotRequested",
        "NotYourTurn",
        "NothingToWithdraw",
        "PriceHolds",
        "WrongLevel",
        "WrongPhase",
    }
)
#: Maximum number of disputes that one transaction ends: about 4 million gas.
BATCH = 100
#: 1/RESERVE of each own clock is kept for own moves. It is not spent on work that other accounts can cause in any
#: amount.
RESERVE = 4

#: Upper bounds of the gas of one side in a dispute (descent and leaf), and of a withdrawal (docs/gas.json).
DISPUTE_GAS = 2_000_000
WITHDRAW_GAS = 35_000


class Player:
    """Plays one job for the wallet of `game`, with the results of `machine`. `terms`: the terms of the bundle, whose
    hash is the job's id.

    INVARIANT: a round sends at most one transaction that takes effect, so every own turn is read again before the next
    transaction (docs/protocol.md section 3).
    """

    terms: JobSpec | None = None
    waiting = False  # a move waits for the end of its pause
    side: Turn
    #: Windows of the spec in which this side may act, by phase.
    windows: Mapping[Phase, Sequence[tuple[str, str]]]

    def __init__(self, game: Game, job: bytes, machine: Machine) -> None:
        self.game, self.id, self.machine = game, job, machine
        self.closed: list[Standing] = []
        self.withdrawn = 0  # wei, by this object

    def look(self, job: Job | None = None) -> Job:
        """The job as the chain shows it now (`job`: if it was already read). EndpointError if its terms differ from the
        order."""
        job = job or self.game.job(self.id)
        if self.terms is not None and job.phase is not Phase.NONE and job.spec != self.terms:
            raise EndpointError(
                f"{self.game.chain.url} shows other terms for job {self.id.hex()[:16]} than the bundle with this hash: "
                "the reply is ignored; use another endpoint"
            )
        self.check_shape(job)
        self.game.listener.job(self.id, job)
        return job

    def check_shape(self, job: Job) -> None:
        """INVARIANT: trees are built in the shape of the claim, so the shape that an endpoint shows must follow from
        the order."""
        if job.phase is not Phase.CLAIMED:
            return
        steps, interval, stop = self.machine.steps, self.machine.interval, job.diverged_at
        shape = ((stop - 1) // interval if stop else -(-steps // interval), self.machine.operators)
        if stop > steps or (job.checkpoints, job.operators) != shape:
            raise EndpointError(
                f"{self.game.chain.url} shows a claim of {job.checkpoints} checkpoints, {job.operators} operators, "
                f"end {stop}, but the order gives {shape[0]} checkpoints and {shape[1]} operators: the reply is "
                "ignored; use another endpoint"
            )

    @property
    def address(self) -> str:
        assert self.game.wallet is not None
        return self.game.wallet.address

    def attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """Send a move. True if it was made; False if it is not needed, or if it waits (`waiting`)."""
        try:
            self.game.move(name, *args, value=value)
        except Paused as pause:
            self.waiting |= not pause.is_longest
            return False
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            log.info("%s is no longer needed: %s", name, error)
            return False
        return True

    def standings(self, job: Job) -> list[Standing]:
        """All disputes in order. The leading closed disputes of others are cached, as long as the job's counts agree.
        Own disputes are read again each time: an earlier reply does not count for them."""
        found = self._read(job, self.closed)
        if sum(is_open(s) for s in found) != job.open or len(found) != job.disputes:
            found = self._read(job, [])
        self.closed = list(takewhile(lambda s: not is_open(s) and s.dispute.auditor != self.address, found))
        self.game.listener.disputes(self.id, job, found)
        return found

    def _read(self, job: Job, known: Sequence[Standing]) -> list[Standing]:
        return [*known, *self.game.all_disputes(self.id, job.disputes, len(known))]

    def plays(self, job: Job, d: Dispute) -> bool:
        """Does this player take part in the dispute?"""
        return self.address == (job.trainer if self.side is Turn.TRAINER else d.auditor)

    def spare(self, job: Job, standings: Iterable[Standing]) -> bool:
        """May time be spent on work other than own duties? Only while each own clock has more left than its reserve."""
        trainer, now = self.side is Turn.TRAINER, self.game.chain.now()
        budget = job.spec.trainer_budget if trainer else job.spec.auditor_budget
        own = (s for s in standings if s.turn in (Turn.TRAINER, Turn.AUDITOR) and self.plays(job, s.dispute))
        left = (
            s.deadline - now if s.turn is self.side else s.dispute.trainer_left if trainer else s.dispute.auditor_left
            for s in own
        )
        return all(RESERVE * seconds > budget for seconds in left)

    def sweep(self, job: Job, standings: Sequence[Standing]) -> bool:
        """End disputes of others whose time is over."""
        if not self.spare(job, standings):
            return False
        over = self.ended_by(job, standings)
        return bool(over) and self.attempt("timeoutMany", self.id, over[:BATCH])

    def ended_by(self, job: Job, standings: Sequence[Standing]) -> list[int]:
        """Disputes that this player ends because the auditor's time is over."""
        return [s.number for s in standings if s.turn is Turn.AUDITOR_EXPIRED]

    def turn_of(self, number: int) -> Turn | None:
        """Whose turn it is; None if the dispute has just ended."""
        try:
            return self.game.turn(self.id, number)[0]
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return None

    def hurry(self) -> str:
        """The own clock or window that ends first, with its seconds left, as a text; empty if none runs or the endpoint
        does not answer."""
        if self.game.chain.lost:
            return ""
        job, now = self.look(), self.game.chain.now()
        ends = [(job.since + getattr(job.spec, window), what) for window, what in self.windows.get(job.phase, ())]
        standings = self.standings(job) if job.phase is Phase.CLAIMED else []
        mine = [s for s in standings if s.turn is self.side and self.plays(job, s.dispute)]
        ends += [(s.deadline, f"the own clock of dispute {s.number}") for s in mine]
        left = [(end - now, what) for end, what in ends if end >= now]
        return f"{min(left)[0]} s are left of {min(left)[1]}" if left else ""

    def reserve(self) -> int:
        """Wei kept for the gas of open disputes."""
        return gas_money(self.game.chain, DISPUTE_GAS)

    def refill(self) -> bool:
        """Withdraw the credits before money for gas runs short: won disputes pay for those still open."""
        try:
            price = sum(self.game.chain.fees())
            if self.game.chain.balance(self.address) >= self.reserve():
                return False
            return self.game.credits(self.address) > 10 * WITHDRAW_GAS * price and self.withdraw()
        except VgameError as problem:  # a failed withdrawal must not prevent a move
            log.warning("credits cannot be withdrawn: %s", problem)
            return False

    def withdraw(self) -> bool:
        """Withdraw the credits of this account in the contract; True if a transaction was made."""
        owed = self.game.credits(self.address)
        if not owed or not self.attempt("withdraw", self.address):
            return False
        self.withdrawn += owed
        return True


def gas_money(chain: Chain, gas: int) -> int:
    """Wei for that much gas at twice the present fees, which is the price that a transaction offers."""
    return 2 * gas * sum(chain.fees())


def lapsed(account: str, job: Job, now: int, standings: Sequence[Standing]) -> list[int]:
    """Disputes that an account may end because the auditor's time is over. Ending an own dispute burns its bond, while
    a conviction in another dispute returns the bond. So an own dispute stays open as long as another dispute is open or
    can be opened."""
    over = [s for s in standings if s.turn is Turn.AUDITOR_EXPIRED]
    mine = {s.number for s in over if s.dispute.auditor == account}
    last = now > job.since + job.spec.challenge_window and all(s.number in mine for s in standings if is_open(s))
    return [s.number for s in over if last or s.number not in mine]


def one_of(duties: Iterable[Callable[[], bool]], is_over: Callable[[], bool] = lambda: False) -> bool:
    """Try the duties in order, also after an error, until one has an effect, or until `is_over`. True if one had;
    otherwise the first error is raised, if there was one."""
    problems = []
    for duty in duties:
        try:
            if duty():
                return True
        except Exception as problem:
            problems.append(problem)
            log.info("a duty failed: %s", problem)
        if is_over():
            break
    if problems:
        raise problems[0]
    return False


def is_open(standing: Standing) -> bool:
    return standing.dispute.status is Status.OPEN

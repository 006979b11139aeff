"""The auditor's process: every claim of its job is checked, and disputed where it is wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from vgame.agents.config import AgentConfig, open_game
from vgame.agents.followed_run import FollowedRun
from vgame.agents.local_run import LocalRun, hello
from vgame.agents.order import find_order, matches
from vgame.agents.retry import QUIET, Deferred, Retry
from vgame.chain.game import Game
from vgame.chain.records import STANDING, Job, JobSpec, Phase, Status
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import DISPUTE_GAS, gas_money, run_duties
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain
from vgame.execute.devices import use_device
from vgame.job.bundle import Bundle, load_bundle
from vgame.job.terms import INCLUSION, Pace, auditor_shortcomings, count_moves
from vgame.system.progress import Reporter


def run_auditor(seat: AgentConfig, reporter: Reporter, limits: Limits, once: bool = False) -> None:
    """Re-execute the bundle, then watch every job that orders it; `once`: until all such jobs have ended."""
    game = open_game(seat, reporter)
    with use_device(seat.device) as kind:
        hello(reporter, "auditor", seat.device)
        watch = auditor_of(game, seat, kind, reporter, limits)
        retry = Retry(reporter, seat.poll)
        while not (once and watch.finished):
            with retry:
                if not watch.round():
                    game.chain.pause(QUIET * seat.poll)


def auditor_of(game: Game, seat: AgentConfig, kind: str, reporter: Reporter, limits: Limits) -> AuditorService:
    """The auditor of a bundle, which it has executed again; a dispute's work was rehearsed."""
    if seat.log is None and load_bundle(seat.bundle).mode == "logged":
        raise Abstain("a run in mode 'logged' is audited by its log: give the trainer's run folder with --log")
    computation = (FollowedRun if seat.published else LocalRun)(seat, kind, reporter)
    for job in limits.jobs:
        find_order(game, computation.bundle, job)
    reporter.emit("plays", f"plays {limits.played}")
    stakes = Stakes.beside(seat.store / computation.bundle.identity.hex()[:16], game)
    computation.run()
    computation.rehearse()
    service = AuditorService(game, computation, reporter, seat.poll, limits, stakes)
    service.dispute_gas = max(DISPUTE_GAS, count_moves(computation.bundle).auditor_gas)
    return service


@dataclass(frozen=True)
class Limits:
    """What an auditor stakes: `bond` wei at most, by default never more than the trainer does; `any_clocks`: also on
    short ones. What it plays: `jobs`, and orders of `clients`; every order of the bundle where neither is given."""

    bond: int | None = None
    any_clocks: bool = False
    jobs: frozenset[bytes] = frozenset()
    clients: frozenset[str] = frozenset()

    def plays(self, job: bytes, client: str) -> bool:
        return job in self.jobs or client in self.clients or not (self.jobs or self.clients)

    @property
    def played(self) -> str:
        """The same in words."""
        named = [f"job {job.hex()[:16]}" for job in sorted(self.jobs)]
        named += [f"orders of {client}" for client in sorted(self.clients)]
        return ", ".join(named) or "every order of this bundle, whoever posted it (--job and --client name some)"


class AuditorService:
    """An auditor's view of all jobs that order its bundle.

    INVARIANT: what is disputed is the claim that was compared: all of a round is about one answer of the chain, for
    the next one may show a claim where this one showed none.

    INVARIANT: no answer ends a job for good. What orders other bundles is known by the whole event, whose hash is the
    job; that a job has ended has to be said LOOKS times in a row, and is asked again every AGAIN seconds.
    """

    AGAIN = 60.0
    OLD = 16  # jobs that have ended are looked at in one round, at most: a chain may have thousands
    IDLE = 16  # and jobs in which there was nothing to do, or a new claim: who orders many would delay all moves
    OTHERS = 2.0  # while an own dispute is open, the others have so many times what the own ones took
    RANGES = 16  # ranges of blocks whose events are read in one look at a job without an own dispute
    GONE = 3_600.0  # seconds after which a job that is not shown is believed to be none: nodes lag
    LONGEST = 5.0  # seconds between two tries of a job with a problem
    dispute_gas = DISPUTE_GAS  # that a dispute may need

    def __init__(
        self, game: Game, computation: LocalRun, reporter: Reporter, poll: float, limits: Limits,
        stakes: Stakes | None = None,
    ) -> None:  # fmt: skip
        self.game, self.computation, self.reporter, self.poll, self.limits = game, computation, reporter, poll, limits
        self.stakes = stakes or Stakes(game)
        self.stakes.watch()
        self.auditors: dict[bytes, Auditor] = {}
        self.retry: dict[bytes, Deferred] = {}
        self.foreign: set[tuple[object, ...]] = set()
        self.said: set[tuple[bytes, bytes]] = set()  # job, and root of the claim
        self.ended: dict[bytes, tuple[int, float]] = {}  # looks in a row that said so, time of the last one
        self.own: dict[bytes, set[int]] = {}  # numbers of the own disputes that the events show, by job
        self.closed: dict[bytes, int] = {}  # looks in a row that saw that there is nothing left to dispute in a job
        self.idle: dict[bytes, None] = {}  # jobs without anything to do, the one looked at longest ago first
        self.fresh: dict[bytes, None] = {}  # those of them with a new claim, which are looked at before the others
        self.claims: set[tuple[bytes, bytes]] = set()  # claims that were heard of: job and root
        self.behind: dict[bytes, None] = {}  # jobs with posted pieces that have not been executed
        self.gone: dict[bytes, float] = {}  # jobs that are not shown, and since when
        self.moved = False  # was anything done in the jobs, in this round?
        self.unclaimed: set[bytes] = set()  # jobs that had no claim at the last look
        self.awaiting: set[bytes] = set()  # jobs with a claim, and nothing yet to compare it with
        self.old = 0  # final claims that match, not yet told

    @property
    def finished(self) -> bool:
        return bool(self.auditors) and all(map(self._over, self.auditors))

    def _over(self, job: bytes) -> bool:
        return self.ended.get(job, (0, 0.0))[0] >= Retry.LOOKS

    def round(self) -> bool:
        """One round over all jobs; a problem with one of them, or with finding new ones, is none for the others."""
        return run_duties([self.look, self.play, partial(self.prepare, time.monotonic()), self.read_on])

    def prepare(self, begin: float) -> bool:
        """A part of what a claim may have to be compared with, for four times as long as the round took: others decide
        how long that is. While a dispute is open, as long, and only where a claim waits for it and no move was due."""
        engaged = bool(self._engaged())
        wanted, now = self.awaiting and not self.moved if engaged else self.awaiting or self.unclaimed, time.monotonic()
        return bool(wanted) and self.computation.ahead(engaged, now + (1 if engaged else 4) * (now - begin))

    def look(self) -> bool:
        """What is heard of, each by itself: strangers may make more events than an endpoint returns at once."""
        return run_duties([self.look_for_orders, self.look_for_claims, self.look_for_own])

    def look_for_orders(self) -> bool:
        """New jobs that order this bundle."""
        for event in self.game.events("JobCreated"):
            job, told = event.args["job"], tuple(event.args[k] for k in ("job", "client", "nonce"))
            if job in self.auditors or told in self.foreign:
                continue
            if not (self.limits.plays(job, told[1]) and matches(self.game, self.computation.bundle, event)):
                self.foreign.add(told)
                continue
            self.auditors[job] = Auditor(self.game, job, self.computation.history)
            self.auditors[job].terms = JobSpec(**self.computation.bundle.order)
            self.auditors[job].refusal, self.auditors[job].kept = self.refusal, self.kept
            self.auditors[job].stakes = self.stakes
            self.retry[job] = Deferred(self.reporter, self.poll, self.LONGEST, self.auditors[job].hurry)
            self.idle[job] = None
        return False

    def look_for_claims(self) -> bool:
        """Jobs with a new claim."""
        for event in self.game.events("ClaimPosted"):
            job, claim = event.args["job"], (event.args["job"], event.args["runRoot"])
            if job in self.auditors:
                self.game.begun[job] = event.block
            if claim not in self.claims:
                self.claims.add(claim)
                if job in self.auditors and not self.auditors[job].engaged_in:
                    self.ended.pop(job, None)
                    self.fresh[job] = None
        return False

    def look_for_own(self) -> bool:
        """Own disputes, also from before this process began: each counts as open until a look at its job says more."""
        events = self.game.events("Challenged", auditor=self.game.wallet.address)
        self.own = {}
        for event in events:
            self.own.setdefault(event.args["job"], set()).add(event.args["dispute"])
        for job in filter(self._holds, self.own):
            self.auditors[job].engaged_in = True
            self.idle.pop(job, None), self.fresh.pop(job, None)
        return False

    def _holds(self, job: bytes) -> bool:
        """Is there an own dispute that has not been seen to end? A state that lags behind the events ends none."""
        auditor = self.auditors.get(job)
        heard = self.own.get(job, set()) if self.closed.get(job, 0) < Retry.LOOKS else set()
        return auditor is not None and not heard <= auditor.lost_or_won

    def play(self) -> bool:
        """What is due in each job. Where clocks of ours run, they come first, and the others have OTHERS times what
        these took, at least one of them."""
        self.moved, begin = False, time.monotonic()
        due = {job: self._over(job) for job, retry in self.retry.items() if retry.due}
        first = [job for job, over in due.items() if not over and job not in self.idle and job not in self.fresh]
        fresh = [job for job in self.fresh if due.get(job) is False][: self.IDLE]
        idle = [job for job in self.idle if due.get(job) is False and job not in self.fresh][: self.IDLE]
        old = [job for job, over in due.items() if over and begin - self.ended[job][1] > self.AGAIN]
        old = sorted(old, key=lambda job: self.ended[job][1])[: self.OLD]
        for job in first:
            self._visit(job)
        own = time.monotonic() - begin
        for job in [*fresh, *idle, *old]:
            self._visit(job)
            if self._engaged() and time.monotonic() - begin > (1 + self.OTHERS) * own:
                break
        if self.old:
            root = self.computation.run_root.hex()
            text = f"final before this auditor looked, and a MATCH: {self.old} jobs, own root {root[:16]}"
            self.reporter.emit("audited_final", text, agree=self.old, run_root=root)
            self.old = 0
        return self.moved

    def read_on(self) -> bool:
        """Execute one posted piece of the next job that has any, for strangers can have many posted: none where a move
        was due, or a clock has little left. What a claim itself holds (one that says "diverged") is executed first."""
        engaged, due = self._engaged(), [job for job in self.behind if self.retry[job].due]
        due.sort(key=lambda job: (job, self.auditors[job].compared) in self.said)
        if not due or (engaged and (self.moved or any(auditor.hurried for auditor in engaged))):
            return False
        auditor = self.auditors[due[0]]
        self._visit(due[0], 1)
        return not auditor.pieces

    def _engaged(self) -> list[Auditor]:
        return [auditor for auditor in self.auditors.values() if auditor.engaged_in]

    def _visit(self, job: bytes, pieces: int = 0) -> None:
        """Look at one job, and execute so many posted pieces."""
        self.idle.pop(job, None), self.fresh.pop(job, None)
        auditor, did = self.auditors[job], False
        auditor.pieces, auditor.behind = pieces, False
        with self.retry[job]:
            did = self._round(job, auditor)
        self.moved |= did
        if pieces or not auditor.behind:
            self.behind.pop(job, None)
        if auditor.behind:
            self.behind.setdefault(job)
        auditor.engaged_in |= self._holds(job)
        if not did and not auditor.engaged_in and job in self.auditors:
            self.idle[job] = None
        if job in self.unclaimed and job in self.game.begun:  # the state lags behind the events, or the claim is undone
            self.claims = {claim for claim in self.claims if claim[0] != job}

    def _round(self, job: bytes, auditor: Auditor) -> bool:
        state = auditor.look()
        phase, duties, closed = state.phase, [partial(auditor.step, state)], self.closed.pop(job, 0)
        if phase in {Phase.EXPIRED, Phase.CONVICTED, *STANDING}:
            self.closed[job] = closed + 1
        if phase is not Phase.NONE:
            self.gone.pop(job, None)
        self.game.ranges = None if auditor.engaged_in or phase is Phase.CONVICTED else self.RANGES
        for jobs in (self.unclaimed, self.awaiting):
            jobs.discard(job)
        if phase in {Phase.CREATED, Phase.ACCEPTED}:
            self.unclaimed.add(job)
        if phase in {Phase.CLAIMED, Phase.CONVICTED, *STANDING} and not self._compares(auditor, state):
            self.awaiting.add(job)
            auditor.look_for_own(state)
            return False
        if phase is Phase.NONE:  # a reorganisation, or a node that lags: an own dispute may be open all the same
            if time.monotonic() - self.gone.setdefault(job, time.monotonic()) >= self.GONE:
                del self.auditors[job], self.retry[job], self.gone[job]
            return False
        if phase in {Phase.CLAIMED, *STANDING} and (job, state.run_root) not in self.said:
            if foreign := self.computation.why_foreign(self.game, job, state):
                self._note(job, True)
                self.closed[job], auditor.engaged_in = closed + 1, False  # who has that run plays
                raise Abstain(f"job {job.hex()[:16]} is not audited: {foreign}")
            duties.insert(0, partial(self.compare, job, auditor, state))
        acted = run_duties(duties)
        self._note(job, not (acted or auditor.behind) and self._nothing_left(job, state))
        return acted

    def _compares(self, auditor: Auditor, state: Job) -> bool:
        """Is there a run to compare this claim with? Once there is one it stays, for a challenge commits to its
        tree."""
        if auditor.compared != state.run_root:
            if (history := self.computation.history_of(state)) is None:
                return False
            auditor.machine, auditor.compared = history, state.run_root
        return True

    def _nothing_left(self, job: bytes, state: Job) -> bool:
        if state.phase is not Phase.CONVICTED:
            return state.phase in {Phase.EXPIRED, *STANDING}
        mine = (s.dispute for s in self.game.all_disputes(job) if s.dispute.auditor == self.game.wallet.address)
        return all(d.status is not Status.OPEN for d in mine)

    def _note(self, job: bytes, over: bool) -> None:
        """What this look said."""
        looks = self.ended.pop(job, (0, 0.0))[0]
        if over:
            self.ended[job] = (looks + 1, time.monotonic())

    def compare(self, job: bytes, auditor: Auditor, state: Job) -> bool:
        """Say once whether the claim is the own run; also where it is too late to dispute it."""
        agrees, root = auditor.agrees(state), self.computation.run_root.hex()
        if agrees is None:
            return False
        old = state.phase in STANDING
        late = "; the claim is final, it can be disputed no more" if old else ""
        text = f"job {job.hex()[:16]}: {'MATCH' if agrees else 'NO MATCH'}, own root {root[:16]}{late}"
        self.reporter.emit("audited", "" if agrees and old else text, job=job.hex(), agrees=agrees, run_root=root)
        self.old += agrees and old
        self.said.add((job, state.run_root))
        return False

    def kept(self, disputes: int = 0) -> int:
        """Wei for the gas of so many open disputes, those that are open and one at the least."""
        return gas_money(self.game.chain, max(1, disputes, len(self._engaged())) * self.dispute_gas)

    def refusal(self, state: Job) -> str:
        """Why nothing is staked now: the order, the own limits, or the money; empty if it is."""
        others = len(self._engaged())
        if why := why_not_staked(self.computation.bundle, state.spec, self.computation.pace, self.limits, others):
            return why
        kept, account = self.kept(others + 1), self.game.wallet.address
        if (owned := self.game.chain.balance(account)) >= state.spec.stake + kept:
            return ""
        return (
            f"{account} has {owned} wei, and needs {state.spec.stake} for bond and fee and {kept} for the gas of "
            f"{others + 1} open disputes; send it some ether"
        )


def why_not_staked(bundle: Bundle, spec: JobSpec, pace: Pace, limits: Limits, others: int = 0) -> str:
    """Why an auditor of that pace disputes no claim of an order, for even the right side would lose its bond, or it
    stakes more than it may; empty if it does. `others`: disputes of other claims that it plays already."""
    most = spec.trainer_bond if limits.bond is None else limits.bond
    if spec.stake > most:
        return f"the auditor's bond and the fee are {spec.stake} wei, more than {most} (--max-bond allows more)"
    short = auditor_shortcomings(bundle, pace, INCLUSION, others)
    if limits.any_clocks or not short:
        return ""
    beside = f"beside {others} disputes of other claims that wait for the same moves: " if others else ""
    return f"{beside}{'; '.join(short)} (--any-terms disputes all the same)"

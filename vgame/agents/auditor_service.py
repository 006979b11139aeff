"""The auditor's process: it compares the claims of its jobs with its own run, and disputes wrong claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from vgame.agents.config import AgentConfig, open_game
from vgame.agents.followed_run import FollowedRun
from vgame.agents.local_run import LocalRun, hello
from vgame.agents.named_jobs import CLAIMS, Limits, NamedJobs
from vgame.agents.order import find_order
from vgame.agents.retry import QUIET, QUIET_ROUND, Deferred, Retry
from vgame.agents.staking import Staking
from vgame.chain.final import MOMENT, Lasting, final_jobs
from vgame.chain.game import Game
from vgame.chain.records import STANDING, Job, JobSpec, Phase
from vgame.chain.turns import has_computed_long
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.dispute.player import DISPUTE_GAS, one_of
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain
from vgame.execute.devices import use_device
from vgame.job.bundle import load_bundle
from vgame.job.terms import count_moves
from vgame.system.progress import Reporter

UNCLAIMED = frozenset({Phase.CREATED, Phase.ACCEPTED})
OVER = frozenset({Phase.EXPIRED, Phase.CONVICTED, *STANDING})
LONGEST = 5.0  # maximum seconds between two tries of a job with a problem


def run_auditor(seat: AgentConfig, reporter: Reporter, limits: Limits, once: bool = False) -> None:
    """Re-execute the bundle, then play the selected jobs; `once`: until all of them have ended."""
    game = open_game(seat, reporter)
    with use_device(seat.device) as kind:
        hello(reporter, "auditor", seat.device)
        service = auditor_of(game, seat, kind, reporter, limits)
        retry = Retry(reporter, seat.poll)
        while not (once and service.finished):
            with retry:
                if not service.round():
                    service.pause()


def auditor_of(game: Game, seat: AgentConfig, kind: str, reporter: Reporter, limits: Limits) -> AuditorService:
    """The auditor of a bundle, after the re-execution. The device is measured later, in a round without a running
    clock."""
    if seat.log is None and load_bundle(seat.bundle).mode == "logged":
        raise Abstain("a run in mode 'logged' is audited by its log: give the trainer's run folder with --log")
    computation = (FollowedRun if seat.published else LocalRun)(seat, kind, reporter)
    for job in limits.jobs:
        find_order(game, computation.bundle, job)
    reporter.emit("plays", f"plays {limits.played}")
    stakes = Stakes.beside(seat.store / computation.bundle.identity.hex()[:16], game)
    computation.refuse_small_disk(waits=True)
    computation.run()
    service = AuditorService(game, computation, reporter, seat.poll, limits, stakes)
    service.staking.dispute_gas = max(DISPUTE_GAS, count_moves(computation.bundle).auditor_gas)
    return service


class AuditorService:
    """All jobs of one auditor, played in rounds.

    INVARIANT: a round reads one block and sends at most one transaction that takes effect. So the disputed claim is the
    compared one, and each duty is chosen among all duties of this block.
    """

    def __init__(
        self, game: Game, computation: LocalRun, reporter: Reporter, poll: float, limits: Limits,
        stakes: Stakes | None = None,
    ) -> None:  # fmt: skip
        self.game, self.computation, self.reporter, self.poll, self.limits = game, computation, reporter, poll, limits
        self.stakes = stakes or Stakes(game)
        self.named = NamedJobs(game, JobSpec(**computation.bundle.order), limits)
        self.auditors: dict[bytes, Auditor] = {}
        self.staking = Staking(game, computation, limits, self.auditors)
        self.retry: dict[bytes, Deferred] = {}
        self.reported: dict[bytes, tuple[bytes, bool]] = {}  # by job: the compared run root, and whether it is right
        self.done: set[bytes] = set()  # hunted jobs with a stake whose end is final
        self.problems: dict[bytes, Exception] = {}  # by job: its first error in this round
        self.naming = Deferred(reporter, poll, LONGEST)
        self.measuring = Deferred(reporter, poll)
        self.stuck: dict[bytes, bytes] = {}  # by hunted job: run root that could not be compared or disputed
        self.behind = False  # some claims were not read or not compared yet
        self.lasting = Lasting(game.chain)
        self.over = False  # the rounds have shown for long enough that all jobs have ended

    @property
    def finished(self) -> bool:
        """Have all jobs ended in a final state?"""
        return self.over and self.final([*self.named.owned, *self.named.hunted])

    def round(self) -> bool:
        """Do the most urgent duty of all jobs, or compute a part of the run for a comparison; True if anything was
        done. An error in one job does not stop the others."""
        self.problems.clear()
        self.game.chain.turn()
        with self.game.chain.pinned():
            views = self.look()
            if not self.staking.is_measured and self.is_idle(views) and self.measuring.due:
                with self.measuring:
                    self.staking.measure(again=bool(self.stakes.claims))
            ready = {job: view for job, view in views.items() if self.attempt(job, partial(self.compares, job, view))}
            acted = self.play(views, ready) or self.prepare(views, ready)
            if not (acted or self.problems):
                self.over = self.lasting.shown("all", self.end(views))
        self.tell()
        return acted

    def is_idle(self, views: dict[bytes, ClaimView]) -> bool:
        """Has each look for MOMENT shown that no clock of an own dispute runs? A look in which a job with a stake is
        missing does not count. One look at all named jobs is enough if nothing was staked."""
        known, free = {*views, *self.done}, not self.staking.at_risk
        if free and not known.issuperset(self.stakes.jobs):
            return False
        at_once = free and not self.stakes.claims and known.issuperset(self.named.owned)
        return self.lasting.held("idle", free) >= MOMENT or at_once

    def pause(self) -> None:
        """Wait until the next round."""
        self.game.chain.pause(QUIET * self.poll, 0.0 if self.staking.at_risk or self.behind else QUIET_ROUND)

    def look(self) -> dict[bytes, ClaimView]:
        """The view of every due job in the block of this round."""
        if self.naming.due:
            with self.naming:
                self.named.read()
        jobs, views = self.chosen(), dict[bytes, ClaimView]()
        for job, auditor in [*self.auditors.items()]:
            if self.retry[job].due and not (job in jobs or auditor.at_risk):
                del self.auditors[job]
                if job not in self.stuck:  # keep the record of the reported problem: it is not reported again
                    del self.retry[job]
        due = [job for job in dict.fromkeys([*jobs, *self.auditors]) if self.seat(job) and self.retry[job].due]
        states = self.read([*due, *self.named.others(due)])
        self.named.see(states)
        for job in due:
            self.attempt(job, lambda job=job: views.update({job: self.auditors[job].view(states.get(job))}))
        if going := [job for job, view in views.items() if not _has_ended(view)]:
            self.over = False
            for what in (*going, "all"):
                self.lasting.shown(what, False)
        return views

    def chosen(self) -> list[bytes]:
        """The owned jobs; jobs with a stake, until their end is final; and the next hunted jobs."""
        hunted, owned = self.named.hunted, self.named.owned
        held = [job for job in self.stakes.jobs if job not in self.done and job not in owned]
        turn = self.named.waiting(self.reported, self.game.chain.now())
        turn = [job for job in turn if job not in held and (job not in self.retry or self.retry[job].due)]
        turn.sort(key=lambda job: self.stuck.get(job) == hunted[job].run_root)  # stuck jobs come last
        later = turn[self.limits.hunts :]
        self.behind = self.naming.due and not self.named.whole
        known = lambda job: {self.reported.get(job, (b"",))[0], self.stuck.get(job)}  # noqa: E731
        self.behind |= any(hunted[job].run_root not in known(job) for job in later)
        return [*owned, *held, *turn[: self.limits.hunts]]

    def read(self, jobs: Sequence[bytes]) -> dict[bytes, Job]:
        """Jobs in as few requests as possible. Empty if that fails: then each job is read by itself."""
        try:
            return dict(zip(jobs, self.game.jobs(jobs), strict=True))
        except Exception:  # data of an endpoint can raise anything
            return {}

    def seat(self, job: bytes) -> Auditor:
        """The auditor of a job."""
        if job not in self.auditors:
            auditor = self.auditors[job] = Auditor(self.game, job, self.computation.history)
            auditor.terms, auditor.stakes, auditor.staking = self.named.spec, self.stakes, self.staking
            self.retry.setdefault(job, Deferred(self.reporter, self.poll, LONGEST, auditor.hurry))
        return self.auditors[job]

    def attempt(self, job: bytes, duty: Callable[[], Any]) -> bool:
        """Do the duty; an error is recorded for this job."""
        try:
            return bool(duty())
        except Exception as problem:  # data of an endpoint can raise anything
            self.problems.setdefault(job, problem)
            return False

    def tell(self) -> None:
        """Report the problems of the round; a job with a problem is skipped until its next try."""
        hunted = self.named.hunted
        self.stuck |= {job: hunted[job].run_root for job in self.problems if job in hunted}
        for job in self.auditors:
            if (retry := self.retry[job]).due:
                with retry:
                    if job in self.problems:
                        raise self.problems[job]

    def play(self, views: dict[bytes, ClaimView], ready: dict[bytes, ClaimView]) -> bool:
        """Do one duty: own moves by deadline; then new claims by the end of their challenge window; then duties without
        a clock. A claim whose window ends before the first move's deadline comes before the moves."""
        duties: list[tuple[tuple[int, int], bytes, Callable[[], bool]]] = []
        for job, view in ready.items():
            duties += [((0, due), job, move) for due, move in self.auditors[job].moves(view)]
        first = min((due for (_, due), _, _ in duties), default=0)
        for job, view in ready.items():
            end = view.job.since + view.job.spec.challenge_window
            duties.append(((end > first, end), job, partial(self.open, job, view)))
        duties += [((2, 0), job, partial(self.auditors[job].others, view)) for job, view in views.items()]
        ordered = [partial(self.attempt, job, duty) for _, job, duty in sorted(duties, key=lambda duty: duty[0])]
        return one_of(ordered, partial(has_computed_long, self.game.chain))

    def compares(self, job: bytes, view: ClaimView) -> bool:
        """Is there a claim, and a run to compare it with? The run of a claim never changes: a dispute based on it may
        be pending."""
        state, auditor = view.job, self.auditors[job]
        if state.phase not in CLAIMS:
            return False
        if auditor.compared != state.run_root:
            if problem := self.computation.log_mismatch(self.game, job, state):
                raise Abstain(f"job {job.hex()[:16]} is not audited: {problem}")
            if (history := self.computation.history_of(state)) is None:
                self.stuck[job] = state.run_root
                return False
            auditor.machine, auditor.compared, view.machine = history, state.run_root, history
        return True

    def open(self, job: bytes, view: ClaimView) -> bool:
        """Report how a claim compares, and dispute it if it is false."""
        if self.reported.get(job, (b"",))[0] != view.job.run_root:
            self.report(job, view)
        return self.auditors[job].open(view)

    def report(self, job: bytes, view: ClaimView) -> None:
        """Report the comparison, once for each claim, also if it is too late for a dispute."""
        agrees, root = self.auditors[job].agrees(view), self.computation.run_root.hex()
        late = "; the claim is final and can no longer be disputed" if view.job.phase in STANDING else ""
        text = f"job {job.hex()[:16]}: {'MATCH' if agrees else 'NO MATCH'}, own root {root[:16]}{late}"
        self.reporter.emit("audited", text, job=job.hex(), agrees=agrees, run_root=root)
        self.reported[job] = view.job.run_root, agrees

    def prepare(self, views: dict[bytes, ClaimView], ready: dict[bytes, ClaimView]) -> bool:
        """Compute a part of the run for a comparison. For a claim that may come later, only while no own dispute is
        open."""
        engaged = bool(self.staking.at_risk)
        waits = any(view.job.phase in CLAIMS and job not in ready for job, view in views.items())
        unclaimed = not engaged and any(view.job.phase in UNCLAIMED for view in views.values())
        until = time.monotonic() + (0 if engaged else self.poll)
        return (waits or unclaimed) and self.computation.compute_ahead(engaged, until)

    def end(self, views: dict[bytes, ClaimView]) -> bool:
        """Have all jobs ended, and is each claim compared?"""
        over = [job for job, view in views.items() if _has_ended(view) and not self.auditors[job].waiting]
        owned, hunted = self.named.owned, self.named.hunted
        self.done |= {
            job for job in views if job not in owned and self.lasting.shown(job, job in over) and self.final([job])
        }
        if not self.named.whole or self.named.waiting(self.reported, self.game.chain.now()):
            return False
        ended = all(state.phase in OVER for state in hunted.values()) and len(over) == len(self.auditors)
        return ended and bool(over or hunted)

    def final(self, jobs: Sequence[bytes]) -> bool:
        """Have the jobs ended in a final state? False as long as that state cannot be read."""
        with suppress(Exception):  # data of an endpoint can raise anything
            found, _ = final_jobs(self.game, jobs)
            return found is not None and all(job.phase in OVER for job in found)
        return False


def _has_ended(view: ClaimView) -> bool:
    return view.job.phase in OVER and not (view.job.phase is Phase.CONVICTED and view.open_mine)

"""An auditor's own run, built from the states that the trainer publishes, after workers have checked them.

In: the auditor's own bundle; the folder or the URLs of the trainer's run. Out: the own run. Checkpoints that are not
published yet, or cannot be used, are computed here in the meantime, so publishing can only save time. At the first
wrong root of the trainer, the own run ends with the right root. That is sufficient for a dispute: it needs the own
nodes on the path to the first difference, and equal nodes left of it; the nodes right of it do not matter
(docs/promises.md). Such a run can be compared with that claim only; other claims need a whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vgame.agents.config import AgentConfig
from vgame.agents.local_run import LocalRun
from vgame.agents.retry import sentence
from vgame.chain.records import Job
from vgame.commit.trees import run_tree
from vgame.dispute.auditor import first
from vgame.errors import Abstain, Cancelled, StoreError, VgameError
from vgame.runs.audit import audit_parts
from vgame.runs.folder import store_of
from vgame.runs.history import History
from vgame.runs.parallel_audit import Workers, audit_in_parallel
from vgame.runs.published import open_published
from vgame.runs.source import is_url
from vgame.runs.store import ROOT_BYTES, Store
from vgame.runs.training import train
from vgame.runs.worker import MOST_TIMEOUT
from vgame.system.files import write_atomic
from vgame.system.progress import NullProgress, Reporter

VISIT = 5.0  # seconds between two visits to the published run
AWAY = 60.0  # seconds after a failed visit, and between visits while a whole run is computed
LEAST = 30.0  # seconds; minimum time limit of a visit
THEIRS = "theirs.bin"  # in the own run's folder: the trainer's roots, once one was found wrong; append-only


class Late(Cancelled):
    """A visit has reached its time limit."""


class Until(NullProgress):
    """A reporter that raises Late in a check at a time (of time.monotonic)."""

    def __init__(self, reporter: Reporter, end: float) -> None:
        self.stage, self.reporter, self.end = reporter.stage, reporter, end

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        if time.monotonic() > self.end:
            raise Late("the check has reached its time limit")
        self.reporter.progress(what, done, total, detail)


class FollowedRun(LocalRun):
    """A run in mode `correct` that adopts the checkpoints that the trainer has published.

    INVARIANT: `_spent` is the time of all visits, minus the time to compute the checkpoints that they gave. A visit
    begins only while `_spent` is at most `_computed`, the time of own computing, and ends soon after it is more
    (docs/promises.md, section 2).

    INVARIANT: the data that a claim was compared with stay, because `theirs` is append-only: a dispute may outlive a
    process, and the published run may change at any time.
    """

    def __init__(self, seat: AgentConfig, kind: str, reporter: Reporter) -> None:
        super().__init__(seat, kind, reporter)
        if self.bundle.log:
            raise Abstain(
                "--published is for runs without a log; in mode 'logged' give the trainer's run folder with --log"
            )
        self.seat, self.kind, self._next = seat, kind, 0.0
        self._computed, self._spent = 0.0, 0.0  # seconds
        self._last_claim = (0, b""), b""  # the last result of `_claims`
        path = self.store.folder / THEIRS
        data = path.read_bytes() if path.exists() else b""
        self.theirs = [data[i : i + ROOT_BYTES] for i in range(0, len(data), ROOT_BYTES)]

    @property
    def has_mismatch(self) -> bool:
        """Is a checkpoint of the trainer known to be wrong?"""
        return differs(self.theirs, self.store.roots)

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """Compute or adopt checkpoints, to the end or to the first wrong checkpoint of the trainer."""
        self.retry.hurry = hurry
        while not (self.store.done or self.has_mismatch):
            if not self._follow():
                self._compute(self)
        if not self.has_mismatch:
            super().run(hurry)
            return
        at = first(a != b for a, b in zip(self.theirs, self.store.roots, strict=False))
        theirs, mine = self.theirs[at].hex(), self.store.roots[at].hex()
        text = (
            f"the published run is wrong from checkpoint {at + 1} on: its state root is {theirs[:16]}, not {mine[:16]}"
        )
        self.reporter.emit("computed", text, root=mine, step=self.store.step, stop=None, seconds=0.0)
        with suppress(VgameError, OSError):  # not needed for a dispute of the published claim
            _ = self._whole  # opened now, so that it need not be opened while a clock runs

    def _compute(self, run: LocalRun) -> None:
        """Compute the next interval of a run."""
        begin = time.monotonic()

        def progress(step: int, loss: float) -> None:
            self.reporter.progress("training", step, self.bundle.steps, f"loss {loss:.4f}")

        train(run.store, run.stepper, progress, self.retry.insist, most=1)
        self._computed += time.monotonic() - begin

    @cached_property
    def _interval(self) -> float:
        """Seconds of an interval at the measured pace. Own intervals are not timed for this: the first one compiles,
        and may be the only one."""
        return max(1e-4, self.pace.step * self.bundle.interval)

    # ---- the published run ----

    def _open(self, until: float) -> Store:
        """The trainer's run, read with the own bundle; the job files in its folder are not read."""
        places = self.seat.published
        if is_url(places[0]):
            store = open_published(places, self.bundle, until)
        else:
            store = store_of(Path(places[0]), self.bundle, writable=False)
        if (count := len(store.roots)) > self.bundle.checkpoints:
            raise StoreError(f"it has {count} checkpoints, the job has {self.bundle.checkpoints}")
        return store

    def _follow(self) -> bool:
        """Adopt the checkpoints published beyond the own run. False if there are none, or if they cannot be used;
        every error counts, because the files are untrusted."""
        pace, begin, known, pause = self._interval, time.monotonic(), len(self.store.roots), VISIT
        may = max(LEAST, self._computed - self._spent)
        most = int(self.seat.workers * may / (2 * pace))  # checkpoints; half of the time is for fetching them
        if begin < self._next or self._spent > self._computed or not most:
            return False
        try:
            self._take_over(self._open(begin + may), most, begin + may)
        except Exception as error:
            if isinstance(error, Cancelled) and not isinstance(error, Late):
                raise
            pause = AWAY
            text = f"the published run cannot be used and is computed here in the meantime: {sentence(error)}"
            self.reporter.emit("waiting", text, message=text)
        end, gained = time.monotonic(), len(self.store.roots) - known
        self._spent += end - begin - pace * gained
        self._next = end + (0 if gained else pause)
        return self.has_mismatch or gained > 0

    def _take_over(self, theirs: Store, most: int, end: float) -> None:
        """Adopt at most `most` checkpoints. The states at both ends must be published: only these intervals are
        executed."""
        known = len(self.store.roots)
        if differs(theirs.roots, self.store.roots):
            self._record_mismatch(theirs.roots)
            return
        last = self._kept(theirs, known, min(known + most, len(theirs.roots)))
        if last == known or (known and not theirs.keeps(known)):
            if last == len(theirs.roots):
                return
            raise StoreError(f"the state of checkpoint {known if last > known else known + 1} is not published yet")
        found = self._check(theirs, list(range(known + 1, last + 1)), end)
        if found and found["kept"]:  # nothing was executed in that part
            raise StoreError(f"the state of checkpoint {found['differs']} is not the committed one")
        right = found["differs"] - 1 if found else last
        self.store.adopt(theirs, self._kept(theirs, known, right))
        if found and found["step"] is None and len(self.store.roots) == right:
            self._compute(self)
            if differs(theirs.roots, self.store.roots):
                self._record_mismatch(theirs.roots)

    def _check(self, theirs: Store, chosen: list[int], end: float) -> dict[str, Any] | None:
        """The finding for the lowest checkpoint that differs. All checkpoints before it were executed, unless it is
        `kept`."""
        listener = Until(self.reporter, end)
        if self.seat.workers > 1:
            timeout = min(max(1.0, end - time.monotonic()), MOST_TIMEOUT)
            workers = Workers(self.seat.workers, timeout=timeout, bundle=self.seat.bundle)
            return audit_in_parallel(theirs, self.seat.device, chosen, workers, listener)
        found = audit_parts(theirs, self.stepper, chosen, listener)
        return asdict(found) if found.differs else None

    def _kept(self, theirs: Store, known: int, last: int) -> int:
        """The last checkpoint in known + 1..last up to which all states that the own run keeps are available; `known`
        if there is none. Intervals between two kept states are executed again while a clock runs."""
        found = known
        for c in range(known + 1, last + 1):
            if theirs.keeps(c):
                found = c
            elif c % self.store.keep == 0:
                break
        return found

    def _record_mismatch(self, roots: Sequence[bytes]) -> None:
        """Save the trainer's roots, also for after a restart: the own run can be compared with these only. StoreError
        if they belong to another run than the one that was found wrong."""
        if list(roots[: len(self.theirs)]) != self.theirs:
            raise StoreError("the published run is not the one that was found wrong")
        if len(roots) > len(self.theirs):
            write_atomic(self.store.folder / THEIRS, b"".join(roots))
            self.theirs = list(roots)

    # ---- claims ----

    def history_of(self, claim: Job) -> History | None:
        """The run to compare a claim with: this run if it is whole, or if the claim is the published run's. Otherwise
        the second, whole run; None until that is computed (`compute_ahead`)."""
        stop, count = claim.diverged_at, self.bundle.checkpoints
        count = (stop - 1) // self.bundle.interval if stop else count
        if not self.has_mismatch or self._claims(count) == claim.run_root:
            return self.history
        return self._whole.history if self._whole.store.done else None

    def _claims(self, count: int) -> bytes:
        """The run root of a claim with `count` checkpoints of the published run; empty if it is not known, or not known
        to be wrong."""
        theirs = self.theirs[:count]
        if len(theirs) < count or not differs(theirs, self.store.roots):
            return b""
        if self._last_claim[0] != (count, theirs[-1]):
            self._last_claim = (count, theirs[-1]), run_tree(theirs, count).root
        return self._last_claim[1]

    def compute_ahead(self, engaged: bool, until: float) -> bool:
        """Compute intervals of the whole run, at least one, until a time (of time.monotonic): the claim may differ from
        the published run, and its window may be short. Before that, unless a clock may run, a short visit once in a
        while: the wrong published run may have grown, and the claim may be of that run."""
        if not self.has_mismatch or self._whole.store.done:
            return False
        begin = time.monotonic()
        if not engaged and begin >= self._next and self._spent <= self._computed:
            with suppress(Exception):
                self._record_mismatch(self._open(begin + VISIT).roots)
            end = time.monotonic()
            self._spent, self._next = self._spent + end - begin, end + AWAY
        self._advance()
        while not self._whole.store.done and time.monotonic() < until:
            self._advance()
        return True

    @cached_property
    def _whole(self) -> LocalRun:
        """A second run, for claims that are not the published run's."""
        return LocalRun(replace(self.seat, store=self.seat.store / "whole"), self.kind, self.reporter)

    @cached_property
    def _right(self) -> int:
        """The last checkpoint of this run that is copied into the whole run."""
        return self._kept(self.store, 0, len(self.store.roots))

    def _advance(self) -> None:
        """Extend the whole run: copy the next states while this run has them, then compute."""
        whole = self._whole.store
        if (known := len(whole.roots)) < self._right:
            whole.adopt(self.store, min((known // whole.keep + 1) * whole.keep, self._right))
        else:
            self._compute(self._whole)


def differs(theirs: Sequence[bytes], mine: Sequence[bytes]) -> bool:
    """Do two runs differ where both have a checkpoint?"""
    return any(a != b for a, b in zip(theirs, mine, strict=False))

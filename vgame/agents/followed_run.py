"""An auditor's own run, made from the states that the trainer publishes, as far as several workers find them right.

In: the auditor's own bundle; the folder or the URLs of the trainer's run. Out: the own run. What the trainer has not
published yet, or what cannot be used of it, is computed here meanwhile, so publishing can only save time. Where the
trainer's root is found wrong, the own run ends with the right one: a dispute needs the own nodes on the path to the
first difference, and that all left of it is equal; what lies right of it may be anything (docs/promises.md). So it
speaks about that claim only; about any other a whole run does.
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

VISIT = 5.0  # seconds between two visits to what is published
AWAY = 60.0  # after one that failed, and where a whole run is made
LEAST = 30.0  # seconds that a visit may take in any case
THEIRS = "theirs.bin"  # in the own run's folder: the trainer's roots, once one was found wrong; it only grows


class Late(Cancelled):
    """A visit has taken as long as it may."""


class Until(NullProgress):
    """Ends what reports to it at a time (of time.monotonic)."""

    def __init__(self, reporter: Reporter, end: float) -> None:
        self.stage, self.reporter, self.end = reporter.stage, reporter, end

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        if time.monotonic() > self.end:
            raise Late("checking it took longer than it may")
        self.reporter.progress(what, done, total, detail)


class FollowedRun(LocalRun):
    """A run in mode `correct` that takes over what the trainer has published.

    INVARIANT: `_spent` is what visits took, less what computing the checkpoints that they gave would have taken. A
    visit begins only while `_spent` is at most `_computed`, the time of own computing, and ends soon after it is more
    (docs/promises.md, section 2).

    INVARIANT: what a claim was compared with stays, for `theirs` only grows: a dispute may be open for longer than a
    process lives, and what is published may change at any time.
    """

    def __init__(self, seat: AgentConfig, kind: str, reporter: Reporter) -> None:
        super().__init__(seat, kind, reporter)
        if self.bundle.mode == "logged":
            raise Abstain(
                "--published is for runs without a log; in mode 'logged' give the trainer's run folder with --log"
            )
        self.seat, self.kind, self._next = seat, kind, 0.0
        self._computed, self._spent = 0.0, 0.0  # seconds
        self._told = (0, b""), b""  # the last answer of `_claims`
        path = self.store.folder / THEIRS
        data = path.read_bytes() if path.exists() else b""
        self.theirs = [data[i : i + ROOT_BYTES] for i in range(0, len(data), ROOT_BYTES)]

    @property
    def has_mismatch(self) -> bool:
        """Is a checkpoint of the trainer's known to be wrong?"""
        return differs(self.theirs, self.store.roots)

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """To the end, or to the first checkpoint that the trainer has wrong."""
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
        with suppress(VgameError, OSError):  # a dispute of the published claim does not need it
            _ = self._whole  # opened now, and not while a clock runs

    def _compute(self, run: LocalRun) -> None:
        """An interval."""
        begin = time.monotonic()

        def progress(step: int, loss: float) -> None:
            self.reporter.progress("training", step, self.bundle.steps, f"loss {loss:.4f}")

        train(run.store, run.stepper, progress, self.retry.insist, most=1)
        self._computed += time.monotonic() - begin

    @cached_property
    def _interval(self) -> float:
        """Seconds of an interval at the pace that was measured: the first one compiles, and may be the only own one."""
        return max(1e-4, self.pace.step * self.bundle.interval)

    # ---- what is published ----

    def _open(self, until: float) -> Store:
        """The trainer's run, of the own bundle: what lies beside it there as its job is not read."""
        places = self.seat.published
        if is_url(places[0]):
            store = open_published(places, self.bundle, until)
        else:
            store = store_of(Path(places[0]), self.bundle, writable=False)
        if (count := len(store.roots)) > self.bundle.checkpoints:
            raise StoreError(f"it has {count} checkpoints, the job has {self.bundle.checkpoints}")
        return store

    def _follow(self) -> bool:
        """Take over what is published beyond the own run; False if that is nothing, or cannot be used, for whatever
        reason: a stranger wrote it."""
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
            text = f"what is published cannot be used, it is computed here meanwhile: {sentence(error)}"
            self.reporter.emit("waiting", text, message=text)
        end, gained = time.monotonic(), len(self.store.roots) - known
        self._spent += end - begin - pace * gained
        self._next = end + (0 if gained else pause)
        return self.has_mismatch or gained > 0

    def _take_over(self, theirs: Store, most: int, end: float) -> None:
        """So many checkpoints, of which the first begins and the last ends with a state that is there: no more is
        executed than these."""
        known = len(self.store.roots)
        if differs(theirs.roots, self.store.roots):
            self._record_mismatch(theirs.roots)
            return
        last = self._kept(theirs, known, min(known + most, len(theirs.roots)))
        if last == known or (known and not theirs.keeps(known)):
            if last == len(theirs.roots):
                return
            raise StoreError(f"the state of checkpoint {known if last > known else known + 1} is not there yet")
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
        """The finding of the lowest checkpoint that differs; all before it were executed, unless it is `kept`."""
        listener = Until(self.reporter, end)
        if self.seat.workers > 1:
            timeout = min(max(1.0, end - time.monotonic()), MOST_TIMEOUT)
            workers = Workers(self.seat.workers, timeout=timeout, bundle=self.seat.bundle)
            return audit_in_parallel(theirs, self.seat.device, chosen, workers, listener)
        found = audit_parts(theirs, self.stepper, chosen, listener)
        return asdict(found) if found.differs else None

    def _kept(self, theirs: Store, known: int, last: int) -> int:
        """The last checkpoint in known + 1..last up to which all states are there that the own run keeps; `known` if
        none is. What lies between two states is executed again while a clock runs."""
        found = known
        for c in range(known + 1, last + 1):
            if theirs.keeps(c):
                found = c
            elif c % self.store.keep == 0:
                break
        return found

    def _record_mismatch(self, roots: Sequence[bytes]) -> None:
        """Keep what the trainer has committed, also for after a restart: the own run speaks about that alone.
        StoreError where it is another run than the one that was found wrong."""
        if list(roots[: len(self.theirs)]) != self.theirs:
            raise StoreError("another run is published than the one that was found wrong")
        if len(roots) > len(self.theirs):
            write_atomic(self.store.folder / THEIRS, b"".join(roots))
            self.theirs = list(roots)

    # ---- claims ----

    def history_of(self, claim: Job) -> History | None:
        """What to compare a claim with: this run, where it is whole or the claim is the published run's; else a whole
        one of its own, and None until it is there (`compute_ahead`)."""
        stop, count = claim.diverged_at, self.bundle.checkpoints
        count = (stop - 1) // self.bundle.interval if stop else count
        if not self.has_mismatch or self._claims(count) == claim.run_root:
            return self.history
        return self._whole.history if self._whole.store.done else None

    def _claims(self, count: int) -> bytes:
        """The run root of a claim of so many checkpoints of the published run; empty where it is not known, or not
        known to be wrong."""
        theirs = self.theirs[:count]
        if len(theirs) < count or not differs(theirs, self.store.roots):
            return b""
        if self._told[0] != (count, theirs[-1]):
            self._told = (count, theirs[-1]), run_tree(theirs, count).root
        return self._told[1]

    def compute_ahead(self, engaged: bool, until: float) -> bool:
        """Intervals of the whole run, one at least, until a time (of time.monotonic): the claim may be another one than
        what was published, and its window may be short. Before that a short visit, once in a while, unless a clock may
        run: more may have been published of the run of which a checkpoint is known to be wrong, and the claim be that
        one."""
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
        """A second run."""
        return LocalRun(replace(self.seat, store=self.seat.store / "whole"), self.kind, self.reporter)

    @cached_property
    def _right(self) -> int:
        """The last checkpoint of this run that the whole one begins with."""
        return self._kept(self.store, 0, len(self.store.roots))

    def _advance(self) -> None:
        """The next state of the whole run: copied while this run has it, then computed."""
        whole = self._whole.store
        if (known := len(whole.roots)) < self._right:
            whole.adopt(self.store, min((known // whole.keep + 1) * whole.keep, self._right))
        else:
            self._compute(self._whole)


def differs(theirs: Sequence[bytes], mine: Sequence[bytes]) -> bool:
    """Do two runs differ where both have a checkpoint?"""
    return any(a != b for a, b in zip(theirs, mine, strict=False))

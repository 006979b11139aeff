"""An auditor's own run, made from the states that the trainer publishes, as far as several workers find them right.

In: the auditor's own bundle; the folder or the URLs of the trainer's run. Out: the own run. What the trainer has not
published yet, or what cannot be used of it, is computed here meanwhile, so publishing can only save time. Where the
trainer's root is found wrong, the own run ends with the right one: a dispute needs the own nodes on the path to the
first difference, and that all left of it is equal; what lies right of it may be anything (docs/security.md). So it
speaks about that claim only; about any other a whole run does, made when one comes.
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
from vgame.errors import Abstain, Cancelled, StoreError
from vgame.runs.audit import audit_parts
from vgame.runs.folder import store_of
from vgame.runs.history import History
from vgame.runs.parallel_audit import Workers, audit_in_parallel
from vgame.runs.published import open_published
from vgame.runs.source import is_url
from vgame.runs.store import ROOT_BYTES, Store
from vgame.runs.training import train
from vgame.system.files import write_atomic
from vgame.system.progress import Reporter

LOOK = 5.0  # seconds between two looks at what is published
AWAY = 60.0  # after one that failed
PORTION = 16  # checkpoints that are checked before any is taken over: so much is lost where the last one is bad
SLOW = 2  # what is published is left alone for a while where computing would have taken half the time
THEIRS = "theirs.bin"  # in the own run's folder: the trainer's roots, once one was found wrong


class FollowedRun(LocalRun):
    """A run in mode `correct` that takes over what the trainer has published."""

    def __init__(self, seat: AgentConfig, kind: str, reporter: Reporter) -> None:
        super().__init__(seat, kind, reporter)
        if self.bundle.mode == "logged":
            raise Abstain(
                "--published is for runs without a log; in mode 'logged' give the trainer's run folder with --log"
            )
        self.seat, self.kind, self._next = seat, kind, 0.0
        self._portion, self._interval = PORTION, 0.0  # checkpoints; seconds that the last own interval took
        path = self.store.folder / THEIRS
        data = path.read_bytes() if path.exists() else b""
        self.theirs = [data[i : i + ROOT_BYTES] for i in range(0, len(data), ROOT_BYTES)]

    @property
    def parted(self) -> bool:
        """Is a checkpoint of the trainer's known to be wrong?"""
        return parts_from(self.theirs, self.store.roots)

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """To the end, or to the first checkpoint that the trainer has wrong."""
        self.retry.hurry = hurry
        while not (self.store.done or self.parted):
            if not self._follow():
                begin = time.monotonic()
                self._compute(self, 1)
                self._interval = time.monotonic() - begin
        if not self.parted:
            super().run(hurry)
            return
        at, mine = len(self.store.roots), self.store.roots[-1].hex()
        text = (
            f"the published run is wrong from checkpoint {at} on: its state root is {self.theirs[at - 1].hex()[:16]}, "
            f"not {mine[:16]}"
        )
        self.reporter.emit("computed", text, root=mine, step=self.store.step, stop=None, seconds=0.0)

    def _compute(self, run: LocalRun, intervals: int) -> None:
        def progress(step: int, loss: float) -> None:
            self.reporter.progress("training", step, self.bundle.steps, f"loss {loss:.4f}")

        train(run.store, run.stepper, progress, self.retry.insist, most=intervals)

    # ---- what is published ----

    def _open(self) -> Store:
        """The trainer's run, of the own bundle: what lies beside it there as its job is not read."""
        places = self.seat.published
        if is_url(places[0]):
            return open_published(places, self.bundle)
        return store_of(Path(places[0]), self.bundle, writable=False)

    def _follow(self) -> bool:
        """Take over what is published beyond the own run; False if that is nothing, or cannot be used, for whatever
        reason: a stranger wrote it. Where a look took longer than computing what it gave, the run is computed here for
        as long before the next one (docs/security.md, section 2)."""
        if (begin := time.monotonic()) < self._next:
            return False
        known, pause = len(self.store.roots), LOOK
        try:
            gained = self._take_over(self._open())
        except Cancelled:
            raise
        except Exception as error:
            gained, pause, self._portion = False, AWAY, PORTION
            text = f"what is published cannot be used, it is computed here meanwhile: {sentence(error)}"
            self.reporter.emit("waiting", text, message=text)
        end = time.monotonic()
        took, worth = end - begin, SLOW * self._interval * (len(self.store.roots) - known)
        self._next = end + (max(pause, took) if not gained else took if worth < took else 0)
        return gained

    def _take_over(self, theirs: Store) -> bool:
        known = len(self.store.roots)
        if parts_from(theirs.roots, self.store.roots):
            self._part(theirs.roots)
            return True
        if (count := len(theirs.roots)) > self.bundle.checkpoints:
            raise StoreError(f"it has {count} checkpoints, the job has {self.bundle.checkpoints}")
        last = min(known + self._portion, count)
        self._portion *= 2
        last = next((c for c in range(last, known, -1) if theirs.keeps(c)), known)
        if last == known:  # whatever goes on from there would have to execute all of it again
            return False
        found = self._check(theirs, list(range(known + 1, last + 1)))
        if found and found["kept"]:  # nothing was executed in that part
            raise StoreError(f"the state of checkpoint {found['differs']} is not the committed one")
        self.store.adopt(theirs, found["differs"] - 1 if found else last)
        if found and found["step"] is None:
            self._compute(self, 1)
            if parts_from(theirs.roots, self.store.roots):
                self._part(theirs.roots)
        return len(self.store.roots) > known

    def _check(self, theirs: Store, chosen: list[int]) -> dict[str, Any] | None:
        """The finding of the lowest checkpoint that differs; all before it were executed, unless it is `kept`."""
        if self.seat.workers > 1:
            workers = Workers(self.seat.workers, bundle=self.seat.bundle)
            return audit_in_parallel(theirs, self.seat.device, chosen, workers, self.reporter)
        found = audit_parts(theirs, self.stepper, chosen, self.reporter)
        return asdict(found) if found.differs else None

    def _part(self, roots: Sequence[bytes]) -> None:
        """Keep what the trainer has committed: the own run speaks about that alone, also after a restart."""
        write_atomic(self.store.folder / THEIRS, b"".join(roots))
        self.theirs = list(roots)

    # ---- claims ----

    def history_of(self, claim: Job) -> History | None:
        """What to compare a claim with: this run, where it is whole or the claim is the published run's; else a whole
        one of its own, and None until it is there (`ahead`)."""
        if not self.parted or claim.run_root == run_tree(self.theirs, len(self.theirs)).root:
            return self.history
        return self._whole.history if self._whole.store.done else None

    def ahead(self) -> bool:
        """An interval of the whole run: the claim may be another one than what was published, and its window may be
        short. Before that a look, once in a while: more may have been published of the run of which a checkpoint is
        known to be wrong, and the claim be that one."""
        if not self.parted or self._whole.store.done:
            return False
        if (begin := time.monotonic()) >= self._next:
            with suppress(Exception):
                roots = self._open().roots
                if parts_from(roots, self.store.roots):
                    self._part(roots)
            end = time.monotonic()
            self._next = end + max(LOOK, end - begin)
        self._compute(self._whole, 1)
        return True

    @cached_property
    def _whole(self) -> LocalRun:
        """A second run, which begins with what is right of the first."""
        run = LocalRun(replace(self.seat, store=self.seat.store / "whole"), self.kind, self.reporter)
        if not run.store.roots:
            run.store.adopt(self.store, len(self.store.roots))
        return run


def parts_from(theirs: Sequence[bytes], mine: Sequence[bytes]) -> bool:
    """Do two runs differ where both have a checkpoint?"""
    return any(a != b for a, b in zip(theirs, mine, strict=False))

"""A role's own run: computed before the game, and kept in its store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vgame.agents.client import off_chain
from vgame.agents.config import AgentConfig
from vgame.agents.retry import Retry
from vgame.chain.game import Game
from vgame.chain.records import Job
from vgame.errors import Abstain, VgameError
from vgame.execute.devices import fingerprint
from vgame.execute.work import operations
from vgame.job.bundle import load_bundle
from vgame.job.terms import Pace, trainer_shortcomings
from vgame.runs.folder import executor_of, history_of, store_of
from vgame.runs.local import copy_bundle
from vgame.runs.pace import PACE, checkpoint_seconds, measure, remember, remembered
from vgame.runs.published_log import PublishedLog
from vgame.runs.store import Store
from vgame.system.progress import Reporter

if TYPE_CHECKING:
    from vgame.delivery.seller import Seller
    from vgame.ranks.lead import Leader
    from vgame.runs.history import History


class Falsifier(Protocol):
    """Turns an honest computation into a false one (vgame/attacks/cheat.py)."""

    def falsify(self, honest: History, /) -> History:
        """The history to use instead of the honest one, with its store and its stepper."""


class LocalRun:
    """One bundle on one device, with its store and its history; in mode `logged` also the log that an auditor
    follows."""

    published: PublishedLog | None = None
    leader: Leader | None = None  # the leader of several ranks that train together

    def __init__(self, seat: AgentConfig, kind: str, reporter: Reporter, cheat: Falsifier | None = None) -> None:
        self.reporter, self.retry = reporter, Retry(reporter, seat.poll, bears=VgameError)
        reporter.stage("reads the bundle, and hashes its state and data")
        self.bundle = load_bundle(seat.bundle)
        if why := off_chain(self.bundle):
            raise Abstain(why)
        self.kind = kind
        honest = self._start_by_log(seat, seat.log) if seat.log and self.bundle.log else self._start(seat)
        self.history = cheat.falsify(honest) if cheat else honest
        self.store, self.stepper = self.history.store, self.history.stepper

    def _start(self, seat: AgentConfig) -> History:
        """The own run; in mode `logged` it is the trainer's, with its log."""
        folder, executor = seat.store / self.bundle.identity.hex()[:16], executor_of(self.bundle, self.kind)
        store = store_of(folder, self.bundle, seat.keep)
        copy_bundle(self.bundle, folder)
        store.record(executor)
        return history_of(store, executor)

    def _start_by_log(self, seat: AgentConfig, source: Path) -> History:
        """The own run of an auditor in mode `logged`, which follows a copy of the trainer's log."""
        executor, self.published = executor_of(self.bundle, self.kind), self._await_log(seat, source)
        name = f"{self.bundle.identity.hex()[:16]}-{self.published.run_root.hex()[:16]}"
        store = Store(seat.store / name, self.bundle, seat.keep)
        self.published.follow(executor)
        return history_of(store, executor, self.published)

    def _await_log(self, seat: AgentConfig, source: Path) -> PublishedLog:
        """The committed log of the trainer's whole run; each source has its own copy."""
        name = hashlib.sha256(f"{source.resolve()}".encode()).hexdigest()[:16]
        copy = seat.store / f"{self.bundle.identity.hex()[:16]}-log-{name}"

        def whole() -> PublishedLog:
            log = PublishedLog(source, copy, self.bundle)
            log.check()
            return log

        return Retry(self.reporter, seat.poll).insist(whole)

    def lock(self) -> None:
        """StoreError if another process computes this run; called before a bond is staked on it."""
        if not self.store.done:
            self.store.lock()

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """Train or re-train to the end. Failed writes to the disk are retried; `hurry` describes the clocks that run
        meanwhile."""
        from vgame.runs.training import train

        bundle, begin = self.bundle, time.monotonic()

        def progress(step: int, loss: float) -> None:
            self.reporter.progress("training", step, bundle.steps, f"loss {loss:.4f}")

        self.retry.hurry = hurry
        train(self.store, self.leader or self.stepper, progress, self.retry.insist)
        stop, root = self.store.divergence, self.store.roots[-1].hex() if self.store.roots else ""
        seconds = time.monotonic() - begin
        fields = {"root": root, "step": self.store.step, "stop": asdict(stop) if stop else None, "seconds": seconds}
        text = f"finished step {self.store.step} in {seconds:.1f} s, state root {root[:16]}"
        if stop:
            name = bundle.program.operator_name(stop.operator)
            text = (
                f"step {stop.step} is not finite: element {stop.element} of operator {name}; later steps are not "
                "committed"
            )
        self.reporter.emit("computed", text, **fields)

    def history_of(self, claim: Job) -> History | None:
        """The run to compare a claim with; None while it is being computed."""
        return self.history

    def compute_ahead(self, engaged: bool, until: float) -> bool:
        """Compute a part of the run that a claim may need, until a time (of time.monotonic) or a little longer. False
        if nothing is left. `engaged`: a clock of the auditor may run."""
        return False

    @cached_property
    def pace(self) -> Pace:
        """The measured pace of this device."""
        self.reporter.stage(f"measures a few steps of {operations(self.bundle.program):.1e} operations each")
        pace = measure(self.bundle, self.stepper, self.reporter)
        self.store.record(self.stepper)  # again: the measured steps are not part of the run
        remember(self.store.folder / PACE, pace, self.kind)
        return pace

    @property
    def known_pace(self) -> Pace | None:
        """The pace that an earlier process measured."""
        return remembered(self.store.folder / PACE, self.kind)

    def rehearse(self) -> None:
        """Do a dispute's work once, so that a device with too little memory fails before a stake."""
        self.reporter.stage("rehearses a dispute")
        self.history.rehearse()
        self.store.record(self.stepper)  # again: the rehearsed steps are not part of the run

    @cached_property
    def _checkpoint(self) -> float:
        return checkpoint_seconds(self.store.folder, self.bundle)

    def refuse_bad_terms(self, gas_price: int) -> None:
        """Abstain if an honest trainer could lose with the terms of the order."""
        pace = replace(self.pace, checkpoint=self._checkpoint)
        if short := trainer_shortcomings(self.bundle, pace, gas_price):
            raise Abstain(
                f"a step takes {pace.step:.2f} s here, {pace.worst:.2f} s at worst, a checkpoint "
                f"{pace.checkpoint:.2f} s; {'; '.join(short)} (--any-terms accepts the order)"
            )

    def refuse_small_disk(self, seller: Seller | None = None, waits: bool = False) -> None:
        """StoreError unless the disk has space for the rest of the run, with all its checkpoints, and for the state
        that the seller has not sealed yet. `waits`: a run that has begun is not refused, because it can wait for
        space."""
        from vgame.runs.forecast import refuse_small_disk

        if waits and self.store.roots:
            return
        refuse_small_disk(self.store, self.stepper, seller.unsealed if seller else 0)

    @property
    def run_root(self) -> bytes:
        """Root of the checkpoints that the run has reached."""
        from vgame.commit.trees import run_tree

        return run_tree(self.store.roots, len(self.store.roots), self.history.logs).root

    def log_mismatch(self, game: Game, job: bytes, claim: Job) -> str:
        """The reason why the log of this run is not the log of the claim; empty if it is, or if there is no log."""
        if self.published is None:
            return ""
        stopped = claim.diverged_at
        partial = game.log_root(job, (stopped - 1) // self.bundle.interval + 1) if stopped else None
        return self.published.log_mismatch(claim.run_root, partial)


def hello(reporter: Reporter, role: str, device: str) -> None:
    """Report the role and the device of this process."""
    marks = fingerprint()
    reporter.emit(
        "hello",
        f"plays the {role} on device {device} (binary64 product {marks['binary64 product']})",
        device=device,
        **marks,
    )

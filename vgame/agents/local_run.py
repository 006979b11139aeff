"""A role's own run: computed ahead of the game, held in its store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
from vgame.runs.local import copy_bundle
from vgame.runs.logged_store import LoggedStore
from vgame.runs.pace import PACE, measure, remember, remembered
from vgame.runs.published_log import PublishedLog
from vgame.runs.store import Store
from vgame.system.progress import Reporter

if TYPE_CHECKING:
    from vgame.ranks.lead import Leader
    from vgame.runs.history import History
    from vgame.runs.training import Stepper


class Falsifier(Protocol):
    """Makes an honest computation a false one (vgame/attacks/cheat.py)."""

    def falsify(self, store: Store, executor: Any, /) -> tuple[Store, Stepper, History]:
        """What the run computes with and shows instead."""

    def falsify_log(self, executor: Any, /) -> None:
        """Mode `logged`: change the executor."""


class LocalRun:
    """One bundle on one device: its store and its history; in mode `logged` also the log that an auditor follows."""

    published: PublishedLog | None = None
    leader: Leader | None = None  # of several ranks that train together

    def __init__(self, seat: AgentConfig, kind: str, reporter: Reporter, cheat: Falsifier | None = None) -> None:
        self.reporter, self.retry = reporter, Retry(reporter, seat.poll, bears=VgameError)
        reporter.stage("reads the bundle, and hashes its state and data")
        self.bundle = load_bundle(seat.bundle)
        if why := off_chain(self.bundle):
            raise Abstain(why)
        self.kind = kind
        if self.bundle.mode == "logged":
            self._start_logged(seat, kind, cheat)
        else:
            self._start(seat, kind, cheat)

    def _start(self, seat: AgentConfig, kind: str, cheat: Falsifier | None) -> None:
        from vgame.execute.executor import Executor
        from vgame.runs.history import History

        executor = Executor(
            self.bundle.program, self.bundle.data, self.bundle.scalars, self.bundle.seed, self.bundle.mode, kind
        )
        folder = seat.store / self.bundle.identity.hex()[:16]
        self.store = Store(folder, self.bundle, seat.keep)
        copy_bundle(seat.bundle, folder)
        self.stepper, self.history = executor, History(self.store, executor)
        if cheat:
            self.store, self.stepper, self.history = cheat.falsify(self.store, executor)

    def _start_logged(self, seat: AgentConfig, kind: str, cheat: Falsifier | None) -> None:
        """The trainer records its log in its run folder; an auditor follows a copy of it, in a run of its own."""
        from vgame.runs.logged_history import LoggedHistory
        from vgame.runs.logged_store import make_executor

        self.stepper, identity = make_executor(self.bundle, kind), self.bundle.identity.hex()[:16]
        if cheat:
            cheat.falsify_log(self.stepper)
        if seat.log is None:
            self.store = log = LoggedStore(seat.store / identity, self.bundle, seat.keep)
            copy_bundle(seat.bundle, seat.store / identity)
            log.record(self.stepper)
        else:
            self.published = log = self._await_log(seat, seat.log)
            self.store = Store(seat.store / f"{identity}-{log.run_root.hex()[:16]}", self.bundle, seat.keep)
            log.follow(self.stepper)
        self.history = LoggedHistory(self.store, self.stepper, log)

    def _await_log(self, seat: AgentConfig, source: Path) -> PublishedLog:
        """The log of the trainer's whole run, as it was committed; of each source a copy of its own."""
        name = hashlib.sha256(f"{source.resolve()}".encode()).hexdigest()[:16]
        copy = seat.store / f"{self.bundle.identity.hex()[:16]}-log-{name}"

        def whole() -> PublishedLog:
            log = PublishedLog(source, copy, self.bundle)
            log.check()
            return log

        return Retry(self.reporter, seat.poll).insist(whole)

    def lock(self) -> None:
        """StoreError where another process computes this run: asked before a bond is put on it."""
        if not self.store.done:
            self.store.lock()

    def run(self, hurry: Callable[[], str] = lambda: "") -> None:
        """Train or re-train to the end; a disk that takes nothing is waited for, while a clock may run (`hurry`)."""
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
                f"step {stop.step} is not finite: element {stop.element} of operator {name}; nothing after it is "
                "committed"
            )
        self.reporter.emit("computed", text, **fields)

    def history_of(self, claim: Job) -> History | None:
        """What to compare a claim with; None where it is still computed."""
        return self.history

    def compute_ahead(self, engaged: bool, until: float) -> bool:
        """Compute a part of what a claim may ask for, until a time (of time.monotonic) or a little longer; False if
        nothing is left. `engaged`: a clock of the auditor's may run."""
        return False

    @cached_property
    def pace(self) -> Pace:
        """How fast this device is."""
        self.reporter.stage(f"measures a few steps of {operations(self.bundle.program):.1e} operations each")
        pace = measure(self.bundle, self.stepper, self.reporter)
        if isinstance(self.store, LoggedStore):
            self.stepper.made.clear()  # what was measured is no step of the run
        remember(self.store.folder / PACE, pace, self.kind)
        return pace

    @property
    def known_pace(self) -> Pace | None:
        """The same, as an earlier process measured it."""
        return remembered(self.store.folder / PACE, self.kind)

    def rehearse(self) -> None:
        """Do a dispute's work once: who has too little memory for it ends before it stakes anything."""
        self.reporter.stage("rehearses a dispute")
        self.history.rehearse()
        if isinstance(self.store, LoggedStore):
            self.stepper.made.clear()  # what was rehearsed is no step of the run

    def refuse_bad_terms(self, gas_price: int) -> None:
        """Abstain from an order on which an honest trainer could lose."""
        if short := trainer_shortcomings(self.bundle, self.pace, gas_price):
            raise Abstain(
                f"a step takes {self.pace.step:.2f} s here, {self.pace.worst:.2f} s at worst; {'; '.join(short)} "
                "(--any-terms accepts the order)"
            )

    @property
    def run_root(self) -> bytes:
        """Root over the checkpoints that were reached."""
        from vgame.commit.trees import run_tree

        return run_tree(self.store.roots, len(self.store.roots), self.history.logs).root

    def log_mismatch(self, game: Game, job: bytes, claim: Job) -> str:
        """Why the log that this run follows is not the claim's; empty if it is, or if there is none."""
        if self.published is None:
            return ""
        stopped = claim.diverged_at
        partial = game.log_root(job, (stopped - 1) // self.bundle.interval + 1) if stopped else None
        return self.published.log_mismatch(claim.run_root, partial)


def hello(reporter: Reporter, role: str, device: str) -> None:
    """Say which device this process is."""
    marks = fingerprint()
    reporter.emit(
        "hello",
        f"plays the {role} on device {device} (binary64 product {marks['binary64 product']})",
        device=device,
        **marks,
    )

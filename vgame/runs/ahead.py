"""Re-execute segments of a trainer's run in other processes before their disputes are due, because an attacker can open
several at once.

In: a history in its run's folder; the checkpoints of segments that will be needed. Out: the same roots as the history's
own, or None if a worker died, hung or found other roots: then the history executes the interval itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, LifoQueue

from vgame.runs.history import History
from vgame.runs.parallel_audit import opened
from vgame.runs.worker import Given, WorkerProcess

log = logging.getLogger(__name__)

TIMEOUT = 60.0  # seconds without a new step; short, since clocks run


class Ahead:
    """A number of workers beside a trainer; each keeps the run open until the trainer ends."""

    def __init__(self, history: History, device: str, workers: int) -> None:
        self.history, store = history, history.store
        self.given = Given(
            str(store.folder.absolute()), len(store.roots), opened(store, len(store.roots)), device, TIMEOUT
        )
        self.roots, self.threads = list(store.roots), max(1, (os.cpu_count() or 1) // (workers + 1))
        self.pool = ThreadPoolExecutor(workers, "segment")
        self.idle: LifoQueue[WorkerProcess] = LifoQueue()
        self.workers: list[WorkerProcess] = []
        self.segments: dict[int, Future[list[bytes] | None]] = {}

    def want(self, checkpoints: Sequence[int]) -> None:
        """Start the execution of these segments in the workers."""
        for c in checkpoints:
            if c not in self.segments and c <= len(self.roots):  # the last segment of a diverged run is short
                with suppress(RuntimeError):  # no thread can be started: executed here
                    self.segments[c] = self.pool.submit(self._execute, c)

    def segment(self, checkpoint: int) -> list[bytes] | None:
        """The state roots of a started segment, after waiting for them; None if it was not started or failed."""
        return self.segments[checkpoint].result() if checkpoint in self.segments else None

    def _execute(self, checkpoint: int) -> list[bytes] | None:
        worker = None
        try:
            worker = self._worker()
            found = worker.segment(checkpoint)
        except Exception as error:  # no failure may end the trainer
            log.warning("segment %d: %s; it is executed here", checkpoint, error or type(error).__name__)
            if worker:
                worker.end()
            return None
        self.idle.put(worker)
        if (found[0], found[-1], len(found)) == self._ends(checkpoint):
            return found
        log.warning("segment %d: a worker found another one; it is executed here, run `vgame doctor`", checkpoint)
        return None

    def _ends(self, checkpoint: int) -> tuple[bytes, bytes, int]:
        """(known first and last root of a segment, their number)."""
        bundle, before = self.history.bundle, checkpoint - 1
        steps = min(checkpoint * bundle.interval, bundle.steps) - before * bundle.interval
        return self.roots[before - 1] if before else bundle.initial_root, self.roots[before], steps + 1

    def _worker(self) -> WorkerProcess:
        with suppress(Empty):
            return self.idle.get_nowait()
        worker = WorkerProcess(self.given, self.threads)
        self.workers.append(worker)
        return worker

    def end(self) -> None:
        """End the processes and the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.process.kill()

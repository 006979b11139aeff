"""Segments of a trainer's run, executed again by other processes before their dispute is due: under attack there are
several to answer.

In: a history in its run's folder; checkpoints whose segments will be asked for. Out: the same roots as the history's
own, or none where a worker died, hung or found others: then the history executes the interval itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, LifoQueue

from vgame.errors import VgameError
from vgame.runs.history import History
from vgame.runs.parallel_audit import opened
from vgame.runs.worker import Given, WorkerDied, WorkerProcess

log = logging.getLogger(__name__)

TIMEOUT = 60.0  # seconds without a new step: clocks run


class Ahead:
    """So many workers beside a trainer; each has the run open as long as the trainer lives."""

    def __init__(self, history: History, device: str, workers: int) -> None:
        store = history.store
        self.given = Given(
            str(store.folder.absolute()), len(store.roots), opened(store, len(store.roots)), device, TIMEOUT
        )
        self.roots, self.threads = list(store.roots), max(1, (os.cpu_count() or 1) // (workers + 1))
        self.pool = ThreadPoolExecutor(workers, "segment")
        self.idle: LifoQueue[WorkerProcess] = LifoQueue()
        self.workers: list[WorkerProcess] = []
        self.segments: dict[int, Future[list[bytes] | None]] = {}

    def want(self, checkpoints: Sequence[int]) -> None:
        """These will be asked for."""
        for c in checkpoints:
            if c not in self.segments and c <= len(self.roots):  # the last one of a run that diverged is short
                self.segments[c] = self.pool.submit(self._execute, c)

    def segment(self, checkpoint: int) -> list[bytes] | None:
        """State roots of a segment that was wanted, once they are there."""
        return self.segments[checkpoint].result() if checkpoint in self.segments else None

    def _execute(self, checkpoint: int) -> list[bytes] | None:
        worker = None
        try:
            worker = self._worker()
            found = worker.segment(checkpoint)
        except (WorkerDied, VgameError) as error:
            log.warning("segment %d: %s; it is executed here", checkpoint, error)
            if worker:
                worker.end()
            return None
        self.idle.put(worker)
        if found[-1] == self.roots[checkpoint - 1]:
            return found
        log.warning(
            "segment %d: a worker found another state root; it is executed here, run `vgame doctor`", checkpoint
        )
        return None

    def _worker(self) -> WorkerProcess:
        with suppress(Empty):
            return self.idle.get_nowait()
        worker = WorkerProcess(self.given, self.threads)
        self.workers.append(worker)
        return worker

    def end(self) -> None:
        """The processes end, and with them the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.process.kill()

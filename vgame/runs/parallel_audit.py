"""Audit a run with several processes: a part between two kept checkpoints needs only its initial state.

In: an opened run, the checkpoints to execute again. Out: one `Finding`, as from one process. A run all of whose parts
match, from the agreed initial state on, matches. If a worker dies, or begins no step for too long, another one repeats
its current part.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from vgame.errors import Cancelled, VgameError
from vgame.runs.store import Store
from vgame.runs.worker import MOST_TIMEOUT, TIMEOUT, Given, Part, Started, Worker, WorkerDied, WorkerProcess
from vgame.system.files import no_link, read_file
from vgame.system.progress import NullProgress

TRIES = 3  # of one part, before the audit gives up on it
LOOK = 0.2  # seconds; a signal at the start of a wait does not end it
CELLS = 60  # of the progress line
MOST_RECORD = 2**31  # bytes: 2^24 checkpoints


def parts_of(store: Store, chosen: Sequence[int]) -> list[Part]:
    """The chosen checkpoints, split at the kept states."""
    parts: list[Part] = []
    for c in chosen:
        begin = store.nearest(c - 1)
        if parts and parts[-1][1] == c - 1 and begin != c - 1:
            parts[-1] = parts[-1][0], c, parts[-1][2]
        else:
            parts.append((c, c, begin))
    return parts


def chance(count: int, checked: int, wrong: int) -> float:
    """1 - C(count - wrong, checked) / C(count, checked): the probability that a sample of `checked` of `count` contains
    one of `wrong`."""
    return 1 - math.comb(count - wrong, checked) / math.comb(count, checked)


def committed(store: Store) -> list[str]:
    """For each checkpoint a hash of all that determines its verdict: its number, the state before it and its own, log,
    losses."""
    every, states = store.bundle.interval, [store.bundle.initial_root, *store.roots]
    losses = store.losses().tobytes()

    def committed_by(c: int) -> bytes:
        part = sha256(losses[4 * every * (c - 1) : 4 * every * c]).digest()
        own = store.commitment(c, states[c])
        return b"".join([store.bundle.identity, c.to_bytes(8), states[c - 1], own, part])

    return [sha256(committed_by(c)).hexdigest() for c in range(1, len(store.roots) + 1)]


def opened(store: Store, count: int) -> str:
    """Hash of the run as read by this process, cut to `count` checkpoints. A worker compares it: other users may change
    the folder meanwhile."""
    del store.roots[count:]
    return sha256("".join(committed(store)).encode()).hexdigest()


class Record:
    """Checkpoints found equal, in a file of lines, so that a stopped audit can be resumed. None: no file."""

    def __init__(self, path: Path | None, store: Store) -> None:
        self.path, self.lines = path, committed(store)
        self.done = set(self._read()) if path and os.path.lexists(path) else set[str]()

    def _read(self) -> list[str]:
        try:
            return read_file(self.path, MOST_RECORD).decode("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it holds something else"
            raise VgameError(
                f"--record {self.path} is not the record of an audit: {reason}; give another file"
            ) from None

    def holds(self, part: Part) -> bool:
        return all(self.lines[c - 1] in self.done for c in range(part[0], part[1] + 1))

    def add(self, part: Part) -> None:
        lines = self.lines[part[0] - 1 : part[1]]
        self.done.update(lines)
        if self.path:
            try:
                with open(self.path, "a", opener=no_link) as file:
                    file.writelines(f"{line}\n" for line in lines)
            except OSError as error:
                raise VgameError(
                    f"--record {self.path} cannot be written: {error.strerror}; give another file"
                ) from None


@dataclass
class _Work:
    """The remaining parts, shared by the threads; each thread serves one worker."""

    parts: list[Part]
    total: int
    tell: Callable[[int, str], None]
    say: Callable[[str], None]
    record: Record
    done: list[Part] = field(default_factory=list)
    worst: dict[str, Any] | None = None
    tries: dict[Part, int] = field(default_factory=dict)
    error: Exception | None = None
    workers: list[Worker] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def started(self, worker: Worker) -> None:
        with self.lock:
            self.workers.append(worker)
            if self.error:
                worker.stop()

    def take(self) -> Part | None:
        """The next part, or None; parts after a checkpoint that is known to differ are skipped."""
        with self.lock:
            while self.parts and not self.error:
                part = self.parts.pop(0)
                if self.worst is None or part[0] < self.worst["differs"]:
                    return part
            return None

    def finished(self, part: Part, found: dict[str, Any]) -> None:
        with self.lock:
            self.done.append(part)
            if found["differs"] is None:
                self.record.add(part)
            elif self.worst is None or found["differs"] < self.worst["differs"]:
                self.worst = found
            self._tell()

    def again(self, part: Part, error: WorkerDied) -> None:
        with self.lock:
            if self.error:
                return
            self.tries[part] = self.tries.get(part, 0) + 1
            if self.tries[part] >= TRIES:
                self.error = VgameError(
                    f"checkpoints {part[0]}..{part[1]}: {TRIES} workers ended while they executed them ({error}); "
                    "there may be too little memory for so many workers: give fewer; or, if a step takes so long, a "
                    "longer --timeout"
                )
            self.parts.insert(0, part)
            self.say(f"checkpoints {part[0]}..{part[1]}: {error}; another worker executes them")

    def stop(self, error: Exception) -> None:
        """End all workers."""
        with self.lock:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self.error = self.error or error
        for worker in self.workers:
            worker.stop()

    def _tell(self) -> None:
        try:
            self.tell(len(self.done), _grid(self.done, self.worst, self.total))
        except Cancelled as error:
            self._end(error)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of an audit. `count`: processes on this machine; with `ray`, the address of a cluster (`local` starts
    one), tasks there at a time (1: as many as the cluster has cores). `record`: a file of checkpoints found equal;
    `timeout`: seconds without a new step after which a worker counts as hanging; `bundle`: the folder of the caller's
    order, used instead of the run's."""

    count: int = 1
    record: Path | None = None
    timeout: float = TIMEOUT
    ray: str | None = None
    bundle: Path | None = None

    @property
    def plain(self) -> bool:
        """Whether this process alone suffices."""
        return self.count == 1 and self.record is None and self.ray is None

    @contextmanager
    def maker(self, given: Given) -> Iterator[tuple[int, Callable[[Started], Worker]]]:
        """(number of workers, function that makes one)."""
        if self.ray is None:
            share = max(1, (os.cpu_count() or 1) // self.count)
            yield self.count, lambda started: WorkerProcess(given, share, started)
        else:
            from vgame.runs.ray_workers import cluster

            with cluster(self.ray) as (cores, make):
                yield self.count if self.count > 1 else cores, lambda started: make(given, started)


def audit_in_parallel(
    store: Store, device: str, chosen: Sequence[int], workers: Workers, listener: NullProgress
) -> dict[str, Any] | None:
    """The finding of the lowest checkpoint that differs, as a dict of `Finding`; None if all are equal. VgameError if a
    part cannot be executed, Cancelled if the listener cancels."""
    if not 0 < workers.timeout <= MOST_TIMEOUT:
        raise VgameError(
            f"--timeout {workers.timeout}: a number of seconds above 0 and up to {MOST_TIMEOUT:,} is expected"
        )
    held, urls = opened(store, len(store.roots)), store.elsewhere.urls if store.elsewhere else ()
    bundle = str(workers.bundle.absolute()) if workers.bundle else ""
    given = Given(str(store.folder.absolute()), len(store.roots), held, device, workers.timeout, urls, bundle)
    known = Record(workers.record, store)
    parts = [part for part in parts_of(store, chosen) if not known.holds(part)]
    if not parts:
        return None
    count = len(parts)

    def tell(done: int, picture: str) -> None:
        listener.progress("auditing", done, count, picture)

    work = _Work(list(parts), len(store.roots), tell, listener.stage, known)
    with workers.maker(given) as (most, make):
        _share_out(work, min(most, count), make)
    assert work.worst or len(work.done) == count, f"{len(work.done)} of {count} parts were executed"
    return work.worst


def _share_out(work: _Work, count: int, make: Callable[[Started], Worker]) -> None:
    """Execute all parts with so many workers."""
    with ThreadPoolExecutor(count, "worker") as pool:
        try:
            attending = [pool.submit(_attend, work, make) for _ in range(count)]
            while wait(attending, LOOK).not_done:
                pass
        except BaseException as error:
            work.stop(Cancelled(str(error)))
            raise
    if work.error:
        raise work.error


def _attend(work: _Work, make: Callable[[Started], Worker]) -> None:
    """Give parts to a worker until none is left; replace a worker that died or hangs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by workers: only this process handles Ctrl-C
    worker: Worker | None = None
    try:
        while (part := work.take()) is not None:
            try:
                worker = worker or make(work.started)
                work.finished(part, worker.audit(part))
            except WorkerDied as error:
                work.again(part, error)
                worker = None
    except Exception as error:
        work.stop(error)
    finally:
        if worker:
            worker.end()


def _grid(done: Iterable[Part], worst: dict[str, Any] | None, count: int) -> str:
    """The run as a row of cells: `#` equal, `x` differs, `.` not checked."""
    equal = {c for first, last, _ in done for c in range(first, last + 1)}
    differs = worst["differs"] if worst else 0
    cells = min(count, CELLS)

    def cell(i: int) -> str:
        inside = range(i * count // cells + 1, (i + 1) * count // cells + 1)
        return "x" if differs in inside else "#" if all(c in equal for c in inside) else "."

    return "".join(map(cell, range(cells)))

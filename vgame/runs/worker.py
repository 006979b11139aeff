"""The starting process's view of a worker process (audit_worker.py); errors name a worker that hangs or dies.

In: a run as the starting process has read it; parts of it. Out: the worker's findings, or WorkerDied.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from vgame.errors import VgameError
from vgame.execute.devices import find
from vgame.runs.own_process import child_environment
from vgame.system.version import sources

sources()  # of the loaded code: hashed now, since an upgrade may change the files later
TIMEOUT = 600.0  # seconds without a sign of life after which a worker counts as hanging
MOST_TIMEOUT = 2_000_000  # seconds; poll takes milliseconds in 31 bits
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Part = tuple[int, int, int]  # first and last checkpoint, and the one with the initial state


class WorkerDied(Exception):
    """A worker's process ended without an answer, or was ended because it hung."""


class Worker(Protocol):
    """Executes parts, one after the other."""

    def audit(self, part: Part) -> dict[str, Any]:
        """Audit a part: a dict of `Finding`, with the part. WorkerDied if the worker ended meanwhile."""

    def stop(self) -> None:
        """End the current work at once, with WorkerDied; called from another thread."""

    def end(self) -> None: ...


#: Called with a started worker, which may not be ready yet.
Started = Callable[[Worker], None]


@dataclass(frozen=True, slots=True)
class Given:
    """The input of a worker: the run's folder, the number of its checkpoints, their hash (`opened`), the device, and
    the seconds without a sign of life after which it counts as hanging. `bundle`: the folder of the order, if not the
    run's own. `vgame`: version of the starting process."""

    run: str
    count: int
    held: str
    device: str
    timeout: float = TIMEOUT
    urls: tuple[str, ...] = ()  # sources of states that are not in the folder
    bundle: str = ""
    vgame: str = field(default_factory=sources)


class WorkerProcess:
    """One process with its share of the cores."""

    def __init__(self, given: Given, threads: int, started: Started = lambda _: None) -> None:
        self.timeout, self.begun, self.unread = given.timeout, "before its first step", b""
        environment = child_environment() | find(given.device).environment | dict.fromkeys(THREADS, str(threads))
        command = [sys.executable, "-P", "-m", "vgame.runs.audit_worker", given.run, given.device, str(given.count)]
        command += [given.bundle, *given.urls]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
            )
        except OSError as error:
            raise WorkerDied(f"no process could be started: {error.strerror}") from None
        try:
            started(self)
            self._check(given, self._answer())
        except BaseException:
            self.end()
            raise

    def _check(self, given: Given, ready: dict[str, Any]) -> None:
        """VgameError unless the process has the same vgame, and has read the same run."""
        if ready.get("vgame") != given.vgame:
            raise VgameError(
                f"the worker on {socket.gethostname()} has vgame {ready.get('vgame')}, the audit has {given.vgame}: "
                "install the same there"
            )
        if ready["ready"] != given.held:
            raise VgameError(f"{given.run} was changed while it was audited; audit it again")

    def audit(self, part: Part) -> dict[str, Any]:
        return self._ask(" ".join(map(str, part)))

    def segment(self, checkpoint: int) -> list[bytes]:
        """State roots of a checkpoint's segment."""
        return [bytes.fromhex(root) for root in self._ask(f"segment {checkpoint}")["segment"]]

    def _ask(self, line: str) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # its answer, or its absence, is reported
            self.process.stdin.write(f"{line}\n".encode())
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        while "begins" in (found := json.loads(self._line())):
            self.begun = f"at step {found['begins']}"
        if "error" in found:
            raise VgameError(found["error"])
        return found

    def _line(self) -> bytes:
        """The next line, or WorkerDied: without a line in time the process is killed, since it may never end by
        itself."""
        pipe, end = select.poll(), time.monotonic() + self.timeout
        pipe.register(self.process.stdout, select.POLLIN)
        while b"\n" not in self.unread:
            if not pipe.poll(max(0.0, 1000 * (end - time.monotonic()))):
                self.end()
                raise WorkerDied(f"worker {self.process.pid} hung {self.begun}: no sign of life for {self.timeout:g} s")
            if not (read := os.read(self.process.stdout.fileno(), 2**16)):
                code = self.process.wait()
                self.end()
                raise WorkerDied(f"worker {self.process.pid} ended {self.begun} with exit code {code}")
            self.unread += read
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def stop(self) -> None:
        self.process.kill()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()

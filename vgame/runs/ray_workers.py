"""Workers on a Ray cluster: one plain task for each part, with the place of the run and its checkpoints; no actors, no
states in Ray's store.

In: the address of a cluster, or `local`. Out: workers (worker.py). A task has one core. It gives its part to a process
on its machine that serves later parts too, so that a program is loaded once; the process ends with Ray.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from vgame.errors import VgameError, missing_package
from vgame.runs.worker import Given, Part, Started, Worker, WorkerDied, WorkerProcess

CONNECT = 5.0  # seconds
LOOK = 1.0  # seconds between two polls of a task

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
try:
    import ray
except ModuleNotFoundError as error:
    raise missing_package(error) from None


@contextmanager
def cluster(address: str) -> Iterator[tuple[int, Callable[[Given, Started], Worker]]]:
    """(cores of the cluster, function that makes a worker there). An existing connection is used and left open."""
    here = ray.is_initialized()
    if not here:
        _connect(address)
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1))), RayWorker
    finally:
        if not here:
            ray.shutdown()


def _connect(address: str) -> None:
    """VgameError if no cluster listens, or one of another version of Ray or Python."""
    if address not in ("local", "auto"):
        _refuse_absent(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    own = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, **quiet, **own)
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError and its own
        reason = " ".join(str(error).split())
        raise VgameError(
            f"--ray {address}: there is no cluster that this Ray {ray.__version__} can use: {reason}"
        ) from None


def _refuse_absent(address: str) -> None:
    """VgameError if no cluster listens; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise VgameError(f"--ray {address!r}: HOST:PORT, ray://HOST:PORT, auto or local is expected")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
    except OSError as error:
        raise VgameError(
            f"--ray {address}: no cluster answers there ({error.strerror or error}); start Ray, or give local"
        ) from None


class RayWorker:
    """Parts as tasks, one at a time."""

    def __init__(self, given: Given, started: Started = lambda _: None) -> None:
        self.given, self.stopped = asdict(given), False
        started(self)

    def audit(self, part: Part) -> dict[str, Any]:
        task = _task.remote(self.given, part)
        while not ray.wait([task], timeout=LOOK)[0]:
            if self.stopped:
                ray.cancel(task, force=True)
        try:
            found = ray.get(task)
        except ray.exceptions.RayTaskError as error:  # unexpected by the task: no vgame there, or an old one
            reason = str(error.cause).strip().splitlines()[-1]
            raise VgameError(
                f"a task of the cluster failed ({reason}): install this vgame, {self.given['vgame']}, there"
            ) from None
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"a task of the cluster ended: {str(error).strip().splitlines()[0]}") from None
        if "died" in found:
            raise WorkerDied(found["died"])
        if "error" in found:
            raise VgameError(found["error"])
        return found

    def stop(self) -> None:
        self.stopped = True

    def end(self) -> None:
        """Does nothing: the process waits for other parts and ends with Ray."""


# ---- on the cluster ----

_processes: dict[tuple[Any, ...], WorkerProcess] = {}


def execute(given: dict[str, Any], part: Part) -> dict[str, Any]:
    """Execute a part in this machine's process for the run, or in a new one."""
    key = tuple(given.values())
    try:
        if key not in _processes:
            while _processes:  # of another audit
                _processes.popitem()[1].end()
            _processes[key] = WorkerProcess(_here(Given(**given)), 1)
        return _processes[key].audit(part)
    except WorkerDied as error:
        _processes.pop(key, None)
        return {"died": f"{error} on {socket.gethostname()}"}
    except VgameError as error:
        return {"error": str(error)}


def _here(given: Given) -> Given:
    """The folder of the run on this machine: its own cache for a published run, else the folder that all machines
    share."""
    if not given.urls:
        return given
    from vgame.runs.published import open_published

    return replace(given, run=str(open_published(given.urls).folder))


_task = ray.remote(num_cpus=1, max_retries=0)(execute)

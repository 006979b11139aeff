"""An auditor's copy of a trainer's rounding log.

In: the trainer's run folder or a copy of it, at least run.json, roots.bin, logs.bin and rounding.vglog. Out: the log,
checked against the claim's run root, and an executor that follows it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from vgame.errors import Abstain, NotYet, StoreError
from vgame.job.bundle import Bundle
from vgame.logged.encoding import LogError
from vgame.logged.kernels import LoggedExecutor, StepEntries
from vgame.runs.logged_store import LoggedStore
from vgame.system.files import open_file

#: In the order of copying: a later file covers at least the earlier ones.
FILES = ("run.json", "roots.bin", "logs.bin", "rounding.vglog")
PIECE = 2**20  # bytes copied at once


class PublishedLog:
    """The log of a run that has ended, copied once to the auditor's folder: later changes by the trainer have no
    effect."""

    def __init__(self, source: Path, own: Path, bundle: Bundle) -> None:
        self.source, self.own, self.bundle = source, own, bundle
        if not _is_whole(own, bundle):
            self._copy()
        self.store = LoggedStore(own, bundle)
        self.log_roots = self.store.log_roots

    def _copy(self) -> None:
        for name in FILES:
            path, most = self.source / name, LoggedStore.files(self.bundle)[name]
            try:
                with open_file(path) as log:
                    if os.fstat(log.fileno()).st_size <= most:
                        self._keep(name, log, most + 1)
                    if max(os.fstat(log.fileno()).st_size, log.tell()) > most:  # also if it has grown meanwhile
                        (self.own / name).unlink(missing_ok=True)
                        raise OSError(errno.EFBIG, f"more than {most:,} bytes, which no log of this job has", str(path))
            except OSError as error:
                raise Abstain(
                    f"the trainer's log is not there: {path}: {error.strerror}; --log is the trainer's run folder, or "
                    f"a copy of its {', '.join(FILES)}"
                ) from None

    def _keep(self, name: str, log: IO[bytes], most: int) -> None:
        """Copy so many bytes, holes as holes; StoreError, and no copy, if the own disk fails."""
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            with open(self.own / name, "wb") as own:
                while data := log.read(min(PIECE, most - log.tell())):
                    if data == bytes(len(data)):
                        own.seek(len(data), os.SEEK_CUR)
                    else:
                        own.write(data)
                own.truncate()
        except OSError as error:
            with suppress(OSError):
                (self.own / name).unlink()
            raise StoreError(
                f"{self.source / name} cannot be copied to {self.own / name}: {error.strerror}; free space, or choose "
                "another --store"
            ) from None

    def check(self) -> None:
        """NotYet unless the copy is the log of a whole run and matches every commitment."""
        try:
            _check(self.store)
        except LogError as error:
            raise NotYet(f"the log in {self.source} cannot be followed yet: {error}") from None

    @property
    def run_root(self) -> bytes:
        """The run root of a claim with this log and its trainer's states."""
        return self.store.run_tree.root

    @property
    def partial_root(self) -> bytes | None:
        """Root of the log of the interval in which the run stopped."""
        return next(iter(self.log_roots[len(self.store.roots) :]), None) if self.store.divergence else None

    def committed(self, checkpoint: int) -> Sequence[StepEntries]:
        """The entries of a checkpoint's interval; Abstain unless they are the committed ones."""
        try:
            return self.store.committed(checkpoint)
        except (LogError, StoreError) as error:
            raise Abstain(f"the trainer's log cannot be followed: {error}") from None

    def follow(self, executor: LoggedExecutor) -> None:
        """Let the executor follow the log's directions; inadmissible entries are ignored, and after the end of the run
        there are none. Abstain at a step with missing entries."""
        stop, interval = self.store.divergence, self.store.bundle.interval
        last = stop.step if stop else self.store.bundle.steps
        known: dict[int, Sequence[StepEntries]] = {}

        def read(step: int) -> StepEntries:
            checkpoint = (step - 1) // interval + 1
            if step > last:
                return {}
            if checkpoint not in known:
                known.clear()  # one interval at a time
                known[checkpoint] = self.committed(checkpoint)
            return known[checkpoint][(step - 1) % interval]

        executor.kernels.strict = False
        executor.read = read

    def log_mismatch(self, run_root: bytes, partial_root: bytes | None) -> str:
        """The reason why this is not the log of the claim; empty if it is."""
        mine = (self.run_root, self.partial_root)
        if mine == (run_root, partial_root):
            return ""
        return (
            f"the log in {self.source} is not the one that the claim commits (its run root is "
            f"{mine[0].hex()[:16]}..., claimed is {run_root.hex()[:16]}...): get the committed log from the trainer, "
            f"remove the copy {self.own} and start again"
        )


def _is_whole(own: Path, bundle: Bundle) -> bool:
    """Whether the folder holds the log of a whole run that matches every commitment."""
    if not all((own / name).exists() for name in FILES):
        return False
    try:
        _check(LoggedStore(own, bundle))
    except (LogError, StoreError):
        return False
    return True


def _check(store: LoggedStore) -> None:
    """LogError unless it has every checkpoint of a whole run, and every interval's log matches its commitment."""
    stop, bundle, reached = store.divergence, store.bundle, len(store.roots)
    due = (stop.step - 1) // bundle.interval if stop else bundle.checkpoints
    if reached != due:
        raise LogError(f"it has {reached} checkpoints of {due}")
    for checkpoint in range(1, due + (stop is not None) + 1):
        store.committed(checkpoint)

"""Runs in mode `logged` without a chain: the store with its log, the recording executor, the following executor.

    RUN/rounding.vglog   the log (logfile.py)
    RUN/logs.bin         32 bytes per checkpoint, appended: the root of the log of its interval,
                         the second half of its leaf of the run tree

The log is on the disk before the checkpoint that needs it; uncommitted entries of a killed process are cut off on
opening. A diverged run has the log of its last steps as one more interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vgame.errors import StoreError
from vgame.job.bundle import Bundle
from vgame.logged.encoding import LogError
from vgame.logged.kernels import LoggedExecutor, StepEntries, sum_operators
from vgame.logged.logfile import FRAME, LogFile, most_of_a_step
from vgame.logged.tree import interval_root
from vgame.runs.header import MOST_BYTES, Divergence
from vgame.runs.pace import FEW, few_steps
from vgame.runs.store import ROOT_BYTES, Store
from vgame.system.files import truncate
from vgame.system.progress import NullProgress


def make_executor(bundle: Bundle, kind: str) -> LoggedExecutor:
    """The bundle's executor on a torch device; it records, unless it follows a log."""
    assert bundle.log is not None, "a bundle in mode logged has a LogSpec"
    windows = dict(zip(sum_operators(bundle.program), bundle.log.windows, strict=True))
    return LoggedExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.log.bits, windows, kind)


class LoggedStore(Store):
    """A store whose checkpoints have logs."""

    ROOTS = (*Store.ROOTS, "logs.bin")

    def __init__(self, folder: Path, bundle: Bundle, keep: int = 1, writable: bool = True) -> None:
        super().__init__(folder, bundle, keep, writable)
        path, bits = folder / "rounding.vglog", bundle.log.bits
        self.log = LogFile(path, bundle.program, bundle.identity, bits, writable=writable)
        self.log_roots = self._read_roots("logs.bin")

    @classmethod
    def files(cls, bundle: Bundle) -> dict[str, int]:
        log = MOST_BYTES + bundle.steps * (FRAME + most_of_a_step(bundle.program))
        return super().files(bundle) | {"rounding.vglog": log}

    def commitment(self, checkpoint: int, root: bytes) -> bytes:
        return root + b"".join(self.log_roots[checkpoint - 1 : checkpoint])

    @property
    def final_path(self) -> list[bytes]:
        """As in other modes, after the root of the last log."""
        return [self.log_roots[len(self.roots) - 1], *super().final_path]

    @staticmethod
    def path_length(bundle: Bundle) -> int:
        return 1 + Store.path_length(bundle)

    def bounds(self, checkpoint: int) -> tuple[int, int]:
        """First and last step of a checkpoint's interval."""
        return (checkpoint - 1) * self.bundle.interval + 1, min(checkpoint * self.bundle.interval, self.bundle.steps)

    # ---- the trainer ----

    def record(self, executor: LoggedExecutor) -> None:
        """Record the executor's entries as this run's log from now on; steps already in the log are followed, entries
        made before are dropped."""
        if not self.done:
            self.lock()
        if self.divergence is None:
            if self.log.steps < self.step:
                raise LogError(
                    f"{self.log.path} ends after step {self.log.steps}, the run after step {self.step}; restore the log"
                )
            self._cut_to_run()
        self.executor = executor
        executor.made.clear()
        executor.read = lambda step: self.log.read(step) if step <= self.log.steps else None

    def commit(self, state: Sequence[torch.Tensor], losses: Sequence[float]) -> None:
        self._flush()
        super().commit(state, losses)
        self.executor.made.clear()

    def diverged(self, divergence: Divergence) -> None:
        self._flush()
        self._append("roots.bin", b"")  # auditors copy it even without a checkpoint
        super().diverged(divergence)
        self.executor.made.clear()

    def log_growth(self, executor: LoggedExecutor, steps: int) -> int:
        """`steps` times the mean of the steps in the log, else of those just made, else of a few made now."""
        if not (self.log.records or executor.made):
            few_steps(self.bundle, executor, min(FEW, self.bundle.steps))
        made = [len(self.log.sections(*entries)) for entries in executor.made.items()]
        executor.made.clear()
        sizes = [record.length for record in self.log.records] or made
        return steps * (FRAME * len(sizes) + sum(sizes)) // len(sizes)

    def _cut_to_run(self) -> None:
        """Remove the logs of steps that are not committed."""
        truncate(self.folder / "logs.bin", ROOT_BYTES * len(self.roots))
        del self.log_roots[len(self.roots) :]
        self.log.keep(self.step)

    def _flush(self) -> None:
        """Write the recorded steps and their root to the disk."""
        self._cut_to_run()
        self.log.append(self.executor.made)
        root = self.log.root(self.step + 1, self.log.steps)
        self._append("logs.bin", root)
        self.log_roots.append(root)

    # ---- the auditor ----

    def follow(self, executor: LoggedExecutor) -> None:
        """Let the executor follow this run's committed directions, interval by interval."""
        checked: dict[int, Sequence[StepEntries]] = {}
        if len(self.log_roots) < len(self.roots):
            raise StoreError(
                f"{self.folder}/logs.bin holds {len(self.log_roots)} roots of logs, but there are {len(self.roots)} "
                "checkpoints"
            )

        def read(step: int) -> StepEntries:
            checkpoint = (step - 1) // self.bundle.interval + 1
            if checkpoint not in checked:
                checked.clear()  # one interval at a time
                checked[checkpoint] = self.committed(checkpoint)
            return checked[checkpoint][step - self.bounds(checkpoint)[0]]

        executor.read = read

    def report_log(self, executor: LoggedExecutor, listener: NullProgress) -> None:
        """Entries followed; corrections forward and backward."""
        tally, labels = executor.kernels.tally, self.bundle.program.labels.operators
        backward = sum(n for i, n in tally.corrections.items() if labels and "backward" in labels[i])
        corrections, entries = sum(tally.corrections.values()), sum(tally.entries.values())
        forward, size = corrections - backward, self.log.path.stat().st_size
        text = (
            f"log: {size:,} bytes, {entries:,} entries followed, {corrections} corrections ({forward} forward, "
            f"{backward} backward)"
        )
        listener.emit("log", text, bytes=size, entries=entries, forward=forward, backward=backward)

    def committed(self, checkpoint: int) -> Sequence[StepEntries]:
        """The entries of a checkpoint's interval; LogError unless they are the committed ones."""
        first, last = self.bounds(checkpoint)
        if self.divergence and last >= self.divergence.step:
            last = self.divergence.step
        if checkpoint > len(self.log_roots):
            raise LogError(f"{self.log.path}: no log was committed for checkpoint {checkpoint}, from step {first} on")
        entries = self.log.interval(first, last)
        root = interval_root(self.bundle.program, entries)
        if root != self.log_roots[checkpoint - 1]:
            raise LogError(
                f"{self.log.path}: the log of steps {first}..{last} has the root {root.hex()}, but "
                f"{self.log_roots[checkpoint - 1].hex()} was committed with checkpoint {checkpoint}; get the "
                "committed log from the trainer"
            )
        return entries

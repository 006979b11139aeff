"""A run on disk: the state root of every checkpoint, the losses, and some of the states themselves.

    RUN/run.json             the identity of its bundle; the divergence, if it diverged
    RUN/roots.bin            32 bytes per checkpoint, appended
    RUN/checks.bin           32 bytes per checkpoint, appended before the root: SHA-256 of
                             the check before it, the root and its log's
    RUN/losses.bin           4 bytes per step, appended
    RUN/lock                 held by the one process that writes
    RUN/states/STEP.safetensors   kept checkpoints: every `keep`-th and the newest

A kill at any moment loses at most the interval in progress; partly appended bytes are not read, and are cut off before
the next append. So a run can be read while it is written; a second writer is refused.
Disk use is bounded by `keep`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch

from vgame.commit.merkle import Kind, Tree, tree_height
from vgame.commit.tensor import tensors_root
from vgame.commit.trees import run_tree
from vgame.errors import BundleError, StoreError
from vgame.job.bundle import Bundle
from vgame.program.program import TensorLabel
from vgame.program.tensor_file import each_tensor, pack_tensors, read_tensors
from vgame.runs.header import MOST_BYTES, Divergence, read_header, write_header
from vgame.system.files import no_link, private, read_file, refuse_links, remove_halves, truncate, write_atomic
from vgame.system.progress import NullProgress

ROOT_BYTES = 32


def _next_check(before: bytes, committed: bytes) -> bytes:
    return hashlib.sha256(before + committed).digest()


class Elsewhere(Protocol):
    """A source of states that are not in the folder."""

    urls: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether this file of states/ exists."""

    def state(self, name: str, labels: Sequence[TensorLabel], root: bytes) -> tuple[torch.Tensor, ...]:
        """Its content; StoreError if it cannot be fetched."""


class Store:
    """Checkpoints of one run of one bundle. Not `writable`: another user's folder, which is only read."""

    ROOTS: tuple[str, ...] = ("roots.bin", "checks.bin")  # files of 32 bytes per checkpoint
    log_roots: list[bytes] | None = None  # of each checkpoint's interval, in mode `logged`

    def __init__(self, folder: Path, bundle: Bundle, keep: int = 1, writable: bool = True) -> None:
        self.folder, self.bundle, self.keep, self.writable = folder, bundle, keep, writable
        self.roots: list[bytes] = []
        self.elsewhere: Elsewhere | None = None
        self._lock: IO[bytes] | None = None
        self.divergence: Divergence | None = None
        try:
            if writable:
                refuse_links(folder / "job", folder / "states")
                (folder / "states").mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise StoreError(f"{error.filename or folder} cannot be used for a run: {error.strerror}") from None

    def _open(self) -> None:
        if self.writable and not (self.folder / "run.json").exists():
            write_header(self.folder, self.bundle)
        self.divergence = read_header(self.folder, self.bundle)
        self.roots = self._read_roots("roots.bin")
        if (count := len(self.roots)) > self.bundle.checkpoints:
            raise StoreError(f"{self.folder} holds {count} checkpoints, its order has {self.bundle.checkpoints}")

    def _read_roots(self, name: str) -> list[bytes]:
        data = self._read(name)
        return [data[i : i + ROOT_BYTES] for i in range(0, len(data) - ROOT_BYTES + 1, ROOT_BYTES)]

    def _read(self, name: str) -> bytes:
        path = self.folder / name
        try:
            return read_file(path, self.files(self.bundle)[name])
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"{path} cannot be used for a run: {error.strerror}") from None

    @classmethod
    def files(cls, bundle: Bundle) -> dict[str, int]:
        """The largest size of each file of a run in bytes, with leftovers of a kill; without its job and states."""
        roots = dict.fromkeys(cls.ROOTS, ROOT_BYTES * bundle.checkpoints + 2**20)
        return {"run.json": MOST_BYTES} | roots | {"losses.bin": 4 * bundle.steps + 2**20}

    def _append(self, name: str, data: bytes, at: int | None = None) -> None:
        """Append bytes to a file; `at`: the valid end, beyond which bytes are leftovers of a kill."""
        if at is not None:
            truncate(self.folder / name, at)
        try:
            with open(self.folder / name, "ab", opener=no_link) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.folder / name} cannot be written: {error.strerror}; free space, then resume"
            ) from None

    # ---- the writer ----

    def lock(self) -> None:
        """Make this object the only writer until its process ends; StoreError if there is another one, or the roots are
        damaged."""
        if self._lock is not None:
            return
        if not self.writable:
            raise StoreError(f"{self.folder} was opened for reading; nothing is written there")
        try:
            lock = open(self.folder / "lock", "ab", opener=private)  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{self.folder} is being written by another process; wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            raise StoreError(f"{self.folder / 'lock'} cannot be locked: {error.strerror}") from None
        self._lock = lock
        try:
            self._settle()
        except BaseException:
            self.release()
            raise

    def _settle(self) -> None:
        """Prepare for writing: check that the roots are whole and its own, and remove partial files of a kill."""
        if self._read_roots("roots.bin") != self.roots:
            raise StoreError(f"another process has just written to {self.folder}; start again")
        self.check_roots()
        self._renew_checks()
        for folder in (self.folder, self.folder / "job", self.folder / "states"):
            remove_halves(folder)

    def _renew_checks(self) -> None:
        checks = self._checks()
        self._check = checks[-1] if checks else b""
        if not self._read("checks.bin").startswith(whole := b"".join(checks)):
            write_atomic(self.folder / "checks.bin", whole)

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check(self) -> None:
        """StoreError if the committed roots or the newest kept state were changed since they were written."""
        self.check_roots()
        self.load_state(self.nearest(len(self.roots)))

    def check_roots(self) -> None:
        """StoreError if the committed roots were changed since they were written."""
        if not os.path.exists(self.folder / "checks.bin"):
            return  # written by an earlier version, or without a checkpoint
        kept = self._read_roots("checks.bin")
        for c, check in enumerate(self._checks()):
            if kept[c : c + 1] != [check]:
                raise StoreError(
                    f"the roots in {self.folder} are damaged at checkpoint {c + 1}: no claim is made and no run "
                    "continued from them; restore the folder from a copy, or move it away and run again"
                )

    def _checks(self) -> list[bytes]:
        """One check per checkpoint, each over all before it."""
        committed = (self.commitment(c, root) for c, root in enumerate(self.roots, 1))
        return list(accumulate(committed, _next_check, initial=b""))[1:]

    def commitment(self, checkpoint: int, root: bytes) -> bytes:
        """The bytes that a checkpoint with this state root commits to."""
        return root

    @property
    def run_tree(self) -> Tree:
        """The run tree over the checkpoints reached."""
        return run_tree(self.roots, len(self.roots), self.log_roots)

    @property
    def final_path(self) -> list[bytes]:
        """Path from the last state root to the run root."""
        return self.run_tree.path(0, len(self.roots) - 1)

    @staticmethod
    def path_length(bundle: Bundle) -> int:
        """Hashes of the final path of a whole run."""
        return tree_height(bundle.checkpoints)

    # ---- progress ----

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return min(len(self.roots) * self.bundle.interval, self.bundle.steps)

    @property
    def done(self) -> bool:
        return self.divergence is not None or len(self.roots) >= self.bundle.checkpoints

    def commit(self, state: Sequence[torch.Tensor], losses: Sequence[float]) -> None:
        """Append the next checkpoint, durably. After an error the call can be repeated."""
        self.lock()
        step = min((len(self.roots) + 1) * self.bundle.interval, self.bundle.steps)
        root = self._save_state(step, state)
        self._add(root, np.asarray(losses, dtype="<f4").tobytes())
        self._forget(step)

    def _add(self, root: bytes, losses: bytes) -> None:
        """Append a checkpoint, whose state is on the disk."""
        end, check = ROOT_BYTES * len(self.roots), _next_check(self._check, self.commitment(len(self.roots) + 1, root))
        self._append("losses.bin", losses, 4 * self.step)
        self._append("checks.bin", check, end)
        self._append("roots.bin", root, end)
        self.roots.append(root)
        self._check = check

    def diverged(self, divergence: Divergence) -> None:
        """Record a divergence; nothing can be committed after it."""
        self.lock()
        self.divergence = divergence
        write_header(self.folder, self.bundle, divergence)

    def fork(self, folder: Path, checkpoint: int) -> Store:
        """A new store with this one's first checkpoints."""
        fork = Store(folder, self.bundle, self.keep)
        if not fork.roots:
            fork.adopt(self, min(checkpoint, len(self.roots)))
        return fork

    def adopt(self, other: Store, checkpoint: int) -> None:
        """Copy the verified checkpoints up to this one from another store of the same bundle, with the states that this
        store keeps; StoreError if one is missing."""
        self.lock()
        for c in range(len(self.roots) + 1, checkpoint + 1):
            step = min(c * self.bundle.interval, self.bundle.steps)
            if c % self.keep == 0 or c == checkpoint:
                self._save_state(step, other.load_state(c))
            self._add(other.roots[c - 1], other.losses()[self.step : step].tobytes())

    def losses(self) -> np.ndarray:
        data = self._read("losses.bin") if self.writable else self._losses
        losses: np.ndarray = np.frombuffer(data[: min(4 * self.step, len(data) // 4 * 4)], "<f4")
        return losses

    @cached_property
    def _losses(self) -> bytes:
        """The losses of another user's run, read once, so that all readers see the same."""
        return self._read("losses.bin")

    # ---- the log of mode `logged` (logged_store.py); here there is none ----

    def record(self, executor: Any) -> None:
        """Record the log of the steps of this run that the executor makes from now on."""

    def follow(self, executor: Any) -> None:
        """Let the executor follow the log of this run."""

    def log_growth(self, executor: Any, steps: int) -> int:
        """Expected growth of the log in so many steps, in bytes. Steps that were measured are not part of the run."""
        return 0

    def report_log(self, executor: Any, listener: NullProgress) -> None:
        """Report the use of the log by an executor that has followed it."""

    # ---- states ----

    def _path(self, step: int) -> Path:
        return self.folder / "states" / f"{step:010d}.safetensors"

    def _save_state(self, step: int, state: Sequence[torch.Tensor]) -> bytes:
        """Write a state and return its root; StoreError unless the file reads back with the same root: disputes rely on
        it."""
        path, labels, root = self._path(step), self.bundle.program.labels.state, tensors_root(Kind.STATE, state)
        write_atomic(path, pack_tensors(labels, state))
        if (kept := tensors_root(Kind.STATE, each_tensor(path, labels))) != root:
            raise StoreError(
                f"{path} does not hold what was written: its root is {kept.hex()}, {root.hex()} is expected; nothing "
                "is committed, check the disk and resume"
            )
        return root

    def restore(self, state: Sequence[torch.Tensor]) -> None:
        """Write the newest state again after its file was lost."""
        self.lock()
        self._save_state(self.step, state)

    def _forget(self, newest: int) -> None:
        """Remove the state before the newest one unless `keep` selects it."""
        number = (newest - 1) // self.bundle.interval
        if number % self.keep:
            with suppress(OSError):  # one more is kept then
                self._path(number * self.bundle.interval).unlink(missing_ok=True)

    def load_state(self, checkpoint: int) -> tuple[torch.Tensor, ...]:
        """The state of a kept checkpoint (0: the initial one), checked against its root."""
        if checkpoint == 0:
            return self.bundle.state
        step = min(checkpoint * self.bundle.interval, self.bundle.steps)
        state = self.stored_state(checkpoint)
        root = tensors_root(Kind.STATE, state)
        if root != self.roots[checkpoint - 1]:
            raise StoreError(
                f"the checkpoint {self._path(step)} is damaged: its root is {root.hex()}, "
                f"{self.roots[checkpoint - 1].hex()} was committed; delete the file and resume from an earlier one"
            )
        return state

    def stored_state(self, checkpoint: int) -> tuple[torch.Tensor, ...]:
        """The content of a checkpoint's file, without a comparison with its root."""
        path = self._path(min(checkpoint * self.bundle.interval, self.bundle.steps))
        try:
            if self.elsewhere:
                return self.elsewhere.state(path.name, self.bundle.program.labels.state, self.roots[checkpoint - 1])
            return read_tensors(path, self.bundle.program.labels.state)
        except BundleError as error:
            raise StoreError(f"checkpoint {checkpoint} is damaged: {error}") from None

    def replaced(self, checkpoints: Iterable[int]) -> tuple[int, bytes] | None:
        """(the first of these checkpoints and the newest whose kept file differs from its commitment, the file's root),
        or None.

        The newest must be kept: it is the result of the run. StoreError if a file cannot be read.
        """
        newest = len(self.roots)
        for checkpoint in sorted({*checkpoints, newest} - {0}):
            if checkpoint == newest or self.keeps(checkpoint):
                root = tensors_root(Kind.STATE, self.stored_state(checkpoint))
                if root != self.roots[checkpoint - 1]:
                    return checkpoint, root
        return None

    def nearest(self, checkpoint: int) -> int:
        """The newest kept checkpoint at or before the given one."""
        return next(filter(self.keeps, range(checkpoint, 0, -1)), 0)

    def keeps(self, checkpoint: int) -> bool:
        """Whether the state of this checkpoint exists."""
        path = self._path(min(checkpoint * self.bundle.interval, self.bundle.steps))
        return self.elsewhere.has(path.name) if self.elsewhere else os.path.exists(path)

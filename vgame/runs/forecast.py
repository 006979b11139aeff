"""Forecast the cost of a run on this machine before it begins (docs/guide.md).

In: a run's store, or a bundle without one, and the executor of its program. Out: a `Forecast` as the event `forecast`;
StoreError if the disk has too little space. Disk is counted; time and memory are measured on real steps from the
initial state, whose results are discarded.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.errors import StoreError, VgameError
from vgame.job.bundle import Bundle
from vgame.job.forecast import Forecast, size
from vgame.program.tensor_file import each_tensor, file_bytes, pack_tensors
from vgame.runs.folder import executor_of, store_type
from vgame.runs.pace import FEW, few_steps
from vgame.runs.store import ROOT_BYTES, Store
from vgame.runs.training import Progress, State, Stepper
from vgame.system.files import HALF, write_atomic
from vgame.system.memory import peak, start_peak
from vgame.system.progress import NullProgress

LEAST = 100  # steps; in a shorter run, measuring first would add more than 3 %
MOST_MEASURED = 10  # steps


def announced(
    store: Store, stepper: Stepper, progress: Progress, listener: NullProgress, apart: bool = True
) -> Progress:
    """Emit the cost of the rest of a run; StoreError if it does not fit the disk. Returns the progress to train with:
    in a short run, or if no step can be measured first (not `apart`), it emits time and memory after a few steps."""
    store.lock()
    found = _counted(store)
    _refuse_full_disk(
        store, found.disk, "free space, keep fewer checkpoints (--keep), or choose another folder (--out)"
    )
    start_peak()
    if apart and found.steps >= LEAST:
        listener.stage("measures a few steps and a checkpoint")
        _tell(_measured(store, stepper, found), listener)
        return progress
    _tell(found, listener, f"; time and memory once {FEW} are made" if found.steps > FEW else "")
    return _AfterFew(found, progress, listener)


def of_bundle(bundle: Bundle, measured: bool) -> Forecast:
    """The forecast of a run that keeps every checkpoint. `measured`: with time and memory, if the machine can execute a
    step."""
    found = Forecast(bundle.steps, bundle.checkpoints, _growth(bundle))
    if not measured:
        return found
    start_peak()
    with suppress(
        VgameError, RuntimeError, MemoryError
    ):  # another machine may have the memory; `train` reports the error
        state, times = few_steps(bundle, executor_of(bundle, "cpu"), min(FEW, bundle.steps))
        begin = time.monotonic()
        tensors_root(Kind.STATE, state)
        checkpoint = 2 * (time.monotonic() - begin)
        return replace(found, step=fmean(times[1:] or times), checkpoint=checkpoint, memory=peak())
    return found


def _tell(found: Forecast, listener: NullProgress, more: str = "") -> None:
    listener.emit("forecast", f"{found}{more}", **found.fields)


class _AfterFew:
    """A progress that emits the forecast of the remaining steps after the first few."""

    def __init__(self, found: Forecast, progress: Progress, listener: NullProgress) -> None:
        self.found, self.progress, self.listener, self.times = found, progress, listener, [time.monotonic()]

    def __call__(self, step: int, loss: float) -> None:
        self.times.append(time.monotonic())
        if len(self.times) == FEW + 1 < self.found.steps + 1:
            usual = (self.times[-1] - self.times[1]) / (FEW - 1)  # without the first, which compiles
            _tell(replace(self.found, steps=self.found.steps - FEW, step=usual, memory=peak()), self.listener)
        self.progress(step, loss)


def _measured(store: Store, stepper: Stepper, found: Forecast) -> Forecast:
    """The forecast with time and memory, and with the likely size of a log."""
    count = min(max(FEW, found.steps // (LEAST // 2)), MOST_MEASURED)
    state, times = few_steps(store.bundle, stepper, min(count, store.bundle.steps))
    checkpoint = _write_once(store.folder / "states" / f".forecast{HALF}", store.bundle, state)
    disk = found.disk + store.log_growth(stepper, found.steps)
    return replace(found, disk=disk, step=fmean(times[1:]), checkpoint=checkpoint, memory=peak())


def _write_once(path: Path, bundle: Bundle, state: State) -> float:
    """Seconds of one checkpoint, written to a temporary file."""
    begin, labels = time.monotonic(), bundle.program.labels.state
    try:
        tensors_root(Kind.STATE, state)
        write_atomic(path, pack_tensors(labels, state))
        tensors_root(Kind.STATE, each_tensor(path, labels))
        return time.monotonic() - begin
    finally:
        path.unlink(missing_ok=True)


# ---- disk ----


def _counted(store: Store) -> Forecast:
    bundle, made = store.bundle, len(store.roots)
    disk = _growth(bundle, store.keep, made, made > 0 and made % store.keep > 0 and store.keeps(made))
    return Forecast(bundle.steps - store.step, bundle.checkpoints - made, disk)


def _growth(bundle: Bundle, keep: int = 1, made: int = 0, forgets: bool = False) -> int:
    """Bytes added by so many checkpoints: kept states, roots, checks (and roots of logs), losses. `forgets`: the newest
    state is removed once the next one is written."""
    last = bundle.checkpoints
    kept = sum(number % keep == 0 or number == last for number in range(made + 1, last + 1)) - forgets
    roots = len(store_type(bundle).ROOTS) * ROOT_BYTES * (last - made)
    losses = 4 * (bundle.steps - min(made * bundle.interval, bundle.steps))
    return kept * file_bytes(bundle.program.labels.state, bundle.state) + roots + losses


def refuse_small_disk(store: Store, stepper: Stepper, more: int = 0) -> None:
    """StoreError unless the disk has the space for the rest of a role's run, in whole blocks and in mode `logged` with
    its log, and for `more` bytes in addition."""
    found, disk = _counted(store), os.statvfs(store.folder)
    if store.divergence:
        return
    if disk.f_files and found.checkpoints > disk.f_favail:
        raise StoreError(
            f"{store.folder}: this run needs {found.checkpoints:,} more files, its disk takes {disk.f_favail:,}; "
            "remove files, or choose a --store on another disk"
        )
    more += found.checkpoints * (-file_bytes(store.bundle.program.labels.state, store.bundle.state) % disk.f_frsize)
    more += store.log_growth(stepper, found.steps)
    _refuse_full_disk(store, found.disk + more, "free space, or choose a --store on another disk")


def _refuse_full_disk(store: Store, grows: int, advice: str) -> None:
    """StoreError unless the folder's disk has the space, also for the state that is removed next."""
    beside = file_bytes(store.bundle.program.labels.state, store.bundle.state) if store.keep > 1 else 0
    free = shutil.disk_usage(store.folder).free
    if grows + beside > free:
        raise StoreError(
            f"{store.folder}: this run needs {size(grows + beside)} more of its disk, {size(free)} are free; {advice}"
        )

"""Training by several ranks (docs/ranks.md): rank 0 keeps the run, all of them execute its steps.

In: what `train_run` is given, in every process. Out: the store, on rank 0; None on the others, which have nothing to
write.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from vgame.errors import JobFileError
from vgame.execute.devices import use_device
from vgame.job.bundle import Bundle, load_bundle
from vgame.job.file import read_job_file
from vgame.ranks.executor import RankExecutor
from vgame.ranks.group import compare, joined, library
from vgame.ranks.health import TIMEOUT, RankError
from vgame.ranks.lead import Leader, follow, rank_executor
from vgame.runs.folder import store_of
from vgame.runs.local import _progress, prepare_run
from vgame.runs.metrics import Meter, Metrics
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import Committed, train
from vgame.system.progress import NULL_PROGRESS, NullProgress


def train_shared(
    source: Path | Bundle,
    run: Path,
    device: str,
    keep: int = 1,
    listener: NullProgress = NULL_PROGRESS,
    capturing: NullProgress = NULL_PROGRESS,
    committed: Committed | None = None,
    timeout: float = TIMEOUT,
    check: float = 0.0,
    metrics: Metrics | None = None,
) -> Store | None:
    """As `train_run`, by all ranks that were started. RankError, on all of them, where they differ, or one of them dies
    or hangs. `check`: the share of the steps, drawn by chance, that are computed twice. `metrics` are told on rank 0,
    without what a step cost."""
    with joined(timeout) as group, use_device(device) as kind:
        listener.stage("reads the job, and compares it with the other ranks'")
        bundle = _bundle(source, capturing)
        compare(group, facts(bundle))
        executor = rank_executor(bundle, kind, group)
        if group.rank == 0:
            told = Meter(metrics).committing(committed) if metrics else committed
            return _lead(bundle, run, keep, Leader(bundle, kind, executor, check), listener, told)
        _follow(bundle, executor)
        return None


def _bundle(source: Path | Bundle, capturing: NullProgress) -> Bundle:
    if isinstance(source, Bundle):
        return source
    if not source.exists():
        raise JobFileError(f"{source} is not there; a job file (TOML) or the folder of a bundle is expected")
    return load_bundle(source) if source.is_dir() else prepare(read_job_file(source), capturing)


def facts(bundle: Bundle) -> dict[str, str]:
    """What all ranks must have alike."""
    names = hashlib.sha256(bundle.program.labels.root).hexdigest()[:16]
    return {"bundle": bundle.identity.hex()[:16], "names of tensors": names} | library()


def _lead(
    bundle: Bundle, run: Path, keep: int, leader: Leader, listener: NullProgress, committed: Committed | None
) -> Store:
    failed = True
    try:
        prepare_run(bundle, run)
        store = store_of(run, bundle, keep)
        try:
            train(store, leader, _progress(bundle, listener), committed=committed)
            failed = False
            return store
        finally:
            store.release()
    finally:
        leader.end(failed)


def _follow(bundle: Bundle, executor: RankExecutor) -> None:
    if not follow(executor):
        raise RankError("rank 0 has failed; it says why", said=True)

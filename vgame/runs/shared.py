"""Training and auditing by several ranks (docs/ranks.md): rank 0 drives the run, all of them execute its steps.

In: the arguments of `train_run` or `audit_run`, in every process. Out: the store on rank 0, None on the others; the
finding of an audit on all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from vgame.errors import JobFileError, VgameError
from vgame.execute.devices import use_device
from vgame.job.bundle import Bundle
from vgame.ranks.executor import RankExecutor
from vgame.ranks.group import TorchGroup, compare, is_shared, joined, library
from vgame.ranks.health import TIMEOUT, RankError
from vgame.ranks.lead import Leader, follow, rank_executor
from vgame.runs.audit import ALONE, Audit, Finding, audit_alone, audit_run, audited, chosen_checkpoints
from vgame.runs.folder import store_of
from vgame.runs.forecast import announced
from vgame.runs.local import _progress, bundle_of, prepare_run
from vgame.runs.metrics import Meter, Metrics
from vgame.runs.parallel_audit import Workers
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
    """`train_run`, by all started ranks. RankError on all of them if they differ, or one of them dies or hangs.
    `check`: the share of steps, drawn at random, that are computed twice. `metrics` are reported on rank 0, without the
    cost of a step."""
    with joined(timeout) as group, use_device(device) as kind:
        listener.stage("reads the job, and compares it with the other ranks'")
        bundle = _bundle(source, capturing)
        with led(group, bundle, kind, check) as leader:
            if leader is None:
                return None
            reported = Meter(metrics).committing(committed) if metrics else committed
            return _lead(bundle, run, keep, leader, listener, reported)


@contextmanager
def led(group: TorchGroup, bundle: Bundle, kind: str, check: float = 0.0) -> Iterator[Leader | None]:
    """The stepper of rank 0; the others follow until it ends, and get None."""
    compare(group, facts(bundle))
    executor = rank_executor(bundle, kind, group)
    if group.rank:
        _follow(executor)
        yield None
        return
    leader = Leader(bundle, kind, executor, check)
    try:
        yield leader
    except BaseException:
        with suppress(RankError):  # report the failure, not the lost connection to the others
            leader.end(failed=True)
        raise
    leader.end()


def audit_by_all(
    run: Path | Sequence[str],
    device: str,
    segment: str | None,
    sample: float | None,
    seed: int,
    listener: NullProgress = NULL_PROGRESS,
    order: Path | None = None,
    workers: Workers = ALONE,
) -> Audit:
    """`audit_run`, or `audit_shared` if several ranks were started."""
    if not is_shared():
        return audit_run(run, device, segment, sample, seed, listener, order, workers)
    if not workers.plain:
        raise VgameError("several ranks were started, and they execute the audit; leave --workers, --ray, --record out")
    return audit_shared(run, device, segment, sample, seed, listener, order)


def audit_shared(
    run: Path | Sequence[str],
    device: str,
    segment: str | None,
    sample: float | None,
    seed: int,
    listener: NullProgress = NULL_PROGRESS,
    order: Path | None = None,
) -> Audit:
    """`audit_run`, by all started ranks; each must be able to read the run. The same result on each."""
    with joined() as group, use_device(device) as kind:
        store = audited(run, order)
        with led(group, store.bundle, kind) as leader:
            if leader is not None:
                chosen = chosen_checkpoints(store, segment, sample, seed)
                finding = audit_alone(store, leader, chosen, listener)
                store.bundle.refuse_changed(anew=True)
                message = [chosen, asdict(finding) | {"checked": [*finding.checked]}]
                group.health.store.set("found", json.dumps(message))
        chosen, found = json.loads(group.health.store.get("found"))
        return Audit(store, chosen, Finding(**found), None)


def _bundle(source: Path | Bundle, capturing: NullProgress) -> Bundle:
    if isinstance(source, Bundle):
        return source
    if not source.exists():
        raise JobFileError(f"{source} is not there; a job file (TOML) or the folder of a bundle is expected")
    return bundle_of(source, capturing)


def facts(bundle: Bundle) -> dict[str, str]:
    """The facts that must be equal on all ranks."""
    names = hashlib.sha256(bundle.program.labels.root).hexdigest()[:16]
    return {"bundle": bundle.identity.hex()[:16], "names of tensors": names} | library()


def _lead(
    bundle: Bundle, run: Path, keep: int, leader: Leader, listener: NullProgress, committed: Committed | None
) -> Store:
    prepare_run(bundle, run)
    store = store_of(run, bundle, keep)
    try:
        progress = _progress(bundle, listener)
        if not store.done:
            progress = announced(store, leader, progress, listener, apart=False)
        train(store, leader, progress, committed=committed)
        return store
    finally:
        store.release()


def _follow(executor: RankExecutor) -> None:
    if not follow(executor):
        raise RankError("rank 0 has failed; it reports the error", reported=True)

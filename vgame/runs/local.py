"""Training without a chain, for reproducibility alone.

A run's folder is a store (vgame/runs/store.py) with the job's bundle in `job/`, so it can be copied and audited
anywhere. The modules for capture take half a second to import, so they are imported only for a job file.
"""

from __future__ import annotations

import json
from pathlib import Path

from vgame.errors import JobFileError, StoreError
from vgame.execute.devices import use_device
from vgame.execute.profile import Profile
from vgame.job.bundle import Bundle, load_bundle, ordered_differences, save_bundle
from vgame.job.file import JobFile, read_job_file
from vgame.runs.folder import executor_of, store_of
from vgame.runs.forecast import announced
from vgame.runs.logged_order import with_known_log
from vgame.runs.metrics import Meter, Metrics
from vgame.runs.store import Store
from vgame.runs.training import Committed, Progress, detail_of, train
from vgame.system.progress import NULL_PROGRESS, NullProgress


def prepare_run(source: Path | Bundle, run: Path, listener: NullProgress = NULL_PROGRESS) -> Bundle:
    """The bundle of a run: given, captured from a job file, or copied from a bundle folder, into the run's folder; or
    the present one, if it is the same job."""
    if isinstance(source, Bundle):
        return _hold_bundle(source, run)
    if not source.exists():
        raise JobFileError(f"{source} is not there; a job file (TOML) or the folder of a bundle is expected")
    if not (run / "job" / "spec.json").exists():
        bundle = bundle_of(source, listener)
        save_bundle(bundle, run / "job")
        return load_bundle(run / "job")
    held = load_bundle(run / "job")
    if source.resolve() != (run / "job").resolve():
        ordered = load_bundle(source) if source.is_dir() else ordered_again(read_job_file(source), held)
        _refuse_other(ordered, held, run)
    return held


def bundle_of(source: Path, listener: NullProgress) -> Bundle:
    """A bundle's folder, or a job file, which is captured."""
    if source.is_dir():
        return load_bundle(source)
    from vgame.runs.prepare import prepare
    from vgame.validation.record import seconds_of

    return prepare(read_job_file(source), listener, seconds_of(None))


def _hold_bundle(bundle: Bundle, run: Path) -> Bundle:
    """The bundle, in the run's folder."""
    if (run / "job" / "spec.json").exists():
        _refuse_other(bundle, load_bundle(run / "job"), run)
    else:
        save_bundle(bundle, run / "job")
    return bundle


def copy_bundle(bundle: Bundle, run: Path) -> None:
    """Write a bundle to a role's run, which can then be audited and copied like any run. INVARIANT: only the content
    that was read as the bundle is written; other files of its folder, and links, are not copied. StoreError if the run
    was begun with other names or types of the same tensors, which no root on chain covers."""
    if not (held := run / "job" / "spec.json").exists():
        save_bundle(bundle, run / "job")
        return
    before, now = json.loads(held.read_bytes()), bundle.rendering()
    if any(before.get(root) != now[root] for root in ("label_root", "keys_root")):
        raise StoreError(
            f"{run} was begun with another bundle of the same program, whose tensors have other names or types, so an "
            "export from it would too: give another --store"
        )


def _refuse_other(ordered: Bundle, held: Bundle, run: Path) -> None:
    if parts := ordered_differences(ordered, held):
        raise StoreError(
            f"{run} holds another job (other {', '.join(parts)}); choose another folder, or continue the job that it "
            f"holds: `vgame train {run / 'job'} --out {run}`"
        )


def ordered_again(job: JobFile, held: Bundle) -> Bundle:
    """The bundle of a job file for a comparison with a run's bundle; windows measured on devices are taken from the
    run."""
    from vgame.runs.prepare import prepare_without_log

    return with_known_log(prepare_without_log(job), job.log, held.log)


def train_run(
    source: Path | Bundle,
    run: Path,
    device: str,
    keep: int = 1,
    listener: NullProgress = NULL_PROGRESS,
    capturing: NullProgress = NULL_PROGRESS,
    with_profile: bool = False,
    committed: Committed | None = None,
    metrics: Metrics | None = None,
) -> tuple[Store, Profile | None]:
    """Train into the run's folder, or resume. A step that is not finite ends the run: the store's `divergence`."""
    with use_device(device) as kind:
        listener.stage("reads the job, and hashes its state and data")
        bundle = prepare_run(source, run, capturing)
        store = store_of(run, bundle, keep)
        progress = _progress(bundle, listener)
        executor = executor_of(bundle, kind)
        profile = Profile(bundle.program) if with_profile else None
        try:
            store.record(executor)
            if not store.done:
                progress = announced(store, executor, progress, listener)
            executor.watch = profile.record if profile else None
            if metrics:
                with Meter(metrics) as meter:
                    train(store, executor, meter.stepping(progress), committed=meter.committing(committed))
            else:
                train(store, executor, progress, committed=committed)
        finally:
            store.release()
    return store, profile


def _progress(bundle: Bundle, listener: NullProgress) -> Progress:
    def progress(step: int, loss: float) -> None:
        listener.progress(bundle.purpose, step, bundle.steps, detail_of(bundle, loss))

    return progress

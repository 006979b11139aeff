"""Training and auditing without a chain, for people who only want reproducibility.

A run's folder is a store (vgame/runs/store.py) with the job's bundle in `job/`, so it can be given away and audited anywhere.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.commit.trees import run_tree
from vgame.errors import JobFileError, StoreError, VgameError
from vgame.execute.devices import settle
from vgame.execute.executor import Executor
from vgame.execute.profile import Profile
from vgame.job.bundle import Bundle, load_bundle, ordered_differences, save_bundle
from vgame.job.differences import order_differences
from vgame.job.file import JobFile, LogTerms, read_job_file
from vgame.runs.folder import executor_of, open_run, store_of
from vgame.runs.logged_store import LoggedStore
from vgame.runs.parallel_audit import TIMEOUT, audit_in_parallel
from vgame.runs.prepare import prepare, prepare_without_log, with_log
from vgame.runs.store import Divergence, Store
from vgame.runs.training import Committed, Progress, intervals, state_at, train
from vgame.system.progress import SILENCE, Silence


def prepare_run(source: Path | Bundle, run: Path, listener: Silence = SILENCE) -> Bundle:
    """The bundle of a run: given, captured from a job file, or copied from a bundle folder, into the run's folder; or the one that is
    there, if it is the same job."""
    if isinstance(source, Bundle):
        return _hold_bundle(source, run)
    if not source.exists():
        raise JobFileError(f"{source} is not there; a job file (TOML) or the folder of a bundle is expected")
    if not (run / "job" / "spec.json").exists():
        bundle = load_bundle(source) if source.is_dir() else prepare(read_job_file(source), listener)
        save_bundle(bundle, run / "job")
        return load_bundle(run / "job")
    held = load_bundle(run / "job")
    if source.resolve() != (run / "job").resolve():
        ordered = load_bundle(source) if source.is_dir() else ordered_again(read_job_file(source), held)
        _refuse_other(ordered, held, run)
    return held


def _hold_bundle(bundle: Bundle, run: Path) -> Bundle:
    """The bundle, in the run's folder."""
    if (run / "job" / "spec.json").exists():
        _refuse_other(bundle, load_bundle(run / "job"), run)
    else:
        save_bundle(bundle, run / "job")
    return bundle


def link_bundle(source: Path, run: Path) -> None:
    """A bundle's files in a role's run, which so can be audited and given away as any run; links where the disk has them, else copies."""
    target = run / "job"
    if (target / "spec.json").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: path.name == "spec.json"):  # spec.json comes last
        if path.is_file() and not (target / path.name).exists():
            try:
                os.link(path, target / path.name, follow_symlinks=False)
            except OSError:
                shutil.copyfile(path, target / path.name)


def _refuse_other(ordered: Bundle, held: Bundle, run: Path) -> None:
    if parts := ordered_differences(ordered, held):
        raise StoreError(
            f"{run} holds another job (other {', '.join(parts)}); choose another folder, or go on with the job that it holds: "
            f"`vgame train {run / 'job'} --out {run}`"
        )


def ordered_again(job: JobFile, held: Bundle) -> Bundle:
    """The bundle of a job file that may be the one of a run: windows that a device measured are taken from there."""
    bundle, terms = prepare_without_log(job), job.log or LogTerms()
    measured = bundle.mode == "logged" and terms.thresholds == "adaptive"
    if measured and held.log is not None and held.log.bits == terms.bits:
        return replace(bundle, log=held.log)
    return bundle if measured else with_log(bundle, job.log)


def run_root(store: Store, roots: Sequence[bytes], count: int) -> str:
    """Root over `count` checkpoints with these state roots, with the logs that this store has committed."""
    logs = store.log_roots[: len(roots)] if isinstance(store, LoggedStore) else None
    return run_tree(roots, count, logs).root.hex()


def train_run(
    source: Path | Bundle,
    run: Path,
    device: str,
    keep: int = 1,
    listener: Silence = SILENCE,
    capturing: Silence = SILENCE,
    with_profile: bool = False,
    committed: Committed | None = None,
) -> tuple[Store, Profile | None]:
    """Fill the run's folder; resumes where it stands. A step that is not finite ends it: the store's `divergence`."""
    with settle(device) as kind:
        listener.stage("reads the job, and hashes its state and data")
        bundle = prepare_run(source, run, capturing)
        store = store_of(run, bundle, keep)
        progress = _progress(bundle, listener)
        executor = executor_of(bundle, kind)
        profile = Profile(bundle.program) if with_profile else None
        executor.watch = profile.record if profile else None
        try:
            if isinstance(store, LoggedStore):
                store.record(executor)
            train(store, executor, progress, committed=committed)
        finally:
            store.release()
    return store, profile


def _progress(bundle: Bundle, listener: Silence) -> Progress:
    def progress(step: int, loss: float) -> None:
        listener.progress("training", step, bundle.steps, f"loss {loss:.4f}")

    return progress


# ---- audit ----


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of an audit: what was compared, and the first checkpoint that differs. `kept`: it is the stored state that is another one;
    `step`: it is the recorded loss of this step. `theirs`, `mine`: of what differs; if nothing does, the run roots."""

    checked: Sequence[int]
    differs: int | None
    theirs: str
    mine: str
    kept: bool = False
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """A run, the checkpoints that were chosen (none: the whole run), and what came out of re-executing them."""

    store: Store
    chosen: list[int]
    finding: Finding
    executor: Executor


def audit_run(
    run: Path, device: str, segment: str | None, sample: float | None, seed: int, listener: Silence = SILENCE,
    order: Path | None = None, workers: int = 1, record: Path | None = None, timeout: float = TIMEOUT,
) -> Audit:  # fmt: skip
    """Re-execute a run, whole or in part, and compare every checkpoint and loss. `order`: the bundle that it must be a run of.
    `workers`: processes that execute parts at the same time; `record`: a file of what they found equal, to go on after a stop;
    `timeout`: seconds without a new step after which a worker hangs."""
    with settle(device) as kind:
        store = open_run(run)
        if order is not None and (parts := order_differences(load_bundle(order), store.bundle)):
            raise StoreError(f"{run} is not a run of the order in {order}: other {', '.join(parts)}")
        if not store.roots and store.divergence is None:
            raise StoreError(f"{run} has no checkpoint yet; nothing can be audited")
        executor = executor_of(store.bundle, kind)
        if isinstance(store, LoggedStore):
            store.follow(executor)
        chosen = chosen_checkpoints(store, segment, sample, seed)
        if workers > 1 or record is not None:
            finding = audit_by_workers(store, executor, device, chosen, workers, listener, record, timeout)
        else:
            finding = audit_kept(store, chosen)
            if finding is None:
                finding = (audit_parts if chosen else audit_whole)(store, executor, chosen, listener)
    return Audit(store, chosen, finding, executor)


def chosen_checkpoints(store: Store, segment: str | None, sample: float | None, seed: int) -> list[int]:
    """The checkpoints to re-execute; none means the whole run."""
    count = len(store.roots)
    if segment is not None and sample is not None:
        raise VgameError("--segment and --sample were both given; choose one of them")
    if (segment is not None or sample is not None) and not count:
        raise VgameError("the run diverged before its first checkpoint: there is no part to choose; audit it whole")
    if segment is not None:
        ends = re.fullmatch(r"([0-9]{1,10})\.\.([0-9]{1,10})", segment)
        first, last = map(int, ends.groups()) if ends else (0, 0)
        if not 1 <= first <= last <= count:
            raise VgameError(f"--segment {segment!r}: two checkpoints I..J with 1 <= I <= J <= {count} are expected")
        return list(range(first, last + 1))
    if sample is None:
        return []
    if not 0 < sample <= 1:
        raise VgameError(f"--sample {sample}: a probability above 0 and up to 1 is expected")
    dice = random.Random(seed) if seed else random.SystemRandom()
    return [c for c in range(1, count + 1) if dice.random() < sample] or [dice.randint(1, count)]


def audit_kept(store: Store, checkpoints: Sequence[int]) -> Finding | None:
    """Do the files of the kept states hold what was committed? Those in scope are read: all, or those of the chosen intervals (both ends);
    and always the last, which is what a run is for."""
    ends = {n for c in checkpoints for n in (store.nearest(c - 1), c) if n} or range(1, len(store.roots) + 1)
    found = store.replaced(ends)
    if found is None:
        return None
    checkpoint, root = found
    return Finding([checkpoint], checkpoint, store.roots[checkpoint - 1].hex(), root.hex(), kept=True)


def audit_by_workers(
    store: Store,
    executor: Executor,
    device: str,
    chosen: list[int],
    workers: int,
    listener: Silence,
    record: Path | None,
    timeout: float,
) -> Finding:
    """The parts by processes of their own; what follows the last checkpoint of a run that diverged, and what no part holds, here."""
    checked = chosen or list(range(1, len(store.roots) + 1))
    found = audit_in_parallel(store, device, checked, workers, listener, record, timeout)
    if found is None and not chosen and (kept := audit_kept(store, checked)):
        return kept
    if found is not None:
        return Finding(**{name: found[name] for name in Finding.__dataclass_fields__})
    if not chosen and store.divergence:
        state = executor.to_device(state_at(store, executor, len(store.roots)))
        end = replace(store.bundle, steps=store.divergence.step)
        mine = next(intervals(end, executor, state, len(store.roots) * store.bundle.interval + 1), None)
        if mine != store.divergence:
            at = len(store.roots) + 1
            mine_is = outcome([], at, mine if isinstance(mine, Divergence) else None)
            return Finding(checked, at, outcome([], at, store.divergence), mine_is)
    root = run_root(store, store.roots, len(store.roots)) if not chosen else store.roots[chosen[-1] - 1].hex()
    return Finding(checked, None, root, root)


def audit_whole(store: Store, executor: Executor, _: list[int], listener: Silence) -> Finding:
    """From the initial state as far as the run says it went; run roots are compared."""
    bundle = store.bundle
    end = store.divergence.step if store.divergence else store.step

    def progress(step: int, loss: float) -> None:
        listener.progress("auditing", step, end, f"loss {loss:.4f}")

    mine, losses, divergence = [], [], None
    for found in intervals(replace(bundle, steps=end), executor, executor.initial(bundle.state), 1, progress):
        if isinstance(found, Divergence):
            divergence = found
        else:
            mine.append(tensors_root(Kind.STATE, found[0]))
            losses += found[1]
    differs = next((c for c, (a, b) in enumerate(zip(store.roots, mine, strict=False), 1) if a != b), None)
    if differs is None and (len(store.roots) != len(mine) or store.divergence != divergence):
        differs = min(len(store.roots), len(mine)) + 1
    count = max(len(store.roots), len(mine))
    checked = range(1, count + 1)
    if differs is not None:
        theirs = outcome(store.roots, differs, store.divergence)
        return Finding(checked, differs, theirs, outcome(mine, differs, divergence))
    roots = [run_root(store, roots, count) for roots in (store.roots, mine)]
    return audit_losses(store, checked, losses, 1) or Finding(checked, None, *roots)


def outcome(roots: Sequence[bytes], checkpoint: int, divergence: Divergence | None) -> str:
    """The root of a checkpoint, or why there is none."""
    if checkpoint <= len(roots):
        return roots[checkpoint - 1].hex()
    if divergence is None:
        return "no such checkpoint"
    return f"diverged at step {divergence.step}, operator {divergence.operator}, element {divergence.element}"


def audit_losses(store: Store, checked: Sequence[int], mine: Sequence[float], first: int) -> Finding | None:
    """The first recorded loss, from step `first` on, that is not the one of this execution, bit for bit."""
    recorded = store.losses()
    for step, loss in enumerate(np.asarray(mine, dtype="<f4"), first):
        theirs = recorded[step - 1 : step]
        if theirs.tobytes() != loss.tobytes():
            told = str(theirs[0]) if len(theirs) else "missing"
            return Finding(checked, -(-step // store.bundle.interval), told, str(loss), step=step)
    return None


def audit_parts(store: Store, executor: Executor, checkpoints: list[int], listener: Silence) -> Finding:
    """Chosen intervals, each from the checkpoint before it, which must be the one that was committed."""
    bundle = store.bundle
    mine = theirs = b""
    for number, c in enumerate(checkpoints, 1):
        state = executor.to_device(state_before(store, executor, c))
        first, last = (c - 1) * bundle.interval + 1, min(c * bundle.interval, bundle.steps)
        found = next(intervals(replace(bundle, steps=last), executor, state, first))
        if isinstance(found, Divergence):
            return Finding(checkpoints[:number], c, store.roots[c - 1].hex(), outcome([], c, found))
        mine, theirs = tensors_root(Kind.STATE, found[0]), store.roots[c - 1]
        listener.progress("auditing", number, len(checkpoints), f"checkpoint {c}")
        if mine != theirs:
            return Finding(checkpoints[:number], c, theirs.hex(), mine.hex())
        if other := audit_losses(store, checkpoints[:number], found[1], first):
            return other
    return Finding(checkpoints, None, theirs.hex(), mine.hex())


def state_before(store: Store, executor: Executor, checkpoint: int):
    """The committed state that an interval starts from: kept by the run, or re-executed."""
    return state_at(store, executor, checkpoint - 1)

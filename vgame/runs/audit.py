"""Auditing without a chain: a run is executed again, whole or in part, and every checkpoint and loss is compared.

In: the folder of a run (store.py), with the job's bundle in `job/`. Out: the first checkpoint that differs, or None.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.errors import StoreError, VgameError
from vgame.execute.devices import use_device
from vgame.execute.executor import Executor
from vgame.job.bundle import load_bundle
from vgame.job.differences import order_differences
from vgame.runs.folder import open_run, repeater_of
from vgame.runs.header import Divergence
from vgame.runs.parallel_audit import Workers, audit_in_parallel
from vgame.runs.published import open_published
from vgame.runs.store import Store
from vgame.runs.training import State, detail_of, intervals, state_at
from vgame.system.endpoints import without_login
from vgame.system.progress import NULL_PROGRESS, NullProgress

ALONE = Workers()


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of an audit: what was compared, and the first checkpoint that differs. `kept`: the stored state differs;
    `step`: the recorded loss of this step differs. `theirs`, `mine`: the two values; without a difference, the run
    roots."""

    checked: Sequence[int]
    differs: int | None
    theirs: str
    mine: str
    kept: bool = False
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """A run, the chosen checkpoints (none: the whole run), and the finding of their re-execution. `executor`: None if
    several ranks executed."""

    store: Store
    chosen: list[int]
    finding: Finding
    executor: Executor | None


def audit_run(
    run: Path | Sequence[str],
    device: str,
    segment: str | None,
    sample: float | None,
    seed: int,
    listener: NullProgress = NULL_PROGRESS,
    order: Path | None = None,
    workers: Workers = ALONE,
) -> Audit:
    """Re-execute a run, in a folder or behind URLs, whole or in part, and compare every checkpoint and loss. `order`:
    the bundle that the run must belong to."""
    with use_device(device) as kind:
        store = audited(run, order)
        executor = repeater_of(store, kind)
        chosen = chosen_checkpoints(store, segment, sample, seed)
        if workers.plain:
            finding = audit_alone(store, executor, chosen, listener)
        else:
            finding = audit_by_workers(store, executor, device, chosen, workers, listener)
        store.bundle.refuse_changed(anew=True)
    return Audit(store, chosen, finding, executor)


def audited(run: Path | Sequence[str], order: Path | None) -> Store:
    """Open a run. VgameError if it belongs to another order or has no checkpoint."""
    name = run if isinstance(run, Path) else ", ".join(map(without_login, run))
    store = open_run(run) if isinstance(run, Path) else open_published(run)
    if order is not None and (parts := order_differences(load_bundle(order), store.bundle)):
        raise StoreError(f"{name} is not a run of the order in {order}: other {', '.join(parts)}")
    if not store.roots and store.divergence is None:
        raise StoreError(f"{name} has no checkpoint yet; nothing can be audited")
    return store


def audit_alone(store: Store, executor: Executor, chosen: list[int], listener: NullProgress) -> Finding:
    """Audit the files of kept states, then the whole run or chosen checkpoints."""
    found = audit_kept(store, chosen)
    return found or (audit_parts if chosen else audit_whole)(store, executor, chosen, listener)


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
    """The first kept state whose file differs from its commitment, or None. Reads all kept states, or those at both
    ends of the chosen intervals, and always the last, the result of the run."""
    ends = {n for c in checkpoints for n in (store.nearest(c - 1), c) if n} or range(1, len(store.roots) + 1)
    found = store.replaced(ends)
    if found is None:
        return None
    checkpoint, root = found
    return Finding([checkpoint], checkpoint, store.roots[checkpoint - 1].hex(), root.hex(), kept=True)


def audit_by_workers(
    store: Store, executor: Executor, device: str, chosen: list[int], workers: Workers, listener: NullProgress
) -> Finding:
    """Audit the parts in separate processes. If no part differs, this process checks the kept states of a whole run,
    and the steps after the last checkpoint of a diverged run."""
    checked = chosen or list(range(1, len(store.roots) + 1))
    found = audit_in_parallel(store, device, checked, workers, listener)
    if found is None and not chosen and (kept := audit_kept(store, checked)):
        return kept
    if found is not None:
        return Finding(**{name: found[name] for name in Finding.__dataclass_fields__})
    if found := audit_divergence(store, executor, checked):
        return found
    root = (store.roots[chosen[-1] - 1] if chosen else store.run_tree.root).hex()
    return Finding(checked, None, root, root)


def audit_whole(store: Store, executor: Executor, _: list[int], listener: NullProgress) -> Finding:
    """Execute from the initial state to the recorded end of the run, and compare the run roots."""
    bundle = store.bundle
    end = store.divergence.step if store.divergence else store.step

    def progress(step: int, loss: float) -> None:
        listener.progress("auditing", step, end, detail_of(bundle, loss))

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
    checked = range(1, max(len(store.roots), len(mine)) + 1)
    if differs is not None:
        theirs = outcome(store.roots, differs, store.divergence)
        return Finding(checked, differs, theirs, outcome(mine, differs, divergence))
    root = store.run_tree.root.hex()  # mine too: the state roots are equal
    return audit_losses(store, checked, losses, 1) or Finding(checked, None, root, root)


def outcome(roots: Sequence[bytes], checkpoint: int, divergence: Divergence | None) -> str:
    """The root of a checkpoint, or the reason why there is none."""
    if checkpoint <= len(roots):
        return roots[checkpoint - 1].hex()
    if divergence is None:
        return "no such checkpoint"
    return f"diverged at step {divergence.step}, operator {divergence.operator}, element {divergence.element}"


def audit_losses(store: Store, checked: Sequence[int], mine: Sequence[float], first: int) -> Finding | None:
    """The first recorded loss, from step `first` on, whose bits differ from this execution's; None if none does."""
    recorded = store.losses()
    for step, loss in enumerate(np.asarray(mine, dtype="<f4"), first):
        theirs = recorded[step - 1 : step]
        if theirs.tobytes() != loss.tobytes():
            found = str(theirs[0]) if len(theirs) else "missing"
            return Finding(checked, -(-step // store.bundle.interval), found, str(loss), step=step)
    return None


def audit_parts(store: Store, executor: Executor, checkpoints: list[int], listener: NullProgress) -> Finding:
    """Execute chosen intervals, each from the checkpoint before it, which must match its commitment."""
    bundle = store.bundle
    mine = theirs = b""
    state: State = ()
    for number, c in enumerate(checkpoints, 1):
        if checkpoints[number - 2 : number - 1] != [c - 1] or store.nearest(c - 1) == c - 1:  # else the last interval's
            state = executor.to_device(state_at(store, executor, c - 1))
        first, last = (c - 1) * bundle.interval + 1, min(c * bundle.interval, bundle.steps)
        found = next(intervals(replace(bundle, steps=last), executor, state, first))
        if isinstance(found, Divergence):
            return Finding(checkpoints[:number], c, store.roots[c - 1].hex(), outcome([], c, found))
        state, losses = found
        mine, theirs = tensors_root(Kind.STATE, state), store.roots[c - 1]
        listener.progress("auditing", number, len(checkpoints), f"checkpoint {c}")
        if mine != theirs:
            return Finding(checkpoints[:number], c, theirs.hex(), mine.hex())
        if other := audit_losses(store, checkpoints[:number], losses, first):
            return other
    return audit_divergence(store, executor, checkpoints) or Finding(checkpoints, None, theirs.hex(), mine.hex())


def audit_divergence(store: Store, executor: Executor, checked: Sequence[int]) -> Finding | None:
    """Check the recorded divergence of a run: execute from its last checkpoint on, also if other checkpoints were
    chosen."""
    if store.divergence is None:
        return None
    at = len(store.roots) + 1
    state = executor.to_device(state_at(store, executor, at - 1))
    end = replace(store.bundle, steps=store.divergence.step)
    mine = next(intervals(end, executor, state, (at - 1) * store.bundle.interval + 1), None)
    if mine == store.divergence:
        return None
    mine_is = outcome([], at, mine if isinstance(mine, Divergence) else None)
    return Finding([*checked, at], at, outcome([], at, store.divergence), mine_is)

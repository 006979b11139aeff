"""Commands over runs: results of training, auditing, locating and tracing, as lines for people or programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.state_keys import keys_root
from vgame.ranks.group import is_shared, own_rank
from vgame.ranks.health import TIMEOUT as RANK_TIMEOUT
from vgame.runs.audit import ALONE, Finding
from vgame.runs.local import train_run
from vgame.runs.locate import Difference, find_difference
from vgame.runs.metrics import TensorBoard
from vgame.runs.parallel_audit import Workers, chance
from vgame.runs.shared import audit_by_all, train_shared
from vgame.runs.store import Store
from vgame.runs.trace import trace_step
from vgame.system.progress import NULL_PROGRESS, Reporter


def train_offline(
    source: Path,
    run: Path,
    device: str,
    keep: int,
    reporter: Reporter,
    with_profile: bool = False,
    timeout: float = RANK_TIMEOUT,
    check: float = 0.0,
    tensorboard: Path | None = None,
) -> None:
    """Train and report the result, once for all ranks. VgameError, with step and operator, if the run diverges."""
    capturing, profile = NULL_PROGRESS if reporter.json_lines else reporter, None
    metrics = TensorBoard(tensorboard) if tensorboard and own_rank() == 0 else None
    if is_shared():
        if with_profile:
            raise VgameError(
                "--profile measures one process, and several ranks were started; leave it out, or start one"
            )
        listeners = (reporter, capturing) if own_rank() == 0 else (NULL_PROGRESS, NULL_PROGRESS)
        store = train_shared(source, run, device, keep, *listeners, timeout=timeout, check=check, metrics=metrics)
        if store is None:
            return
    else:
        if check:
            raise VgameError(f"--check {check:g}: one rank has no other to compare with; start several (docs/ranks.md)")
        store, profile = train_run(source, run, device, keep, reporter, capturing, with_profile, metrics=metrics)
    reporter.close()
    if profile:
        kinds, modules = ([asdict(row) for row in rows] for rows in (profile.kinds(), profile.modules()))
        reporter.emit("profile", profile.text(), kinds=kinds, modules=modules)
    if stop := store.divergence:
        raise VgameError(
            f"training diverged at step {stop.step}: element {stop.element} of operator "
            f"{store.bundle.program.operator_name(stop.operator)} is not finite; {len(store.roots)} checkpoints "
            "before it are "
            'committed, and a trainer on chain can post the claim "diverged"'
        )
    root = store.run_tree.root.hex()
    reporter.emit("trained", f"{store.step} steps, run root {root}", root=root, steps=store.step)


def audit_offline(
    run: Path | Sequence[str], device: str, segment: str | None, sample: float | None, seed: int, reporter: Reporter,
    order: Path | None = None, workers: Workers = ALONE,
) -> bool:  # fmt: skip
    """Audit and report the result; True if all match."""
    listener = NULL_PROGRESS if own_rank() else reporter
    audit = audit_by_all(run, device, segment, sample, seed, listener, order, workers)
    reporter.close()
    if own_rank():
        return audit.finding.differs is None
    store, finding = audit.store, audit.finding
    if not finding.kept and workers.plain:
        store.report_log(audit.executor, reporter)
    match = finding.differs is None
    report_job(store.bundle, reporter)
    reporter.emit(
        "audited",
        verdict(store, audit.chosen, finding, drawn=sample is not None),
        match=match,
        complete=store.done,
        checked=list(finding.checked),
        differs=finding.differs,
        theirs=finding.theirs,
        mine=finding.mine,
        step=finding.step,
    )
    return match


def report_job(bundle: Bundle, reporter: Reporter) -> None:
    """Report the roots of the audited job."""
    roots = {
        "job": bundle.identity.hex(),
        "data": bundle.data_root.hex(),
        "initial_state": bundle.initial_root.hex(),
        "names": bundle.program.labels.root.hex(),
        "keys": keys_root(bundle.keys, bundle.before).hex(),
    }
    text = ", ".join(f"{what.replace('_', ' ')} {root[:16]}" for what, root in roots.items())
    reporter.emit("audited_job", f"{text} (compare them with your order, or give --bundle)", **roots)


def verdict(store: Store, chosen: list[int], finding: Finding, drawn: bool) -> str:
    """One sentence: MATCH or NO MATCH, and the compared values."""
    roots = f"theirs {finding.theirs}, mine {finding.mine}"
    if finding.kept:
        return (
            f"NO MATCH at checkpoint {finding.differs}: committed {finding.theirs}, but its file holds a state with "
            f"root {finding.mine}"
        )
    if finding.step is not None:
        return f"NO MATCH at step {finding.step}: the recorded loss differs: {roots}{_honest_reason(store.bundle)}"
    if finding.differs is not None:
        return f"NO MATCH at checkpoint {finding.differs}: {roots}{_honest_reason(store.bundle)}"
    count = f"{len(finding.checked)} of {store.bundle.checkpoints}"
    if chosen:
        rest = f"; diverged at step {store.divergence.step}" if store.divergence else ""
        odds = power(len(store.roots), len(chosen)) if drawn and len(chosen) < len(store.roots) else ""
        return f"MATCH of {count} segments ({ranges(chosen)}{rest}){odds}: {roots}"
    if store.divergence:
        return f"MATCH (diverged at step {store.divergence.step}): {roots}"
    return f"MATCH: {roots}" if store.done else f"MATCH so far: {count} checkpoints: {roots}"


def power(count: int, checked: int) -> str:
    """The probability that so many random segments of a run contain a false one, as text."""
    some = max(2, count // 10)
    one, more = (f"{100 * chance(count, checked, wrong):.3g} %" for wrong in (1, some))
    return f", drawn at random, with a chance of {one} to find a single false segment, of {more} if {some} are false"


def _honest_reason(bundle: Bundle) -> str:
    """The honest reason for a different root, if the mode allows one."""
    if bundle.mode == "correct" or (bundle.log and bundle.log.is_certain):
        return ""
    thresholds = " with calibrated thresholds" if bundle.log else ""
    return f"; in mode {bundle.mode!r}{thresholds} an honest run on another device may differ too"


def ranges(numbers: Sequence[int]) -> str:
    """`2, 5..7` for 2, 5, 6, 7; shortened after 20 ranges."""
    every = set(numbers)
    starts = [n for n in numbers if n - 1 not in every]
    ends = [n for n in numbers if n + 1 not in every]
    parts = [str(a) if a == b else f"{a}..{b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(parts[:20]) + (" ..." if len(parts) > 20 else "")


def locate(first: Path, second: Path, device: str, reporter: Reporter) -> Difference | None:
    """Compare two runs and report their first difference; None if they are equal up to the end of the shorter one."""
    difference, count = find_difference(first, second, device)
    if difference is None:
        reporter.emit("located", f"no difference in {count} checkpoints", difference=None, checkpoints=count)
    else:
        place = f"operator {difference.operator}" if difference.operator else f"tensor {difference.tensor}"
        text = (
            f"step {difference.step}, {place}, element {difference.element}: {difference.first} in {first}, "
            f"{difference.second} in {second}; {difference.note}"
        )
        reporter.emit("located", text, difference=asdict(difference))
    return difference


def trace(
    run: Path, step: int, device: str, reporter: Reporter, operator: int | None = None, element: int | None = None
) -> bytes:
    """Re-execute a step and report the root of every operator's output, or of one, or one word of it. Returns the trace
    root."""
    found = trace_step(run, step, device, operator, element)
    for i, (name, root) in enumerate(zip(found.names, found.outputs, strict=True)):
        if operator in (None, i):
            reporter.emit("output", f"{name}: {root.hex()}", step=step, operator=i, name=name, root=root.hex())
    if found.word:
        word, value = found.word
        reporter.emit("word", f"element {element}: 0x{word:08x} = {value}", element=element, word=f"0x{word:08x}")
    reporter.emit("traced", f"trace root of step {step}: {found.root.hex()}", step=step, root=found.root.hex())
    return found.root

"""The Python API: prepare, train, audit, locate. Re-exported by `vgame`. The functions return results and print
nothing.

Arguments that several functions share:

- `device`: "default", "compatible", "reversed" or "cuda" (docs/guide.md). "compatible" needs an environment that is
  set before torch is loaded, so it runs in a process of its own; the logger `vgame` reports this.
- `progress`: False; True for a bar on the terminal; or a function of (what, done, total, detail).
- `cancel`: called after every step; True stops: `vgame.Cancelled` is raised, and committed steps are kept.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from vgame.api_job import Job
from vgame.api_run import Folder, Run
from vgame.errors import Cancelled, VgameError
from vgame.execute.devices import find
from vgame.job.bundle import Bundle
from vgame.job.forecast import Forecast
from vgame.job.start import load_named
from vgame.ranks.group import is_shared, own_rank
from vgame.runs import prepare as preparing
from vgame.runs.folder import open_run
from vgame.runs.local import prepare_run, train_run
from vgame.runs.locate import Difference, find_difference
from vgame.runs.metrics import Metrics
from vgame.runs.own_process import run_apart
from vgame.runs.parallel_audit import Workers
from vgame.runs.shared import audit_by_all, train_shared
from vgame.runs.source import is_url
from vgame.runs.store import Store
from vgame.runs.training import Committed
from vgame.system.progress import NullProgress, Reporter
from vgame.validation.against import losses_of
from vgame.validation.record import seconds_of

log = logging.getLogger("vgame")

Progress = Callable[[str, int, int, str], None]
Cancel = Callable[[], bool]
Callback = Callable[[int, torch.nn.Module, list[float]], Any]


def prepare(
    job: Job,
    *,
    validate: float | None = None,
    against: Sequence[float] | Folder = (),
    progress: bool | Progress = False,
    cancel: Cancel | None = None,
) -> Bundle:
    """Capture the task; ProgramError if that is impossible (docs/capture.md). A warning and `without_gradient` name the
    parameters that no gradient reaches. `validate`: seconds to compare with the task's code (None: 60, 0: none).
    `against`: the first losses of your own loop, or a CSV file of them (docs/validation.md)."""
    losses = losses_of(against) if isinstance(against, str | Path) or len(against) else ()
    with _Listener(progress, cancel) as listener:
        return preparing.prepare(job._file(), listener, seconds_of(validate), losses)


# ---- runs ----


def train(
    bundle: Bundle | Job | Folder,
    folder: Folder,
    *,
    device: str = "default",
    keep: int = 1,
    progress: bool | Progress = False,
    cancel: Cancel | None = None,
    callbacks: Sequence[Callback] = (),
    model: torch.nn.Module | None = None,
    metrics: Metrics | None = None,
) -> Run:
    """Train a bundle, or a job (which is prepared first), or continue the run in the folder. Every `keep`-th checkpoint
    and the newest one are kept.

    `callbacks`: called after every checkpoint as (step, model, losses of the interval); `model`, of the task's class,
    has the weights of that step. Use them to evaluate, plot or save; changes to this model do not affect the run.
    `metrics`: called for every committed step as (step, values): loss, rates, cost, root (docs/guide.md). A run that
    diverged is returned with its `divergence`. StoreError if the folder holds another job or another process writes it.
    In a process group of several (torch.distributed, torchrun), all ranks call this and share every step; the folder,
    which rank 0 writes, must be one that all of them can read (docs/ranks.md).
    """
    if isinstance(bundle, Job):
        bundle = prepare(bundle, progress=progress, cancel=cancel)
    source, run = bundle if isinstance(bundle, Bundle) else Path(bundle), Path(folder)
    with _Listener(progress, cancel) as listener:
        if is_shared():
            if _apart(device):
                raise VgameError(
                    f"device {device} needs a process of its own: set it by `torchrun ... -m vgame train --device "
                    f"{device}`"
                )
            committed = _committed(callbacks, model) if own_rank() == 0 else None
            found = train_shared(source, run, device, keep, listener, listener, committed, metrics=metrics)
            return _ended(Run(found or open_run(run), listener.forecast))
        if not _apart(device):
            committed = _committed(callbacks, model)
            store, _ = train_run(source, run, device, keep, listener, listener, False, committed, metrics)
            return _ended(Run(store, listener.forecast))
        if callbacks or metrics:
            raise VgameError(
                f"device {device} runs in a process of its own, which cannot call your functions; "
                "remove callbacks and metrics, or use another device"
            )
        prepare_run(source, run, listener)
        try:
            run_apart("train", run / "job", "--out", run, "--device", device, "--keep", keep, listener=listener)
        except VgameError as error:
            if isinstance(error, Cancelled) or Run.open(run).divergence is None:
                raise
    return _ended(Run(open_run(run), listener.forecast))


def _ended(run: Run) -> Run:
    """Warn of a run that diverged, whose weights are those of its last checkpoint."""
    if stop := run.divergence:
        name = run.bundle.program.operator_name(stop.operator)
        warnings.warn(
            f"the training diverged at step {stop.step}: element {stop.element} of operator {name} is not finite, and "
            "a run ends there, also where a loop would go on (a batch without a label, a loss of nan); its weights are "
            f"those of step {run._store.step}: run.divergence",
            stacklevel=3,
        )
    return run


def _committed(callbacks: Sequence[Callback], model: torch.nn.Module | None) -> Committed | None:
    """A function that loads a state into the model and calls the callbacks."""
    if not callbacks:
        return None
    if model is None:
        raise VgameError(
            "callbacks get the module with the weights of their step; pass the module: vgame.train(..., model=model)"
        )

    def call_back(store: Store, state: Any, losses: Sequence[float]) -> None:
        labels = store.bundle.program.labels.state
        load_named(model, {l.name: t.cpu().reshape(l.shape) for l, t in zip(labels, state, strict=True)})
        for callback in callbacks:
            callback(store.step, model, list(losses))

    return call_back


# ---- checks ----


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit."""

    match: bool
    """All checked parts are equal, bit for bit."""
    complete: bool
    """The run was complete."""
    checked: tuple[int, ...]
    """Numbers of the checked checkpoints, from 1."""
    differs: int | None
    """The first checkpoint that differs, None if all match."""
    theirs: str
    """Hex: the run's root, or its first value that differs."""
    mine: str
    """Hex: the root or the value of this execution."""
    step: int | None = None
    """The step whose recorded loss differs although the states are equal; else None."""


def audit(
    run: Run | Folder,
    *,
    device: str = "default",
    mirrors: Sequence[str] = (),
    segments: tuple[int, int] | None = None,
    sample: float | None = None,
    seed: int = 0,
    order: Folder | None = None,
    workers: int = 1,
    record: Folder | None = None,
    timeout: float = 600.0,
    ray: str | None = None,
    progress: bool | Progress = False,
    cancel: Cancel | None = None,
) -> AuditResult:
    """Execute a run again and compare: the whole run, or `segments` (first and last checkpoint), or each interval with
    probability `sample`.

    `run` may be the URL of a published run; `mirrors`: other URLs of it, used if the first fails. `seed` makes the
    sample repeatable; with 0 it cannot be predicted. `order`: the folder of a bundle; StoreError unless the run trains
    it. `workers`: processes that execute parts at the same time, from the checkpoints that the run keeps; `record`: a
    file of the parts found equal, from which a stopped audit continues; `timeout`: seconds without a new step after
    which a worker is replaced; `ray`: the address of a Ray cluster that executes the parts instead (`local` starts
    one). In a process group of several ranks, all call this and share every step; each gets the result.
    """
    place, segment = _place(run, mirrors), None if segments is None else f"{segments[0]}..{segments[1]}"
    with _Listener(progress, cancel) as listener:
        if _apart(device) and not is_shared():
            options: list[object] = ["--device", device, "--seed", seed, "--workers", workers, "--timeout", timeout]
            given = {"--record": record, "--ray": ray, "--segment": segment, "--sample": sample, "--bundle": order}
            options += [*chain(*((name, value) for name, value in given.items() if value is not None))]
            options += [*chain(*(("--mirror", url) for url in mirrors))]
            event = run_apart("audit", run if is_url(run) else place, *options, listener=listener)
            names = ("match", "complete", "differs", "theirs", "mine", "step")
            return AuditResult(checked=tuple(event["checked"]), **{name: event[name] for name in names})
        kept, crew = Path(order) if order else None, Workers(workers, Path(record) if record else None, timeout, ray)
        done = audit_by_all(place, device, segment, sample, seed, listener, kept, crew)
    found = done.finding
    match, checked = found.differs is None, tuple(found.checked)
    return AuditResult(match, done.store.done, checked, found.differs, found.theirs, found.mine, found.step)


def locate(first: Run | Folder, second: Run | Folder, *, device: str = "default") -> Difference | None:
    """The first difference between two runs of one job: step, operator, element and both words; None if they are equal
    up to the end of the shorter one."""
    folders = _folder(first), _folder(second)
    if not _apart(device):
        return find_difference(*folders, device)[0]
    found = run_apart("locate", *folders, "--device", device, listener=NullProgress())["difference"]
    return None if found is None else Difference(**found)


def _place(run: Run | Folder, mirrors: Sequence[str]) -> Path | list[str]:
    """The folder of a run, or its URLs."""
    if is_url(run):
        return [str(run), *mirrors]
    if mirrors:
        raise VgameError(f"mirrors = {list(mirrors)}: {run} is a folder; mirrors are for a run at a URL")
    return _folder(run)


def _folder(run: Run | Folder) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def _apart(device: str) -> bool:
    """Whether the device needs an environment of its own. This process may have loaded torch without it, and must not
    keep it."""
    return bool(find(device).environment)


class _Listener(NullProgress):
    """Passes progress to the caller's function, writes stages to the log, and calls `cancel` to see whether to
    stop."""

    def __init__(self, progress: bool | Progress, cancel: Cancel | None) -> None:
        self.bar = Reporter() if progress is True else None
        self.tell = progress if callable(progress) else None
        self.cancel = cancel
        self.forecast: Forecast | None = None

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.close()

    def stage(self, text: str) -> None:
        log.info(text)

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        log.info(text)
        if event == "forecast":
            self.forecast = Forecast.of(fields)

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        if self.bar:
            self.bar.progress(what, done, total, detail)
        if self.tell:
            self.tell(what, done, total, detail)
        if self.cancel and self.cancel():
            raise Cancelled(
                f"{what} was cancelled at {done} of {total}; call again to continue from the last checkpoint"
            )

"""The Python API: describe, prepare, train, audit, locate. Re-exported by `vgame`; compute, then return, print nothing.

Arguments that several functions share:

- `device`: "default", "compatible", "reversed" or "cuda" (docs/guide.md). "compatible" needs an environment that is
  set before torch is loaded, so it runs in a process of its own; the logger `vgame` says so.
- `progress`: False; True for a bar on the terminal; or a function of (what, done, total, detail).
- `cancel`: asked after every step, True to stop: `vgame.Cancelled` is raised, what is committed stays.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

from vgame.errors import Cancelled, JobFileError, VgameError
from vgame.execute.devices import find
from vgame.job import factory, file
from vgame.job.bundle import Bundle
from vgame.job.cautions import warned_of_untrained
from vgame.job.file import LogTerms, Terms
from vgame.job.start import Start, load_named, load_weights
from vgame.job.weights import named, of_average, pack_weights, write_weights
from vgame.program.schedule import Schedule
from vgame.ranks.group import is_shared, own_rank
from vgame.runs import prepare as preparing
from vgame.runs.audit import run_root
from vgame.runs.folder import open_run
from vgame.runs.local import prepare_run, train_run
from vgame.runs.locate import Difference, find_difference
from vgame.runs.metrics import Metrics
from vgame.runs.own_process import run_apart
from vgame.runs.parallel_audit import Workers
from vgame.runs.shared import audit_by_all, train_shared
from vgame.runs.source import is_url
from vgame.runs.start import start_of, state_after
from vgame.runs.store import Divergence, Store
from vgame.runs.training import Committed
from vgame.schedules import Constant
from vgame.system.progress import NullProgress, Reporter
from vgame.tasks.task import Task
from vgame.validation.record import seconds_of

log = logging.getLogger("vgame")

Folder = Path | str
Progress = Callable[[str, int, int, str], None]
Cancel = Callable[[], bool]
Callback = Callable[[int, torch.nn.Module, list[float]], Any]


@dataclass(frozen=True, kw_only=True)
class _Order:
    interval: int
    seed: int
    steps: int | None = None
    schedule: Constant | Schedule | None = None
    mode: Literal["correct", "logged", "nearest", "fp32"] = "correct"
    depth: int = 5
    terms: Terms = field(default_factory=Terms)
    log: LogTerms | None = None
    name: str = ""


@dataclass(frozen=True)
class Job(_Order):
    """What is ordered: `steps` of a task, a commitment every `interval` steps, the `seed` of order and dropout.

    `epochs` instead of `steps`: passes over the data, of as many steps as a DataLoader has batches; the last step may
    go on into the next. `schedule`: None takes the
    task's schedulers, or the optimizer's own rates. `terms`: money (wei) and times (seconds) of an order on a chain.
    `initial`: a finished run, which is continued (weights, the optimizer's slots, its count of steps; the schedule
    counts the job's own steps), or a state_dict or a file of weights; they are loaded into the task's model.
    `name`: of the order, for people. JobFileError, when the job is prepared, names every field that is wrong.
    """

    task: Task
    epochs: float | None = field(default=None, kw_only=True)
    initial: Run | Folder | Mapping[str, torch.Tensor] | None = field(default=None, kw_only=True)

    @classmethod
    def from_toml(cls, path: Folder) -> Job:
        """The job that a job file describes (docs/guide.md). Calls the factory that it names."""
        job = file.read_job_file(Path(path))
        fields = {name: getattr(job, name) for name in _Order.__dataclass_fields__}
        return cls(factory.make_task(job), initial=factory.initial_of(job), **fields)

    def _steps(self) -> int:
        if self.steps is not None and self.epochs is None:
            return self.steps
        if self.epochs is None or self.steps is not None or not 0 < self.epochs < 2**24:
            raise JobFileError(
                f"steps = {self.steps}, epochs = {self.epochs}: either steps or epochs are expected, more than 0"
            )
        return math.ceil(self.epochs * self.task.epoch / self.task.accumulate)

    def _file(self) -> file.JobFile:
        fields: dict[str, Any] = {name: getattr(self, name) for name in _Order.__dataclass_fields__}
        fields["steps"] = self._steps()
        if isinstance(self.schedule, Constant):
            fields["schedule"] = vars(self.schedule) | {"kind": self.schedule.kind}
        try:
            job = file.JobFile.model_validate({"model": "vgame:Task"} | fields)
        except ValidationError as error:
            raise JobFileError(f"the job: {file.problems(error)}") from None
        job._task, job._initial = self.task, self.initial
        return job


def prepare(
    job: Job, *, validate: float | None = None, progress: bool | Progress = False, cancel: Cancel | None = None
) -> Bundle:
    """Capture the task; ProgramError where it cannot be (docs/capture.md). A warning and `without_gradient` name the
    parameters that no gradient reaches. `validate`: seconds to compare with the task's code (None: 60, 0: none)."""
    with _Listener(progress, cancel) as listener:
        return warned_of_untrained(preparing.prepare(job._file(), listener, seconds_of(validate)))


# ---- runs ----


class Run:
    """A run on disk: what training left in a folder. `root` is the run root, hex: equal roots are equal runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, folder: Folder) -> Run:
        """A run that was made before. StoreError where the folder holds none, or a damaged one."""
        return cls(open_run(Path(folder)))

    @property
    def folder(self) -> Path:
        return self._store.folder

    @property
    def bundle(self) -> Bundle:
        return self._store.bundle

    @property
    def step(self) -> int:
        """Steps that are committed."""
        return self._store.step

    @property
    def done(self) -> bool:
        return self._store.done

    @property
    def root(self) -> str:
        return run_root(self._store, self._store.roots, len(self._store.roots))

    @property
    def losses(self) -> np.ndarray:
        """The loss of every committed step, float32 [step]."""
        return self._store.losses()

    @property
    def divergence(self) -> Divergence | None:
        """The step, operator and element that was not finite first, where training ended so."""
        return self._store.divergence

    def state_dict(
        self, step: int | None = None, *, slots: bool = False, average: bool = False
    ) -> dict[str, torch.Tensor]:
        """The state after a step (None: the last committed one), as `module.load_state_dict` takes it: keys, types and
        tied weights are the module's. `slots`: also what the optimizer keeps. `average`: the averaged weights (EMA,
        SWA) of a task with `average`, in the places of the trained ones. A step that is not kept is executed again."""
        return named(of_average(self.bundle, average), self._at(step)[1], slots)

    def export(self, path: Folder, step: int | None = None, *, slots: bool = False, average: bool = False) -> None:
        """Write `state_dict` to a safetensors file, which `vgame check` can compare with a claim."""
        (step, state), bundle = self._at(step), of_average(self.bundle, average)
        write_weights(Path(path), pack_weights(bundle, step, state, named(bundle, state, slots)))

    def save_pretrained(self, folder: Folder, model: torch.nn.Module) -> None:
        """Load the weights into a model of the task's class and save it as it saves itself, with its configuration."""
        save_pretrained(self.state_dict(), str(self.folder), folder, model)

    def start(self) -> Start:
        """What a job starts from that continues this run."""
        return start_of(self._store)

    def _at(self, step: int | None) -> tuple[int, Any]:
        """A step, by default the last that is committed, and the state after it."""
        step = self.step if step is None else step
        if not 0 <= step <= self.step:
            raise VgameError(f"step = {step}: a step from 0 to {self.step} is expected, which is how far the run is")
        return step, state_after(self._store, step)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, step {self.step} of {self.bundle.steps}, root {self.root[:16]})"


def save_pretrained(weights: Mapping[str, torch.Tensor], where: str, folder: Folder, model: torch.nn.Module) -> None:
    """Weights of `where`, saved as their model saves itself."""
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise VgameError(
            f"{type(model).__name__} has no save_pretrained, which models of transformers and peft have; use the "
            f"weights of {where}"
        )
    load_weights(model, weights, where)
    save(folder)


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
    """Train a bundle, or a job (it is prepared), or go on where the run in the folder stands; every `keep`-th
    checkpoint is kept, and the newest.

    `callbacks`: called after every checkpoint as (step, model, losses of the interval); `model`, of the task's class,
    has the weights of that step. To evaluate, plot, save: what they do to the model changes nothing in the run.
    `metrics`: called for every committed step as (step, values): loss, rates, cost, root (docs/guide.md). A run that
    diverged is returned with its `divergence`. StoreError where the folder holds another job or is being written.
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
            teller = _teller(callbacks, model) if own_rank() == 0 else None
            found = train_shared(source, run, device, keep, listener, listener, teller, metrics=metrics)
            return Run(found or open_run(run))
        if not _apart(device):
            teller = _teller(callbacks, model)
            return Run(train_run(source, run, device, keep, listener, listener, False, teller, metrics)[0])
        if callbacks or metrics:
            raise VgameError(
                f"device {device} runs in a process of its own, where no function of yours is called; leave it out"
            )
        prepare_run(source, run, listener)
        try:
            run_apart("train", run / "job", "--out", run, "--device", device, "--keep", keep, listener=listener)
        except VgameError as error:
            if isinstance(error, Cancelled) or Run.open(run).divergence is None:
                raise
    return Run.open(run)


def _teller(callbacks: Sequence[Callback], model: torch.nn.Module | None) -> Committed | None:
    """Calls the callbacks with a state in the model."""
    if not callbacks:
        return None
    if model is None:
        raise VgameError(
            "callbacks get the module with the weights of their step: say which, vgame.train(..., model=model)"
        )

    def tell(store: Store, state: Any, losses: Sequence[float]) -> None:
        labels = store.bundle.program.labels.state
        load_named(model, {l.name: t.cpu().reshape(l.shape) for l, t in zip(labels, state, strict=True)})
        for callback in callbacks:
            callback(store.step, model, list(losses))

    return tell


# ---- checks ----


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. `checked`: checkpoints; `differs`: the first that differs, None if all match; `step`: where
    a recorded loss differs, not a state; `theirs`, `mine`: the run roots, hex, or what differs. `complete`: the run had
    ended."""

    match: bool
    complete: bool
    checked: tuple[int, ...]
    differs: int | None
    theirs: str
    mine: str
    step: int | None = None


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
    """Execute a run again and compare: whole, or `segments` (first and last checkpoint), or each interval with
    probability `sample`.

    `run` may be the URL of a published run; `mirrors`: other URLs of it, asked where the first fails. `seed` makes the
    sample repeatable; 0: nobody can predict it. `order`: the folder of a bundle; StoreError unless the run is of it.
    `workers`: processes that execute parts at the same time, from the checkpoints that the run keeps; `record`: a file
    of what they found equal, with which an audit that was stopped goes on; `timeout`: seconds without a new step after
    which a worker is replaced; `ray`: the address of a Ray cluster that executes the parts instead (`local` starts
    one). In a process group of several, all ranks call this and share every step; each gets the result.
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
    """Where two runs of one job part: step, operator, element and both words; None if they are equal as far as both
    go."""
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
        raise VgameError(f"mirrors {list(mirrors)}: {run} is a folder; mirrors are for a run behind a URL")
    return _folder(run)


def _folder(run: Run | Folder) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def _apart(device: str) -> bool:
    """Does the device need an environment? This process may have loaded torch without it, and must not keep it."""
    return bool(find(device).environment)


class _Listener(NullProgress):
    """Progress to whom it may concern, stages to the log, and the question whether to stop."""

    def __init__(self, progress: bool | Progress, cancel: Cancel | None) -> None:
        self.bar = Reporter() if progress is True else None
        self.tell = progress if callable(progress) else None
        self.cancel = cancel

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.close()

    def stage(self, text: str) -> None:
        log.info(text)

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        if self.bar:
            self.bar.progress(what, done, total, detail)
        if self.tell:
            self.tell(what, done, total, detail)
        if self.cancel and self.cancel():
            raise Cancelled(f"{what} was cancelled at {done} of {total}; call again to go on from the last checkpoint")

"""Small runs in mode `logged` for the tests: honest ones on any device, and tampered ones."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from vgame.attacks.tampered_log import Tampering
from vgame.job.bundle import load_bundle
from vgame.job.file import JobFile, LogTerms, read_job_file
from vgame.logged.kernels import sum_operators
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.training import train

ROOT = Path(__file__).resolve().parents[2]


def job(**changes) -> JobFile:
    """The digits with eight images a step, four steps in two intervals."""
    job = read_job_file(ROOT / "vgame/tasks/digits.toml")
    log = LogTerms(thresholds="proven", bits=changes.pop("bits", 32))
    small = {"args": job.args | {"batch": 8}, "steps": 4, "interval": 2, "mode": "logged", "log": log}
    return job.model_copy(update=small | changes)


def tampered(
    bundle: Path, folder: Path, choose, step: int = 3, operator: int | None = None
) -> tuple[LoggedStore, Tampering]:
    """A run of a trainer that tampers with one operator in one step: the product of the hidden layer."""
    loaded = load_bundle(bundle)
    program = loaded.program
    shutil.copytree(bundle, folder / "job")
    store, executor = LoggedStore(folder, loaded), make_executor(loaded, "cpu")
    target = next(i for i in sum_operators(program) if program.labels.operators[i] == "hidden")
    executor.kernels = Tampering(program, 32, executor.kernels.windows)
    executor.kernels.strike(step, target if operator is None else operator, choose)
    store.record(executor)
    train(store, executor)
    return store, executor.kernels


def trained_on(bundle: Path, folder: Path, device: AbstractContextManager | None = None) -> LoggedStore:
    """A run of an honest trainer on a device, which this process is by default."""
    shutil.copytree(bundle, folder / "job")
    store = LoggedStore(folder, load_bundle(bundle))
    executor = make_executor(store.bundle, "cpu")
    store.record(executor)
    with device or nullcontext():
        train(store, executor)
    return store

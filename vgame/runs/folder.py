"""Open a run's folder; make the executor of its program."""

from __future__ import annotations

import os
from pathlib import Path

from vgame.errors import StoreError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.store import Store


def executor_of(bundle: Bundle, kind: str) -> Executor:
    """The bundle's executor on a torch device."""
    if bundle.mode == "logged":
        return make_executor(bundle, kind)
    return Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, kind)


def store_of(run: Path, bundle: Bundle, keep: int = 1, writable: bool = True) -> Store:
    """The bundle's store in a folder: with a log in mode `logged`."""
    return (LoggedStore if bundle.mode == "logged" else Store)(run, bundle, keep, writable)


def open_run(run: Path, *, writable: bool = False) -> Store:
    """The store of a run folder, read only unless `writable`."""
    if not os.path.exists(run / "job" / "spec.json"):
        raise StoreError(
            f"{run} is not the folder of a run: it has no job/spec.json; `vgame train JOB --out {run}` makes one"
        )
    return store_of(run, load_bundle(run / "job"), writable=writable)

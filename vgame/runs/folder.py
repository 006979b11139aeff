"""Open a run's folder; choose the classes of a run by its rounding mode.

INVARIANT: this module alone chooses them by whether the run keeps a log. Then its store (logged_store.py), its executor
(vgame/logged/kernels.py) and its history (logged_history.py) have a log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vgame.errors import StoreError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.store import Store

if TYPE_CHECKING:
    from vgame.runs.history import History
    from vgame.runs.logged_history import CommittedLog
    from vgame.runs.training import Stepper


def store_type(bundle: Bundle) -> type[Store]:
    """The class of the bundle's store."""
    return LoggedStore if bundle.keeps_log else Store


def store_of(run: Path, bundle: Bundle, keep: int = 1, writable: bool = True) -> Store:
    """The bundle's store in a folder."""
    return store_type(bundle)(run, bundle, keep, writable)


def executor_of(bundle: Bundle, kind: str) -> Executor:
    """The bundle's executor on a torch device."""
    if bundle.keeps_log:
        return make_executor(bundle, kind)
    return Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, kind)


def repeater_of(store: Store, kind: str) -> Executor:
    """The executor that repeats the steps of a run; it follows the run's log, if there is one."""
    executor = executor_of(store.bundle, kind)
    store.follow(executor)
    return executor


def history_of(store: Store, stepper: Stepper, log: CommittedLog | None = None) -> History:
    """The history of a run, for the game's agents. `log`: the log that the executor follows, if it is not the
    store's."""
    from vgame.runs.history import History
    from vgame.runs.logged_history import LoggedHistory

    if store.bundle.keeps_log:
        return LoggedHistory(store, stepper, log or store)
    return History(store, stepper)


def open_run(run: Path, *, writable: bool = False) -> Store:
    """The store of a run folder, read only unless `writable`."""
    if not os.path.exists(run / "job" / "spec.json"):
        raise StoreError(
            f"{run} is not the folder of a run: it has no job/spec.json; `vgame train JOB --out {run}` makes one"
        )
    return store_of(run, load_bundle(run / "job"), writable=writable)

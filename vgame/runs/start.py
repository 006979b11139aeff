"""The state of a run after a step; initial states other than the module's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vgame.errors import JobFileError, VgameError
from vgame.execute.devices import use_device
from vgame.job.start import Start, load_named, load_weights, read_checkpoint
from vgame.logged.kernels import LoggedExecutor
from vgame.runs.folder import executor_of, open_run
from vgame.runs.logged_store import LoggedStore
from vgame.runs.store import Store
from vgame.runs.training import advance, state_at


def start_from(initial: Any, model: nn.Module) -> Start:
    """Load an initial state into the module. `initial`: a run, the path of one or of a file of weights, a state_dict,
    or None."""
    if initial is None:
        return Start()
    if isinstance(initial, Mapping):
        load_weights(model, initial, "initial")
        return Start()
    if isinstance(initial, str | Path):
        if not Path(initial).is_dir():
            load_weights(model, read_checkpoint(Path(initial)), str(initial))
            return Start()
        initial = start_of(open_run(Path(initial)))
    elif hasattr(initial, "start"):
        initial = initial.start()
    if not isinstance(initial, Start):
        raise JobFileError(
            f"initial = {type(initial).__name__}: a run, the path of one or of a file of weights, or a state_dict is "
            "expected"
        )
    load_named(model, initial.state)
    return initial


def start_of(store: Store) -> Start:
    """The initial state of a job that continues a finished run."""
    if not store.done:
        raise VgameError(
            f"{store.folder} is at step {store.step} of {store.bundle.steps}: train it to its end first, or start "
            "from its weights alone: initial=run.state_dict()"
        )
    labels, state = store.bundle.program.labels.state, state_after(store, store.step)
    tensors = {l.name: t.cpu().reshape(l.shape) for l, t in zip(labels, state, strict=True)}
    return Start(tensors, store.bundle.before + store.step)


def state_after(store: Store, step: int) -> Any:
    """The state after a step of the run; a state that is not kept is re-executed."""
    interval = store.bundle.interval
    checkpoint = -(-step // interval)
    if step in (0, store.step) or step % interval == 0:
        if store.nearest(checkpoint) == checkpoint:
            return store.load_state(checkpoint)
    else:
        checkpoint -= 1
    with use_device("default") as kind:
        executor = executor_of(store.bundle, kind)
        if isinstance(store, LoggedStore):
            assert isinstance(executor, LoggedExecutor), "a run in mode logged has a following executor"
            store.follow(executor)
        state = state_at(store, executor, checkpoint)
        state = advance(executor, state, min(checkpoint * interval, store.bundle.steps) + 1, step)
        store.bundle.refuse_changed(anew=True)
        return state

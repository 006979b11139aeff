"""Training and re-training: steps in order, a commitment at every checkpoint, resumable at any moment.

In: a bundle, a store, a stepper. Out: the complete store, or the step at which the job diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

import torch

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.errors import StoreError
from vgame.execute.executor import StepResult, Tap
from vgame.job.bundle import Bundle
from vgame.runs.header import Divergence
from vgame.runs.store import Store

State = Sequence[torch.Tensor]
Progress = Callable[[int, float], None]  # (step, loss)
Committed = Callable[[Store, State, Sequence[float]], None]  # (store, state, losses) after a checkpoint
Insist = Callable[[Callable[[], None]], None]  # runs a write, once or until it succeeds


class Stepper(Protocol):
    """An executor, the leader of several ranks, or an executor with a patch."""

    def initial(self, state: State) -> State: ...
    def to_device(self, state: State) -> State: ...
    def step(self, step: int, state: State, tap: Tap | None = None) -> StepResult: ...


def train(
    store: Store,
    stepper: Stepper,
    progress: Progress | None = None,
    insist: Insist = lambda write: write(),
    committed: Committed | None = None,
    most: int | None = None,
) -> Store:
    """Run from the store's last checkpoint to the end, or to the first step that is not finite (recorded, not raised);
    a missing last state is re-executed. StoreError first if the store is damaged or another process writes there. Every
    write goes through `insist`. `most`: at most so many intervals."""
    if store.done:
        store.check()
        if store.nearest(len(store.roots)) < len(store.roots):
            insist(partial(store.restore, state_at(store, stepper, len(store.roots))))
        return store
    store.lock()
    state = state_at(store, stepper, len(store.roots))
    for end in islice(intervals(store.bundle, stepper, state, store.step + 1, progress), most):
        last = isinstance(end, Divergence) or len(store.roots) + 1 == store.bundle.checkpoints
        store.bundle.refuse_changed(anew=last)
        insist(partial(store.diverged, end) if isinstance(end, Divergence) else partial(store.commit, *end))
        if committed and not isinstance(end, Divergence):
            committed(store, *end)
    return store


def detail_of(bundle: Bundle, loss: float) -> str:
    """Additional text for the progress display."""
    return f"loss {loss:.4f}" if bundle.purpose == "training" else ""


def intervals(
    bundle: Bundle, stepper: Stepper, state: State, first: int, progress: Progress | None = None
) -> Iterator[tuple[State, list[float]] | Divergence]:
    """(state, losses) at the end of each interval, from step `first` (the first of an interval) on; the last one may
    end at a step that is not finite."""
    for start in range(first, bundle.steps + 1, bundle.interval):
        losses: list[float] = []
        for step in range(start, min(start + bundle.interval, bundle.steps + 1)):
            result = stepper.step(step, state)
            if result.not_finite is not None:
                yield locate(stepper, step, state, result.not_finite)
                return
            state = result.state
            losses.append(float(result.loss))
            if progress:
                progress(step, losses[-1])
        yield state, losses


def locate(stepper: Stepper, step: int, state: State, operator: int) -> Divergence:
    """The first non-finite element of the operator that must be finite."""
    found = []

    def tap(index: int, output: torch.Tensor) -> torch.Tensor:
        if index == operator:
            found.append(int(torch.nonzero(~torch.isfinite(output))[0]))
        return output

    stepper.step(step, state, tap)
    return Divergence(step, operator, found[0])


def advance(stepper: Stepper, state: State, first: int, last: int) -> State:
    """State after steps first..last."""
    for step in range(first, last + 1):
        state = stepper.step(step, state).state
    return state


def state_at(store: Store, stepper: Stepper, checkpoint: int) -> State:
    """The state of a checkpoint, kept or re-executed from the nearest kept one; StoreError unless it matches its
    commitment."""
    bundle, start = store.bundle, store.nearest(checkpoint)
    state = stepper.initial(bundle.state) if start == 0 else stepper.to_device(store.load_state(start))
    if start == checkpoint:
        return state
    end = min(checkpoint * bundle.interval, bundle.steps)
    state = advance(stepper, state, start * bundle.interval + 1, end)
    root = tensors_root(Kind.STATE, state)
    if root != store.roots[checkpoint - 1]:
        raise StoreError(
            f"re-executing steps {start * bundle.interval + 1}..{end} gives the state root {root.hex()}, but "
            f"{store.roots[checkpoint - 1].hex()} was committed: this device does not compute the same bits; run "
            "`vgame doctor`"
        )
    return state

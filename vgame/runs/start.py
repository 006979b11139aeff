"""The state of a run after a step; initial states other than the module's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vgame.errors import JobFileError, VgameError
from vgame.execute.devices import use_device
from vgame.job.bundle import Bundle
from vgame.job.start import Start, load_named, load_weights, read_checkpoint
from vgame.program.batches import POSITION
from vgame.program.frozen import FrozenSteps, continued
from vgame.program.lower import Lowered
from vgame.program.operators import RefClass, operand_refs
from vgame.program.program import Program
from vgame.runs.folder import open_run, repeater_of
from vgame.runs.store import Store
from vgame.runs.training import advance, state_at
from vgame.tasks.task import Task
from vgame.validation.order import frozen_of

#: Fields of validation.json: {name: [[first, last], ...]}; the class of each optimizer, with the classes it extends.
FROZEN, OPTIMIZERS = "frozen", "optimizers"


@dataclass(frozen=True)
class Continued(Start):
    """The start of a job that continues a run: also the run's order, and the steps of each parameter without a
    gradient, in it and in those that it continues."""

    bundle: Bundle | None = None
    frozen_steps: FrozenSteps = field(default_factory=dict)


def task_from(task: Task, start: Start) -> Task:
    """The task of a job with this start, its `frozen` counted from the first step of the runs that it continues."""
    if not isinstance(start, Continued):
        return task
    _refuse_other_optimizers(task, (start.bundle.validation or {}).get(OPTIMIZERS) if start.bundle else None)
    return continued(task, start.before, start.frozen_steps)


def optimizers_of(task: Task) -> list[list[str]]:
    """For each optimizer its class and those that it extends, by name, without torch's Optimizer."""
    own = [type(optimizer).__mro__ for optimizer in task.optimizers]
    return [[kind.__name__ for kind in kinds[: kinds.index(torch.optim.Optimizer)]] for kinds in own]


def _refuse_other_optimizers(task: Task, before: Any) -> None:
    """Raise JobFileError if an optimizer would read the slots of an unrelated class. `before`: the classes of the run,
    from a file of another party; None in older files."""
    if before is None:
        return
    now = optimizers_of(task)
    try:
        related = [a[0] in b or b[0] in a for a, b in zip(before, now, strict=False)]
        names = [" and ".join(str(kinds[0]) for kinds in each) for each in (before, now)]
        same = len(before) == len(now) and all(related)
    except (IndexError, KeyError, TypeError):
        raise VgameError(
            f"`{OPTIMIZERS}` of the run's validation.json is not [[name, ...], ...]; start from its weights alone: "
            "initial=run.state_dict()"
        ) from None
    if not same:
        raise JobFileError(
            f"the run was trained by {names[0]}, whose state {names[1]} cannot continue; take the same optimizer, or "
            "start from the weights alone: initial=run.state_dict()"
        )


def placed(start: Start, lowered: Lowered) -> Start:
    """The start, at the first sample if the job reads other data, or in another order, than the run before."""
    if not isinstance(start, Continued) or POSITION not in start.state or _same_samples(start.bundle, lowered):
        return start
    return replace(start, state={**start.state, POSITION: torch.zeros_like(start.state[POSITION])})


def _same_samples(bundle: Bundle, lowered: Lowered) -> bool:
    orders = [_order(program) for program in (bundle.program, lowered.program)]
    data = zip(bundle.data, lowered.data, strict=False)
    return (
        bundle.program.labels.data == lowered.program.labels.data
        and orders[0][0] == orders[1][0]
        and all(map(torch.equal, orders[0][1], orders[1][1]))
        and all(torch.equal(a.reshape(-1), b.reshape(-1)) for a, b in data)
    )


def _order(program: Program) -> tuple[list[Any], list[torch.Tensor]]:
    """The operators that choose the samples, and the constants that they read."""
    found = [o for o, label in zip(program.operators, program.labels.operators, strict=True) if label == "data"]
    refs = [ref for operator in found for ref, _, _ in operand_refs(operator) if ref.cls is RefClass.CONSTANT]
    return found, [program.constants[ref.index] for ref in refs]


def for_continuing(task: Task, steps: int) -> dict[str, Any]:
    """The fields of validation.json for the jobs that continue this one; FROZEN only with frozen steps."""
    found = frozen_of(task, [n for n, p in task.model.named_parameters() if p.requires_grad])
    spans = {n: [[r.start, min(r.stop - 1, steps)] for r in ranges if r.start <= steps] for n, ranges in found.items()}
    kept = {n: s for n, s in spans.items() if s}
    return {OPTIMIZERS: optimizers_of(task)} | ({FROZEN: kept} if kept else {})


def _frozen_steps(bundle: Bundle) -> FrozenSteps:
    """The steps without a gradient in validation.json, a file of another party that may have any form."""
    found = (bundle.validation or {}).get(FROZEN, {})
    try:
        return {str(name): tuple(range(int(a), int(z) + 1) for a, z in spans) for name, spans in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise VgameError(
            f"`{FROZEN}` of the run's validation.json is not {{name: [[first, last], ...]}}; start from its weights "
            "alone: initial=run.state_dict()"
        ) from None


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
    return Continued(tensors, store.bundle.before + store.step, store.bundle, _frozen_steps(store.bundle))


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
        executor = repeater_of(store, kind)
        state = state_at(store, executor, checkpoint)
        state = advance(executor, state, min(checkpoint * interval, store.bundle.steps) + 1, step)
        store.bundle.refuse_changed(anew=True)
        return state

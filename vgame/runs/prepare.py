"""Prepare a job: capture it, validate it, calibrate its thresholds. In: a job. Out: its bundle."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from vgame.errors import ProgramError, some_of
from vgame.job.bundle import Bundle, refuse_invalid
from vgame.job.cautions import (
    call_factory,
    warn_of_batch,
    warn_of_evaluation,
    warn_of_rate,
    warn_of_schedulers,
    warn_of_untrained,
)
from vgame.job.factory import initial_of, make_task
from vgame.job.file import JobFile
from vgame.job.state_keys import Keys, module_keys
from vgame.program.lower import Lowered, lower_task
from vgame.runs.forecast import of_bundle
from vgame.runs.logged_order import with_log
from vgame.runs.start import for_continuing, placed, start_from, task_from
from vgame.system.progress import NULL_PROGRESS, NullProgress
from vgame.tasks.epochs import warn_of_rest
from vgame.tasks.packing import recipe_of
from vgame.validation.against import compare_losses
from vgame.validation.record import SECONDS, line, record
from vgame.validation.report import Order
from vgame.validation.steps import validate as validation_of

Losses = Sequence[tuple[float, float]]  # of the user's own loop: vgame/validation/against.py


def prepare(
    job: JobFile, listener: NullProgress = NULL_PROGRESS, validate: float = 0.0, against: Losses = ()
) -> Bundle:
    """Capture the job's model and collect all parts of the order. `validate`: seconds in which the program is compared
    with the task's own code, `against` with the losses of its own loop (docs/validation.md)."""
    bundle = with_log(prepare_without_log(job, listener, validate, against), job.log, listener)
    return replace(bundle, forecast=of_bundle(bundle, measured=validate > 0))


def prepare_without_log(
    job: JobFile, listener: NullProgress = NULL_PROGRESS, validate: float = 0.0, against: Losses = ()
) -> Bundle:
    """`prepare`, without the calibration of mode `logged`."""
    if job._task is None:
        listener.stage(f"calls {job.model}")
    task = call_factory(lambda: make_task(job)) if job._task is None else job._task
    warn_of_rate(task, job.schedule)
    warn_of_batch(task)
    warn_of_evaluation(task)
    warn_of_rest(task, job.steps)
    start = start_from(initial_of(job), task.model)
    warn_of_schedulers(task, start.before)
    task = task_from(task, start)
    schedule, steps = start.schedule(job.schedule), start.before + job.steps
    lowered: Lowered = lower_task(task, schedule, steps, listener)
    warn_of_untrained(task, schedule, lowered.without_gradient, lowered.marks.played)
    keys = module_keys(task.model)
    _refuse_other_keys(task.model, keys)
    state, scalars = placed(start, lowered).lowered(lowered)
    named = zip(lowered.program.labels.data, lowered.data, strict=True)
    recipes = {label.name: recipe for label, tensor in named if (recipe := recipe_of(tensor))}
    bundle = Bundle(
        lowered.program, state, lowered.data, scalars,
        job.seed, job.steps, job.interval, job.depth, job.mode, job.terms, None, keys, start.before,
        recipes, lowered.without_gradient, name=job.name,
    )  # fmt: skip
    refuse_invalid(bundle)
    order = Order(task, lowered, state, schedule, job.seed, steps, start.before)
    return replace(bundle, validation=_validated(order, listener, validate, against) | for_continuing(task, steps))


def _refuse_other_keys(model: nn.Module, keys: Keys) -> None:
    """Refuse a module whose state_dict has more than a run keeps, if it could not be loaded without it."""
    state = model.state_dict()
    if not (other := [key for key in state if key not in keys]):
        return
    kept = OrderedDict((key, tensor) for key, tensor in state.items() if key in keys)
    kept._metadata = getattr(state, "_metadata", None)  # versions of the modules, as in vgame/job/start.py
    try:
        model.load_state_dict(kept)
    except Exception:
        raise ProgramError(
            f"the model's state_dict has {some_of(other)}, neither parameters nor buffers (an extra state), which a "
            "run does not keep, so the trained weights could not be loaded; make buffers of it, or remove it"
        ) from None


def _validated(order: Order, listener: NullProgress, seconds: float, losses: Losses) -> dict[str, Any]:
    """The content of validation.json."""
    against, report = None, None
    if losses:
        listener.stage(f"compares {len(losses)} losses of your own loop")
        against = compare_losses(order, losses, seconds or SECONDS)
    if seconds:
        listener.stage(f"compares the program with your code, for at most {seconds:g} s")
        report = validation_of(order, seconds)
    found = record(report, order.lowered.program.root, against)
    listener.stage(line(found))
    if seconds and found["unchecked"]:
        warnings.warn(f"the program was compared in part: {'; '.join(found['unchecked'])}", stacklevel=2)
    return found

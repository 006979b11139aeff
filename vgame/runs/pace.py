"""Measure the usual and the worst time of a step on this device. In: a bundle and its executor. Out: the pace for safe
terms."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from vgame.arithmetic.torch.rounding_test import at_worst
from vgame.commit.tensor import tensor_root
from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.terms import Pace
from vgame.runs.store import Store
from vgame.runs.training import State, Stepper
from vgame.system.files import write_atomic
from vgame.system.progress import NULL_PROGRESS, NullProgress
from vgame.system.version import __version__

PACE = "pace.json"  # in a run's folder: measurements, and their machine
FEW = 3  # measured steps, at least
HARDEST = 128  # about the highest ratio of a step with only hardest sums to a usual step
MEASURED = 60  # seconds for measuring such a step, about; a longer one is measured in part


def measure(bundle: Bundle, stepper: Stepper, listener: NullProgress = NULL_PROGRESS) -> Pace:
    """The slower of two steps after a first one (which compiles), a step with hashing, the slowest step on any data,
    and the hashing of its state."""
    count = min(FEW, bundle.steps)
    state, times = few_steps(
        bundle, stepper, count, lambda step, seconds: listener.progress("measuring", step, count + 2, seconds)
    )

    def tap(_: int, output: torch.Tensor) -> torch.Tensor:
        tensor_root(output)
        return output

    begin = time.monotonic()
    for tensor in state:
        tensor_root(tensor)
    hashed = time.monotonic()
    stepper.step(1, stepper.initial(bundle.state), tap)
    trace, usual = time.monotonic() - hashed, max(times[1:], default=times[0])
    listener.progress("measuring", count + 1, count + 2, f"{trace:.3f} s")
    worst = _slowest(bundle, stepper, usual)
    listener.progress("measuring", count + 2, count + 2, f"{worst:.3f} s at worst")
    return Pace(usual, trace, worst, hashed - begin)


def checkpoint_seconds(folder: Path, bundle: Bundle) -> float:
    """Seconds of a checkpoint that is written into a folder, read back and removed."""
    here = folder / ".measured"
    shutil.rmtree(here, ignore_errors=True)
    try:
        store = Store(here, bundle)
        store.lock()
        begin = time.monotonic()
        try:
            store.commit(bundle.state, [0.0] * min(bundle.interval, bundle.steps))
        finally:
            store.release()
        return time.monotonic() - begin
    finally:
        shutil.rmtree(here, ignore_errors=True)


def few_steps(
    bundle: Bundle, stepper: Stepper, count: int, report: Callable[[int, str], None] = lambda step, seconds: None
) -> tuple[State, list[float]]:
    """The state after `count` steps from the initial one, and the seconds of each; the first one compiles."""
    state, times = stepper.initial(bundle.state), []
    for step in range(1, count + 1):
        begin = time.monotonic()
        state = stepper.step(step, state).state
        times.append(time.monotonic() - begin)
        report(step, f"{times[-1]:.3f} s")
    return state, times


def remember(path: Path, pace: Pace, kind: str) -> None:
    """Store the pace, so that a process that starts while a clock runs need not measure."""
    with suppress(VgameError):  # a full disk
        write_atomic(path, json.dumps(asdict(pace) | {"on": _machine(kind)}).encode())


def remembered(path: Path, kind: str) -> Pace | None:
    """The stored pace, if measured on this machine with this vgame; else None."""
    try:
        found = json.loads(path.read_bytes())
        return Pace(**found) if found.pop("on") == _machine(kind) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _machine(kind: str) -> list[str]:
    return [platform.node(), kind, str(torch.get_num_threads()), __version__]


def _slowest(bundle: Bundle, stepper: Stepper, usual: float) -> float:
    """Seconds of a step whose sums all go through every tier; the client's data could cause such steps."""
    part, first = min(1.0, MEASURED / (HARDEST * usual)), stepper.initial(bundle.state)
    with at_worst(1e-9):  # one sum of each tile: compiles code that ordinary data may never need
        stepper.step(1, first)
    begin = time.monotonic()
    with at_worst(part):
        stepper.step(1, first)
    return usual + max(0.0, time.monotonic() - begin - usual) / part

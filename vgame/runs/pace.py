"""How long a step takes on this device, usually and at worst. In: a bundle and its executor. Out: the pace that safe
terms ask for."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from vgame.arithmetic.torch.rounding_test import at_worst
from vgame.commit.tensor import tensor_root
from vgame.job.bundle import Bundle
from vgame.job.terms import Pace
from vgame.runs.training import State, Stepper
from vgame.system.files import write_atomic
from vgame.system.progress import NULL_PROGRESS, NullProgress
from vgame.system.version import __version__

PACE = "pace.json"  # in a run's folder: what was measured, and on which machine
FEW = 3  # steps that are measured at least
HARDEST = 128  # times as long as another takes a step whose every sum is as hard as can be, at most about
MEASURED = 60  # seconds that measuring such a step may take, about; a longer one is measured in part


def measure(bundle: Bundle, stepper: Stepper, listener: NullProgress = NULL_PROGRESS) -> Pace:
    """The slower of two steps after a first one (which compiles), a step with hashing, the slowest that data could
    make, and the hashing of its state."""
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


def few_steps(
    bundle: Bundle, stepper: Stepper, count: int, told: Callable[[int, str], None] = lambda step, seconds: None
) -> tuple[State, list[float]]:
    """The state after `count` steps from the initial one, and the seconds of each; the first one compiles."""
    state, times = stepper.initial(bundle.state), []
    for step in range(1, count + 1):
        begin = time.monotonic()
        state = stepper.step(step, state).state
        times.append(time.monotonic() - begin)
        told(step, f"{times[-1]:.3f} s")
    return state, times


def remember(path: Path, pace: Pace, kind: str) -> None:
    """For a process that begins while a clock runs; without it that process measures later."""
    with suppress(OSError):
        write_atomic(path, json.dumps(asdict(pace) | {"on": _machine(kind)}).encode())


def remembered(path: Path, kind: str) -> Pace | None:
    """What was measured before, on this machine and with this vgame."""
    try:
        found = json.loads(path.read_bytes())
        return Pace(**found) if found.pop("on") == _machine(kind) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _machine(kind: str) -> list[str]:
    return [platform.node(), kind, str(torch.get_num_threads()), __version__]


def _slowest(bundle: Bundle, stepper: Stepper, usual: float) -> float:
    """Seconds of a step all of whose sums go through every tier, as from some step on data of a client's choice could
    make them."""
    part, first = min(1.0, MEASURED / (HARDEST * usual)), stepper.initial(bundle.state)
    with at_worst(1e-9):  # one sum of each tile: compiles what ordinary data may never need
        stepper.step(1, first)
    begin = time.monotonic()
    with at_worst(part):
        stepper.step(1, first)
    return usual + max(0.0, time.monotonic() - begin - usual) / part

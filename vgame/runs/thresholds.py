"""Algorithm 3: the distance to a midpoint below which a sum is logged, per kind of operator and layer, by comparing two
devices.

In: a bundle in mode `logged`. Out: a window per sum operator, in units of the proven bound e on the error of that sum:
the trainer logs a sum that is nearer than window * e to a midpoint. In the paper's terms the threshold of an output is
tau = 1/2 - window * e / ulp, adapted to the error bound of that output. `PROVEN` = 2 needs no calibration, and
replication is then certain.

A window w is safe on the calibration steps if no two values that the devices computed for the same sum are further
apart than w e: then, had the midpoint lain anywhere between them, the trainer would have logged. So every sum
contributes, whereas the paper uses the few sums that happened to lie at a midpoint. Binary search finds the least safe
window (the largest safe threshold) between the bounds 0 and 2, to one part in 2^12; `MARGIN` covers unseen steps and
devices, and no window is less than `LEAST`.

    python -m vgame.runs.thresholds BUNDLE DEVICE STEPS FOLDER

runs one device in a process of its own; the first process records, the next ones follow.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vgame.errors import VgameError
from vgame.execute.devices import prepare_environment, use_device

PROVEN, LEAST, MARGIN = 2.0, 1.0 / 16, 4.0
ROUNDS = 12
SAMPLE = 1 << 14  # compared sums of one operator in one step, at most
DEVICES = ("default", "compatible")
Differences = tuple[np.ndarray, np.ndarray, np.ndarray]  # (distance, bound, width of the cell) of sums


@dataclass(frozen=True, slots=True)
class Calibration:
    """A window per sum operator; per group (kind and layer) the least safe window, and the paper's threshold in ulp
    that would be safe."""

    windows: tuple[float, ...]
    safe: dict[str, float]
    plain: dict[str, float]


def calibrate(bundle, steps: int, devices: tuple[str, ...] = DEVICES) -> Calibration:
    """Compare the devices on the first steps, and search."""
    from vgame.logged.kernels import sum_operators

    operators = sum_operators(bundle.program)
    groups = defaultdict(list)
    for operator in operators:
        label = bundle.program.labels.operators[operator] if bundle.program.labels.operators else str(operator)
        groups[f"{bundle.program.operator_kind(operator)} @ {label}"].append(operator)
    safe, plain = {}, {}
    with observed_differences(bundle, steps, devices) as differences:
        for group, members in groups.items():
            apart, bounds, widths = differences(members)
            safe[group] = search(apart, bounds)
            plain[group] = 0.5 - float((apart / widths).max(initial=0.0))
    window = {i: min(PROVEN, max(LEAST, MARGIN * safe[g])) for g, members in groups.items() for i in members}
    return Calibration(tuple(window[i] for i in operators), safe, plain)


@contextmanager
def observed_differences(bundle, steps: int, devices: tuple[str, ...]) -> Iterator[Callable[[list[int]], Differences]]:
    """Run the first steps on the devices, each in a process of its own; yields the distances of the sums of some
    operators."""
    from vgame.job.bundle import save_bundle

    steps = min(steps, bundle.steps)
    with tempfile.TemporaryDirectory(prefix="vgame-calibrate-") as name:
        folder = Path(name)
        save_bundle(bundle, folder / "bundle")
        for device in devices:
            command = [sys.executable, "-m", "vgame.runs.thresholds", folder / "bundle", device, str(steps), folder]
            result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if result.returncode:
                lines = result.stderr.strip().splitlines() or ["no message"]
                raise VgameError(f"calibration on device {device} failed: {lines[-1]}")
        runs = [np.load(folder / f"{device}.npz") for device in devices]
        yield lambda operators: _differences(runs, operators, steps, bundle.log.bits)


def _differences(runs, operators: list[int], steps: int, bits: int) -> Differences:
    """(distance of the devices' sums, bound, width of the cell) of all compared sums of some operators that are decided
    by the vendor's sum."""
    import torch

    from vgame.logged.rounding import cells
    from vgame.logged.sums import TRAINER_GATE

    keys = [f"{step} {operator}" for step in range(1, steps + 1) for operator in operators]
    first, bound = (np.concatenate([runs[0][f"{kind} {key}"] for key in keys]) for kind in ("s", "e"))
    others = [np.concatenate([run[f"s {key}"] for key in keys]) for run in runs[1:]]
    half = cells(torch.from_numpy(first), bits)[1].numpy()
    counts = (TRAINER_GATE * bound < half) & np.isfinite(first)
    apart = np.max([np.abs(first - other) for other in others], axis=0)
    return apart[counts], bound[counts], 2 * half[counts]


def search(apart: np.ndarray, bounds: np.ndarray) -> float:
    """The least window in 0..2 that is safe, to 2 / 2^12, from above."""
    low, high = 0.0, PROVEN
    if is_safe(low, apart, bounds):
        return low
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_safe(middle, apart, bounds) else (middle, high)
    return high


def is_safe(window: float, apart: np.ndarray, bounds: np.ndarray) -> bool:
    """Whether all devices' values of each sum are within the window."""
    return bool((apart <= window * bounds).all())


def observe(folder: Path, device: str, steps: int, out: Path) -> None:
    """The sums and bounds of a device's first steps, to OUT/DEVICE.npz; all devices follow the first one's log, so the
    states agree."""
    from vgame.job.bundle import load_bundle
    from vgame.logged.logfile import LogFile
    from vgame.runs.logged_store import make_executor

    seen: dict[str, np.ndarray] = {}
    with use_device(device) as kind:
        bundle = load_bundle(folder)
        executor = make_executor(bundle, kind)
        log = LogFile(out / "rounding.vglog", bundle.program, bundle.identity, bundle.log.bits)
        known = log.steps
        executor.read = lambda step: log.read(step) if step <= known else None
        parts: dict[int, list] = {}

        def look(operator, positions, s, e) -> None:
            stride = -(-bundle.program.operators[operator].elements // SAMPLE)
            chosen = positions % stride == 0
            parts.setdefault(operator, []).append([x[chosen].cpu().numpy() for x in (positions, s, e)])

        executor.kernels.look = look
        state = executor.initial(bundle.state)
        for step in range(1, steps + 1):
            state = executor.step(step, state).state
            for operator, found in parts.items():
                positions, s, e = (np.concatenate(part) for part in zip(*found, strict=True))
                order = np.argsort(positions, kind="stable")
                seen[f"s {step} {operator}"], seen[f"e {step} {operator}"] = s[order], e[order]
            parts.clear()
        if not known:
            log.append(executor.made)
    np.savez(out / f"{device}.npz", **seen)


if __name__ == "__main__":
    prepare_environment(sys.argv[2])
    observe(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))

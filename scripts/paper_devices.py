"""Run the same steps on two devices, and find where their states differ. Each device is a process of its own, and
resumes an earlier call.

    python scripts/paper_devices.py ORDER      one device; ORDER is JSON (`Order`), and so is its result in OUT.json

In: a bundle in a folder, a mode, devices. Out: state roots of every step, losses, some states; in logged modes the
first device makes the log and the second one follows it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
#: Name of a job: (job file, changed arguments, title).
JOBS = {
    "digits": ("digits", {}, "CNN on the digits"),
    "digits_wide": ("digits", {"width": 32}, "CNN on the digits, twice as wide"),
    "small_gpt": ("small_gpt", {}, "small GPT"),
}
SAVE_SECONDS = 30  # seconds between two states for resuming


def bundle_of(
    name: str, text: Path, steps: int, mode: str = "logged", thresholds: str = "proven", bits: int = 32, seed: int = 0
):
    """A shipped job as a bundle with other numbers."""
    from vgame.job.file import LogTerms
    from vgame.runs.prepare import prepare

    job = source_of(name, text)
    log = LogTerms(bits=bits, thresholds=thresholds) if mode == "logged" else None
    update = {"steps": steps, "interval": steps, "mode": mode, "log": log, "seed": job.seed + seed}
    return prepare(job.model_copy(update=update))


def source_of(name: str, text: Path):
    """The job file of a shipped job, with its arguments."""
    from vgame.job.file import read_job_file

    file, args, _ = JOBS[name]
    job = read_job_file(ROOT / f"vgame/tasks/{file}.toml")
    return job.model_copy(update={"args": job.args | args | ({"text": str(text)} if "text" in job.args else {})})


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one device; `out`: prefix of its files, `log`: in logged modes, `marks`: steps whose state is
    saved."""

    job: str
    mode: str
    bundle: str
    steps: int
    marks: list[int]
    device: str
    out: str
    log: str = ""
    follows: bool = False


@dataclass(slots=True)
class Progress:
    """A device's results so far, and the state for resuming."""

    state: list = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    marked: dict[int, np.ndarray] = field(default_factory=dict)
    counts: tuple[dict[int, int], dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}, {}))


class Device:
    """This process as a device."""

    def __init__(self, order: Order, kind: str) -> None:
        from vgame.execute.executor import Executor
        from vgame.job.bundle import load_bundle
        from vgame.logged.logfile import LogFile
        from vgame.runs.logged_store import make_executor

        self.order, self.log = order, None
        self.bundle = bundle = load_bundle(Path(order.bundle))
        self.path = Path(f"{order.out}.progress")
        self.progress = self._load()
        if order.log:
            self.executor = make_executor(bundle, kind)
            self.log = LogFile(Path(order.log), bundle.program, bundle.identity, bundle.log.bits)
            self.executor.read = follower(self.log) if order.follows else self._known
            tally = self.executor.kernels.tally
            tally.corrections, tally.exact, tally.entries = self.progress.counts
        else:
            self.executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, order.mode, kind)

    def _known(self, step: int):
        """The entries of a step already in the log."""
        return self.log.read(step) if step <= self.log.steps else None

    def _load(self) -> Progress:
        import torch

        return torch.load(self.path, weights_only=False) if self.path.exists() else Progress()

    def _save(self) -> None:
        import torch

        part = self.path.with_suffix(".part")
        torch.save(self.progress, part)
        part.replace(self.path)

    def run(self) -> dict[str, Any]:
        """Run all steps; the results, without the marked states, which are written to OUT.npz."""
        progress, saved = self.progress, time.monotonic()
        progress.state = self.executor.initial(progress.state or self.bundle.state)
        while len(progress.roots) < self.order.steps:
            self._step(len(progress.roots) + 1)
            if time.monotonic() > saved + SAVE_SECONDS:
                self._save()
                saved = time.monotonic()
        np.savez(f"{self.order.out}.npz", **{str(step): state for step, state in progress.marked.items()})
        return {"roots": progress.roots, "losses": progress.losses} | self._logged() | self._accuracy()

    def _step(self, step: int) -> None:
        from vgame.commit.merkle import Kind
        from vgame.commit.tensor import tensors_root

        progress = self.progress
        result = self.executor.step(step, progress.state)
        progress.state = list(result.state)
        progress.roots.append(tensors_root(Kind.STATE, result.state).hex())
        progress.losses.append(float(result.loss))
        if step in self.order.marks:
            progress.marked[step] = np.concatenate([t.cpu().numpy() for t in result.state if t.is_floating_point()])
        if self.log is not None and self.executor.made:
            self.log.append(self.executor.made)
            self.executor.made.clear()

    def _logged(self) -> dict[str, Any]:
        if self.log is None:
            return {}
        labels, tally = self.bundle.program.labels.operators, self.executor.kernels.tally
        backward = sum(n for i, n in tally.corrections.items() if "backward" in labels[i])
        return {
            "log": self.log.path.stat().st_size,
            "entries": sum(tally.entries.values()),
            "backward": backward,
            "forward": sum(tally.corrections.values()) - backward,
            "exact": sum(tally.exact.values()),
        }

    def _accuracy(self) -> dict[str, float]:
        if not self.order.job.startswith("digits"):
            return {}
        from vgame.tasks.digits import accuracy

        labels = self.bundle.program.labels.state
        return {
            "accuracy": accuracy(
                {l.name: t.cpu().reshape(l.shape) for l, t in zip(labels, self.progress.state, strict=True)}
            )
        }


def follower(log) -> Callable:
    """Reads the steps of a log while another process writes it."""

    def read(step: int):
        for _ in range(6000):
            if log.steps >= step:
                break
            time.sleep(0.1)
            log.look()
        return log.read(step)

    return read


def on_devices(bundle, order: Order, devices: list[str], folder: Path) -> list[tuple]:
    """The order on two devices at once; in logged modes the second follows the log that the first one makes."""
    from vgame.logged.logfile import LogFile

    if order.log:  # created before either process opens it
        LogFile(Path(order.log), bundle.program, bundle.identity, bundle.log.bits)
    orders = [
        Order(**asdict(order) | {"device": d, "follows": d == devices[1], "out": str(folder / f"{order.out}-{d}")})
        for d in devices
    ]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(on_device, orders))


def on_device(order: Order) -> tuple[dict[str, Any], dict[int, np.ndarray]]:
    """A device's results, from a process of its own, and its state at the marked steps; earlier results are read."""
    found = Path(f"{order.out}.json")
    if not found.exists():
        command = [sys.executable, __file__, json.dumps(asdict(order))]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(result.stderr[-2000:])
    with np.load(f"{order.out}.npz") as file:
        states = {int(step): file[step] for step in file.files}
    return json.loads(found.read_text()), states


def compare(first: tuple, second: tuple) -> dict[str, Any]:
    """Compare two runs: the first differing step (None: no tensor differs), distances, losses, the log."""
    (a, states_a), (b, states_b) = first, second
    parted = next((i for i, (x, y) in enumerate(zip(a["roots"], b["roots"], strict=True), 1) if x != y), None)
    distances = {s: float(np.linalg.norm(states_a[s].astype(float) - states_b[s])) for s in states_a}
    result = {"parted": parted, "distance": distances, "loss": [float(np.mean(r["losses"][-50:])) for r in (a, b)]}
    result["apart"] = float(np.max(np.abs(np.subtract(a["losses"], b["losses"]))))
    if "accuracy" in a:
        result["accuracy"] = [a["accuracy"], b["accuracy"]]
    if "log" in a:
        result |= {key: a[key] for key in ("log", "entries", "exact")} | {
            key: b[key] for key in ("forward", "backward")
        }
    return result


def main() -> None:
    from vgame.execute.devices import prepare_environment, use_device

    order = Order(**json.loads(sys.argv[1]))
    prepare_environment(order.device)
    with use_device(order.device) as kind:
        found = Device(order, kind).run()
    Path(f"{order.out}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

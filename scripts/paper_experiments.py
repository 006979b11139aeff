"""Measurements between devices: divergence, corrections, thresholds. In: a job's name, the options. Out: a part of
paper.json."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper_devices import Order, bundle_of, compare, on_device, on_devices

MODES = ("fp32", "nearest", "logged", "proven", "correct")
OBSERVED = 3  # steps with compared sums of all devices


@contextmanager
def work_folder(options: argparse.Namespace, name: str) -> Iterator[Path]:
    """The folder of one run; under --work it is kept, and an interrupted call is resumed."""
    if options.work:
        folder = options.work.resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with TemporaryDirectory(prefix="vgame-paper-") as folder:
            yield Path(folder)


def marked(steps: int) -> list[int]:
    """Some twenty steps, closer at the beginning."""
    return sorted({round(steps ** (i / 20)) for i in range(21)})


def divergence(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Two devices in every mode, and two orders of the data on one device: the first difference, L2 distances, losses,
    accuracy."""
    found: dict[str, Any] = {}
    for mode in options.modes:
        with work_folder(options, f"{job}-{options.devices[1]}-{mode}-{options.steps}") as folder:
            order, runs = _in_mode(job, mode, options, folder)
            found[mode] = compare(*runs)
            print(job, mode, "parted at", found[mode]["parted"], flush=True)
            if mode == "fp32":
                _saved(folder / "other", job, options, "fp32", seed=1)
                other = on_device(
                    replace(order, bundle=str(folder / "other"), device=options.devices[0], out=str(folder / "order"))
                )
                found["order"] = compare(runs[0], other)
    for run in found.values():
        run["steps"] = options.steps
    return {"devices": options.devices, "modes": found}


def _in_mode(job: str, mode: str, options: argparse.Namespace, folder: Path) -> tuple[Order, list[tuple]]:
    """The order, and the two devices' runs."""
    logged = mode in ("logged", "proven")
    thresholds = "adaptive" if mode == "logged" else "proven"
    bundle = _saved(folder / "bundle", job, options, "logged" if logged else mode, thresholds)
    log = str(folder / "rounding.vglog") if logged else ""
    order = Order(job, mode, str(folder / "bundle"), options.steps, marked(options.steps), "", "state", log)
    return order, on_devices(bundle, order, options.devices, folder)


def _saved(folder: Path, job: str, options: argparse.Namespace, mode: str, thresholds: str = "proven", seed: int = 0):
    """The job's bundle, made once."""
    from vgame.job.bundle import load_bundle, save_bundle

    if not (folder / "spec.json").exists():
        save_bundle(bundle_of(job, options.text, options.steps, mode, thresholds, seed=seed), folder)
    return load_bundle(folder)


def corrections(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """By bits: corrections of the second device, which follows the first one's log, and the expected number per
    step."""
    from vgame.job.bundle import save_bundle

    found = {}
    steps = max(2, options.steps // 10)
    for bits in options.bits:
        bundle = bundle_of(job, options.text, steps, thresholds="proven", bits=bits)
        with work_folder(options, f"{job}-{options.devices[1]}-corrections-{bits}-{steps}") as folder:
            save_bundle(bundle, folder / "bundle")
            order = Order(job, "logged", str(folder / "bundle"), steps, [], "", "state", str(folder / "rounding.vglog"))
            result = compare(*on_devices(bundle, order, options.devices, folder))
        outputs = sum(op.elements for op in bundle.program.operators if not op.integer)
        found[str(bits)] = {k: result[k] for k in ("parted", "forward", "backward", "entries")}
        found[str(bits)] |= {"steps": steps, "outputs": outputs, "expected": expected(bundle, options.devices)}
        print(job, bits, "bits", found[str(bits)], flush=True)
    return found


def expected(bundle, devices: list[str]) -> list[float]:
    """Corrections to be expected in a step, (forward, backward): a midpoint lies between two sums with probability |s -
    s'| / ulp."""
    from vgame.logged.kernels import sum_operators
    from vgame.runs.thresholds import observed_differences

    found = [0.0, 0.0]
    with observed_differences(bundle, OBSERVED, tuple(devices)) as differences:
        for operator in sum_operators(bundle.program):
            apart, _, widths = differences([operator])
            if len(apart):
                share = float((apart / widths).mean())
                backward = "backward" in bundle.program.labels.operators[operator]
                found[backward] += share * bundle.program.operators[operator].elements
    return found


def thresholds(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """The least safe window per kind and layer, and the paper's threshold for it."""
    from vgame.runs.thresholds import calibrate

    found = calibrate(bundle_of(job, options.text, 10), OBSERVED, tuple(options.devices))
    return {group: {"window": found.safe[group], "plain": found.plain[group]} for group in found.safe}

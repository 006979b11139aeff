"""Reproduce the paper's tables (Srivastava, Arora, Boneh 2024): docs/paper.json, the tables in docs/paper.md and its
pictures.

    python scripts/paper.py --text shakespeare.txt [--steps 2000] [--only divergence ...] [--jobs digits ...] [--device
    cuda]
    python scripts/paper.py --quick --out FOLDER      seconds; the same code on few steps

Experiments: divergence (between two devices, and by data order), storage, corrections, thresholds, time; large (one
real step of ResNet-50 and of GPT-2: --only large --jobs resnet50 gpt2). Every device is a process of its own. Results
of earlier calls stay in the JSON, so experiments can be run one by one; with --work FOLDER an interrupted run is
resumed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paper_devices import JOBS, ROOT
from paper_experiments import MODES, corrections, divergence, thresholds
from paper_pictures import draw
from paper_storage import large, storage
from paper_tables import fill
from paper_time import timing

EXPERIMENTS: dict[str, Callable[[str, argparse.Namespace], dict[str, Any]]] = {
    "thresholds": thresholds,
    "storage": storage,
    "corrections": corrections,
    "time": timing,
    "divergence": divergence,
    "large": large,
}


def take_in(results: dict[str, Any], name: str, job: str, found: dict[str, Any]) -> None:
    """Add an experiment's results; modes of a divergence, bits and windows of a large step may be added one by one."""
    place = results.setdefault(name, {}).setdefault(job, {})
    if name == "divergence":
        found["modes"] = place.get("modes", {}) | found["modes"]
    if name == "large":
        found = {k: place.get(k, {}) | v if isinstance(v, dict) else v for k, v in found.items()}
        place.update(found)
    else:
        results[name][job] = found


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=ROOT / "LICENSE", help="any text file, for the language model")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--bits", type=int, nargs="*", default=[26, 28, 30, 32])
    usual = [name for name in EXPERIMENTS if name != "large"]
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), default=usual)
    parser.add_argument("--jobs", nargs="*", default=["digits", "small_gpt"], help=f"{', '.join(JOBS)}; resnet50, gpt2")
    parser.add_argument("--windows", nargs="*", default=["adaptive", "proven"])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--devices", nargs=2, default=["default", "compatible"])
    parser.add_argument("--device", choices=["cuda"], help="the second device is a GPU")
    parser.add_argument("--work", type=Path, help="folder of interrupted runs, which are resumed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of paper.json and the pictures")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="other paper.json files, read first")
    options = parser.parse_args()
    if options.device:
        options.devices[1] = options.device
    if options.quick:
        options.steps, options.repeats, options.bits, options.jobs, options.windows = 2, 1, [32], ["digits"], ["proven"]
        options.only, options.modes = ["storage", "divergence", "time"], ["proven"]
    return options


def measure(options: argparse.Namespace, results: dict[str, Any], path: Path) -> None:
    """Run the chosen experiments; the file has all results so far."""
    for name in options.only:
        for job in options.jobs:
            for modes in [[mode] for mode in options.modes] if name == "divergence" else [options.modes]:
                found = EXPERIMENTS[name](job, argparse.Namespace(**vars(options) | {"modes": modes}))
                other = name in ("divergence", "corrections") and options.devices[1] != "compatible"
                take_in(results, name, f"{job} {options.devices[1]}" if other else job, found)
                path.write_text(json.dumps(results, indent=1) + "\n")
                print(name, job, "done", flush=True)


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    path, page = options.out / "paper.json", options.out / "paper.md"
    results = json.loads(path.read_text()) if path.exists() else {}
    for other in options.merge:
        for name, jobs in json.loads(other.read_text()).items():
            for job, found in jobs.items():
                take_in(results, name, job, found)
    measure(options, results, path)
    path.write_text(json.dumps(results, indent=1) + "\n")
    if page.exists():
        page.write_text(fill(page.read_text(), results))
    draw(results, options.out)


if __name__ == "__main__":
    main()

"""Measure the cost of exactness on this CPU: ratios of alternating runs. Writes docs/benchmarks.json and .svg.

    python scripts/bench.py                    everything (minutes)
    python scripts/bench.py --only products    one group: products, steps, audit, hashing, scaling
    python scripts/bench.py --only steps:digits

Every ratio is the median over at least 7 rounds; each round runs every contestant once; each kind of a model's steps is
a process of its own. `wall` compares elapsed times, `cpu` the processor's time, which other work on the machine
disturbs less. A group that is run again replaces its entry in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch
from bench_compare import compare, show
from bench_peak import multiply_adds
from bench_scaling import draw, scaling
from bench_steps import steps, take_turns

from vgame.arithmetic.certified import counting, dot, own_kernels
from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.job.file import read_job_file
from vgame.runs.folder import executor_of
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train
from vgame.tasks import digits

FILE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.json"


# --- products ---

#: Name: (rows of a, rows of b, K). Layers of GPT-2 small (1,024 tokens) and ResNet-50.
SHAPES = {
    "K = 768: GPT-2 query, key, value": (1024, 2304, 768),
    "K = 1,152: ResNet-50 3 x 3, 128 channels": (128, 6272, 1152),
    "K = 3,072: GPT-2 second feed-forward": (1024, 768, 3072),
    "K = 4,608: ResNet-50 3 x 3, 512 channels": (512, 3136, 4608),
    "K = 65,536: a weight's gradient": (128, 1152, 65536),
}
DATA: dict[str, Callable[..., torch.Tensor]] = {
    "normal": torch.randn,
    "bf16": lambda *shape: torch.randn(shape).bfloat16().float(),
    "int12": lambda *shape: torch.randint(-2048, 2049, shape).float(),
}


def products(only: str) -> dict:
    """certified / torch's FP64 product, with FP64 operands and with FP32 operands; / certified with the library's
    kernels; / torch's FP32 product; / its multiply-adds alone, at the processor's peak."""

    def by_library(a: torch.Tensor, b: torch.Tensor) -> None:
        with own_kernels(False):
            dot(a, b)

    found = {}
    for name, (m, n, k) in SHAPES.items():
        for data, make in DATA.items():
            if only not in f"{name}, {data}":
                continue
            torch.manual_seed(0)
            a, b = make(1, m, k), make(1, n, k)
            wide_a, wide_b = a[0].double(), b[0].double()
            with counting() as counts:
                dot(a, b)
            contestants = {
                "certified": lambda: dot(a, b),  # noqa: B023
                "fp64": lambda: wide_a @ wide_b.mT,  # noqa: B023
                "fp64 from fp32": lambda: (a[0].double() @ b[0].double().mT).float(),  # noqa: B023
                "certified by the library": lambda: by_library(a, b),  # noqa: B023
                "fp32": lambda: a[0] @ b[0].mT,  # noqa: B023
                "multiply-adds alone": lambda: multiply_adds(m * n * k, torch.get_num_threads()),  # noqa: B023
            }
            entry = compare(contestants)
            entry["not settled by the bound"] = round(1 - counts.bound / counts.elements, 6)
            found[f"{name}, {data}"] = show(f"{name}, {data}", entry)
    return found


# --- audit, hashing ---


def audit(only: str) -> dict:
    """Re-execution with comparison / training, 20 steps of the digits job with a checkpoint every 10."""
    job = read_job_file(Path(digits.__file__).with_suffix(".toml")).model_copy(update={"steps": 20})
    bundle = prepare(job)
    executor, reference = executor_of(bundle, "cpu"), []

    def run() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return train(Store(Path(folder), bundle), executor).roots

    def again() -> None:
        assert run() == reference, "an audit of an honest run matches"

    reference += run()
    return {"digits": show("audit / training", compare({"audit": again, "training": run}))} if only in "digits" else {}


def hashing(only: str) -> dict:
    """The root of a state beside hashlib's SHA-256 of the same bytes, 4 KiB at a time, both on all cores; and a root
    after 2 of 16 tensors have changed."""
    state = [torch.randn(1 << 20) for _ in range(16)]
    blocks = [memoryview(t.numpy()).cast("B") for t in state]
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def raw(block: memoryview) -> None:
        for i in range(0, len(block), 4096):
            hashlib.sha256(block[i : i + 4096]).digest()

    def root(changed: int) -> None:
        for tensor in state[:changed]:
            tensor[0] += 1.0
        tensors_root(Kind.STATE, state)

    contestants = {
        "hashlib, 4 KiB": lambda: list(pool.map(raw, blocks)),
        "state root": lambda: root(16),
        "state root, 2 of 16 tensors changed": lambda: root(2),
    }
    entry = compare(contestants)
    megabytes = sum(map(len, blocks)) / 1e6
    entry["MB per second"] = {name: round(1e3 * megabytes / ms) for name, ms in entry["milliseconds"].items()}
    return {"state": show("hashing: hashlib's time / ours", entry)} if only in "state" else {}


# --- the file ---

GROUPS: dict[str, Callable[[str], dict]] = {
    "products": products,
    "steps": steps,
    "audit": audit,
    "hashing": hashing,
    "scaling": scaling,
}


def machine() -> dict:
    """The machine of the measurement."""
    model = "unknown"
    with suppress(OSError, IndexError):
        model = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a group, or group:part of a name")
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--contestant", nargs=2, metavar=("TASK", "KIND"), help="run a step for each line of the input")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.contestant:
        return take_turns(*arguments.contestant)
    group, _, part = arguments.only.partition(":")
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, measure in GROUPS.items():
        if group in ("", name):
            for entry, figures in measure(part).items():
                record.setdefault(name, {})[entry] = figures | {"machine": machine()}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    if "scaling" in record:
        draw(record["scaling"], arguments.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()

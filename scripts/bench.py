"""What exactness costs on this CPU: ratios of runs in alternation in one process. Writes docs/benchmarks.json.

    python scripts/bench.py                    everything (minutes)
    python scripts/bench.py --only products    one group: products, steps, audit, hashing
    python scripts/bench.py --only steps:digits

Every ratio is the median over at least 7 rounds; in a round each contestant runs once. `wall` compares elapsed times, `cpu` the
processor's time, which other work on the machine disturbs less. A group that is run again replaces its entry in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch

from vgame.arithmetic.certified import counting, dot
from vgame.commit.merkle import Kind
from vgame.commit.store import Store
from vgame.commit.tensor import tensors_root
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.execute.training import train
from vgame.offline import executor_of
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.spec import prepare, read_job_file
from vgame.tasks import digits, models, shipped
from vgame.tasks.task import Task

FILE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.json"
ROUNDS = 7

Contestants = dict[str, Callable[[], object]]


def rounds(contestants: Contestants, seconds: float = 3.0) -> dict[str, list[tuple[float, float]]]:
    """(wall, cpu) seconds of each contestant's runs, in alternation, after one run that does not count."""
    times = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    end = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < ROUNDS or time.perf_counter() < end:
        for name, run in contestants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def compare(contestants: Contestants, seconds: float = 3.0) -> dict:
    """Milliseconds of each, and how often the first takes as long as each other: medians over the rounds."""
    times = rounds(contestants, seconds)
    first, *others = contestants
    result = {"rounds": len(times[first])}
    result["milliseconds"] = {name: round(1e3 * median(wall for wall, _ in runs), 3) for name, runs in times.items()}
    for i, clock in enumerate(("wall", "cpu")):
        result[clock] = {
            other: round(median(a[i] / b[i] for a, b in zip(times[first], times[other], strict=True)), 3)
            for other in others
        }
    return result


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
    """certified / torch's FP64 product, of operands that are FP64 already and of FP32 ones like ours."""
    found = {}
    for name, (m, n, k) in SHAPES.items():
        for data, draw in DATA.items():
            if only not in f"{name}, {data}":
                continue
            torch.manual_seed(0)
            a, b = draw(1, m, k), draw(1, n, k)
            wide_a, wide_b = a[0].double(), b[0].double()
            with counting() as counts:
                dot(a, b)
            contestants = {
                "certified": lambda: dot(a, b),  # noqa: B023
                "fp64": lambda: wide_a @ wide_b.mT,  # noqa: B023
                "fp64 from fp32": lambda: (a[0].double() @ b[0].double().mT).float(),  # noqa: B023
            }
            entry = compare(contestants)
            entry["not settled by the bound"] = round(1 - counts.bound / counts.elements, 6)
            found[f"{name}, {data}"] = show(f"{name}, {data}", entry)
    return found


# --- steps ---


def resnet50(batch: int = 8) -> Task:
    """ResNet-50 (CIFAR form) on noise: what one step costs does not depend on the pictures."""
    torch.manual_seed(0)
    model = models.ResNet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.0005)
    data = {"image": torch.randn(64, 3, 32, 32), "label": torch.randint(0, 10, (64,))}
    return Task(model, digits.cross_entropy, optimizer, data, batch)


def gpt2() -> Task:
    """GPT-2 small (124 M parameters) on letters, 4 x 128 tokens."""
    with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
        file.write(bytes(np.random.default_rng(0).integers(97, 123, 1 << 14, dtype=np.uint8)))
        file.flush()
        return shipped.gpt2(file.name, batch=4, length=128)


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits.task,
    "SmallResNet": shipped.small_resnet,
    "ResNet-50": resnet50,
    "GPT-2 small": gpt2,
}


def certified_step(task: Task) -> Callable[[], object]:
    lowered = lower_task(task, Schedule(kind="constant", lr="0.01"), 1)
    executor = Executor(lowered.program, lowered.data, lowered.scalars, seed=1)
    state = executor.initial(lowered.state)
    return lambda: executor.step(1, state)


def eager_step(task: Task, dtype: torch.dtype) -> Callable[[], object]:
    """One step as torch users write it."""
    model, parameters = task.model.to(dtype), [p for group in task.optimizer.param_groups for p in group["params"]]
    data = {name: t.to(dtype) if t.is_floating_point() else t for name, t in task.data.items()}
    for group in task.optimizer.param_groups:
        group["lr"] = 0.01
    whole = Task(
        model, task.loss, task.optimizer, data, task.batch, task.window, task.stride, task.clip, task.accumulate
    )

    def step() -> float:
        whole.optimizer.zero_grad()
        loss = whole.loss(model, whole.samples(torch.randint(0, whole.population, (whole.batch,))))
        loss.backward()
        if whole.clip:
            torch.nn.utils.clip_grad_norm_(parameters, whole.clip)
        whole.optimizer.step()
        return float(loss.detach())

    return step


STEPS: dict[str, Callable[[Task], Callable[[], object]]] = {
    "certified": certified_step,
    "eager fp32": lambda task: eager_step(task, torch.float32),
    "eager fp64": lambda task: eager_step(task, torch.float64),
}


def steps(only: str) -> dict:
    """certified / eager, with the peak memory of each in a process of its own."""
    found = {}
    for name, make in TASKS.items():
        if only not in name:
            continue
        try:
            contestants = {kind: build(make()) for kind, build in STEPS.items()}
        except VgameError as error:
            print(f"{name}: SKIPPED, {error}", flush=True)
            continue
        entry = compare(contestants)
        contestants.clear()
        entry["peak MB"] = {kind: peak_of(name, kind) for kind in STEPS}
        entry["peak ratio"] = round(entry["peak MB"]["certified"] / entry["peak MB"]["eager fp32"], 3)
        found[name] = show(name, entry)
    return found


def peak_of(task: str, kind: str) -> float:
    """Megabytes that a process of its own adds to what the imports need: model, state, two steps."""
    command = [sys.executable, __file__, "--peak", task, kind, "--threads", str(torch.get_num_threads())]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def resident(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def print_peak(task: str, kind: str) -> None:
    """The first step compiles and is not looked at; what the capture needed is given back before it."""
    certified_step(digits.task())()  # so that compilers and libraries are loaded before the first look
    eager_step(digits.task(), torch.float32)()
    before = resident("VmRSS")
    step = STEPS[kind](TASKS[task]())
    step()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    print(round(resident("VmHWM") - before, 1))


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
    """A state's root / hashlib over 4 KiB blocks, both with every core; and a state of which a tenth has changed."""
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

GROUPS: dict[str, Callable[[str], dict]] = {"products": products, "steps": steps, "audit": audit, "hashing": hashing}


def show(name: str, entry: dict) -> dict:
    print(f"{name}: {json.dumps({k: v for k, v in entry.items() if k != 'rounds'})}", flush=True)
    return entry


def machine() -> dict:
    """What the figures were measured on."""
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
    parser.add_argument("--peak", nargs=2, metavar=("TASK", "KIND"), help="print the peak memory of one step and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        return print_peak(*arguments.peak)
    group, _, part = arguments.only.partition(":")
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, measure in GROUPS.items():
        if group in ("", name):
            for entry, figures in measure(part).items():
                record.setdefault(name, {})[entry] = figures | {"machine": machine()}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""All checks and measurements on a GPU, in at most 8 minutes: whether every bit is the CPU's, and the cost. Writes
docs/gpu.json.

    python scripts/gpu.py [--only PART] [--seconds 470]

First the checks, at the same time (each whitelisted kernel against integers; sums on hard operands, random words and
trees against the CPU; whole training steps, executed and replayed from a recording), then the ratios, one after the
other: medians over at least 7 rounds in alternation. Every part is a process of its own, because an error of a GPU's
kernel ends the process's use of the GPU; a failure or a timeout is recorded as the part's result. Exit code 1 if a bit
differs, a part fails, or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parents[1]
# works without an installed vgame; the families of hard operands
sys.path += [str(ROOT), str(ROOT / "tests" / "unit")]

from bench_compare import compare  # noqa: E402
from bench_steps import TASKS, resnet50  # noqa: E402
from certified_data import FAMILIES, draw  # noqa: E402

from vgame.arithmetic import certified, gate  # noqa: E402
from vgame.arithmetic.torch.philox import random_words, shuffle_indices  # noqa: E402
from vgame.commit.merkle import Kind  # noqa: E402
from vgame.commit.tensor import tensors_root, to_words  # noqa: E402
from vgame.errors import VgameError  # noqa: E402
from vgame.execute.devices import use_device  # noqa: E402
from vgame.execute.doctor import examine  # noqa: E402
from vgame.execute.executor import Executor  # noqa: E402
from vgame.execute.graph import Recorded  # noqa: E402
from vgame.program.lower import Lowered, lower_task  # noqa: E402
from vgame.program.operators import Shuffle  # noqa: E402
from vgame.program.schedule import Schedule  # noqa: E402
from vgame.tasks.task import Task  # noqa: E402

FILE = ROOT / "docs" / "gpu.json"
STEPS = 5
#: The largest share of the time for the checks.
CHECKING = 0.55
#: Least remaining seconds to begin a ratio.
NEEDED = {"ResNet-50": 40, "GPT-2 small": 60}
JOBS: dict[str, Callable[[], Task]] = TASKS | {"ResNet-50": lambda: resnet50(64)}


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((to_words(found) == to_words(expected)).all())


# --- checks: name -> whether every bit is right ---


def functions() -> dict[str, bool]:
    """Each whitelisted kernel against the exact reference."""
    return {
        f"{finding.what} {finding.detail}".strip(): finding.ok for finding in examine("cuda") if finding.ok is not None
    }


def sums() -> dict[str, bool]:
    """Products, row sums and one-hot sums on every family of hard operands, against the CPU."""
    found = {}
    for family in FAMILIES:
        a, b = draw(family, 2, 150, 1300), draw(family, 1, 130, 1300, seed=1)
        index = torch.randint(-1, 40, (2, 1300), dtype=torch.int32)
        there = a.cuda(), b.cuda(), index.cuda()
        found[f"products, {family}"] = same(certified.dot(*there[:2]), certified.dot(a, b))
        columns = there[1].mT.contiguous().mT
        found[f"products of columns, {family}"] = same(certified.dot(there[0], columns), certified.dot(a, b))
        found[f"rows, {family}"] = same(certified.sum_rows(there[0]), certified.sum_rows(a))
        found[f"columns, {family}"] = same(certified.sum_rows(there[0].mT), certified.sum_rows(a.mT))
        found[f"one-hot, {family}"] = same(
            certified.one_hot_sum(there[2], there[1], 37), certified.one_hot_sum(index, b, 37)
        )
    return found


def words() -> dict[str, bool]:
    """Random words, shuffled indices and the roots of trees, against the CPU."""
    here, there = torch.tensor([2**33 + 5]), torch.tensor([2**33 + 5], device="cuda")
    state = [torch.randn(n) for n in (1, 128, 129, 100_003, 3_000_000)] + [torch.randint(-9, 9, (70_000,)).int()]
    state[3][17] = torch.nan
    shuffle = Shuffle(1000, 60_000)
    return {
        "random words": same(*(random_words(7, 2**33 + 5, 3, 10_001, clock) for clock in (there, here))),
        "shuffle": same(
            *(shuffle_indices(7, 2**33 + 5, shuffle.elements, shuffle.population, clock) for clock in (there, here))
        ),
        "trees": tensors_root(Kind.STATE, [t.cuda() for t in state]) == tensors_root(Kind.STATE, state),
    }


def captured(name: str) -> Lowered:
    return lower_task(JOBS[name](), Schedule(kind="constant", lr="0.01"), STEPS)


def executor(lowered: Lowered, device: str) -> Executor:
    return Executor(lowered.program, lowered.data, lowered.scalars, seed=1, device=device)


def roots(stepper: Executor | Recorded, lowered: Lowered) -> list[str]:
    """State roots after each of the first steps."""
    state, found = stepper.initial(lowered.state), []
    for step in range(1, STEPS + 1):
        state = stepper.step(step, state).state
        found.append(tensors_root(Kind.STATE, state).hex())
    return found


def steps(name: str) -> dict[str, bool]:
    """The same roots on the CPU (meanwhile, in a process of its own), on the GPU, and by replay."""
    on_cpu, lowered = Part(f"roots: {name}", len(JOBS)), captured(name)
    there = executor(lowered, "cuda")
    executed, replayed = roots(there, lowered), roots(Recorded(there), lowered)
    expected = on_cpu.result(time.monotonic() + 600)
    if "error" in expected:
        raise RuntimeError(f"the steps on the CPU failed: {expected['error']}")
    return {"executed": executed == expected["roots"], "replayed": replayed == expected["roots"]}


def roots_on_cpu(name: str) -> dict[str, list[str]]:
    lowered = captured(name)
    return {"roots": roots(executor(lowered, "cpu"), lowered)}


def steps_by_torch(name: str) -> dict[str, bool]:
    """Compare the roots on the GPU by vgame's kernels and by torch's operations."""
    lowered = captured(name)
    expected = roots(executor(lowered, "cuda"), lowered)
    with gate.kernels(False):
        return {"by torch": roots(executor(lowered, "cuda"), lowered) == expected}


# --- ratios ---


def waited(run: Callable[[], object]) -> Callable[[], None]:
    """The function, with a wait for its work on the GPU."""

    def whole() -> None:
        run()
        torch.cuda.synchronize()

    return whole


def eager_step(task: Task, dtype: torch.dtype) -> Callable[[], object]:
    """One step of plain torch, TF32 off, the data on the GPU."""
    model = task.model.to("cuda", dtype)
    data = {n: t.to("cuda", dtype) if t.is_floating_point() else t.cuda() for n, t in task.data.items()}
    parameters = [p for group in task.optimizer.param_groups for p in group["params"]]
    whole = Task(model, task.loss, task.optimizer, data, task.batch, task.window, task.stride, task.clip)
    for group in task.optimizer.param_groups:
        group["lr"] = 0.01

    def step() -> None:
        whole.optimizer.zero_grad()
        chosen = torch.randint(0, whole.population, (whole.batch,))
        places = chosen[:, None] * whole.stride + torch.arange(whole.window) if whole.window else chosen
        loss = whole.loss(model, {name: t[places.cuda()] for name, t in data.items()})
        loss.backward()
        if whole.clip:
            torch.nn.utils.clip_grad_norm_(parameters, whole.clip)
        whole.optimizer.step()
        float(loss.detach())

    return step


def step_ratios(name: str) -> dict:
    """A certified step, replayed, against eager steps in FP32 and FP64; peak memory of the device in gigabytes."""
    lowered = captured(name)
    there = executor(lowered, "cuda")
    state, recorded = there.initial(lowered.state), Recorded(there)
    contestants = {
        "certified": waited(lambda: recorded.step(1, state)),
        "not replayed": waited(lambda: there.step(1, state)),
    }
    for kind, dtype in {"eager fp32": torch.float32, "eager fp64": torch.float64}.items():
        contestants[kind] = waited(eager_step(JOBS[name](), dtype))
    found = compare(contestants, seconds=5.0)
    return found | {"peak GB": round(torch.cuda.max_memory_allocated() / 1e9, 1)}


def product_ratios() -> dict:
    """A certified product against the vendor's in binary64, operands FP32."""
    found = {}
    for m, n, k in ((8192, 2304, 768), (8192, 768, 3072), (4096, 4096, 4096), (128, 1152, 65536)):
        a, b = torch.randn(1, m, k, device="cuda"), torch.randn(1, n, k, device="cuda")
        contestants = {
            "certified": waited(lambda: certified.dot(a, b)),  # noqa: B023
            "fp64": waited(lambda: (a[0].double() @ b[0].double().mT).float()),  # noqa: B023
            "fp32": waited(lambda: a[0] @ b[0].mT),  # noqa: B023
        }
        found[f"{m} x {k} x {n}"] = compare(contestants, seconds=1.0)
    return found


def hashing() -> dict:
    """Gigabytes per second of the trees of a state of 2 GiB."""
    state, seconds = [torch.randn(1 << 26, device="cuda") for _ in range(8)], []
    for _ in range(8):
        for tensor in state:
            tensor[0] += 1.0
        torch.cuda.synchronize()
        start = time.perf_counter()
        tensors_root(Kind.STATE, state)
        seconds.append(time.perf_counter() - start)
    return {"GB per second": round(8 * 4 * 2**26 / 1e9 / median(seconds[1:]), 1), "rounds": len(seconds) - 1}


# --- the file ---


def machine() -> dict[str, str]:
    """The machine of the measurement."""
    import triton

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
    }


#: Part: (least remaining seconds, function). All checks run at the same time; the rest one after the other, in this
#: order.
CHECKS: dict[str, tuple[float, Callable[[], dict]]] = {
    "check: functions": (0, functions),
    "check: sums": (0, sums),
    "check: words": (0, words),
    **{f"check: steps, {name}": (0, partial(steps, name)) for name in JOBS},
}
REST: dict[str, tuple[float, Callable[[], dict]]] = {
    **{f"ratio: steps, {name}": (NEEDED[name], partial(step_ratios, name)) for name in NEEDED},
    "ratio: hashing": (20, hashing),
    "ratio: products": (20, product_ratios),
    **{f"ratio: steps, {name}": (20, partial(step_ratios, name)) for name in JOBS if name not in NEEDED},
    **{f"check: steps by torch, {name}": (NEEDED.get(name, 20), partial(steps_by_torch, name)) for name in JOBS},
}
PARTS = CHECKS | REST | {f"roots: {name}": (0, partial(roots_on_cpu, name)) for name in JOBS}


class Part:
    """A part in a process of its own."""

    def __init__(self, name: str, sharers: int) -> None:
        self.name, self.files = name, [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        environment = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // sharers))}
        command = [sys.executable, __file__, "--part", name]
        self.process = subprocess.Popen(command, env=environment, stdout=self.files[0], stderr=self.files[1])

    def result(self, end: float) -> dict:
        """Its result, or {"error": the end of its output}."""
        try:
            self.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return {"error": "out of time"}
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read())
        if self.process.returncode:
            return {"error": texts[1][-2000:] or f"ended with {self.process.returncode}"}
        return json.loads(texts[0].splitlines()[-1])


@contextmanager
def gpu() -> Iterator[None]:
    """The device, or one sentence about a missing requirement."""
    if not torch.cuda.is_available():
        sys.exit("make gpu needs a CUDA GPU, and torch finds none; nothing was checked")
    if not gate.installed():
        sys.exit("make gpu needs triton, which is not installed (pip install -e '.[gpu]'); nothing was checked")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with use_device("cuda"):
            yield
    except VgameError as error:
        sys.exit(f"make gpu: {error}")


def perform(only: str, end: float) -> dict:
    """All parts; the file is written after each."""
    record: dict = {"machine": machine(), "check": {}, "ratio": {}, "left out": []}

    def add(part: Part, end: float) -> None:
        group, name = part.name.split(": ", 1)
        record[group][name] = part.result(end)
        print(f"{part.name}: {json.dumps(record[group][name])}", flush=True)
        FILE.write_text(json.dumps(record, indent=1) + "\n")

    chosen, now = [name for name in CHECKS if only in name], time.monotonic()
    for part in [Part(name, len(chosen)) for name in chosen]:
        add(part, now + CHECKING * (end - now))
    for name, (needed, _) in REST.items():
        if only in name and time.monotonic() + needed <= end:
            add(Part(name, 1), end)
        elif only in name:
            record["left out"].append(name)
    FILE.write_text(json.dumps(record, indent=1) + "\n")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--seconds", type=float, default=470.0)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    with gpu():
        if arguments.part:
            print(json.dumps(PARTS[arguments.part][1]()))
            return
        record = perform(arguments.only, end)
    found = {f"{group}: {name}": part for group in ("check", "ratio") for name, part in record[group].items()}
    failed = [f"{name}: {part['error']}" for name, part in found.items() if "error" in part]
    wrong = [f"{name}: {what}" for name, part in found.items() for what, good in part.items() if good is False]
    sys.exit("\n".join([*(["bits differ:", *wrong] if wrong else []), *failed]) or 0)


if __name__ == "__main__":
    main()

"""A training step of some models: certified, eager, in mode `logged`; each in a process of its own, in turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from bench_compare import ratios, show, timed

from vgame.execute.executor import Executor
from vgame.logged.kernels import LoggedExecutor
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks import digits, models, shipped
from vgame.tasks.task import Batch, Task

BENCH = Path(__file__).with_name("bench.py")


def resnet50(batch: int = 16) -> Task:
    """ResNet-50 (CIFAR form) on noise: the cost of a step does not depend on the images."""
    torch.manual_seed(0)
    model = models.ResNet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.0005)
    data = {"image": torch.randn(batch, 3, 32, 32), "label": torch.randint(0, 10, (batch,))}
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


def autocast_step(task: Task) -> Callable[[], object]:
    """The certified step of the same model under autocast to bfloat16."""

    def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return task.loss(model, batch)

    return certified_step(replace(task, loss=loss))


def logged_step(task: Task) -> Callable[[], object]:
    """The paper's method, as its trainer: 32 bits, proven windows; its log is discarded."""
    lowered = lower_task(task, Schedule(kind="constant", lr="0.01"), 1)
    executor = LoggedExecutor(lowered.program, lowered.data, lowered.scalars, 1, 32, {})
    state = executor.initial(lowered.state)

    def step() -> object:
        executor.made.clear()
        return executor.step(1, state)

    return step


def eager_step(task: Task, dtype: torch.dtype) -> Callable[[], object]:
    """One step of plain torch."""
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
    "logged": logged_step,
    "certified bf16": autocast_step,
}


def steps(only: str) -> dict:
    """certified / eager: each in a process of its own, with the peak memory of its step."""
    found = {}
    for name in TASKS:
        if only not in name:
            continue
        with ExitStack() as stack:
            others = {kind: stack.enter_context(closing(Contestant(name, kind))) for kind in STEPS}
            entry = ratios({kind: other.turn for kind, other in others.items()})
            entry["peak MB"] = {kind: others[kind].peak for kind in ("certified", "eager fp32")}
        entry["peak ratio"] = round(entry["peak MB"]["certified"] / entry["peak MB"]["eager fp32"], 3)
        found[name] = show(name, entry)
    return found


class Contestant:
    """A kind of step in a process of its own, which runs one step per request."""

    def __init__(self, task: str, kind: str) -> None:
        command = [sys.executable, str(BENCH), "--contestant", task, kind, "--threads", str(torch.get_num_threads())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        #: Megabytes of a step without the imports: model, state, results.
        (self.peak,) = self._answer()

    def turn(self) -> tuple[float, float]:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, cpu = self._answer()
        return wall, cpu

    def _answer(self) -> list[float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{' '.join(self.process.args)} ended with {self.process.wait()}; what it printed is above"
            )
        return [float(word) for word in line.split()]

    def close(self) -> None:
        """The process ends with its input."""
        self.process.stdin.close()
        self.process.wait()


def take_turns(task: str, kind: str) -> None:
    """The process of a contestant: print the step's peak memory, then for each line of the input the seconds of a step.

    The first step compiles and is not measured; the capture's memory is released before it.
    """
    STEPS[kind](digits.task())()  # so that compilers and libraries are loaded before the first measurement
    before = resident("VmRSS")
    step = STEPS[kind](TASKS[task]())
    step()
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    step()
    print(round(resident("VmHWM") - before, 1), flush=True)
    for _ in sys.stdin:
        print(*timed(step), flush=True)


def resident(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024

"""A training step of some models: certified, eager, in mode `logged`; with the peak memory of a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench_compare import compare, show

from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.logged.kernels import LoggedExecutor
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks import digits, models, shipped
from vgame.tasks.task import Task

BENCH = Path(__file__).with_name("bench.py")


def resnet50(batch: int = 16) -> Task:
    """ResNet-50 (CIFAR form) on noise: what one step costs does not depend on the pictures."""
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


def logged_step(task: Task) -> Callable[[], object]:
    """The paper's method, as its trainer: 32 bits, proven windows; what it would write to its log is dropped."""
    lowered = lower_task(task, Schedule(kind="constant", lr="0.01"), 1)
    executor = LoggedExecutor(lowered.program, lowered.data, lowered.scalars, 1, 32, {})
    state = executor.initial(lowered.state)

    def step() -> object:
        executor.made.clear()
        return executor.step(1, state)

    return step


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
    "logged": logged_step,
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
        entry["peak MB"] = {kind: peak_of(name, kind) for kind in ("certified", "eager fp32")}
        entry["peak ratio"] = round(entry["peak MB"]["certified"] / entry["peak MB"]["eager fp32"], 3)
        found[name] = show(name, entry)
    return found


def peak_of(task: str, kind: str) -> float:
    """Megabytes that a process of its own adds to what the imports need: model, state, two steps."""
    command = [sys.executable, str(BENCH), "--peak", task, kind, "--threads", str(torch.get_num_threads())]
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

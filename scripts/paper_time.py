"""CPU seconds of the same steps in one process: ordinary PyTorch, the program in each precision, trainer and auditor,
in turn.

With one thread (OMP_NUM_THREADS=1) that is the time of a step on an idle machine; other load has little effect.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from paper_devices import bundle_of, source_of

BASES = ("PyTorch binary64", "program binary64")
WARM = 2  # first steps, not counted


def timing(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of the seconds, and of the ratios of paired steps to both binary64 variants."""
    import torch

    seconds = measure(variants_of(job, options), options.repeats)
    ratios = {
        name: [statistics.median(x / y for x, y in zip(times, seconds[base], strict=True)) for base in BASES]
        for name, times in seconds.items()
    }
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {"steps": options.repeats, "median": medians, "ratio": ratios, "threads": torch.get_num_threads()}


def variants_of(job: str, options: argparse.Namespace) -> dict[str, Callable[[int], object]]:
    """The variants of a step, by name; an auditor follows the trainer that ran just before it."""
    import torch

    from vgame.execute.executor import Executor
    from vgame.job.factory import make_task

    bundle = bundle_of(job, options.text, 1000)
    source, state = source_of(job, options.text), list(bundle.state)
    variants: dict[str, Callable[[int], object]] = {}
    for name, dtype in (("PyTorch binary32", torch.float32), ("PyTorch binary64", torch.float64)):
        variants[name] = eager(make_task(source), dtype)
    for name, mode in (("program binary32", "fp32"), ("program binary64", "nearest"), ("correct", "correct")):
        executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, mode)
        variants[name] = lambda step, executor=executor: executor.step(step, state)
    for window in options.windows:
        variants |= sides(bundle_of(job, options.text, 1000, thresholds=window), window)
    for bits in {min(options.bits)} - {32}:
        variants |= sides(bundle_of(job, options.text, 1000, bits=bits), f"proven, {bits} bits")
    return variants


def sides(bundle, name: str) -> dict[str, Callable[[int], object]]:
    """Trainer and auditor of a bundle."""
    from vgame.runs.logged_store import make_executor

    state = list(bundle.state)
    trainer, auditor = make_executor(bundle, "cpu"), make_executor(bundle, "cpu")
    auditor.read = lambda step: trainer.made[step]
    return {
        f"trainer, {name}": lambda step: trainer.step(step, state),
        f"auditor, {name}": lambda step: auditor.step(step, state),
    }


def measure(variants: dict[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every step after the first ones, by variant."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for step in range(1, repeats + WARM + 1):
        for name, run in variants.items():
            started = time.process_time()
            run(step)
            if step > WARM:
                seconds[name].append(time.process_time() - started)
    return seconds


def eager(task, dtype) -> Callable[[int], object]:
    """A step of an ordinary PyTorch loop in this precision."""
    import torch

    model, optimizer = task.model.to(dtype), task.optimizer

    def step(number: int) -> None:
        batch = task.samples((torch.arange(task.batch) + number * task.batch) % task.population)
        optimizer.zero_grad()
        task.loss(model, {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}).backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()

    return step

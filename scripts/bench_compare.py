"""Alternate contestants, in one process or each in its own, and compute the ratios of their times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

ROUNDS = 7

Contestants = dict[str, Callable[[], object]]
Turn = Callable[[], tuple[float, float]]  # a run of a contestant: its elapsed seconds, and the processor's


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """A contestant in this process, timed."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(contestants: Contestants, seconds: float = 3.0) -> dict:
    """`ratios` of contestants in this process."""
    return ratios({name: partial(timed, run) for name, run in contestants.items()}, seconds)


def ratios(turns: dict[str, Turn], seconds: float = 3.0) -> dict:
    """Milliseconds of each, and the first one's time divided by each other one's: medians over the rounds, after a
    warm-up round."""
    for turn in turns.values():
        turn()
    times, end = {name: [] for name in turns}, time.perf_counter() + seconds
    while len(next(iter(times.values()))) < ROUNDS or time.perf_counter() < end:
        for name, turn in turns.items():
            times[name].append(turn())
    first, *others = turns
    result = {"rounds": len(times[first])}
    result["milliseconds"] = {name: round(1e3 * median(wall for wall, _ in runs), 3) for name, runs in times.items()}
    for i, clock in enumerate(("wall", "cpu")):
        result[clock] = {
            other: round(median(a[i] / b[i] for a, b in zip(times[first], times[other], strict=True)), 3)
            for other in others
        }
    return result


def show(name: str, entry: dict) -> dict:
    print(f"{name}: {json.dumps({k: v for k, v in entry.items() if k != 'rounds'})}", flush=True)
    return entry

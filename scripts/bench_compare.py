"""Contestants that run in alternation in one process, and the ratios of their times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

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


def show(name: str, entry: dict) -> dict:
    print(f"{name}: {json.dumps({k: v for k, v in entry.items() if k != 'rounds'})}", flush=True)
    return entry

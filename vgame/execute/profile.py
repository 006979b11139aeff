"""The time of a step by kind of operator and by module.

In: the seconds of every operator of every step, from the executor. Out: tables as text, or rows. A view is created at
its first use, so its cost counts for the reader; a chain's time is shared equally by its maps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from vgame.program.program import Program

MODULES = 15  # rows of the table by module


@dataclass(frozen=True, slots=True)
class Row:
    """A group of operators: number per step, milliseconds per step, share of the step."""

    name: str
    operators: int
    milliseconds: float
    share: float


class Profile:
    """Collects times; `record` is the executor's watch."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.seconds = [0.0] * len(program.operators)
        self.started, self.steps, self.warm = time.perf_counter(), 0, False

    def record(self, operator: int, seconds: float) -> None:
        """Add the time of an operator; the first operator of the program begins a step. The first step does not count,
        because it compiles the kernels."""
        self.steps += operator == 0
        if operator == 0 and self.steps == 2 and not self.warm:
            self.seconds = [0.0] * len(self.seconds)
            self.started, self.steps, self.warm = time.perf_counter(), 1, True
        self.seconds[operator] += seconds

    def rows(self, name: Callable[[int], str]) -> list[Row]:
        """Operators grouped by name, by descending time."""
        groups = defaultdict(list)
        for i, seconds in enumerate(self.seconds):
            groups[name(i)].append(seconds)
        total, steps = sum(self.seconds) or 1.0, max(1, self.steps)
        rows = [Row(n, len(s), 1e3 * sum(s) / steps, sum(s) / total) for n, s in groups.items()]
        return sorted(rows, key=lambda row: -row.milliseconds)

    def kinds(self) -> list[Row]:
        """By kind and function or variant."""
        return self.rows(self.program.operator_kind)

    def modules(self) -> list[Row]:
        """By the module that an operator comes from."""
        return self.rows(lambda i: self.program.labels.operators[i] if self.program.labels.operators else "unknown")

    def text(self) -> str:
        """Both tables."""
        if not self.steps:
            return "no step was timed, because the run in this folder had already ended; choose another folder"
        per_step = 1e3 * sum(self.seconds) / max(1, self.steps)
        between = 1e3 * (time.perf_counter() - self.started) / max(1, self.steps) - per_step
        lines = [
            f"{self.steps} steps, {per_step:.2f} ms in operators per step, {between:.2f} ms between them (including "
            "checkpoints)"
        ]
        for title, rows in (("kind", self.kinds()), ("module", self.modules()[:MODULES])):
            width = max(len(row.name) for row in [*rows, Row(title, 0, 0, 0)])
            lines += ["", f"{title:{width}}  operators  ms per step  share"]
            lines += [f"{r.name:{width}}  {r.operators:9}  {r.milliseconds:11.2f}  {r.share:5.1%}" for r in rows]
        return "\n".join(lines)

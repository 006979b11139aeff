"""Parameters without a gradient in some steps, like `requires_grad_(False)` and later `(True)` in a loop.

In: a task. Out: for each parameter the steps in which its `grad` is None. An optimizer then skips the parameter, its
slots and its step counter.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from copy import copy
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from vgame.errors import ProgramError
from vgame.tasks.task import Task

FrozenSteps = Mapping[str, tuple[range, ...]]  # by name of the parameter


def frozen_steps_of(task: Task, trained: Iterable[str]) -> FrozenSteps:
    """The steps without a gradient; ProgramError for a pattern without a parameter, or invalid steps."""
    found: dict[str, tuple[range, ...]] = {}
    for pattern, steps in task.frozen.items():
        names = [name for name in trained if fnmatchcase(name, pattern)]
        if not names:
            raise ProgramError(
                f"frozen = {{{pattern!r}: ...}}: no trained parameter has such a name; use names of "
                "model.named_parameters() (parameters with requires_grad = False are never trained)"
            )
        for name in names:
            found[name] = (*found.get(name, ()), *_ranges(pattern, steps))
    return found


def continued(task: Task, before: int, earlier: FrozenSteps) -> Task:
    """The task of a job that continues a run: `frozen` counts the job's own steps, so they are shifted by the number
    `before`; the steps without a gradient in the `earlier` run are added."""
    own = {n for n, p in task.model.named_parameters() if p.requires_grad}
    found = {glob.escape(name): ranges for name, ranges in earlier.items() if name in own}
    for pattern, steps in task.frozen.items():
        later = tuple(range(r.start + before, r.stop + before) for r in _ranges(pattern, steps))
        found[pattern] = (*found.get(pattern, ()), *later)
    task = copy(task)
    object.__setattr__(task, "frozen", found)
    return task


def _ranges(pattern: str, steps: Any) -> tuple[range, ...]:
    """The steps of an entry of `frozen`, which `continued` gives as ranges."""
    if isinstance(steps, tuple) and steps and all(isinstance(each, range) for each in steps):
        return steps
    return (_steps(pattern, steps),)


def _steps(pattern: str, steps: Any) -> range:
    first, last = steps if isinstance(steps, tuple) and len(steps) == 2 else (1, steps)
    if not (type(first) is type(last) is int and 1 <= first <= last):
        raise ProgramError(
            f"frozen = {{{pattern!r}: {steps!r}}}: the last frozen step, at least 1, or a pair (first, last), is "
            "expected"
        )
    return range(first, last + 1)


def awake_column(ranges: Iterable[range], steps: int) -> np.ndarray:
    """1 in the steps with a gradient, else 0."""
    column = np.ones(steps, np.float32)
    for each in ranges:
        column[each.start - 1 : each.stop - 1] = 0
    return column

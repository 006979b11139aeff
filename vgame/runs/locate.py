"""The first difference of two runs: step, operator and element, with both values; off chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsInt

import torch

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root, to_words
from vgame.errors import StoreError, VgameError
from vgame.execute.devices import use_device
from vgame.execute.executor import Executor
from vgame.job.bundle import differences
from vgame.logged.kernels import TamperedLog
from vgame.runs.folder import open_run, repeater_of
from vgame.runs.store import Store
from vgame.runs.training import State, advance, state_at


@dataclass(frozen=True, slots=True)
class Difference:
    """The first word in which two runs differ."""

    step: int
    """From 1."""
    operator: str | None
    """The operator whose output differs; None if only stored states differ, not the re-executions on this device."""
    tensor: str | None
    """The tensor of the state, if no operator's output differs."""
    element: int
    """Index in the tensor."""
    first: str
    """Word and value in the first run."""
    second: str
    """Word and value in the second run."""
    note: str
    """The cause: the executions, a stored state, or the step where a run stopped."""


def find_difference(first: Path, second: Path, device: str) -> tuple[Difference | None, int]:
    """Compare two runs of the same program and initial state. Returns the first difference, or None, and the number of
    checkpoints that both have."""
    with use_device(device) as kind:
        runs = [open_run(first), open_run(second)]
        _comparable(runs)
        checkpoint = next(
            (c for c, (a, b) in enumerate(zip(runs[0].roots, runs[1].roots, strict=False), 1) if a != b), None
        )
        executors = [repeater_of(run, kind) for run in runs]
        if checkpoint is None:  # differences that the roots do not cover
            difference = _replaced(runs, executors) or _stopped(runs, executors)
        else:
            difference = _inside(runs, checkpoint, executors)
    return difference, min(len(r.roots) for r in runs)


def _comparable(runs: Sequence[Store]) -> None:
    """VgameError unless the two runs are of one job; rounding modes may differ."""
    parts = [p for p in differences(*(r.bundle for r in runs)) if p not in ("mode", "log")]
    if parts:
        raise VgameError(
            f"the two runs are of different jobs (other {', '.join(parts)}); only runs of one job can be compared"
        )


def _inside(runs: Sequence[Store], checkpoint: int, executors: Sequence[Executor]) -> Difference:
    """Compare step by step from the last equal checkpoint, each run in its own rounding mode."""
    bundle = runs[0].bundle
    states = [list(state_at(r, e, checkpoint - 1)) for r, e in zip(runs, executors, strict=True)]
    last = min(checkpoint * bundle.interval, bundle.steps)
    for step in range((checkpoint - 1) * bundle.interval + 1, last + 1):
        found = _step(runs, executors, states, step)
        if found:
            return found
        states = [list(e.step(step, s).state) for e, s in zip(executors, states, strict=True)]
    return _stored(runs, states, checkpoint, last)


def _step(
    runs: Sequence[Store], executors: Sequence[Executor], states: Sequence[State], step: int
) -> Difference | None:
    """The first operator of a step whose output differs between the two executions."""
    outputs: list[torch.Tensor] = []

    def keep(index: int, output: torch.Tensor) -> torch.Tensor:
        outputs.append(output.clone())
        return output

    _follow(runs[0], lambda: executors[0].step(step, states[0], keep))
    found: list[Difference] = []

    def compare(index: int, output: torch.Tensor) -> torch.Tensor:
        if not found:
            a, b = to_words(outputs[index]), to_words(output)
            if (a != b).any():
                element = int((a != b).argmax())
                name = runs[0].bundle.program.operator_name(index)
                found.append(
                    Difference(step, name, None, element, _hex(a[element]), _hex(b[element]), "the executions differ")
                )
        return output

    _follow(runs[1], lambda: executors[1].step(step, states[1], compare))
    return found[0] if found else None


def _follow(run: Store, execute: Callable[[], object]) -> None:
    """Execute a step of a run; TamperedLog names the run whose log is wrong."""
    try:
        execute()
    except TamperedLog as error:
        raise TamperedLog(f"{run.folder}: {error}") from None


def _replaced(runs: Sequence[Store], executors: Sequence[Executor]) -> Difference | None:
    """For equal roots: the difference of a kept state's file from its commitment, or None."""
    common = min(len(r.roots) for r in runs)
    for this, (run, executor) in enumerate(zip(runs, executors, strict=True)):
        found = run.replaced(range(1, common + 1))
        if found is None:
            continue
        checkpoint, bundle = found[0], run.bundle
        before, last = (checkpoint - 1) * bundle.interval, min(checkpoint * bundle.interval, bundle.steps)
        state = advance(executor, executor.to_device(state_at(run, executor, checkpoint - 1)), before + 1, last)
        if tensors_root(Kind.STATE, state) != run.roots[checkpoint - 1]:
            raise StoreError(
                f"the file of checkpoint {checkpoint} in {run.folder} does not hold what was committed, and "
                "re-execution does not give it either"
            )
        which = ("first", "second")[this]
        note = f"the file of checkpoint {checkpoint} of the {which} run does not hold what that run committed"
        for label, stored, right in zip(bundle.program.labels.state, run.stored_state(checkpoint), state, strict=True):
            a, b = to_words(stored), to_words(right)
            if (a != b).any():
                element = int((a != b).argmax())
                values = _hex(a[element]), _hex(b[element])
                first, second = values[::-1] if this else values
                return Difference(last, None, label.name, element, first, second, note)
    return None


def _stopped(runs: Sequence[Store], executors: Sequence[Executor]) -> Difference | None:
    """For equal roots: a divergence that only one run records, or None."""
    stops = [r.divergence for r in runs]
    only = [
        (stop.step, this, stop)
        for this, (stop, other, run) in enumerate(zip(stops, stops[::-1], runs[::-1], strict=True))
        if stop and other != stop and (other or run.step >= stop.step)
    ]
    if not only:
        return None
    step, this, stop = min(only, key=lambda each: each[:2])
    run, executor = runs[this], executors[this]
    words: list[SupportsInt] = []

    def tap(index: int, output: torch.Tensor) -> torch.Tensor:
        if index == stop.operator:
            words.append(to_words(output)[stop.element])
        return output

    checkpoint = min((step - 1) // run.bundle.interval, *(len(r.roots) for r in runs))
    state = advance(executor, state_at(run, executor, checkpoint), checkpoint * run.bundle.interval + 1, step - 1)
    _follow(run, lambda: executor.step(step, state, tap))
    note = f"only the {('first', 'second')[this]} run records a divergence there; re-execution gives {_hex(words[0])}"
    first, second = ("finite", "not finite") if this else ("not finite", "finite")
    return Difference(step, run.bundle.program.operator_name(stop.operator), None, stop.element, first, second, note)


def _stored(runs: Sequence[Store], state: Sequence[State], checkpoint: int, step: int) -> Difference:
    """The difference of two stored states. Both runs re-execute to the same state, so at least one stored state is
    wrong."""
    if missing := [r.folder for r in runs if r.nearest(checkpoint) != checkpoint]:
        raise StoreError(
            f"the roots of checkpoint {checkpoint} differ, but both runs re-execute to one state; the differing stored "
            f"state is not kept in {' and '.join(map(str, missing))}"
        )
    stored = [r.load_state(checkpoint) for r in runs]
    executed = [to_words(t) for t in state[0]]
    for t, label in enumerate(runs[0].bundle.program.labels.state):
        a, b = to_words(stored[0][t]), to_words(stored[1][t])
        if (a != b).any():
            element = int((a != b).argmax())
            wrong = [n for n, words in (("first", a), ("second", b)) if words[element] != executed[t][element]]
            note = (
                f"re-execution gives {_hex(executed[t][element])}: the {' and the '.join(wrong)} run was not computed "
                "as ordered"
            )
            return Difference(step, None, label.name, element, _hex(a[element]), _hex(b[element]), note)
    raise VgameError(
        f"the roots of checkpoint {checkpoint} differ, but the stored states are equal: a store is damaged"
    )


def _hex(word: SupportsInt) -> str:
    return f"0x{int(word):08x}"

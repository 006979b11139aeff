"""The trace of one step of a run: the root of every operator's output, and any word of it.

In: a run and a step. Out: roots and words for a comparison with another execution; an honest trainer reveals the same
in a dispute.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vgame.commit.merkle import Kind, fold, tree_height
from vgame.commit.tensor import tensor_root, to_words
from vgame.errors import VgameError
from vgame.execute.devices import use_device
from vgame.execute.executor import Executor
from vgame.runs.folder import open_run, repeater_of
from vgame.runs.store import Store
from vgame.runs.training import State, advance, state_at


@dataclass(frozen=True, slots=True)
class Trace:
    """A re-executed step: the root of every operator's output, their names, and the chosen word with its value."""

    root: bytes
    names: list[str]
    outputs: list[bytes]
    word: tuple[int, float] | None


def trace_step(run: Path, step: int, device: str, operator: int | None = None, element: int | None = None) -> Trace:
    """Re-execute a step of a run."""
    with use_device(device) as kind:
        store = open_run(run)
        _check(store, step, operator, element)
        executor = repeater_of(store, kind)
        state, roots, words = state_before(store, executor, step), [], []

        def tap(index: int, output: torch.Tensor) -> torch.Tensor:
            roots.append(tensor_root(output))
            if index == operator and element is not None:
                words.append((int(to_words(output)[element]), output.reshape(-1)[element].item()))
            return output

        executor.step(step, state, tap)
    names = [store.bundle.program.operator_name(i) for i in range(len(roots))]
    return Trace(fold(Kind.TRACE, roots, tree_height(len(roots))), names, roots, words[0] if words else None)


def state_before(store: Store, executor: Executor, step: int) -> State:
    """The state before a step."""
    checkpoint = (step - 1) // store.bundle.interval
    state = state_at(store, executor, checkpoint)
    return advance(executor, state, checkpoint * store.bundle.interval + 1, step - 1)


def _check(store: Store, step: int, operator: int | None, element: int | None) -> None:
    """VgameError unless the run has this step, operator and element."""
    last = store.divergence.step if store.divergence else store.step
    operators = store.bundle.program.operators
    if not 1 <= step <= last:
        raise VgameError(f"--step {step}: the run has the steps 1 to {last}")
    if operator is not None and not 0 <= operator < len(operators):
        raise VgameError(f"--operator {operator}: the program has the operators 0 to {len(operators) - 1}")
    if element is None:
        return
    if operator is None:
        raise VgameError(f"--element {element} needs an operator; add --operator")
    if not 0 <= element < operators[operator].elements:
        most = operators[operator].elements - 1
        raise VgameError(f"--element {element}: the output of operator {operator} has the elements 0 to {most}")

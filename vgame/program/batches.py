"""The samples of a step: the order of the data as operators, and checks for models that carry values from batch to
batch.

In: a task's `order`. Out: the rows of the data tensors, batch after batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.captured import Captured
from vgame.program.draws import indices_of, weighted, with_replacement
from vgame.program.lowering.builder import Builder, Value
from vgame.program.operators import Shuffle
from vgame.program.retrace import output_of
from vgame.tasks.task import Task

POSITION = "data.position"  # state: number of samples (of each stream) read, modulo their number

MakeState = Callable[[str, torch.Tensor], Value]


def rows_of(b: Builder, task: Task, state: MakeState) -> tuple[Value, Value | None]:
    """(indices of the step's samples [batch * accumulate], the position after the step or None).

    shuffled: the keyed permutation, epoch by epoch. sequential: the order of the data; the first sample follows the
    last. streams: the samples are divided into `batch` equal streams; row r of every batch continues stream r.
    Drawn with replacement or by weights, or a given list: vgame/program/draws.py.
    """
    count = task.batch * task.accumulate
    if task.weights is not None:
        return weighted(b, count, task.weights, task.population), None
    if task.order is not None and not isinstance(task.order, str):
        return _given(b, indices_of(task.order, task.population), count, state)
    if task.order == "replacement":
        return with_replacement(b, count, task.population), None
    if task.order in (None, "shuffled"):
        return b.emit(Shuffle(count, task.population), (count,)), None
    streams = task.batch if task.order == "streams" else 1
    length, each = task.population // streams, count // streams
    _check(task, length, each)
    position = state(POSITION, torch.zeros((), dtype=torch.int32))
    steps = b.iota(each)
    within = b.map(Function.IMOD, b.map(Function.IADD, position, steps), length)
    after = b.map(Function.IMOD, b.map(Function.IADD, position, each), length)
    if streams == 1:
        return within, after
    starts = b.constant(torch.arange(streams, dtype=torch.int32) * length)
    rows = b.map(Function.IADD, within.like(within.layout.unsqueeze(1)), starts.like(starts.layout.unsqueeze(0)))
    return b.reshape(rows, (count,)), after


def _given(b: Builder, order: torch.Tensor, count: int, state: MakeState) -> tuple[Value, Value]:
    """The samples of a list in its order; the first follows the last."""
    position = state(POSITION, torch.zeros((), dtype=torch.int32))
    if len(order) + count >= 2**31:
        raise ProgramError(f"order: {len(order):,} indices are too many to count in 32 bits")
    place = b.map(Function.IMOD, b.map(Function.IADD, position, b.iota(count)), len(order))
    after = b.map(Function.IMOD, b.map(Function.IADD, position, count), len(order))
    return b.gather_rows(b.constant(order), place), after


def _check(task: Task, length: int, each: int) -> None:
    if length < 1:
        raise ProgramError(
            f"order = 'streams': {task.population} samples are fewer than the {task.batch} rows of a batch"
        )
    if length + each >= 2**31:
        raise ProgramError(f"order = {task.order!r}: {length:,} samples are too many to count in 32 bits")
    if task.order == "streams" and task.window is not None and task.stride != task.window:
        raise ProgramError(
            f"order = 'streams' with a window of {task.window} and a stride of {task.stride}: a row would not continue "
            f"where the last batch ended; set stride = {task.window}"
        )


def refuse_carried(captured: Captured, task: Task) -> None:
    """Refuse a state per row of the batch in an order without continued rows; warn of other carried state."""
    if task.order is not None:
        return
    carried = carried_buffers(captured)
    per_row = [name for name, shape in carried.items() if task.batch in shape and task.batch > 1]
    if per_row:
        raise ProgramError(
            f"the model carries {', '.join(per_row)} from batch to batch, with one row for each of the {task.batch} "
            "samples, but in shuffled order the next batch does not continue these samples; write Task(..., "
            "order='streams'), or order='shuffled' if this is intended"
        )
    if carried:
        warnings.warn(
            f"the model carries {', '.join(carried)} from batch to batch and batches come in shuffled order; if their "
            "order matters write Task(..., order='sequential') or order='streams', else order='shuffled'",
            stacklevel=2,
        )


def carried_buffers(captured: Captured) -> dict[str, tuple[int, ...]]:
    """Shapes of the buffers that a step changes and whose earlier values affect the loss."""
    places = captured.graph.graph.find_nodes(op="placeholder")
    needed, todo = set(), [output_of(captured.graph).args[0][0]]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo.extend(node.all_input_nodes)
    unchanged = captured.unchanged_buffers()
    own = zip(captured.buffers, places[len(captured.parameters) :], strict=False)
    return {n: tuple(p.meta["val"].shape) for n, p in own if n not in unchanged and p in needed}

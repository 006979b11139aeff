"""The samples of a step, and the parameters without gradient, by the formulas of docs/formats.md section 5 and
docs/capture.md, independent of the program's operators.

In: a task, the seed, a step. Out: the indices of its samples, batch after batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.arithmetic.torch.philox import random_words
from vgame.program.capture import owned
from vgame.program.draws import CELL, alias_table
from vgame.program.lowering.marks import Turn
from vgame.tasks.task import Task
from vgame.validation.compare import Differs

T = torch.Tensor


def rows_of_step(task: Task, seed: int, step: int, position: int, draws: Sequence[int | None]) -> T:
    """Indices [batch * accumulate]. `position`: number of samples (of each stream) read before this step."""
    count, population = task.batch * task.accumulate, task.population
    words = [random_words(seed, step, d, count, torch.zeros(1)).to(torch.int64) & 0xFFFFFFFF for d in draws]
    if task.weights is not None:
        return _weighted(task, words)
    if task.order is not None and not isinstance(task.order, str):
        order = torch.as_tensor(task.order).to(torch.int64)
        return order[(position + torch.arange(count)) % len(order)]
    if task.order == "replacement":
        return (words[0] >> 1) % population
    if task.order == "sequential":
        return (position + torch.arange(count)) % population
    if task.order == "streams":
        length = population // task.batch
        within = (position + torch.arange(task.accumulate)) % length
        return (within[:, None] + torch.arange(task.batch) * length).reshape(-1)
    return torch.tensor([shuffle_index(seed, step, e, count, population) for e in range(count)])


def frozen_of(task: Task, names: Iterable[str]) -> dict[str, list[range]]:
    """The steps without a gradient, by name of the parameter: (first, last), a number of first steps, or, in a job that
    continues a run, ranges."""
    spans = {p: s if isinstance(s, tuple) else (1, s) for p, s in task.frozen.items()}
    ranges = {p: s if isinstance(s[0], range) else (range(s[0], s[1] + 1),) for p, s in spans.items()}
    found = {n: [each for p, r in ranges.items() if fnmatchcase(n, p) for each in r] for n in names}
    return {name: ranges for name, ranges in found.items() if ranges}


def position_after(task: Task, start: int, steps: int) -> int:
    """Number of samples (of each stream) read after `steps` steps from a position, modulo their number."""
    length = task.population if task.order is None or isinstance(task.order, str) else len(task.order)
    streams = task.batch if task.order == "streams" else 1
    return (start + steps * task.batch * task.accumulate // streams) % (length // streams)


def _weighted(task: Task, words: Sequence[T]) -> T:
    thresholds, aliases = (torch.from_numpy(t).to(torch.int64) for t in alias_table(task.weights, task.population))
    cell = (words[0] >> 1) % task.population
    return torch.where((words[1] >> 1) < thresholds[cell], cell, aliases[cell])


def check_weights(task: Task) -> Differs | None:
    """The difference if a sample's share in the alias table differs from its weight by more than population * 2^-30
    mean weights, else None."""
    if task.weights is None:
        return None
    thresholds, aliases = (torch.from_numpy(t).to(torch.float64) for t in alias_table(task.weights, task.population))
    thresholds[aliases == torch.arange(task.population)] = CELL  # a whole cell
    shares = thresholds.index_add(0, aliases.to(torch.int64), CELL - thresholds) / CELL
    given = torch.as_tensor(task.weights, dtype=torch.float64).reshape(-1)
    apart = (shares - given / given.sum() * task.population).abs()
    far = float(apart.max())
    largest_share = task.population * 2.0**-30
    return Differs("batches", "weights", 1, far, float(shares.max())) if far > largest_share else None


def trained_of(task: Task, turns: Iterable[Turn]) -> dict[int, str]:
    """The names of the parameters with a gradient at the step of their optimizer, by `id`."""
    ids, found = {name: id(p) for name, p in task.model.named_parameters()}, dict[int, str]()
    for own, turn in zip(owned(task), turns, strict=True):
        found |= {ids[name]: name for name, v in turn.clipped.items() if v is not None and ids[name] in own}
    return found

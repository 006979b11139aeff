"""Compare the padding of the user's loop with a job's: a loader pads each batch to its longest sample, a job pads all
samples to the longest of all.

In: a task, the samples of some steps. Out: nothing, or one warning. The loss and its gradients are computed in binary64
on both paddings of a step, with the same draw everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch.utils.data import default_collate

from vgame.tasks.datasets import Source, collated, fresh
from vgame.tasks.reading import fetched, undrawn
from vgame.tasks.task import Task
from vgame.validation import user
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.draws import Constant
from vgame.validation.shadow import CannotCheck

T = torch.Tensor
Batches = Sequence[Mapping[str, T]]  # of a step
ROUNDING = 2.0**-20  # relative to the loss, to the norm of all gradients, to a buffer
SHARE = 0.25  # of the validation's seconds
FIRST = 4  # steps of which the narrowest is compared, where samples have one size before they are collated


def warn_of_padding(task: Task, steps: Sequence[T], seconds: float) -> None:
    """Warn if the padding changes the loss, its gradients or a buffer. `steps`: the samples of each step; the step with
    the shortest samples is compared."""
    source: Source | None = getattr(task, "source", None)
    if source is None or (not source.sizes and source.make is default_collate) or not steps:
        return
    sizes, splits = torch.tensor(source.sizes), [step.split(task.batch) for step in steps]
    if source.sizes:
        splits = [min(splits, key=lambda step: sum(int(sizes[p].max()) for p in step))]
    with undrawn():  # without sizes the collation chooses widths: those of the first steps are seen there
        parts, own = min(
            ((parts, _collated(source, parts)) for parts in splits[:FIRST]), key=lambda step: _size(step[1])
        )
    whole = [task.samples(part) for part in parts]
    for place, part in enumerate(parts):
        for name, tensor in whole[place].items():
            if name not in own[place]:
                return  # which check_samples refuses
            widths = tuple(own[place][name].shape), tuple(tensor.shape)
            if widths[0] == widths[1] or not (found := _difference(task, own, whole, seconds)):
                continue
            warnings.warn(
                "a loop pads each batch to its longest sample, a job pads all to the longest of all "
                f"({task.place(name)} of the samples {_some(part)}: {widths[0]} and {widths[1]}), and {found}; mask "
                "the padding in the loss (lengths, attention_mask, ignore_index), or give samples of one length",
                stacklevel=2,
            )
            return


def _collated(source: Source, parts: Sequence[T]) -> list[dict[str, T]]:
    """As the loader collates these samples."""
    return [collated([*map(fresh, fetched(source.samples, part.tolist()))], source.make) for part in parts]


def _size(batches: Batches) -> int:
    return sum(tensor.numel() for batch in batches for tensor in batch.values())


def _some(rows: T) -> str:
    return ", ".join(map(str, rows[:3].tolist())) + (", ..." if len(rows) > 3 else "")


def _difference(task: Task, own: Batches, whole: Batches, seconds: float) -> str | None:
    """The difference that the padding makes; None if it is rounding."""
    budget = Budget(SHARE * seconds)
    for loss in task.losses:
        try:
            theirs, ours = (
                user.run_user(partial(user.gradients, task, loss, {}, batches, [Constant() for _ in batches], budget))
                for batches in (own, whole)
            )
        except (CannotCheck, Exhausted) as reason:
            return f"whether the loss depends on the padding could not be compared ({reason})"
        if found := _first(theirs.exact, ours.exact):
            return found
    return None


def _first(theirs: Mapping[str, T | None], ours: Mapping[str, T | None]) -> str | None:
    """The first difference of loss, gradients, buffers."""
    pairs = {n: (a, ours[n]) for n, a in theirs.items() if a is not None and ours.get(n) is not None}
    pairs = {n: (a.double(), b.double()) for n, (a, b) in pairs.items() if a.shape == b.shape}
    loss = pairs.pop("loss")
    if _apart([loss]):
        return f"before training the loss is {float(loss[0]):.6g} in the loop and {float(loss[1]):.6g} in the job"
    if _apart([pair for n, pair in pairs.items() if n.startswith("gradient.")]):
        return "the gradients of the loss differ between the two"
    buffers = (n for n, pair in pairs.items() if n.startswith("buffer.") and _apart([pair]))
    return next((f"the {name.replace('.', ' ', 1)} differs between the two after a batch" for name in buffers), None)


def _apart(pairs: Sequence[tuple[T, T]]) -> bool:
    """Whether tensors differ by more than rounding, relative to their norm."""
    return bool(pairs) and _norm([a - b for a, b in pairs]) > ROUNDING * _norm([a for a, _ in pairs])


def _norm(tensors: Sequence[T]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(t.nan_to_num(0.0, 0.0, 0.0)) for t in tensors]).norm())

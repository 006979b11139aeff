"""A torch Dataset or DataLoader as a task's data: all its samples as tensors, collated once, and batches in the form
that the loss expects.

In: the data set or loader of a training loop. Out: tensors with the samples in their first dimension; the batch size
and the order of a loader; the form of a batch for the loss.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from vgame.errors import DataError
from vgame.tasks.fingerprint import state
from vgame.tasks.given import as_kept
from vgame.tasks.reach import GENERATORS, reached
from vgame.tasks.reading import Collate, fetched, made, refuse_workers, undrawn
from vgame.tasks.samplers import Loaded, loaded


@dataclass(frozen=True)
class Source:
    """The source of collated tensors: a data set, and the function that collates its samples. `sizes`: of each sample,
    empty if all have one; `paths`: the parts of a batch as Python writes them, by the tensors' names."""

    samples: Any
    make: Collate
    sizes: Sequence[int] = ()
    paths: Mapping[str, str] = field(default_factory=dict)


def collated(samples: list[Any], make: Collate) -> dict[str, torch.Tensor]:
    """Some samples, collated, with the names of the collation of all samples."""
    return _collated(made(make, samples, len(samples)), len(samples)).tensors


@dataclass(frozen=True)
class Collated:
    """`tensors` of all samples by name; `shape`: the structure of a batch, None if it is the mapping itself; `kind`:
    the class of a mapping that is not a plain dictionary."""

    tensors: dict[str, torch.Tensor]
    shape: pytree.TreeSpec | None
    batch: int | None = None
    order: str | None = None
    weights: torch.Tensor | None = None
    batches: int | None = None  # of a loader's epoch
    source: Source | None = None
    paths: Mapping[str, str] = field(default_factory=dict)  # as in Source
    kind: Callable[[dict[str, Any]], Any] | None = None
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)  # one row of each tensor, as the collation makes it

    def restored(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """The loss, called with a batch in the structure of the collation: a tuple, a list, nested dictionaries."""
        if self.shape is None:
            return loss
        shape, kind = self.shape, self.kind

        def restoring(model: Any, batch: dict[str, torch.Tensor]) -> Any:
            made = pytree.tree_unflatten(list(batch.values()), shape)
            given = made if kind is None else kind(made)
            found = loss(model, given)
            leaves, after = pytree.tree_flatten(given if kind is None else dict(given))
            if after == shape:  # vgame/program/passes.py looks in the dictionary for replaced values
                batch.update(zip(batch, leaves, strict=True))
            else:
                batch.clear()
            return found

        return restoring


@undrawn()
def collate(data: Dataset | DataLoader, collate_fn: Collate | None = None, ordered: bool = False) -> Collated:
    """All samples of a map-style data set in its own order, or those that a loader reads. `ordered`: the task specifies
    the order. DataError if a sample differs each time it is read, or depends on its batch."""
    found = loaded(data, ordered) if isinstance(data, DataLoader) else Loaded(data)
    make = (data.collate_fn if isinstance(data, DataLoader) else collate_fn) or default_collate
    source = found.samples
    if isinstance(source, IterableDataset) or not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise DataError(
            f"{type(source).__name__} has no length or no access by index, but a job reads samples in an order that "
            "an auditor can repeat; use list(dataset)"
        )
    if not len(source):
        raise DataError(f"{type(source).__name__} has no sample")
    count = len(source)
    size = min(found.batch or 8, count)
    together = size if getattr(source, "__getitems__", None) else 1
    parts = [range(i, min(i + together, count)) for i in range(0, count, together)]
    before = _generators(source)
    try:
        samples = [sample for part in parts for sample in map(fresh, fetched(source, part))]
    except DataError as error:
        if isinstance(data, DataLoader) and data.num_workers and data.worker_init_fn:
            raise DataError(f"{error}; a job starts no worker processes, so worker_init_fn is not called") from None
        raise
    _refuse_chance(source, samples, parts, make, _generators(source) != before)
    spread = [n * count // size for n in range(size)]
    kept = {i: fresh(samples[i]) for i in spread}
    sizes = [*map(_size, samples)]
    batch = made(make, samples, size)
    del samples  # before the copy: large data fit in memory twice
    whole = _collated(fresh(batch), count)
    _refuse_batches(source, kept, make, whole.tensors)
    if isinstance(data, DataLoader):
        own = source.indices if source is not data.dataset else range(count)
        refuse_workers(data, {own[i]: sample for i, sample in kept.items()}, _same)
    return replace(
        whole,
        batch=found.batch,
        order=found.order,
        weights=found.weights,
        batches=found.batches,
        source=Source(source, make, sizes if len({*sizes}) > 1 else (), whole.paths),
    )


def fresh(sample: Any) -> Any:
    """A copy of a sample, which neither the next sample nor a collate_fn can change."""
    return pytree.tree_map(_copied, sample)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if isinstance(leaf, type | str | int | float | complex | bytes | None):
        return leaf
    try:
        if isinstance(leaf, Mapping):  # BatchEncoding of transformers
            found = copy.copy(leaf)
            for key, value in leaf.items():
                found[key] = fresh(value)  # type: ignore[index]
            return found
        for method in ("clone", "copy"):
            if hasattr(leaf, method):
                return getattr(leaf, method)()
        found = copy.copy(leaf)
        slots = [slot for kind in type(leaf).__mro__ for slot in getattr(kind, "__slots__", ()) if hasattr(leaf, slot)]
        for name in (*getattr(leaf, "__dict__", ()), *slots):
            object.__setattr__(found, name, fresh(getattr(leaf, name)))
        return found
    except Exception:  # an object of the user's that cannot be copied
        return leaf


def other_rows(samples: Mapping[int, Any], make: Collate, whole: Mapping[str, torch.Tensor]) -> str | None:
    """The problem if some samples, collated, differ from their rows of the whole by more than padding; else None."""
    part = collated(list(samples.values()), make)
    for name, tensor in whole.items():
        for place, index in enumerate(samples):
            if name not in part or not _is_row(part[name][place], tensor[index]):
                return (
                    f"collate_fn gives other rows of {name} for {len(samples)} samples than for all of them (sample "
                    f"{index}), but a job collates all samples once; compute over a batch in the loss"
                )
    return None


def _is_row(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether both are equal where both have elements, aligned left or right, and all further elements are one padding
    value."""
    if part.dim() != whole.dim() or part.dtype != whole.dtype:
        return False
    sizes = [min(a, b) for a, b in zip(part.shape, whole.shape, strict=True)]
    return any(_are_padded(part, whole, sizes, left) for left in (False, True))


def _are_padded(part: torch.Tensor, whole: torch.Tensor, sizes: list[int], left: bool) -> bool:
    inside = [
        [slice(n - size, n) if left else slice(size) for n, size in zip(t.shape, sizes, strict=True)]
        for t in (part, whole)
    ]
    for tensor, common in zip((part, whole), inside, strict=True):
        outside = torch.ones(tensor.shape, dtype=torch.bool)
        outside[tuple(common)] = False
        if len(tensor[outside].unique()) > 1:
            return False
    return _same(part[tuple(inside[0])], whole[tuple(inside[1])])


def _collated(whole: Any, count: int) -> Collated:
    kind = _kind(whole)
    whole = dict(whole) if isinstance(whole, Mapping) else whole  # BatchEncoding of transformers
    leaves, shape = pytree.tree_flatten_with_path(whole)
    names = [_name(path) for path, _ in leaves]
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            number = isinstance(leaf, int | float)
            instead = "repeat it, or write it into the loss" if number else "tokenise text, remove other values"
            raise DataError(
                f"batch{pytree.keystr(path)} is of type {type(leaf).__name__}; a tensor with the samples in its first "
                f"dimension is expected from collate_fn: {instead}"
            )
        if not leaf.dim() or len(leaf) != count:
            raise DataError(
                f"batch{pytree.keystr(path)} has shape {tuple(leaf.shape)} for {count} samples; collate_fn must put "
                "the samples in the first dimension"
            )
    given = {name or "samples": leaf for name, (_, leaf) in zip(names, leaves, strict=True)}
    tensors = {name: as_kept(leaf) for name, leaf in given.items()}
    plain = isinstance(whole, Mapping) and list(tensors) == list(whole) and kind is None
    paths = {name: f"batch{pytree.keystr(path)}" for name, (path, _) in zip(tensors, leaves, strict=True)}
    return Collated(
        tensors, None if plain else shape, paths=paths, kind=kind, given={n: t[:1].clone() for n, t in given.items()}
    )


def _kind(batch: Any) -> Callable[[dict[str, Any]], Any] | None:
    """The class of a batch that is a mapping, if the class makes the same mapping from a dictionary; None for a
    dictionary."""
    if not isinstance(batch, Mapping) or type(batch) is dict:
        return None
    try:
        made = type(batch)(dict(batch))  # type: ignore[call-arg]
        same = len(made) == len(batch) and all(made[name] is part for name, part in batch.items())
        return type(batch) if same else None  # type: ignore[return-value]
    except Exception:  # a class with other arguments
        return None


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)


def _size(sample: Any) -> int:
    """The count of numbers and characters of a sample, by which a collation may pad it."""
    if isinstance(sample, Mapping):
        sample = dict(sample)
    return sum(map(_words, pytree.tree_leaves(sample)))


def _words(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return math.prod(leaf.shape)
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return _size(vars(leaf)) if hasattr(leaf, "__dict__") and not isinstance(leaf, type) else 1


def _refuse_chance(source: Any, samples: list[Any], parts: list[range], make: Collate, drew: bool) -> None:
    """Refuse random numbers in loading or collating: they would be drawn once, for the whole training. `parts`: the
    samples that were read together. `drew`: reading them has advanced a random generator, so each is checked."""
    count = len(parts)
    checked = range(count) if drew else sorted({round(i * (count - 1) / 15) for i in range(16)})
    for part in (parts[i] for i in reversed(checked)):
        again = fetched(source, part)
        other = [i for i, sample in zip(part, again, strict=True) if not _same(samples[i], sample)]
        if other or (drew and _draws(source, part)):
            i = other[0] if other else part[0]
            raise DataError(
                f"{type(source).__name__} gives another sample {i} each time, but a job reads it once, for all epochs; "
                "move the random transform into the loss, on the batch, with vgame.augment or torch's random functions"
            )
    few = samples[: min(len(samples), 8)]
    first = fresh(made(make, [*map(fresh, few)], len(few)))
    before = _generators(make)
    if not _same(first, make([*map(fresh, few)])) or _generators(make) != before:
        raise DataError(
            "collate_fn gives another batch each time, but a job calls it once, for all epochs; move the random part "
            "into the loss, with vgame.augment or torch's random functions on the batch"
        )


def _refuse_batches(source: Any, samples: Mapping[int, Any], make: Collate, whole: Mapping[str, torch.Tensor]) -> None:
    """Refuse samples, or rows, that differ in a batch of torch's DataLoader, or in its second epoch."""
    found = fetched(source, list(samples))
    for (i, sample), again in zip(samples.items(), found, strict=True):
        if not _same(sample, again):
            raise DataError(
                f"{type(source).__name__} gives another sample {i} in another batch: its samples share memory, or "
                "depend on each other; return a copy of each (clone), and compute over a batch in the loss"
            )
    if wrong := other_rows(dict(zip(samples, found, strict=True)), make, whole):
        raise DataError(wrong)
    found = fetched(source, list(samples))
    changed = not _same(list(samples.values()), found)
    try:
        wrong = other_rows(dict(zip(samples, found, strict=True)), make, whole)
    except Exception as error:
        if not changed:
            raise
        wrong = str(error)
    if wrong and changed:
        wrong = (
            f"collate_fn changes samples of {type(source).__name__}, so the second epoch gets other batches "
            f"({wrong.partition(', but')[0]}); let it work on copies"
        )
    if wrong:
        raise DataError(wrong)


def _draws(source: Any, part: Sequence[int]) -> bool:
    """Whether reading samples advances a generator. A generator that the data set seeds for each sample does not
    count."""
    before = _generators(source)
    fetched(source, part)
    return _generators(source) != before


def _generators(user: Any) -> list[Any]:
    """The states of the random generators that a data set or a function can draw from."""
    own = [value for _, value in reached([("", user)]) if isinstance(value, GENERATORS)]
    _, words, *place = np.random.get_state()
    torchs = [g for g in (torch.default_generator, *own) if isinstance(g, torch.Generator)]
    known = [g.get_state().numpy().tobytes() for g in torchs]
    return [random.getstate(), words.tobytes(), place, known, [state(generator) for generator in own]]


def _same(a: Any, b: Any) -> bool:
    a, b = (dict(x) if isinstance(x, Mapping) else x for x in (a, b))
    first, second = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(first) == len(second) and all(map(_equal, first, second))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    if hasattr(a, "__array__"):
        return hasattr(b, "__array__") and _equal(torch.as_tensor(a), torch.as_tensor(b))
    return type(a) is not type(b) or not isinstance(a, int | float | str | bytes) or a == b or a != a

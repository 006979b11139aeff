"""The samples that a DataLoader reads: the selection of its sampler, their order, the batches of an epoch.

In: a loader. Out: its data set, or the selected part of it, and the batch size and order of a job; DataError for a
sampler whose epochs a job cannot repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from vgame.errors import DataError

KNOWN = (SequentialSampler, RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
WAY_OUT = "write Task(order=list(sampler)), if that is the order of each epoch: docs/capture.md"


@dataclass(frozen=True)
class Loaded:
    """`batches`: number of batches of an epoch; None if the task specifies the order."""

    samples: Any
    batch: int | None = None
    order: str | None = None
    weights: torch.Tensor | None = None
    batches: int | None = None


@dataclass(frozen=True)
class _Epoch:
    """The samples that an epoch draws from, their order, and the number that it draws."""

    indices: Sequence[int]
    order: str | None
    draws: int
    weights: torch.Tensor | None = None


def loaded(loader: DataLoader, ordered: bool) -> Loaded:
    """The samples and the order of a loader. `ordered`: the task specifies the order, so the sampler is ignored."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise DataError(
            f"{type(loader).__name__} creates its batches by an __iter__ of its own; move that into collate_fn"
        )
    if loader.batch_sampler is None:
        raise DataError(
            "the DataLoader has no batch_size, its data set creates the batches; give a data set of single samples"
        )
    batches = loader.batch_sampler
    if type(batches).__iter__ is not BatchSampler.__iter__:
        if ordered:
            return Loaded(loader.dataset)
        raise DataError(
            f"the DataLoader's batches come from {type(batches).__name__}, whose order a job cannot repeat; if they "
            "have one size and are the same in each epoch, write Task(order=[i for b in batch_sampler for i in b], "
            "batch=...)"
        )
    if ordered or not _is_sized(loader.dataset):
        return Loaded(loader.dataset, batches.batch_size)
    epoch = _epoch(batches)
    if len(epoch.indices) and not 0 <= min(epoch.indices) <= max(epoch.indices) < len(loader.dataset):
        raise DataError(
            f"the DataLoader's {type(batches.sampler).__name__} reads {len(epoch.indices)} samples; its data set has "
            f"{len(loader.dataset)}"
        )
    return _in_batches(loader.dataset, batches, epoch)


def _is_sized(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)


def _in_batches(data: Any, sampler: BatchSampler, epoch: _Epoch) -> Loaded:
    batch, rest = sampler.batch_size, epoch.draws % sampler.batch_size
    indices = epoch.indices
    if sampler.drop_last and epoch.draws < batch:
        raise DataError(f"the DataLoader has no batch: drop_last leaves out all of its {epoch.draws} samples")
    if sampler.drop_last and rest and epoch.order == "sequential":
        indices = indices[:-rest]
    elif sampler.drop_last and rest and epoch.order == "shuffled":
        raise DataError(
            f"the DataLoader's drop_last leaves out {rest} other samples in each epoch, but a job's batches continue "
            f'into the next epoch; remove drop_last, or write Task(order="shuffled")'
        )
    batches = epoch.draws // batch if sampler.drop_last else math.ceil(epoch.draws / batch)
    samples = data if indices == range(len(data)) else Subset(data, indices)
    return Loaded(samples, min(batch, epoch.draws) or batch, epoch.order, epoch.weights, batches)


def _epoch(batches: BatchSampler) -> _Epoch:
    sampler: Any = batches.sampler
    if isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is DistributedSampler.__iter__:
        if sampler.num_replicas == 1:
            count = len(sampler.dataset)
            return _Epoch(range(count), "shuffled" if sampler.shuffle else "sequential", count)
        raise DataError(
            f"the DataLoader's DistributedSampler reads the samples of process {sampler.rank} of "
            f"{sampler.num_replicas}, but a job is the training of all; remove it, and give "
            f"batch_size={batches.batch_size * sampler.num_replicas}"
        )
    if isinstance(sampler, list | tuple | range):
        return _Epoch(sampler, "sequential", len(sampler))
    kind = next((each for each in KNOWN if isinstance(sampler, each)), None)
    if kind is None or type(sampler).__iter__ is not kind.__iter__:
        raise DataError(
            f"the DataLoader draws samples by {type(sampler).__name__}, whose order a job cannot repeat; {WAY_OUT}"
        )
    if kind is WeightedRandomSampler:
        found = _Epoch(range(len(sampler.weights)), None, sampler.num_samples, sampler.weights)
    elif kind is SubsetRandomSampler:
        found = _Epoch(sampler.indices, "shuffled", len(sampler.indices))
    else:
        draws = getattr(sampler, "num_samples", len(sampler))
        order = "sequential" if kind is SequentialSampler else "shuffled"
        order = "replacement" if getattr(sampler, "replacement", False) else order
        found = _Epoch(range(len(sampler.data_source)), order, draws)
    anew = not getattr(sampler, "replacement", kind is not WeightedRandomSampler)
    if anew and (kind is WeightedRandomSampler or found.draws % max(len(found.indices), 1)):
        raise DataError(
            f"the DataLoader's {kind.__name__} takes {found.draws} of {len(found.indices)} samples, different ones in "
            f"each epoch, which a job cannot repeat; {WAY_OUT}"
        )
    return found

"""Read and collate samples as torch's DataLoader does, with one error message for an error of the user's code.

In: a data set, its collate function, a loader. Out: samples, batches. The global random generators are left as they
were.
"""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, default_collate

from vgame.errors import DataError, VgameError
from vgame.system.installed import is_of_user
from vgame.tasks.reach import reached

Collate = Callable[[list[Any]], Any]
LONGEST = 60  # seconds until a worker process must have read its samples


@contextmanager
def undrawn() -> Iterator[None]:
    """Context that restores the global random generators, which a data set may seed for each sample."""
    before = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])


def fetched(source: Any, indices: Sequence[int]) -> list[Any]:
    """A batch of samples, as torch's DataLoader reads it: they may share memory with one another and with the data set.
    DataError if reading fails, or `__getitems__` does not give a list of them."""
    try:
        if not getattr(source, "__getitems__", None):
            return [source[i] for i in indices]
        found = source.__getitems__(list(indices))
    except VgameError:
        raise
    except Exception as error:
        raise DataError(
            f"{type(source).__name__} cannot be read at {indices[0] if len(indices) == 1 else list(indices)}: "
            f"{_told(error)}"
        ) from None
    if not isinstance(found, list | tuple) or len(found) != len(indices):
        raise DataError(
            f"{type(source).__name__}.__getitems__ gives a {type(found).__name__} for {len(indices)} samples; a list "
            "of the samples is expected: collate them in collate_fn"
        )
    return list(found)


def made(make: Collate, samples: list[Any], size: int) -> Any:
    """The collation of some samples. DataError if it fails. `size`: samples of a batch."""
    try:
        return make(samples)
    except VgameError:
        raise
    except Exception as error:
        name = "the default collate_fn" if make is default_collate else "collate_fn"
        if other := _other_form(samples) if make is default_collate else "":
            raise DataError(
                f"{name} cannot put all samples into one batch, as a job does once ({other}); give all samples one "
                "shape and type: resize or convert them in the data set, or pad them in a collate_fn of your own "
                "(pad_sequence) and mask the padding in the loss"
            ) from None
        where = f"for {len(samples)} samples together (a job collates all at once)" if len(samples) > size else ""
        raise DataError(f"{name} fails {where or f'for {len(samples)} samples'}: {_told(error)}") from None


def _told(error: Exception) -> str:
    """An error in one line, with the line of the user's code that led to it."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if is_of_user(f.filename)]
    where = f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{where}"


def _other_form(samples: Sequence[Any]) -> str:
    """The first sample with other shapes or types than the first one, if there is one."""
    first, *rest = map(_forms, samples)
    for i, forms in enumerate(rest, 1):
        if forms != first:
            pair = next(((a, b) for a, b in zip(first, forms, strict=False) if a != b), None)
            a, b = pair or (f"{len(first)} parts", f"{len(forms)} parts")
            return f"sample 0 has {a}, sample {i} has {b}"
    return ""


def _forms(sample: Any) -> list[str]:
    leaves = pytree.tree_leaves(sample)
    return [
        f"{type(leaf).__name__}{list(leaf.shape)}" if hasattr(leaf, "shape") else type(leaf).__name__ for leaf in leaves
    ]


# ---- worker processes ----


def refuse_workers(loader: DataLoader, samples: Mapping[int, Any], same: Callable[[Any, Any], bool]) -> None:
    """DataError if samples differ in the loader's worker processes, which a job does not start. They are read there
    only if the loader has a worker_init_fn, or its data set calls get_worker_info(). `samples`: by index of the data
    set."""
    if not loader.num_workers or not (loader.worker_init_fn or _asks_for_worker(loader.dataset)):
        return
    why = "worker_init_fn is not called" if loader.worker_init_fn else "get_worker_info() gives None"
    workers = min(loader.num_workers, 2)
    spare = DataLoader(
        loader.dataset,
        max(1, len(samples) // workers),
        sampler=list(samples),
        num_workers=workers,
        collate_fn=_as_read,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),
        timeout=LONGEST,
    )
    try:
        found = [sample for batch in spare for sample in batch]
    except Exception as error:
        warnings.warn(
            f"a job starts no worker processes, so {why}; the samples could not be compared with those of one: "
            f"{_told(error)}",
            stacklevel=2,
        )
        return
    for (index, sample), other in zip(samples.items(), found, strict=True):
        if not same(sample, other):
            raise DataError(
                f"{type(loader.dataset).__name__} gives another sample {index} in a worker process of the DataLoader, "
                f"but a job starts none, so {why}; give a data set whose samples are the same with num_workers=0"
            )


def _as_read(samples: list[Any]) -> list[Any]:
    return samples


def _asks_for_worker(data: Any) -> bool:
    functions = (value for _, value in reached([("", data)]) if isinstance(value, FunctionType))
    return any("get_worker_info" in function.__code__.co_names for function in functions)

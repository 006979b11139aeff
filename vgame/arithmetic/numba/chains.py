"""Chains of elementwise functions over tensors, in parts for the threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.pointwise import BLOCK, LOAD, LOAD_HALVES, MOST_DIMENSIONS, STORE_HALVES, run_blocks
from vgame.arithmetic.workspace import new
from vgame.system.threads import each, portions


@dataclass(frozen=True, slots=True)
class Chain:
    """Instructions over slots: first the inputs, then the results that are kept, then constants and temporary blocks.

    code: int64 [n, 5], rows as in run_blocks. words: uint32, the constant of each slot (arbitrary for other slots).
    results: for each result whether it is int32. checked: int64, the slots of the results that are checked for
    infinities and NaN in the same pass.
    """

    code: np.ndarray
    words: np.ndarray
    inputs: int
    results: tuple[bool, ...]
    checked: np.ndarray


def run(
    chain: Chain, elements: int, inputs: Sequence[Tensor], halves: Collection[int] = ()
) -> tuple[list[Tensor], np.ndarray]:
    """(results, flat, of `elements` words each; whether the checked ones are finite).

    inputs: strided views of `elements` words on a CPU, read in row-major order; binary32, int32 or bfloat16. halves:
    numbers of the results, all of them rounded to bfloat16 and none of them checked, that are stored as such.
    """
    types = [torch.int32 if integer else torch.float32 for integer in chain.results]
    results = [new((elements,), torch.bfloat16 if n in halves else kind) for n, kind in enumerate(types)]
    return results, bind(chain, elements, [x if is_in_lines(x) else x.contiguous() for x in inputs], results)()


def bind(chain: Chain, elements: int, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Callable[[], np.ndarray]:
    """A function that computes the results from the inputs, and returns whether the checked ones are finite.

    inputs: in the form of `is_in_lines`. SAFETY: the addresses stay valid because the function holds the tensors.
    """
    places, steps = [0] * chain.words.size, [0] * chain.words.size
    copied, layouts, loads, stores = [], [], [], []
    for slot, x in enumerate(inputs):
        is_half = x.dtype == torch.bfloat16
        if x.is_contiguous() and not is_half:
            places[slot], steps[slot] = x.data_ptr(), 4
            continue
        sizes, strides = joined(x)
        loads.append((LOAD_HALVES if is_half else LOAD, slot, chain.words.size + len(copied), len(layouts), 0))
        copied.append(x.data_ptr())
        layouts.append([len(sizes), *sizes, *strides] + [0] * (2 * MOST_DIMENSIONS - 2 * len(sizes)))
    for slot, result in enumerate(results, chain.inputs):
        if result.dtype == torch.bfloat16:
            stores.append((STORE_HALVES, chain.words.size + len(copied), slot, 0, 0))
            copied.append(result.data_ptr())
        else:
            places[slot], steps[slot] = result.data_ptr(), 4
    code = np.concatenate([np.array(rows, np.int64).reshape(-1, 5) for rows in (loads, chain.code, stores)])
    at, moves = (np.array(x + y, np.int64) for x, y in ((places, copied), (steps, [0] * len(copied))))
    layout = np.array(layouts, np.int64).reshape(-1, 1 + 2 * MOST_DIMENSIONS)
    parts = portions(-(-elements // BLOCK), BLOCK * (1 + len(code) // 4))
    finite, held = np.empty((len(parts), chain.checked.size), np.bool_), (inputs, results)

    def part(number: int, first: int, last: int) -> Callable[[], None]:
        memory = np.empty((places.count(0), BLOCK), np.float32)
        words = first * BLOCK, min(last * BLOCK, elements)
        return partial(run_blocks, code, at, moves, chain.words, layout, memory, chain.checked, finite[number], *words)

    jobs = [part(number, *span) for number, span in enumerate(parts)]

    def compute(_held: tuple = held) -> np.ndarray:
        each(jobs)
        return finite[0] if len(jobs) == 1 else np.all(finite, axis=0)

    return compute


def is_in_lines(x: Tensor) -> bool:
    """Whether `load` can read it in place."""
    sizes, strides = joined(x)
    return x.is_contiguous() or (len(sizes) <= MOST_DIMENSIONS and strides[-1] <= 1)


def joined(x: Tensor) -> tuple[list[int], list[int]]:
    """Sizes and strides, with contiguous dimensions joined."""
    sizes, strides = [], []
    for size, stride in zip(x.shape, x.stride(), strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == size * stride:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes, strides = [*sizes, size], [*strides, stride]
    return sizes or [1], strides or [0]

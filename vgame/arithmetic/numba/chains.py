"""Chains of elementwise functions over tensors, in parts for the threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.pointwise import BLOCK, LOAD, MOST_DIMENSIONS, run_blocks
from vgame.system.threads import share


@dataclass(frozen=True, slots=True)
class Chain:
    """Instructions over slots: first the inputs, then the results that are kept, then constants and blocks of our own.

    code: int64 [n, 5], rows as in _run. words: uint32, per slot its constant, or anything. results: which are int32.
    checked: int64, the slots of the results that are looked at for infinities and NaN while they are at hand.
    """

    code: np.ndarray
    words: np.ndarray
    inputs: int
    results: tuple[bool, ...]
    checked: np.ndarray


def run(chain: Chain, elements: int, inputs: Sequence[Tensor]) -> tuple[list[Tensor], np.ndarray]:
    """The results, flat, of `elements` words each; whether the checked ones are finite.

    inputs: strided views of so many words on a CPU, read in row-major order.

    SAFETY: the addresses stay good because whoever computes a part holds the tensors.
    """
    results = [torch.empty(elements, dtype=torch.int32 if integer else torch.float32) for integer in chain.results]
    places, steps, words = [0] * chain.words.size, [0] * chain.words.size, chain.words.copy()
    sources, layouts, loads = [], [], []
    inputs = [x if x.is_contiguous() or _is_in_lines(x) else x.contiguous() for x in inputs]
    for slot, x in enumerate(inputs):
        sizes, strides = joined(x)
        if x.is_contiguous():
            places[slot], steps[slot] = x.data_ptr(), 4
            continue
        if not any(strides):
            words[slot] = x.view(torch.int32)[(0,) * x.dim()].item() & 0xFFFFFFFF
            continue
        loads.append((LOAD, slot, chain.words.size + len(sources), len(sources), 0))
        sources.append(x.data_ptr())
        layouts.append([len(sizes), *sizes, *strides] + [0] * (2 * MOST_DIMENSIONS - 2 * len(sizes)))
    for slot, result in enumerate(results, chain.inputs):
        places[slot], steps[slot] = result.data_ptr(), 4
    code = np.concatenate([np.array(loads, np.int64), chain.code]) if loads else chain.code
    at, moves = (np.array(x + y, np.int64) for x, y in ((places, sources), (steps, [0] * len(sources))))
    layout = np.array(layouts, np.int64).reshape(-1, 1 + 2 * MOST_DIMENSIONS)

    def part(first: int, last: int, _held: tuple = (inputs, results)) -> np.ndarray:
        memory, finite = np.empty((places.count(0), BLOCK), np.float32), np.ones(chain.checked.size, np.bool_)
        run_blocks(
            code, at, moves, words, layout, memory, chain.checked, finite, first * BLOCK, min(last * BLOCK, elements)
        )
        return finite

    return results, np.all(share(-(-elements // BLOCK), BLOCK * (1 + len(code) // 4), part), axis=0)


def _is_in_lines(x: Tensor) -> bool:
    """Whether `load` can read it."""
    sizes, strides = joined(x)
    return len(sizes) <= MOST_DIMENSIONS and strides[-1] <= 1


def joined(x: Tensor) -> tuple[list[int], list[int]]:
    """Sizes and strides with the dimensions joined that lie in one line."""
    sizes, strides = [], []
    for size, stride in zip(x.shape, x.stride(), strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == size * stride:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes, strides = [*sizes, size], [*strides, stride]
    return sizes or [1], strides or [0]

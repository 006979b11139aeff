"""Drawn and given orders of samples: with replacement, weighted, a list of indices, as integer operators of the step.

In: a builder and the number of samples per step. Out: their indices. Random words are Philox's, of (seed, step,
operator, element)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.random import randint

CELL = 2**31  # values of 31 bits of a word


def with_replacement(b: Builder, count: int, population: int) -> Value:
    """Each sample with equal probability, independent of earlier draws (but for the remainder: 31 random bits modulo
    the population)."""
    return randint(b, 0, population, (count,))


def weighted(b: Builder, count: int, weights: Sequence[float] | torch.Tensor, population: int) -> Value:
    """Each sample with a probability proportional to its weight, by Walker's alias method: a cell, and a threshold in
    it."""
    thresholds, aliases = alias_table(weights, population)
    cell = randint(b, 0, population, (count,))
    below = b.map(Function.ISHR, b.random_words((count,)), 1)
    threshold, other = (b.gather_rows(b.constant(torch.from_numpy(t)), cell) for t in (thresholds, aliases))
    return b.select(b.map(Function.ILT, below, threshold), cell, other)


def alias_table(weights: Sequence[float] | torch.Tensor, population: int) -> tuple[np.ndarray, np.ndarray]:
    """(thresholds, aliases), int32: cell i gives sample i below its threshold, else its alias; each cell has 2^31
    values, and all are used."""
    parts = _parts(weights, population)
    aliases, thresholds = list(range(population)), [0] * population
    small = [i for i in range(population) if parts[i] < CELL]
    large = [i for i in range(population) if parts[i] >= CELL]
    while small:
        i = small.pop()
        thresholds[i], aliases[i] = parts[i], large[-1]
        parts[large[-1]] -= CELL - parts[i]
        if parts[large[-1]] < CELL:
            small.append(large.pop())
    # the cells left in `large` are full: each is its own alias
    return np.array(thresholds, np.int32), np.array(aliases, np.int32)


def _parts(weights: Sequence[float] | torch.Tensor, population: int) -> list[int]:
    """The weights as integers whose sum is population * 2^31."""
    given = torch.as_tensor(weights, dtype=torch.float64).reshape(-1)
    if len(given) != population or not bool(((given >= 0) & given.isfinite()).all()) or not float(given.sum()) > 0:
        raise ProgramError(
            f"weights: {population} numbers are expected, one for each sample, none negative, not all 0; got "
            f"{len(given)}"
        )
    ratios = [float(w).as_integer_ratio() for w in given]
    scale = max(d for _, d in ratios)  # powers of two
    exact = [n * (scale // d) for n, d in ratios]
    total, whole = sum(exact), population * CELL
    parts = [n * whole // total for n in exact]
    parts[int(given.argmax())] += whole - sum(parts)
    return parts


def indices_of(order: Sequence[int] | torch.Tensor, population: int) -> torch.Tensor:
    """A given order as int32, checked."""
    given = torch.as_tensor(order)
    whole = given.dim() == 1 and given.numel() and given.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
    if not whole or int(given.min()) < 0 or int(given.max()) >= population:
        raise ProgramError(f"order: a list of sample numbers from 0 to {population - 1} is expected")
    return given.to(torch.int32)

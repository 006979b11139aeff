"""Philox words and shuffled sample indices as tensors (docs/formats.md section 5).

Twins: vgame/arithmetic/reference/philox.py, contracts/arithmetic/Philox.sol.
"""

from __future__ import annotations

import numpy as np
import torch

from vgame.arithmetic import gate
from vgame.arithmetic.numba.philox import fill_shuffle, fill_words
from vgame.arithmetic.reference.philox import MULTIPLIERS, ROUNDS, WEYL_INCREMENTS, WORD_MASK, split_key


def _multiply(x: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(high, low) 32-bit words of x * multiplier for words x in int64; no product exceeds 2^63."""
    low = x * (multiplier & 0xFFFF)
    high = x * (multiplier >> 16)
    carried = high + (low >> 16)
    return carried >> 16, ((carried & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(counter: list[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """Philox4x32-10 over int64 tensors that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL_INCREMENTS[0]) & WORD_MASK, (k1 + WEYL_INCREMENTS[1]) & WORD_MASK
    return [c0, c1, c2, c3]


def random_words(seed: int, step: int, operator: int, elements: int, clock: torch.Tensor) -> torch.Tensor:
    """The output of a PHILOX operator: int32 words, on the device of the clock; kernels read the step from the clock
    (int64 [1])."""
    if gate.in_use(clock.device):
        from vgame.arithmetic.triton import philox as gpu_random  # imported only where it runs

        return gpu_random.random_words(seed, clock, operator, elements)
    if clock.device.type == "cpu":
        words = np.empty(elements, np.uint32)
        fill_words(words, operator, step & WORD_MASK, step >> 32, *split_key(seed))
        return torch.from_numpy(words.view(np.int32))
    blocks = torch.arange(-(-elements // 4), device=clock.device)
    zero = torch.zeros_like(blocks)
    words = philox([blocks, zero + operator, zero + (step & WORD_MASK), zero + (step >> 32)], split_key(seed))
    return torch.stack(words, 1).reshape(-1)[:elements].to(torch.int32)


def shuffle_indices(seed: int, step: int, elements: int, population: int, clock: torch.Tensor) -> torch.Tensor:
    """The output of a SHUFFLE operator, the samples of a step. Few numbers: computed by a Triton kernel, or else on the
    host for every device."""
    if gate.in_use(clock.device):
        from vgame.arithmetic.triton import philox as gpu_random  # imported only where it runs

        return gpu_random.shuffle_indices(seed, clock, elements, population)
    indices = np.empty(elements, np.int32)
    fill_shuffle(indices, (step - 1) * elements, population, *split_key(seed))
    return torch.from_numpy(indices).to(clock.device)

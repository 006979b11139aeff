"""Philox and the shuffle as compiled loops. Twins: torch/philox.py (tensors), vgame/arithmetic/reference/philox.py
(reference), contracts/arithmetic/Philox.sol."""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from vgame.arithmetic.reference.philox import (
    BIT_STREAM,
    MULTIPLIERS,
    PIVOT_STREAM,
    ROUNDS,
    SHUFFLE_ROUNDS,
    WEYL_INCREMENTS,
)
from vgame.system.jit import compiled_loop

M0, M1 = map(np.uint64, MULTIPLIERS)
W0, W1 = map(np.uint32, WEYL_INCREMENTS)


@njit(inline="always", nogil=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 of one counter; all arguments and results are uint32."""
    for _ in range(ROUNDS):
        p0, p1 = M0 * uint64(c0), M1 * uint64(c2)
        c0, c1, c2, c3 = (
            uint32(uint32(p1 >> uint64(32)) ^ c1 ^ k0),
            uint32(p1),
            uint32(uint32(p0 >> uint64(32)) ^ c3 ^ k1),
            uint32(p0),
        )
        k0, k1 = uint32(k0 + W0), uint32(k1 + W1)
    return c0, c1, c2, c3


@compiled_loop()
def fill_words(out, operator, step_low, step_high, k0, k1):
    """out[e] = word e mod 4 of counter (e div 4, operator, step)."""
    for block in range((out.size + 3) // 4):
        words = philox(uint32(block), uint32(operator), uint32(step_low), uint32(step_high), uint32(k0), uint32(k1))
        for lane in range(min(4, out.size - 4 * block)):
            out[4 * block + lane] = words[lane]


@compiled_loop()
def fill_shuffle(out, first, population, k0, k1):
    """out[i] = swap-or-not image of position first + i within its epoch (docs/formats.md section 5)."""
    for i in range(out.size):
        position = first + i
        epoch, x = position // population, position % population
        low, high = uint32(epoch & 0xFFFFFFFF), uint32(epoch >> 32)
        words = (uint32(0), uint32(0), uint32(0), uint32(0))
        for r in range(SHUFFLE_ROUNDS):
            if r % 4 == 0:
                words = philox(uint32(r // 4), low, high, uint32(PIVOT_STREAM), uint32(k0), uint32(k1))
            pivot = np.int64((uint64(words[r % 4]) * uint64(population)) >> uint64(32))
            y = (pivot - x + population) % population
            top = max(x, y)
            bit = philox(uint32(top), low, uint32(r), uint32(BIT_STREAM + high), uint32(k0), uint32(k1))[0] & uint32(1)
            if bit:
                x = y
        out[i] = x

"""Philox words and the shuffle as Triton kernels. Twins: philox.py in torch/, numba/ and reference/.

In: the step's number in the device's memory, so that a recorded step can be replayed for any step. Out: int32 words,
sample indices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vgame.arithmetic.reference.philox import BIT_STREAM, MULTIPLIERS, PIVOT_STREAM, WEYL_INCREMENTS, split_key

BLOCK = 256

_M0, _M1 = (tl.constexpr(x) for x in MULTIPLIERS)
_W0, _W1 = (tl.constexpr(x) for x in WEYL_INCREMENTS)
_PIVOTS, _BITS = tl.constexpr(PIVOT_STREAM), tl.constexpr(BIT_STREAM)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10; all arguments and results are uint32 tensors."""
    for _ in tl.static_range(10):
        p0, p1 = c0.to(tl.uint64) * _M0, c2.to(tl.uint64) * _M1
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = p1.to(tl.uint32), p0.to(tl.uint32)
        k0, k1 = k0 + _W0, k1 + _W1
    return c0, c1, c2, c3


@triton.jit
def _word(value, like):
    """The low 32 bits of an integer, in the shape of `like`."""
    return (tl.zeros_like(like).to(tl.int64) + value).to(tl.uint32)


@triton.jit(do_not_specialize=["operator", "k0", "k1"])
def _fill_words(clock, out, operator, k0, k1, elements, BLOCK: tl.constexpr):
    """out[e] = word e mod 4 of the counter (e div 4, operator, step)."""
    step = tl.load(clock)
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = _philox(
        _word(0, counter) + counter.to(tl.uint32), _word(operator, counter), _word(step, counter),
        _word(step >> 32, counter), _word(k0, counter), _word(k1, counter),
    )  # fmt: skip
    place = counter.to(tl.int64) * 4
    for lane in tl.static_range(4):
        tl.store(out + place + lane, words[lane].to(tl.int32, bitcast=True), mask=place + lane < elements)


@triton.jit(do_not_specialize=["k0", "k1", "population"])
def _fill_shuffle(clock, out, k0, k1, elements, population, BLOCK: tl.constexpr):
    """out[i] = swap-or-not image of position (step - 1) * elements + i within its epoch (docs/formats.md section 5)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = (tl.load(clock) - 1) * elements + i
    epoch, x = position // population, position % population
    low, high = epoch.to(tl.uint32), (epoch >> 32).to(tl.uint32)
    first, second = _word(k0, x), _word(k1, x)
    for quarter in range(16):
        pivots = _philox(_word(quarter, x), low, high, _word(_PIVOTS, x), first, second)
        for lane in tl.static_range(4):
            pivot = ((pivots[lane].to(tl.uint64) * population.to(tl.uint64)) >> 32).to(tl.int64)
            y = (pivot - x + population) % population
            top = tl.maximum(x, y).to(tl.uint32)
            bits = _philox(top, low, _word(4 * quarter + lane, x), _word(_BITS, x) + high, first, second)
            x = tl.where((bits[0] & 1) != 0, y, x)
    tl.store(out + i, x.to(tl.int32), mask=i < elements)


def random_words(seed: int, clock: torch.Tensor, operator: int, elements: int) -> torch.Tensor:
    """Twin: torch/philox.py, random_words; clock: int64 [1], the step."""
    out = torch.empty(elements, dtype=torch.int32, device=clock.device)
    counters = triton.cdiv(elements, 4)
    _fill_words[(triton.cdiv(counters, BLOCK),)](
        clock, out, operator, *split_key(seed), elements, BLOCK=BLOCK, enable_fp_fusion=False
    )
    return out


def shuffle_indices(seed: int, clock: torch.Tensor, elements: int, population: int) -> torch.Tensor:
    """Twin: torch/philox.py, shuffle_indices; clock: int64 [1], the step."""
    out = torch.empty(elements, dtype=torch.int32, device=clock.device)
    _fill_shuffle[(triton.cdiv(elements, BLOCK),)](
        clock, out, *split_key(seed), elements, population, BLOCK=BLOCK, enable_fp_fusion=False
    )
    return out

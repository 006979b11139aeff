"""Facts about a row's bits for its sums: the number of non-zero terms, and their lowest bit.

In: binary32 rows. Out: per row the number of non-zeros and the quantum, the largest power of two that divides every
element (infinity for a row of zeros; undefined if an element is not finite).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vgame.arithmetic.certificate import OF_ZERO
from vgame.arithmetic.numba import compiled
from vgame.arithmetic.numba import operands as compiled_operands
from vgame.arithmetic.workspace import in_words, pass_size, spans


def row_facts(x: Tensor, blocks: list[slice]) -> tuple[Tensor, Tensor]:
    """(non-zeros int64 [B, R], quantum binary64 [B, R]) of binary32 or bfloat16 x [B, R, K], computed in blocks of
    K."""
    x = in_words(x)
    if compiled.in_use(x.device):
        return compiled_operands.row_facts(x)
    count = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
    exponent = torch.full(x.shape[:2], OF_ZERO, dtype=torch.int32, device=x.device)
    for k in blocks:
        for r in spans(x.shape[1], max(1, pass_size(x.device) // (x.shape[0] * (k.stop - k.start)))):
            lowest = lowest_bit(x[:, r, k])
            count[:, r] += (lowest != OF_ZERO).sum(-1)
            exponent[:, r] = torch.minimum(exponent[:, r], lowest.amin(-1))
    return count, power_of_two(exponent)


def no_facts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Initial facts of rows."""
    shape = x.shape[:2]
    return x.new_zeros(shape, dtype=torch.int64), x.new_full(shape, torch.inf, dtype=torch.float64)


def lowest_bit(x: Tensor) -> Tensor:
    """Exponent (int32) of the lowest set bit of each finite binary32 value; 1024 for zero."""
    word = x.contiguous().view(torch.int32) & 0x7FFFFFFF
    exponent = word >> 23
    word.bitwise_and_(0x7FFFFF).bitwise_or_((exponent > 0).int() << 23)
    exponent.clamp_(min=1)
    word.bitwise_and_(-word)  # a power of two below 2^24: its exponent is in the exponent field of its binary32 form
    exponent += (word.float().view(torch.int32) >> 23) - (127 + 150)
    return exponent.masked_fill_(word == 0, OF_ZERO)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in binary64, exponents -1022..1024."""
    return (exponent.long() + 1023 << 52).view(torch.float64)

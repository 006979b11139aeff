"""reduce_max and argmax: always exact; this file defines their results for NaN and zeros.

In: binary32 rows. Out: binary32 maxima, int32 positions.
Reference: vgame/arithmetic/reference/functions.py, reduce_max and argmax. Rules: docs/numerics-products.md, section 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vgame.arithmetic.torch.rounding_test import canonical_nan


@torch.no_grad()
def reduce_max(a: Tensor, block: int) -> Tensor:
    """out[r,j] = max of a[r, j*block .. min(length, (j+1)*block) - 1]; NaN wins; a zero is +0.

    a: binary32 [rows, length], any strides. Returns binary32 [rows, ceil(length / block)].
    """
    assert a.dtype == torch.float32 and a.dim() == 2 and block >= 1, "a binary32 tensor of rank 2, a positive block"
    whole = a.shape[1] // block
    out = torch.empty(a.shape[0], -(-a.shape[1] // block), dtype=torch.float32, device=a.device)
    if whole:
        out[:, :whole] = a[:, : whole * block].unflatten(1, (whole, block)).amax(-1)
    if whole < out.shape[1]:
        out[:, whole] = a[:, whole * block :].amax(-1)
    return canonical_nan(out.add_(0.0))


@torch.no_grad()
def argmax(a: Tensor) -> Tensor:
    """out[r] = first position of the maximum of a[r, :]; the first NaN if there is one; -0 equals +0.

    a: binary32 [rows, length], any strides. Returns int32 [rows]. torch.argmax returns the first of equal maxima.
    """
    assert a.dtype == torch.float32 and a.dim() == 2, "a binary32 tensor of rank 2"
    return a.argmax(-1).int()

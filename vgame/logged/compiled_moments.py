"""The moments of a sum in a compiled loop: the integers that decide an entry of the log (admissible.py).

In: two rows of binary32 numbers. Out: the moments of the sum of their products. Twin: admissible.moments_dot.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.reference.sums import Partial
from vgame.logged.admissible import NO_TERM, Moments
from vgame.logged.rounding import compile_loop

#: Limbs of 32 bits, from 2^-298 up to 2^342.
LIMBS = 20


@compile_loop
def _add_up(x, y, limbs):
    """limbs [3, LIMBS]: of the sum of the x[k] y[k], of the sum of their magnitudes, of the OR of these; whether all
    x[k], y[k] are finite.

    SAFETY: a limb receives less than 2^32 per term, so that 63 bits hold 2^31 terms.
    """
    for k in range(x.size):
        a, b = np.int64(x[k]), np.int64(y[k])
        e, f = (a >> 23) & 255, (b >> 23) & 255
        if e == 255 or f == 255:
            return False
        p = ((a & 0x7FFFFF) | (np.int64(e > 0) << 23)) * ((b & 0x7FFFFF) | (np.int64(f > 0) << 23))
        shift = max(e, 1) + max(f, 1) - 2
        l, r = shift >> 5, shift & 31
        low, high = (p & 0xFFFFFFFF) << r, (p >> 32) << r
        sign = -1 if a ^ b < 0 else 1
        for i, part in ((0, low & 0xFFFFFFFF), (1, (low >> 32) | (high & 0xFFFFFFFF)), (2, high >> 32)):
            limbs[0, l + i] += sign * part
            limbs[1, l + i] += part
            limbs[2, l + i] |= part
    return True


def moments(x: Tensor, y: Tensor) -> Moments | None:
    """The moments of sum_k x[k] y[k], binary32 [K], K up to 2^31; None if one of the numbers is not finite."""
    limbs = np.zeros((3, LIMBS), np.int64)
    if not _add_up(*(row.cpu().contiguous().view(torch.int32).numpy() for row in (x, y)), limbs):
        return None
    value, magnitude, ored = (sum(limb << 32 * i for i, limb in enumerate(row)) for row in limbs.tolist())
    return Moments(Partial(0, value), magnitude, (ored & -ored).bit_length() - 1 if ored else NO_TERM)

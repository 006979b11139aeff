"""Correctly rounded products and sums, on any device: the interface of this package.

In: binary32 and int32 tensors. Out: tensors whose every bit is a mathematical function of the operands, independent of
kernel, order, thread count, device and vendor. Each function has a twin on words in
vgame/arithmetic/reference/functions.py.

The path of an element (docs/numerics-products.md proves each step):
vendor's binary64 sum -> rounding test (rounding_test) -> exactness test (row_facts) -> exact tier (exact, slices).

Each step is torch passes on any device; on a CPU compiled loops (numba/), on CUDA Triton kernels (triton/) take their
place and give the same words. Convolutions of 3 x 3 begin with other approximate sums (convolutions.py).
"""

from vgame.arithmetic.certificate import Counts, counting
from vgame.arithmetic.numba.products import own_kernels
from vgame.arithmetic.torch.convolutions import dot, is_filtered
from vgame.arithmetic.torch.maxima import argmax, reduce_max
from vgame.arithmetic.torch.one_hot import narrow_one_hot_sum, one_hot_sum
from vgame.arithmetic.torch.rounding_test import is_at_worst
from vgame.arithmetic.torch.sums import narrow_rows, sum_rows
from vgame.arithmetic.vendor import NATIVE, EmulatedBinary64, Vendor, reversed_order, using, vendor

__all__ = [
    "Counts",
    "EmulatedBinary64",
    "Vendor",
    "argmax",
    "counting",
    "dot",
    "is_filtered",
    "is_native",
    "narrow_one_hot_sum",
    "narrow_rows",
    "one_hot_sum",
    "own_kernels",
    "reduce_max",
    "reversed_order",
    "sum_rows",
    "using",
]


def is_native() -> bool:
    """Whether sums are computed by the usual kernels: neither replaced (`using`) nor timed in the worst case."""
    return vendor() is NATIVE and not is_at_worst()

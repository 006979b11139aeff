"""Remainders of rounded sums of products, for a few sums: compiled loops. Twin: torch/exact.py, exact_sums.

In: words that are the RN32 of sums, and their rows. Out: for each a binary64 number with the sign of (exact sum -
word), and whether its sign is uncertain. Numbers are added in two parts (T. Ogita, S. M. Rump, S. Oishi, "Accurate sum
and dot product", SIAM J. Sci. Comput. 26, 2005): the lower part adds up the errors of the upper part. If it does so
without an error of its own, both parts together are the exact sum (so a tie gives 0); else their error is below
K^2 2^-105 times the sum of magnitudes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import compile_loop
from vgame.system.threads import share

#: Twice the largest error, per square of the number of terms and sum of magnitudes.
ERROR = 2.0**-104


@compile_loop
def _add(places, words, shape, a, b, rest, unsure, first, last):
    """Remainders of the sums at places first..last-1."""
    rows, columns = shape
    x, begins_x, terms_x, shared_x = a
    y, begins_y, terms_y, shared_y = b
    for e in range(first, last):
        u, n = places[e] // columns, places[e] % columns
        at = begins_x[u % rows if shared_x else u]
        to = begins_y[n if shared_y else u // rows * columns + n]
        high, low, size, exact = -words[e], 0.0, abs(words[e]), True
        for k in range(terms_x.size):
            product = np.float64(x[at + terms_x[k]]) * np.float64(y[to + terms_y[k]])
            size += abs(product)
            total = high + product
            second = total - high
            error = (high - (total - second)) + (product - second)
            high, total = total, low + error
            second = total - low
            exact = exact and (low - (total - second)) + (error - second) == 0.0
            low = total
        rest[e] = high + low
        terms = np.float64(terms_x.size + 1)
        unsure[e] = not exact and not abs(rest[e]) > size * (terms * terms * ERROR)


def remainders(places: Tensor, words: Tensor, shape: tuple[int, int], a: tuple, b: tuple) -> tuple[Tensor, Tensor]:
    """(binary64 with the sign of sum - word, whether the sign is uncertain) at the flat places (int64) of a result [B,
    *shape].

    words: binary64. a, b: (memory, offsets of the rows, offsets of their terms, whether one batch is shared).
    """
    rest, unsure = torch.empty_like(words), torch.empty(words.shape, dtype=torch.bool)
    arrays = places.numpy(), words.numpy(), shape, a, b, rest.numpy(), unsure.numpy()
    share(places.numel(), a[2].size, lambda first, last: _add(*arrays, first, last))
    return rest, unsure

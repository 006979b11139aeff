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

from vgame.arithmetic.numba.compiled import compile_loop, flat, real
from vgame.arithmetic.numba.narrow import is_midpoint, side_of, to_bfloat16
from vgame.system.threads import share

#: Twice the largest error, per square of the number of terms and sum of magnitudes.
ERROR = 2.0**-104
_ZERO = np.float32(0.0)


@compile_loop
def _remainder(place, word, shape, a, b):
    """(a number with the sign of the sum at a place less a word, whether its sign is uncertain)."""
    rows, columns = shape
    x, begins_x, terms_x, shared_x = a
    y, begins_y, terms_y, shared_y = b
    u, n = place // columns, place % columns
    at = begins_x[u % rows if shared_x else u]
    to = begins_y[n if shared_y else u // rows * columns + n]
    high, low, size, exact = -word, 0.0, abs(word), True
    for k in range(terms_x.size):
        product = np.float64(real(x[at + terms_x[k]])) * np.float64(real(y[to + terms_y[k]]))
        size += abs(product)
        total = high + product
        second = total - high
        error = (high - (total - second)) + (product - second)
        high, total = total, low + error
        second = total - low
        exact = exact and (low - (total - second)) + (error - second) == 0.0
        low = total
    rest, terms = high + low, np.float64(terms_x.size + 1)
    return rest, not exact and not abs(rest) > size * (terms * terms * ERROR)


@compile_loop
def _add(places, words, shape, a, b, rest, unsure, first, last):
    """Remainders of the sums at places first..last-1."""
    for e in range(first, last):
        rest[e], unsure[e] = _remainder(places[e], words[e], shape, a, b)


@compile_loop
def _narrow(places, shape, a, b, out, strides, left, first, last):
    """The words of `out` at places first..last-1, RN32 of the sums, become RN8; places of which the remainder's sign is
    uncertain are written to `left`, from `first` on. Returns their number."""
    rows, columns = shape
    words, number = out.view(np.int32), 0
    for e in range(first, last):
        u, n = places[e] // columns, places[e] % columns
        at = u // rows * strides[0] + u % rows * strides[1] + n
        rest, unsure = 0.0, False
        if is_midpoint(words[at]):
            rest, unsure = _remainder(places[e], np.float64(out[at]), shape, a, b)
        if unsure:
            left[first + number] = places[e]
            number += 1
        else:
            words[at] = to_bfloat16(words[at], side_of(rest, 0.0))
            out[at] += _ZERO  # a zero is +0
    return number


def remainders(places: Tensor, words: Tensor, shape: tuple[int, int], a: tuple, b: tuple) -> tuple[Tensor, Tensor]:
    """(binary64 with the sign of sum - word, whether the sign is uncertain) at the flat places (int64) of a result [B,
    *shape].

    words: binary64. a, b: (memory, offsets of the rows, offsets of their terms, whether one batch is shared).
    """
    rest, unsure = torch.empty_like(words), torch.empty(words.shape, dtype=torch.bool)
    arrays = places.numpy(), words.numpy(), shape, a, b, rest.numpy(), unsure.numpy()
    share(places.numel(), a[2].size, lambda first, last: _add(*arrays, first, last))
    return rest, unsure


def narrow_places(places: Tensor, out: Tensor, a: tuple, b: tuple) -> Tensor:
    """The words of a result [B, M, N] at flat places (int32), RN32 of sums, become RN8 of them; returns the places of
    which the remainder's sign is uncertain, and whose words have not changed. a, b: as for `remainders`."""
    left = torch.empty_like(places)
    arrays = places.numpy(), tuple(out.shape[1:]), a, b, flat(out), out.stride()[:2], left.numpy()

    def run(first: int, last: int) -> Tensor:
        return left[first : first + _narrow(*arrays, first, last)]

    return torch.cat(share(places.numel(), a[2].size, run))

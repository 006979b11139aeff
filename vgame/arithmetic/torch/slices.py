"""Exact products of many elements at once: operands are cut into slices whose products add up exactly in any order.

In: operand rows and the open positions. Out: their exact sums, from a few vendor products of the whole tile. This pays
if a large share of a tile is open (cancellation, ties that the exactness test does not detect): gathering K terms per
element costs more than a hundred times as much as a vendor product. Source: K. Ozaki, T. Ogita, S. Oishi, S. M. Rump,
"Error-free transformations of matrix multiplication by using fast routines of matrix multiplication", Numer. Algorithms
59 (2012). Proof: docs/numerics-products.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vgame.arithmetic.torch.exact import Rows, exact_sums, power_above
from vgame.arithmetic.vendor import vendor
from vgame.arithmetic.workspace import scratch, widen


def slice_bits(k: int) -> int:
    """beta with k * 2^(2 beta) * (1 + 2^-beta)^2 <= 2^53: products of two slices of beta bits add up exactly."""
    return (52 - (k - 1).bit_length()) // 2


def slices_needed(norm: Tensor, quantum: Tensor, bits: int) -> int:
    """Number of slices that represent every row with these bounds on its magnitudes and these quanta."""
    span = torch.frexp(power_above(norm))[1] - torch.frexp(quantum.clamp(max=2.0**200))[1]
    return max(1, -(-(int(span.max()) + 1) // bits))


def sum_slices(a: Tensor, b: Tensor, at: tuple, bounds: tuple, counts: tuple[int, int], blocks: list[slice]) -> Tensor:
    """Exact tier's value (binary64) of the products of a [Ba, M, K] and b [Bb, N, K] at the positions (i, m, n).

    bounds: binary64 [Ba, M], [Bb, N], at least the rows' norms; counts: numbers of slices that represent a and b
    exactly.
    """
    shape = (max(a.shape[0], b.shape[0]), a.shape[1], b.shape[1])
    bits = slice_bits(a.shape[2])
    terms = torch.zeros(at[0].numel(), counts[0] * counts[1], dtype=torch.float64, device=a.device)
    for k in blocks:
        pairs = iter(terms.unbind(1))
        for high in _cut(a[..., k], bounds[0], bits, counts[0], "a"):
            for low in _cut(b[..., k], bounds[1], bits, counts[1], "b"):
                product = scratch("product", shape, torch.float64, a.device)
                vendor().product(high, low, product)
                next(pairs).add_(product[at])
    bound = terms.abs().sum(-1).mul_(1 + 2.0**-20)
    every = torch.arange(len(terms), device=a.device)
    return exact_sums(Rows(terms.shape[1], lambda e, k: terms[e, k]), every, bound)


def _cut(x: Tensor, bound: Tensor, bits: int, count: int, slot: str) -> Iterator[Tensor]:
    """x = the sum of `count` slices, each of `bits` bits below the previous one. A slice is valid until the next."""
    rest = widen(x, slot)
    part = torch.empty_like(rest)
    sigma = power_above(bound).unsqueeze(-1) * 2.0 ** (53 - bits)
    for _ in range(count):
        torch.add(rest, sigma, out=part).sub_(sigma)
        rest -= part
        sigma *= 2.0**-bits
        yield part

"""RN to bfloat16: 8 significant bits in a binary32 word, from the exact value's RN to binary32 and the side of that
word on which the value lies.

In: words that are RN32 of exact values, and for words that are midpoints of the 8-bit grid the sign of the remainder.
Out: RN8 of the exact values. Every midpoint of the 8-bit grid is a binary32 number and rounding is monotone, so RN8 of
the word is RN8 of the value, unless the word is a midpoint and the value is not; then the value's side decides
(docs/numerics-bf16.md). Twin: round_to_binary32(.., 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.numba.compiled import compile_loop, flat, in_use
from vgame.arithmetic.numba.narrow import high_halves
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.torch import elementary
from vgame.arithmetic.workspace import new
from vgame.system.threads import share

MAGNITUDE, INFINITY, NAN = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
HALF, LOW = 0x8000, 0xFFFF
#: Relative error bound (generous) of the binary64 values of elementary functions: a value that is this near to a
#: midpoint does not decide.
VAGUE = 2.0**-40
#: Functions with f(x) = x + a term; at a midpoint x the sign of the term decides (`_next_term`).
IDENTITIES = (Function.SIN, Function.TANH, Function.EXPM1, Function.LOG1P)
SMALL = 2.0**-10


def nearest(x: Tensor) -> Tensor:
    """RN8 of binary32 values; any NaN becomes the one NaN."""
    return _packed(x.view(torch.int32))


def narrowed(x: Tensor, rest: Tensor) -> Tensor:
    """RN8(exact), given x = RN32(exact) and a `rest` with the sign of exact - x (NaN counts as 0)."""
    words = x.view(torch.int32)
    outward = (rest > 0) == (words >= 0)
    moved = ((rest > 0) | (rest < 0)) & (words & 1 == 0) & (words & MAGNITUDE < INFINITY)
    return _packed(words + torch.where(moved, torch.where(outward, 1, -1), 0).to(torch.int32))  # to odd


def _packed(words: Tensor) -> Tensor:
    """RN8 of words, ties to even."""
    rounded = words + ((words >> 16 & 1) + (HALF - 1)) & ~LOW
    return torch.where(words & MAGNITUDE > INFINITY, NAN, rounded).view(torch.float32)


# --- functions of a map ---


def pointwise(function: Function, x: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """RN8(f(operands)), given x = RN32(f(operands)), of the broadcast shape."""
    if function in ELEMENTARY:
        return _elementary(function, x.contiguous(), operands[0].expand(x.shape))
    rest = _rest(function, x.double(), [o.double() for o in operands])
    return nearest(x) if rest is None else narrowed(x, rest)


def _rest(function: Function, x: Tensor, operands: Sequence[Tensor]) -> Tensor | None:
    """A number with the sign of f(operands) - x, all binary64; None if x is always exact.

    SAFETY: products of two binary32 numbers are exact, and the sign of a rounded difference is that of the difference.
    """
    if function in (Function.ADD, Function.SUB):
        a, b = operands if function is Function.ADD else (operands[0], -operands[1])
        total = a + b
        second = total - a
        error = (a - (total - second)) + (b - second)
        return torch.where(total == x, error, total - x)
    if function is Function.MUL:
        return operands[0] * operands[1] - x
    if function is Function.DIV:
        return (operands[0] - x * operands[1]) * torch.copysign(torch.ones_like(operands[1]), operands[1])
    if function is Function.SQRT:
        return operands[0] - x * x
    return operands[0] - x if function is Function.ITOF else None


def _elementary(function: Function, x: Tensor, argument: Tensor) -> Tensor:
    """As `pointwise`, for an elementary function: only midpoints are computed again."""
    result, places = rounded(x)
    if places.numel():
        words = x.reshape(-1)[places]
        rest = _rest_of_series(function, words, argument.reshape(-1)[places].contiguous())
        result.view(-1)[places] = narrowed(words, rest)
    return result


def _rest_of_series(function: Function, x: Tensor, argument: Tensor) -> Tensor:
    """A number with the sign of f(argument) - x, for a few x that are midpoints: by the binary64 value, the next term,
    or the reference."""
    rest = elementary.evaluate_wide(function, argument) - x.double()
    vague = rest.abs() <= x.double().abs() * VAGUE
    if function in IDENTITIES:
        near = vague & (x == argument) & (x.abs() < SMALL)
        rest = torch.where(near, _next_term(function, x.double()), rest)
        vague &= ~near
    for i in vague.nonzero().squeeze(-1).tolist():
        word = int(argument[i].view(torch.int32)) & 0xFFFFFFFF
        right = torch.tensor([reference.evaluate(function, word, bits=reference.BFLOAT16_BITS)]).to(torch.int32)
        rest[i] = right.view(torch.float32).double()[0] - x[i].double()
    return rest


def _next_term(function: Function, x: Tensor) -> Tensor:
    """A number with the sign of the first term of f(x) - x: -x^3 / 6, -x^3 / 3, x^2 / 2, -x^2 / 2."""
    if function in (Function.SIN, Function.TANH):
        return -x
    return torch.ones_like(x) if function is Function.EXPM1 else -torch.ones_like(x)


# --- sums ---


def narrow_sums(x: Tensor, rest_of: Callable[[Tensor, Tensor], Tensor]) -> None:
    """x, RN32 of exact sums, becomes RN8 of them, in place.

    rest_of(flat positions, the words there in binary64): numbers with the sign of exact sum - word.
    """
    result, places = rounded(x)
    if places.numel():
        words = x.reshape(-1)[places]
        result.view(-1)[places] = narrowed(words, rest_of(places, words.double()))
    torch.add(result, 0.0, out=x)  # a zero is +0


def halve(x: Tensor, out: Tensor) -> None:
    """out [B, M, N], bfloat16, = x, which holds such words in binary32; both have contiguous rows."""
    words, halves = x.view(torch.int32).numpy().view(np.uint32), out.view(torch.int16).numpy().view(np.uint16)
    for batch, to in zip(words, halves, strict=True):
        _halve_rows(batch, to)


@compile_loop
def _halve_rows(words, out):
    for i in range(len(words)):
        high_halves(words[i], out[i])


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """(RN8 of x, contiguous; flat positions (int64) of x that are midpoints)."""
    if not in_use(x.device):
        return nearest(x.contiguous()), (x.contiguous().view(torch.int32) & LOW == HALF).reshape(-1).nonzero().squeeze(
            -1
        )
    source = x.contiguous()
    result, found = new(source.shape, source.dtype), torch.empty(source.numel(), dtype=torch.int64)
    words, out, places = flat(source.view(-1)).view("i4"), flat(result.view(-1)).view("i4"), found.numpy()

    def run(first: int, last: int) -> Tensor:
        return found[first : first + _nearest(words[first:last], out[first:last], places[first:last], first)]

    return result, torch.cat(share(source.numel(), 2, run))


@compile_loop
def _nearest(words, out, found, first):
    """out = RN8 of words; found: the positions, from `first` on, of the words that are midpoints; returns their
    number."""
    marks = 0
    for i in range(words.size):
        word = words[i]
        rounded = (word + (0x7FFF + (word >> 16 & 1))) & -0x10000
        out[i] = 0x7FC00000 if word & 0x7FFFFFFF > 0x7F800000 else rounded
        marks += (word & 0xFFFF) == 0x8000
    number = 0
    if marks:
        for i in range(words.size):
            if (words[i] & 0xFFFF) == 0x8000:
                found[number] = first + i
                number += 1
    return number

"""Compiled loops that round words to bfloat16, from binary32 roundings and operands: RN8 of the exact values; and their
high halves.

Twin: vgame/arithmetic/torch/narrow.py. Proof: docs/numerics-bf16.md, section 1.
"""

from __future__ import annotations

import numpy as np

from vgame.arithmetic.numba.codes import ADD, DIV, ITOF, MUL, SQRT, SUB
from vgame.arithmetic.numba.compiled import compile_loop

_ZERO, _NOT_FINITE = np.float32(0.0), np.int32(0x7F800000)
#: Constants with a type, so that a loop over words of 32 bits does not widen them.
_MAGNITUDE, _KEPT, _NAN = np.int32(0x7FFFFFFF), np.int32(0x7FFF0000), np.int32(0x7FC00000)
_NONE, _ONE, _CUT, _BELOW_HALF = np.int32(0), np.int32(1), np.int32(16), np.int32(0x7FFF)
_LOW_HALF, _TIE = np.int32(0xFFFF), np.int32(0x8000)
#: Bits of a half.
HALF = np.uint32(16)


@compile_loop
def _cut(word, magnitude, odd):
    """The nearest word of 8 bits, ties to even."""
    rounded = np.int32((odd + (_BELOW_HALF + ((odd >> _CUT) & _ONE))) & _KEPT) | (word & ~_MAGNITUDE)
    special = word if magnitude == _NOT_FINITE else _NAN
    return np.int32(special if magnitude >= _NOT_FINITE else rounded)


@compile_loop
def _has_midpoint(words):
    """Whether one of the words is a midpoint."""
    found = _NONE
    for i in range(words.size):
        found = np.int32(found | np.int32(is_midpoint(words[i])))
    return found != _NONE


@compile_loop
def to_bfloat16(word, side):
    """RN8 of an exact value, given its RN32 and the side on which the exact value is: 1 above, -1 below, 0 equal. Twin:
    vgame/arithmetic/torch/narrow.py, narrowed. Without branches and in 32 bits, so that a loop of it is vectorised."""
    magnitude = word & _MAGNITUDE
    inexact = np.int32(side & _ONE & ~magnitude)
    outward = np.int32(magnitude + inexact) if (side > _NONE) == (word >= _NONE) else magnitude - inexact
    return _cut(word, magnitude, np.int32(outward))  # to odd


@compile_loop
def is_midpoint(word):
    """Whether a word is a midpoint of 8 bits."""
    return (word & _LOW_HALF) == _TIE


@compile_loop
def sum_rest(a, b, total):
    """a + b - total, exactly, if total = RN32(a + b) is finite (Dekker's Fast2Sum)."""
    larger = abs(a) >= abs(b)
    return (b if larger else a) - (total - (a if larger else b))


@compile_loop
def narrow_results(code, x, y, out):
    """out = RN8 of the results of `code`, given their binary32 roundings in `out`.

    Only words that are midpoints of 8 bits need the side of the exact value, so it is computed for a block that has
    some; other functions are exact.
    """
    words = out.view(np.int32)
    if code not in (ADD, SUB, MUL, DIV, SQRT, ITOF) or not _has_midpoint(words):
        for i in range(words.size):
            words[i] = _cut(words[i], words[i] & _MAGNITUDE, words[i] & _MAGNITUDE)
        return
    sides = np.empty(out.size, np.int32)
    if code == ADD:
        for i in range(out.size):
            sides[i] = side_of(sum_rest(x[i], y[i], out[i]), _ZERO)
    elif code == SUB:
        for i in range(out.size):
            sides[i] = side_of(sum_rest(x[i], -y[i], out[i]), _ZERO)
    else:
        _compare_exactly(code, x, y, out, sides)
    for i in range(out.size):
        words[i] = to_bfloat16(words[i], sides[i])


@compile_loop
def side_of(a, b):
    """1 if a > b, -1 if a < b, else 0, as for NaN."""
    return np.int32(np.int32(a > b) - np.int32(a < b))


@compile_loop
def _compare_exactly(code, x, y, out, sides):
    """The sides of products, quotients, roots and integers. Products of two words are exact in binary64."""
    if code == MUL:
        for i in range(out.size):
            sides[i] = side_of(np.float64(x[i]) * np.float64(y[i]), np.float64(out[i]))
    elif code == DIV:
        for i in range(out.size):
            sign = np.copysign(1.0, np.float64(y[i]))
            sides[i] = side_of(sign * np.float64(x[i]), sign * (np.float64(out[i]) * np.float64(y[i])))
    elif code == SQRT:
        for i in range(out.size):
            sides[i] = side_of(np.float64(x[i]), np.float64(out[i]) * np.float64(out[i]))
    else:
        integers = x.view(np.int32)
        for i in range(out.size):
            sides[i] = side_of(np.float64(integers[i]), np.float64(out[i]))


@compile_loop
def high_halves(words, out):
    """out, uint16, = the high halves of words, uint32."""
    for i in range(words.size):
        out[i] = words[i] >> HALF

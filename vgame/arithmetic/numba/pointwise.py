"""Chains of pointwise functions as one compiled pass. Twin: vgame/execute/kernels.py, one function at a time.

In: instructions over slots, and the addresses of the slots. Out: the words of every slot in memory; intermediate values
are in blocks that fit the first cache, and are not written to memory.

Every instruction is a loop of its own over a block, so no product can be contracted with a sum, and the bits are those
of the single IEEE instructions. No loop uses fast-math.
"""

from __future__ import annotations

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

from vgame.arithmetic.numba.compiled import compile_loop, in_use
from vgame.system.threads import share

#: Words of a block.
BLOCK = 1024
#: Dimensions of a strided operand after contiguous ones have been joined.
MOST_DIMENSIONS = 8
#: The instruction that copies a block of strided words; all others are codes of vgame.arithmetic.functions.
LOAD = 255
#: Added to a function whose result is rounded to bfloat16, once.
NARROW = 128

# The codes of functions.py that a chain may have; tests/unit/test_pointwise.py compares them.
NEG, ABS, SQRT, FLOOR, CEIL, TRUNC, ROUND, CAST = 1, 2, 3, 13, 14, 15, 16, 17
ADD, SUB, MUL, DIV, MAX, MIN = 32, 33, 34, 35, 36, 37
EQ, NE, LT, LE = 48, 49, 50, 51
IADD, ISUB, IMUL, IDIV, IMOD, IAND, IOR, IXOR, ISHL, ISHR, IMAX, IMIN = range(64, 76)
IEQ, INE, ILT, ILE, ULT = range(80, 85)
ITOF, FTOI, SELECT = 96, 97, 112

_ZERO, _NOT_FINITE = np.float32(0.0), np.int32(0x7F800000)
#: Constants with a type, so that a loop over words of 32 bits does not widen them.
_MAGNITUDE, _KEPT, _NAN = np.int32(0x7FFFFFFF), np.int32(0x7FFF0000), np.int32(0x7FC00000)
_NONE, _ONE, _CUT, _BELOW_HALF = np.int32(0), np.int32(1), np.int32(16), np.int32(0x7FFF)
_LEAST, _LARGEST = -(2.0**31), 2.0**31 - 1.0


@intrinsic
def _pointer(_context, address):
    """The address as a pointer."""

    def generate(_, builder, __, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@compile_loop
def _unary(code, x, out):
    """out = f(x), binary32."""
    if code == NEG:
        for i in range(x.size):
            out[i] = -x[i]
    elif code == ABS:
        for i in range(x.size):
            out[i] = abs(x[i])
    elif code == SQRT:
        for i in range(x.size):
            out[i] = np.sqrt(x[i])
    elif code == FLOOR:
        for i in range(x.size):
            out[i] = np.floor(x[i])
    elif code == CEIL:
        for i in range(x.size):
            out[i] = np.ceil(x[i])
    elif code == TRUNC:
        for i in range(x.size):
            out[i] = np.trunc(x[i])
    elif code == CAST:  # an assignment of the whole array takes numba two seconds to compile
        for i in range(x.size):
            out[i] = x[i]
    else:
        for i in range(x.size):
            out[i] = np.rint(x[i])


@compile_loop
def _binary(code, x, y, out):
    """out = f(x, y), binary32."""
    if code == ADD:
        for i in range(x.size):
            out[i] = x[i] + y[i]
    elif code == SUB:
        for i in range(x.size):
            out[i] = x[i] - y[i]
    elif code == MUL:
        for i in range(x.size):
            out[i] = x[i] * y[i]
    elif code == DIV:
        for i in range(x.size):
            out[i] = x[i] / y[i]
    elif code == MAX:
        for i in range(x.size):
            out[i] = (x[i] if (x[i] > y[i]) | (x[i] != x[i]) else y[i]) + _ZERO
    else:
        for i in range(x.size):
            out[i] = (x[i] if (x[i] < y[i]) | (x[i] != x[i]) else y[i]) + _ZERO


@compile_loop
def _compare(code, x, y, out):
    """out = 1 or 0, int32, of two binary32 or two int32 arrays."""
    if code == EQ:
        for i in range(x.size):
            out[i] = x[i] == y[i]
    elif code == NE:
        for i in range(x.size):
            out[i] = x[i] != y[i]
    elif code == LT:
        for i in range(x.size):
            out[i] = x[i] < y[i]
    else:
        for i in range(x.size):
            out[i] = x[i] <= y[i]


@compile_loop
def _integer(code, x, y, out):
    """out = f(x, y), int32 modulo 2^32."""
    if code == IADD:
        for i in range(x.size):
            out[i] = x[i] + y[i]
    elif code == ISUB:
        for i in range(x.size):
            out[i] = x[i] - y[i]
    elif code == IMUL:
        for i in range(x.size):
            out[i] = x[i] * y[i]
    elif code == IDIV:
        for i in range(x.size):
            out[i] = np.int64(x[i]) // np.int64(y[i]) if y[i] != 0 else 0
    elif code == IMOD:
        for i in range(x.size):
            out[i] = np.int64(x[i]) % np.int64(y[i]) if y[i] != 0 else 0
    elif code == IMAX:
        for i in range(x.size):
            out[i] = max(x[i], y[i])
    else:
        for i in range(x.size):
            out[i] = min(x[i], y[i])


@compile_loop
def _bitwise(code, x, y, out):
    """out = f(x, y), words."""
    if code == IAND:
        for i in range(x.size):
            out[i] = x[i] & y[i]
    elif code == IOR:
        for i in range(x.size):
            out[i] = x[i] | y[i]
    elif code == IXOR:
        for i in range(x.size):
            out[i] = x[i] ^ y[i]
    elif code == ISHL:
        for i in range(x.size):
            out[i] = x[i] << (y[i] & 31)
    elif code == ISHR:
        for i in range(x.size):
            out[i] = x[i] >> (y[i] & 31)
    else:  # ULT
        for i in range(x.size):
            out[i] = x[i] < y[i]


@compile_loop
def _to_integer(x, out):
    """Toward zero, saturating; NaN gives 0."""
    for i in range(x.size):
        wide = np.float64(x[i])
        wide = wide if wide > _LEAST else _LEAST
        wide = wide if wide < _LARGEST else _LARGEST
        out[i] = 0 if x[i] != x[i] else np.int32(wide)


@compile_loop
def _to_float(x, out):
    """int32 -> binary32, to nearest even."""
    for i in range(x.size):
        out[i] = np.float32(x[i])


@compile_loop
def _select(condition, x, y, out):
    """out = x where the condition is not 0, else y; words."""
    for i in range(x.size):
        a, b = x[i], y[i]  # reads both, so that the loop can use vectors
        out[i] = a if condition[i] != 0 else b


@compile_loop
def load(source, layout, start, out):
    """out = the words from `start` on of an operand (`is_in_lines`). layout: its rank, sizes and strides, int64; the
    last stride is 0 or 1."""
    rank = layout[0]
    sizes, strides = layout[1 : 1 + rank], layout[1 + rank : 1 + 2 * rank]
    index, rest, at = np.zeros(MOST_DIMENSIONS, np.int64), start, 0
    for d in range(rank - 1, -1, -1):
        index[d] = rest % sizes[d]
        rest //= sizes[d]
        at += index[d] * strides[d]
    inner, step, done = sizes[rank - 1], strides[rank - 1], 0
    while done < out.size:
        count = min(inner - index[rank - 1], out.size - done)
        target = out[done : done + count]
        if step == 1:
            line = source[at : at + count]  # a slice, which lets the compiler use vectors
            for i in range(count):
                target[i] = line[i]
        else:
            word = source[at]
            for i in range(count):
                target[i] = word
        done += count
        at -= index[rank - 1] * step
        index[rank - 1] = 0
        d = rank - 2
        while d >= 0:
            index[d] += 1
            at += strides[d]
            if index[d] < sizes[d]:
                break
            at -= sizes[d] * strides[d]
            index[d] = 0
            d -= 1


@compile_loop
def _apply(code, x, y, z, out):
    """One instruction on blocks of binary32 words (int32 for functions of integers)."""
    if code < ADD:
        _unary(code, x, out)
    elif code < EQ:
        _binary(code, x, y, out)
    elif code < IADD:
        _compare(code, x, y, out.view(np.int32))
    elif code <= IMOD or code in (IMAX, IMIN):
        _integer(code, x.view(np.int32), y.view(np.int32), out.view(np.int32))
    elif code < IMAX or code == ULT:
        _bitwise(code, x.view(np.uint32), y.view(np.uint32), out.view(np.uint32))
    elif code < ITOF:
        _compare(code - IEQ + EQ, x.view(np.int32), y.view(np.int32), out.view(np.int32))
    elif code == ITOF:
        _to_float(x.view(np.int32), out)
    elif code == FTOI:
        _to_integer(x, out.view(np.int32))
    else:
        _select(x.view(np.int32), y.view(np.int32), z.view(np.int32), out.view(np.int32))


@compile_loop
def _to_bfloat16(word, rest):
    """RN8 of an exact value; word: its RN32, rest: a number with the sign of the remainder. Twin:
    vgame/arithmetic/torch/narrow.py, narrowed. Without branches and in 32 bits, so that a loop of it is vectorised."""
    magnitude = word & _MAGNITUDE
    inexact = np.int32((rest > 0.0) | (rest < 0.0)) & (_ONE & ~magnitude)
    away = np.int32((rest > 0.0) == (word >= _NONE))
    odd = magnitude + inexact * (away + away - _ONE)  # to odd
    return _cut(word, magnitude, odd)


@compile_loop
def _cut(word, magnitude, odd):
    """The nearest word of 8 bits, ties to even."""
    rounded = ((odd + (_BELOW_HALF + ((odd >> _CUT) & _ONE))) & _KEPT) | (word & ~_MAGNITUDE)
    special = word if magnitude == _NOT_FINITE else _NAN
    return np.int32(special if magnitude >= _NOT_FINITE else rounded)


@compile_loop
def _sum_rest(a, b, total):
    """a + b - total, exactly, if total = RN32(a + b) is finite (Dekker's Fast2Sum)."""
    larger = abs(a) >= abs(b)
    return (b if larger else a) - (total - (a if larger else b))


@compile_loop
def _narrow(code, x, y, words, out):
    """out = RN8 of the results of `code`, given their binary32 roundings in `out`; words: the same memory as int32.

    The rest of a sum is a binary32 word. Products of two words are exact in binary64. The remainders are computed in a
    separate loop, so that both are vectorised.
    """
    if code in (ADD, SUB):
        _narrow_sums(code, x, y, words, out)
        return
    if code not in (MUL, DIV, SQRT, ITOF):  # exact in binary32
        for i in range(out.size):
            words[i] = _cut(words[i], words[i] & _MAGNITUDE, words[i] & _MAGNITUDE)
        return
    rests = np.empty(out.size, np.float64)
    if code == MUL:
        for i in range(out.size):
            rests[i] = np.float64(x[i]) * np.float64(y[i]) - np.float64(out[i])
    elif code == DIV:
        for i in range(out.size):
            rest = np.float64(x[i]) - np.float64(out[i]) * np.float64(y[i])
            rests[i] = np.copysign(1.0, np.float64(y[i])) * rest
    elif code == SQRT:
        for i in range(out.size):
            rests[i] = np.float64(x[i]) - np.float64(out[i]) * np.float64(out[i])
    else:
        integers = x.view(np.int32)
        for i in range(out.size):
            rests[i] = np.float64(integers[i]) - np.float64(out[i])
    for i in range(out.size):
        words[i] = _to_bfloat16(words[i], rests[i])


@compile_loop
def _narrow_sums(code, x, y, words, out):
    """As `_narrow`, for sums and differences."""
    rests = np.empty(out.size, np.float32)
    if code == ADD:
        for i in range(out.size):
            rests[i] = _sum_rest(x[i], y[i], out[i])
    else:
        for i in range(out.size):
            rests[i] = _sum_rest(x[i], -y[i], out[i])
    for i in range(out.size):
        words[i] = _to_bfloat16(words[i], rests[i])


@compile_loop
def _finite(x):
    """Whether none of the binary32 words x, int32, is infinite or NaN."""
    found = np.int32(0)
    for i in range(x.size):
        found |= np.int32((x[i] & _NOT_FINITE) == _NOT_FINITE)
    return found == 0


@compile_loop
def run_blocks(code, places, steps, words, layouts, memory, checked, finite, first, last):
    """The instructions on words first..last-1, block by block; finite[i] = whether every word of slot checked[i] is
    finite.

    code: rows (function, slot of the result, three slots of operands). places: addresses of the slots' words, 0 for a
    temporary block, filled with the slot's word of `words`. steps: 4 if a slot's words are read in order. layouts: of
    loaded operands. memory: the blocks, held by the caller (numba would free them after their last mention, not after
    their last use).
    """
    at, block = places.copy(), 0
    finite[:] = True
    for slot in range(places.size):
        if places[slot] == 0:
            constant = memory[block].view(np.uint32)
            for i in range(BLOCK):
                constant[i] = words[slot]
            at[slot] = memory.ctypes.data + 4 * BLOCK * block
            block += 1
    for start in range(first, last, BLOCK):
        size = min(BLOCK, last - start)
        for c in range(code.shape[0]):
            out = carray(_pointer(at[code[c, 1]] + start * steps[code[c, 1]]), (size,), np.float32)
            if code[c, 0] == LOAD:
                source = carray(_pointer(places[code[c, 2]]), (1 << 48,), np.float32)
                load(source.view(np.uint32), layouts[code[c, 3]], start, out.view(np.uint32))
                continue
            x = carray(_pointer(at[code[c, 2]] + start * steps[code[c, 2]]), (size,), np.float32)
            y = carray(_pointer(at[code[c, 3]] + start * steps[code[c, 3]]), (size,), np.float32)
            z = carray(_pointer(at[code[c, 4]] + start * steps[code[c, 4]]), (size,), np.float32)
            _apply(code[c, 0] & 127, x, y, z, out)
            if code[c, 0] & NARROW:
                _narrow(code[c, 0] & 127, x, y, out.view(np.int32), out)
        for i in range(checked.size):
            finite[i] &= _finite(carray(_pointer(places[checked[i]] + 4 * start), (size,), np.int32))


def all_finite(x: Tensor) -> Tensor:
    """Whether every word of a binary32 tensor is finite: one truth value, on its device."""
    if not in_use(x.device):
        return torch.isfinite(x).all()
    words = x.detach().reshape(-1).view(torch.int32).numpy()
    return torch.tensor(all(share(words.size, 1, lambda first, last: _finite(words[first:last]))))

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

from vgame.arithmetic.numba import codes
from vgame.arithmetic.numba.compiled import compile_loop, in_use
from vgame.arithmetic.numba.narrow import HALF, high_halves, narrow_results
from vgame.system.threads import share

#: Words of a block.
BLOCK = 1024
#: Dimensions of a strided operand after contiguous ones have been joined.
MOST_DIMENSIONS = 8
#: The instructions that copy a block of strided words, of strided halves (the high 16 bits of bfloat16 words), and of
#: words into halves; all others are codes of vgame.arithmetic.functions.
LOAD, LOAD_HALVES, STORE_HALVES = 255, 254, 253
#: Added to a function whose result is rounded to bfloat16, once.
NARROW = 128

_ZERO, _NOT_FINITE = np.float32(0.0), np.int32(0x7F800000)
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
    if code == codes.NEG:
        for i in range(x.size):
            out[i] = -x[i]
    elif code == codes.ABS:
        for i in range(x.size):
            out[i] = abs(x[i])
    elif code == codes.SQRT:
        for i in range(x.size):
            out[i] = np.sqrt(x[i])
    elif code == codes.FLOOR:
        for i in range(x.size):
            out[i] = np.floor(x[i])
    elif code == codes.CEIL:
        for i in range(x.size):
            out[i] = np.ceil(x[i])
    elif code == codes.TRUNC:
        for i in range(x.size):
            out[i] = np.trunc(x[i])
    elif code == codes.CAST:  # an assignment of the whole array takes numba two seconds to compile
        for i in range(x.size):
            out[i] = x[i]
    else:
        for i in range(x.size):
            out[i] = np.rint(x[i])


@compile_loop
def _binary(code, x, y, out):
    """out = f(x, y), binary32."""
    if code == codes.ADD:
        for i in range(x.size):
            out[i] = x[i] + y[i]
    elif code == codes.SUB:
        for i in range(x.size):
            out[i] = x[i] - y[i]
    elif code == codes.MUL:
        for i in range(x.size):
            out[i] = x[i] * y[i]
    elif code == codes.DIV:
        for i in range(x.size):
            out[i] = x[i] / y[i]
    elif code == codes.MAX:
        for i in range(x.size):
            out[i] = (x[i] if (x[i] > y[i]) | (x[i] != x[i]) else y[i]) + _ZERO
    else:
        for i in range(x.size):
            out[i] = (x[i] if (x[i] < y[i]) | (x[i] != x[i]) else y[i]) + _ZERO


@compile_loop
def _compare(code, x, y, out):
    """out = 1 or 0, int32, of two binary32 or two int32 arrays."""
    if code == codes.EQ:
        for i in range(x.size):
            out[i] = x[i] == y[i]
    elif code == codes.NE:
        for i in range(x.size):
            out[i] = x[i] != y[i]
    elif code == codes.LT:
        for i in range(x.size):
            out[i] = x[i] < y[i]
    else:
        for i in range(x.size):
            out[i] = x[i] <= y[i]


@compile_loop
def _integer(code, x, y, out):
    """out = f(x, y), int32 modulo 2^32."""
    if code == codes.IADD:
        for i in range(x.size):
            out[i] = x[i] + y[i]
    elif code == codes.ISUB:
        for i in range(x.size):
            out[i] = x[i] - y[i]
    elif code == codes.IMUL:
        for i in range(x.size):
            out[i] = x[i] * y[i]
    elif code == codes.IDIV:
        for i in range(x.size):
            out[i] = np.int64(x[i]) // np.int64(y[i]) if y[i] != 0 else 0
    elif code == codes.IMOD:
        for i in range(x.size):
            out[i] = np.int64(x[i]) % np.int64(y[i]) if y[i] != 0 else 0
    elif code == codes.IMAX:
        for i in range(x.size):
            out[i] = max(x[i], y[i])
    else:
        for i in range(x.size):
            out[i] = min(x[i], y[i])


@compile_loop
def _bitwise(code, x, y, out):
    """out = f(x, y), words."""
    if code == codes.IAND:
        for i in range(x.size):
            out[i] = x[i] & y[i]
    elif code == codes.IOR:
        for i in range(x.size):
            out[i] = x[i] | y[i]
    elif code == codes.IXOR:
        for i in range(x.size):
            out[i] = x[i] ^ y[i]
    elif code == codes.ISHL:
        for i in range(x.size):
            out[i] = x[i] << (y[i] & 31)
    elif code == codes.ISHR:
        for i in range(x.size):
            out[i] = x[i] >> (y[i] & 31)
    else:  # codes.ULT
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
def _widen(words):
    """The low half of each word becomes its high half."""
    for i in range(words.size):
        words[i] = np.uint32(words[i] << HALF)


@compile_loop
def _apply(code, x, y, z, out):
    """One instruction on blocks of binary32 words (int32 for functions of integers)."""
    if code < codes.ADD:
        _unary(code, x, out)
    elif code < codes.EQ:
        _binary(code, x, y, out)
    elif code < codes.IADD:
        _compare(code, x, y, out.view(np.int32))
    elif code <= codes.IMOD or code in (codes.IMAX, codes.IMIN):
        _integer(code, x.view(np.int32), y.view(np.int32), out.view(np.int32))
    elif code < codes.IMAX or code == codes.ULT:
        _bitwise(code, x.view(np.uint32), y.view(np.uint32), out.view(np.uint32))
    elif code < codes.ITOF:
        _compare(code - codes.IEQ + codes.EQ, x.view(np.int32), y.view(np.int32), out.view(np.int32))
    elif code == codes.ITOF:
        _to_float(x.view(np.int32), out)
    elif code == codes.FTOI:
        _to_integer(x, out.view(np.int32))
    else:
        _select(x.view(np.int32), y.view(np.int32), z.view(np.int32), out.view(np.int32))


@compile_loop
def _finite(x):
    """Whether none of the binary32 words x, int32, is infinite or NaN."""
    found = np.int32(0)
    for i in range(x.size):
        found = np.int32(found | np.int32((x[i] & _NOT_FINITE) == _NOT_FINITE))
    return found == 0


@compile_loop
def run_blocks(code, places, steps, words, layouts, memory, checked, finite, first, last):
    """The instructions on words first..last-1, block by block; finite[i] = whether every word of slot checked[i] is
    finite.

    code: rows (function, slot of the result, three slots of operands), or of the instructions that copy: (LOAD or
    LOAD_HALVES, slot, place of the operand, number of its layout, 0), (STORE_HALVES, place of the result, slot, 0, 0).
    places: addresses of the slots' words, 0 for a temporary block, filled with the slot's word of `words`; then those
    of copied operands and results. steps: 4 if a slot's words are read in order. layouts: of loaded operands. memory:
    the blocks, held by the caller (numba would free them after their last mention, not after their last use).
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
            if code[c, 0] == LOAD_HALVES:
                halves = carray(_pointer(places[code[c, 2]]), (1 << 48,), np.uint16)
                load(halves, layouts[code[c, 3]], start, out.view(np.uint32))
                _widen(out.view(np.uint32))
                continue
            if code[c, 0] == STORE_HALVES:
                stored = carray(_pointer(at[code[c, 2]]), (size,), np.uint32)
                high_halves(stored, carray(_pointer(places[code[c, 1]] + 2 * start), (size,), np.uint16))
                continue
            x = carray(_pointer(at[code[c, 2]] + start * steps[code[c, 2]]), (size,), np.float32)
            y = carray(_pointer(at[code[c, 3]] + start * steps[code[c, 3]]), (size,), np.float32)
            z = carray(_pointer(at[code[c, 4]] + start * steps[code[c, 4]]), (size,), np.float32)
            _apply(code[c, 0] & 127, x, y, z, out)
            if code[c, 0] & NARROW:
                narrow_results(code[c, 0] & 127, x, y, out)
        for i in range(checked.size):
            finite[i] &= _finite(carray(_pointer(places[checked[i]] + 4 * start), (size,), np.int32))


def all_finite(x: Tensor) -> Tensor:
    """Whether every word of a binary32 tensor is finite: one truth value, on its device."""
    if not in_use(x.device):
        return torch.isfinite(x).all()
    words = x.detach().reshape(-1).view(torch.int32).numpy()
    return torch.tensor(all(share(words.size, 1, lambda first, last: _finite(words[first:last]))))

"""Chains of pointwise functions as one kernel on a GPU. Twin: vgame/arithmetic/numba/pointwise.py, with the same
chains.

In: instructions over slots, strided inputs. Out: the kept results, and a mark for each that is not finite. A chain is
compiled once; every instruction is one IEEE instruction (`enable_fp_fusion=False`), and words are int32 in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from vgame.arithmetic.numba import codes
from vgame.arithmetic.numba.chains import Chain, joined

BLOCK = 1024

_SIGN, _MAGNITUDE = tl.constexpr(-(1 << 31)), tl.constexpr(0x7FFFFFFF)
_NOT_FINITE = tl.constexpr(0x7F800000)
_NEG, _ABS, _SQRT = (tl.constexpr(x) for x in (codes.NEG, codes.ABS, codes.SQRT))
_ADD, _SUB, _MUL, _DIV = (tl.constexpr(x) for x in (codes.ADD, codes.SUB, codes.MUL, codes.DIV))
_MAX, _MIN = (tl.constexpr(x) for x in (codes.MAX, codes.MIN))
_EQ, _NE, _LT, _LE = (tl.constexpr(x) for x in (codes.EQ, codes.NE, codes.LT, codes.LE))
_IADD, _ISUB, _IMUL = (tl.constexpr(x) for x in (codes.IADD, codes.ISUB, codes.IMUL))
_IAND, _IOR, _IXOR = (tl.constexpr(x) for x in (codes.IAND, codes.IOR, codes.IXOR))
_ISHL, _ISHR, _IMAX, _IMIN = (tl.constexpr(x) for x in (codes.ISHL, codes.ISHR, codes.IMAX, codes.IMIN))
_IEQ, _ULT = (tl.constexpr(x) for x in (codes.IEQ, codes.ULT))
_ITOF, _SELECT = (tl.constexpr(x) for x in (codes.ITOF, codes.SELECT))


@triton.jit
def _binary(CODE: tl.constexpr, x, y):
    """f(x, y) of binary32 words, as words."""
    a, b = x.to(tl.float32, bitcast=True), y.to(tl.float32, bitcast=True)
    if CODE == _ADD:
        c = a + b
    elif CODE == _SUB:
        c = a - b
    elif CODE == _MUL:
        c = a * b
    elif CODE == _DIV:
        c = tl.div_rn(a, b)
    elif CODE == _MAX:
        c = tl.where((a > b) | (a != a), a, b) + 0.0
    else:
        tl.static_assert(CODE == _MIN)
        c = tl.where((a < b) | (a != a), a, b) + 0.0
    return c.to(tl.int32, bitcast=True)


@triton.jit
def _compare(CODE: tl.constexpr, x, y):
    """1 or 0 for two binary32 or two int32 vectors."""
    if CODE == _EQ:
        found = x == y
    elif CODE == _NE:
        found = x != y
    elif CODE == _LT:
        found = x < y
    else:
        tl.static_assert(CODE == _LE)
        found = x <= y
    return found.to(tl.int32)


@triton.jit
def _integer(CODE: tl.constexpr, x, y):
    """f(x, y), int32 modulo 2^32."""
    if CODE == _IADD:
        z = x + y
    elif CODE == _ISUB:
        z = x - y
    elif CODE == _IMUL:
        z = x * y
    elif CODE == _IAND:
        z = x & y
    elif CODE == _IOR:
        z = x | y
    elif CODE == _IXOR:
        z = x ^ y
    elif CODE == _ISHL:
        z = x << (y & 31)
    elif CODE == _ISHR:
        z = (x.to(tl.uint32, bitcast=True) >> (y & 31).to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    elif CODE == _IMAX:
        z = tl.maximum(x, y)
    else:
        tl.static_assert(CODE == _IMIN)
        z = tl.minimum(x, y)
    return z


@triton.jit
def _instruction(CODE: tl.constexpr, x, y, z):
    """One function on words (int32)."""
    if CODE == _NEG:
        result = x ^ _SIGN
    elif CODE == _ABS:
        result = x & _MAGNITUDE
    elif CODE == _SQRT:
        result = tl.sqrt_rn(x.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    elif CODE < _EQ:
        result = _binary(CODE, x, y)
    elif CODE < _IADD:
        result = _compare(CODE, x.to(tl.float32, bitcast=True), y.to(tl.float32, bitcast=True))
    elif CODE < _IEQ:
        result = _integer(CODE, x, y)
    elif CODE == _ULT:
        result = _compare(_LT, x.to(tl.uint32, bitcast=True), y.to(tl.uint32, bitcast=True))
    elif CODE < _ULT:
        result = _compare(CODE - _IEQ + _EQ, x, y)
    elif CODE == _ITOF:
        result = x.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        tl.static_assert(CODE == _SELECT)
        result = tl.where(x != 0, y, z)
    return result


@triton.jit
def _place(i, layout, RANK: tl.constexpr):
    """The place of word i of a strided operand; layout: its RANK sizes and RANK strides."""
    at, rest = i.to(tl.int64) * 0, i
    for d in tl.static_range(RANK - 1, 0, -1):
        at += (rest % layout[d]).to(tl.int64) * layout[RANK + d]
        rest = rest // layout[d]
    return at + rest.to(tl.int64) * layout[RANK]


@triton.jit
def _not_finite(word, inside):
    return tl.max((inside & ((word & _NOT_FINITE) == _NOT_FINITE)).to(tl.int32), 0)


@triton.jit(do_not_specialize=["elements", "first"])
def _run(
    inputs, layouts, outputs, marks, first, elements, WORDS: tl.constexpr, CODE: tl.constexpr, CHECKED: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The instructions CODE (five numbers each) on words; slots: inputs, outputs, then WORDS: constants and temporary
    blocks.

    marks[first + c] = 1 if slot CHECKED[c] is not finite.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < elements
    if not WIDE:
        i = i.to(tl.int32)
    slots = ()
    for k in tl.static_range(len(inputs)):
        place = _place(i, layouts[k], len(layouts[k]) // 2)
        slots = slots + (tl.load(inputs[k] + place, mask=inside, other=0),)  # noqa: RUF005
    for k in tl.static_range(len(WORDS)):
        slots = slots + (tl.full((BLOCK,), WORDS[k], tl.int32),)  # noqa: RUF005
    for c in tl.static_range(len(CODE) // 5):
        x, y, z = slots[CODE[5 * c + 2]], slots[CODE[5 * c + 3]], slots[CODE[5 * c + 4]]
        result = _instruction(CODE[5 * c], x, y, z)
        slots = slots[: CODE[5 * c + 1]] + (result,) + slots[CODE[5 * c + 1] + 1 :]  # noqa: RUF005
    for k in tl.static_range(len(outputs)):
        tl.store(outputs[k] + i.to(tl.int64), slots[len(inputs) + k], mask=inside)
    for c in tl.static_range(len(CHECKED)):
        if _not_finite(slots[CHECKED[c]], inside) != 0:
            tl.store(marks + first + c, 1)


@triton.jit(do_not_specialize=["first", "elements"])
def _look(x, marks, first, elements, BLOCK: tl.constexpr):
    """marks[first] = 1 if a word of x is not finite."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if _not_finite(tl.load(x + i, mask=i < elements, other=0), i < elements) != 0:
        tl.store(marks + first, 1)


def run(chain: Chain, elements: int, inputs: Sequence[Tensor], marks: Tensor, first: int) -> list[Tensor]:
    """Twin: chains.run. marks: int32, initially zero; marks[first + c] becomes 1 if checked result c is not finite."""
    device = marks.device
    results = [torch.empty(elements, dtype=torch.int32, device=device) for _ in chain.results]
    words = [int(word) for word in chain.words[chain.inputs :].view("int32")]
    layouts = tuple(tuple(sizes + strides) for sizes, strides in map(joined, inputs))
    _run[(triton.cdiv(elements, BLOCK),)](
        tuple(x.view(torch.int32) for x in inputs),
        layouts,
        tuple(results),
        marks,
        first,
        elements,
        WORDS=tuple(words),
        CODE=tuple(map(int, chain.code.reshape(-1))),
        CHECKED=tuple(map(int, chain.checked)),
        WIDE=elements >= 1 << 31,
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
    return [x if integer else x.view(torch.float32) for x, integer in zip(results, chain.results, strict=True)]


def look(x: Tensor, marks: Tensor, first: int) -> None:
    """marks[first] becomes 1 if a word of binary32 x, contiguous, is not finite."""
    _look[(triton.cdiv(x.numel(), BLOCK),)](x.view(torch.int32), marks, first, x.numel(), BLOCK=BLOCK)

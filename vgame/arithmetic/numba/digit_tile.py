"""Tiles of integers, as LLVM's language: binary32 words cut into balanced digits of 8 bits, exact sums of products of
digits by the processor's matrix unit (AMX), binary64 sums from these.

In: sizes that are constants when a loop is compiled, arrays and places in them. Out: the results that the docstrings
of `move_words`, `largest_words`, `cut_words`, `digit_tile`, `join_levels`, `round_tile` describe. Used by
numba/digit_products.py. Proof: docs/numerics-products.md, section 14.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from vgame.arithmetic.numba.fused_tile import Code

#: Rows and columns of a tile; terms that a tile of digits has of each; bytes of a tile.
SIDE, DEPTH, BYTES = 16, 64, 1024

_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_BYTE, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_VOID = ir.VoidType()
_WORDS, _WIDE = ir.VectorType(_FLOAT, SIDE), ir.VectorType(_DOUBLE, SIDE // 2)
_INTEGERS, _HALVES, _BYTES = ir.VectorType(_I32, SIDE), ir.VectorType(_I16, 2 * SIDE), ir.VectorType(_BYTE, 4 * SIDE)

#: Linux for x86-64: the system call that asks for a feature with large registers, its request, the feature's number.
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18


@cache
def permitted() -> bool:
    """Whether this processor multiplies tiles of bytes, and the system lets this process do it: asked once."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    needed = {"+amx-tile", "+amx-int8", "+avx512f", "+avx512bw", "+avx512dq"}
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not needed <= set(features):
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0


def _call(code: Code, name: str, kind: Any, arguments: list[Any]) -> Any:
    types_of = [argument.type for argument in arguments]
    function = cgutils.get_or_insert_function(code.builder.module, ir.FunctionType(kind, types_of), name)
    return code.builder.call(function, arguments)


def _load(code: Code, place: Any, vector: Any) -> Any:
    return code.builder.load(code.builder.bitcast(place, vector.as_pointer()), align=1)


def _store(code: Code, value: Any, place: Any) -> None:
    code.builder.store(value, code.builder.bitcast(place, value.type.as_pointer()), align=1)


def _shuffle(code: Code, x: Any, y: Any, order: list[int]) -> Any:
    return code.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _all(vector: Any, value: Any) -> Any:
    return ir.Constant(vector, [value] * vector.count)


@intrinsic(prefer_literal=True)
def move_words(typing, across, x, starts, first, offset, y, to, apart):
    """16 x 16 words: y[to + j * apart + i] = x[starts[first + j] + offset + i], or the other way round if `across`:
    y[to + i * apart + j]."""
    integer = types.intp
    given = across, x, starts, integer, integer, y, integer, integer
    turned = across.literal_value

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        table, memory, out = code.place(2, 3), code.place(1, 4), code.place(5, 6)
        kind = code.vector(1, SIDE)
        lines = [code.words(code.at(memory, builder.load(code.at(table, j))), kind) for j in range(SIDE)]
        if turned:
            lines = _transposed(code, lines)
        for j, line in enumerate(lines):
            _store(code, line, code.at(out, builder.mul(arguments[7], code.number(j))))
        return context.get_dummy_value()

    return types.void(*given), generate


def _transposed(code: Code, lines: list[Any]) -> list[Any]:
    """Four rounds, each of which exchanges one bit of a word's number with one of its line's."""
    for bit in (1, 2, 4, 8):
        low = [i if not i & bit else i - bit + SIDE for i in range(SIDE)]
        high = [i + bit if not i & bit else i + SIDE for i in range(SIDE)]
        made = list(lines)
        for j in range(SIDE):
            if not j & bit:
                made[j] = _shuffle(code, lines[j], lines[j + bit], low)
                made[j + bit] = _shuffle(code, lines[j], lines[j + bit], high)
        lines = made
    return lines


@intrinsic(prefer_literal=True)
def largest_words(typing, words, at, on, count, out):
    """out[i] = the largest of the words at + k * on + i without their signs, as integers, k = 0 .. count-1, i < 16."""
    integer = types.intp
    given = words, integer, integer, integer, out

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)

        def step(place: Any, most: Any) -> list[Any]:
            word = builder.and_(_load(code, place, _INTEGERS), _all(_INTEGERS, 0x7FFFFFFF))
            larger = builder.icmp_unsigned(">", word, most)
            return [code.at(place, arguments[2]), builder.select(larger, word, most)]

        *_, most = code.loop(arguments[3], [code.place(0, 1), ir.Constant(_INTEGERS, None)], step)
        memory = context.make_array(out)(context, builder, arguments[4]).data
        _store(code, most, memory)
        return context.get_dummy_value()

    return types.void(*given), generate


@intrinsic(prefer_literal=True)
def cut_words(typing, slices, words, at, on, apart, scales, y, to, out, count, squares, rests, norms):
    """The digits of 64 words at a time, `count` times: of the words at + c * on + m * apart + i, m < 4, i < 16.

    With v = word * scales[i] (a power of two): the integer V nearest to v * 2^(8 * slices - 24 or 16) in balanced
    digits, byte 4 i + m of slice s, the first one first, at y[to + c * out + s * 1024]. Added to squares[i]: v * v; to
    rests[i]: the square of the remainder; to norms[16 * s + i]: the squares of the digits of slice s + 2.
    """
    integer = types.intp
    given = slices, words, integer, integer, integer, scales, y, integer, integer, integer, squares, rests, norms
    number = slices.literal_value
    assert number in (3, 5)
    measured = number - 2

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        whole = [context.make_array(kind)(context, builder, arguments[n]).data for n, kind in _arrays(given)]
        scale = _load(code, whole[0], _WORDS)

        def rint(x: Any) -> Any:
            return _call(code, "llvm.rint.v16f32", _WORDS, [x])

        def cut(place: Any, sums: list[Any]) -> tuple[Any, Any]:
            """(first digits, three last digits) of 16 words, each + 128, as bytes."""
            value = builder.fmul(_load(code, place, _WORDS), scale)
            for half in range(2):
                part = _shuffle(code, value, value, list(range(8 * half, 8 * half + 8)))
                wide = builder.fpext(part, _WIDE)
                sums[half] = code.fma(wide, wide, sums[half])
            head = None
            if number == 5:
                head = rint(value)
                value = builder.fmul(builder.fsub(value, head), _all(_WORDS, 2.0**24))
            tail = rint(value)
            rest = builder.fsub(value, tail)
            sums[2] = _call(code, "llvm.fma.v16f32", _WORDS, [rest, rest, sums[2]])
            low = builder.add(builder.fptosi(tail, _INTEGERS), _all(_INTEGERS, 0x808080))
            if head is None:
                return None, low
            carry = builder.add(builder.lshr(low, _all(_INTEGERS, 24)), _all(_INTEGERS, 0x8080))
            return builder.add(builder.fptosi(head, _INTEGERS), carry), low

        def digits(parts: list[Any], byte: int, both: bool) -> list[Any]:
            """Bytes `byte` of the lanes of four vectors, side by side; and those above them."""
            parts = [builder.bitcast(part, _BYTES) for part in parts]
            order = [
                n for i in range(SIDE) for n in (4 * i + byte, 64 + 4 * i + byte, 4 * i + byte + 1, 65 + 4 * i + byte)
            ]
            pairs = [builder.bitcast(_shuffle(code, parts[j], parts[j + 1], order), _HALVES) for j in (0, 2)]
            orders = [[n for i in range(SIDE) for n in (2 * i + h, 2 * SIDE + 2 * i + h)] for h in range(1 + both)]
            sign = _all(_INTEGERS, 0x80808080)
            return [builder.xor(builder.bitcast(_shuffle(code, *pairs, o), _INTEGERS), sign) for o in orders]

        def squared(digit: Any, total: Any) -> Any:
            halves = builder.bitcast(digit, _HALVES)
            eight = _all(_HALVES, 8)
            for half in (builder.ashr(builder.shl(halves, eight), eight), builder.ashr(halves, eight)):
                total = builder.add(total, _call(code, "llvm.x86.avx512.pmaddw.d.512", _INTEGERS, [half, half]))
            return total

        def step(place: Any, target: Any, *sums: Any) -> list[Any]:
            held = list(sums)
            cuts = [cut(code.at(place, builder.mul(arguments[4], code.number(m))), held) for m in range(4)]
            low = [part for _, part in cuts]
            last = digits(low, 0, True)
            made = [*digits(low, 2, False), last[1], last[0]]
            if number == 5:
                first = digits([part for part, _ in cuts], 0, True)
                made = [first[1], first[0], *made]
            for s, digit in enumerate(made):
                _store(code, digit, code.at(target, s * BYTES))
                if s >= 2:
                    held[1 + s] = squared(digit, held[1 + s])
            return [code.at(place, arguments[3]), code.at(target, arguments[8]), *held]

        places = [whole[1], code.at(whole[1], 8), whole[2], *(code.at(whole[3], SIDE * s) for s in range(measured))]
        kinds = [_WIDE, _WIDE, _WORDS, *[_INTEGERS] * measured]
        start = [_load(code, place, kind) for place, kind in zip(places, kinds, strict=True)]
        _, _, *ends = code.loop(arguments[9], [code.place(1, 2), code.place(6, 7), *start], step)
        for place, value in zip(places, ends, strict=True):
            _store(code, value, place)
        return context.get_dummy_value()

    return types.void(*given), generate


def _arrays(given: tuple) -> list[tuple[int, Any]]:
    """scales, squares, rests, norms of cut_words: their places among its arguments."""
    return [(n, given[n]) for n in (5, 10, 11, 12)]


#: The pairs of slices' numbers with sums up to the number of slices + 2, by that of the left side. In this order four
#: others lie between two of one sum, where possible: the processor adds to a tile once in 52 cycles.
ORDER = {
    5: {1: (3, 5, 1, 4, 2), 4: (2, 3, 1), 2: (2, 4, 5, 3, 1), 5: (1, 2), 3: (2, 1, 3, 4)},
    3: {2: (3, 2, 1), 3: (2, 1), 1: (2, 1, 3)},
}


def levels(slices: int) -> int:
    """Accumulators: the sums of two slices' numbers are 2 .. slices + 2."""
    return slices + 1


def _tile(code: Code, name: str, numbers: list[int], *rest: Any) -> None:
    _call(code, f"llvm.x86.{name}", _VOID, [*(ir.Constant(_BYTE, n) for n in numbers), *rest])


@intrinsic(prefer_literal=True)
def digit_tile(typing, slices, a, at, b, bt, steps, out, to, more):
    """out[to + 256 * l + 16 * i + j] = (that word, if `more`, plus) the exact sum over the terms of `steps` tiles of
    the products of digits whose slices' numbers, from 1 on, add up to l + 2; l = 0 .. slices."""
    integer = types.intp
    given = slices, a, integer, b, integer, integer, out, integer, types.boolean
    number = slices.literal_value
    left, right = levels(number), levels(number) + 1
    assert right < 8

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        row = code.number(DEPTH)

        def load(tile: int, place: Any) -> None:
            _tile(code, "tileloadd64", [tile], place, row)

        def step(x: Any, y: Any) -> list[Any]:
            for s, others in ORDER[number].items():
                load(left, code.at(x, (s - 1) * BYTES))
                for t in others:
                    load(right, code.at(y, (t - 1) * BYTES))
                    _tile(code, "tdpbssd", [s + t - 2, left, right])
            return [code.at(x, number * BYTES), code.at(y, number * BYTES)]

        places = [code.at(code.place(6, 7), level * SIDE * SIDE) for level in range(levels(number))]
        places = [builder.bitcast(place, _BYTE.as_pointer()) for place in places]
        with builder.if_else(arguments[8]) as (then, otherwise):
            with then:
                for level, place in enumerate(places):
                    load(level, place)
            with otherwise:
                for level in range(levels(number)):
                    _tile(code, "tilezero", [level])
        code.loop(arguments[5], [code.place(1, 2), code.place(3, 4)], step)
        for level, place in enumerate(places):
            _tile(code, "tilestored64", [level], place, row)
        return context.get_dummy_value()

    return types.void(*given), generate


@intrinsic(prefer_literal=True)
def join_levels(typing, slices, level, lt, p, at, q, bt, c):
    """c[16 * i + j] = p[at + i] * q[bt + j] * W; level[lt ..]: what `digit_tile` writes.

    W: the sums of the levels with their weights, by pairs 2^8 T + T' (exact), then by RN64(2^16 x + x') from the first
    pair on.
    """
    integer = types.intp
    given = slices, level, integer, p, integer, q, integer, c
    number = levels(slices.literal_value)

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        sums, left, right = code.place(1, 2), code.place(3, 4), code.place(5, 6)
        out = context.make_array(c)(context, builder, arguments[7]).data
        half = ir.VectorType(_I32, 8)
        columns = [_load(code, code.at(right, 8 * h), _WIDE) for h in range(2)]

        def row(source: Any, scale: Any, target: Any) -> list[Any]:
            factor = code.repeat(builder.load(scale), 8)
            for h in range(2):
                places = [code.at(source, SIDE * SIDE * n + 8 * h) for n in range(number)]
                read = [builder.sitofp(_load(code, place, half), _WIDE) for place in places]
                value, *others = (
                    code.fma(x, _all(_WIDE, 256.0), y) for x, y in zip(read[::2], read[1::2], strict=True)
                )
                for other in others:
                    value = code.fma(value, _all(_WIDE, 65536.0), other)
                value = builder.fmul(value, builder.fmul(factor, columns[h]))
                _store(code, value, code.at(target, 8 * h))
            return [code.at(source, SIDE), code.at(scale, 1), code.at(target, SIDE)]

        code.loop(code.number(SIDE), [sums, left, out], row)
        return context.get_dummy_value()

    return types.void(*given), generate


@intrinsic(prefer_literal=True)
def round_tile(typing, narrow, s, left, at, right, bt, out, to, apart):
    """out[to + i * apart + j] = RN32(s[16 * i + j] + e) + 0, e = left[at + i] * right[bt + j], 16 x 16 words; RN8 if
    `narrow`. Returns whether one of them may be open, by the same test as the loops of rounding_test.py."""
    integer = types.intp
    given = narrow, s, left, integer, right, integer, out, integer, integer
    half = ir.VectorType(_FLOAT, 8)
    words = ir.VectorType(_I32, 8)

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        sums = context.make_array(s)(context, builder, arguments[1]).data
        bounds = [_load(code, code.at(code.place(4, 5), 8 * h), _WIDE) for h in range(2)]

        def nearest(word: Any) -> Any:
            odd = builder.and_(builder.lshr(word, _all(words, 16)), _all(words, 1))
            return builder.and_(builder.add(word, builder.add(odd, _all(words, 0x7FFF))), _all(words, -0x10000))

        def tie(word: Any) -> Any:
            equal = builder.icmp_signed("==", builder.and_(word, _all(words, 0xFFFF)), _all(words, 0x8000))
            return builder.sext(equal, words)

        def row(source: Any, scale: Any, target: Any, mark: Any) -> list[Any]:
            factor = code.repeat(builder.load(scale), 8)
            for h in range(2):
                value, bound = _load(code, code.at(source, 8 * h), _WIDE), builder.fmul(factor, bounds[h])
                ends = [builder.fptrunc(end(value, bound), half) for end in (builder.fadd, builder.fsub)]
                upper, lower = (builder.bitcast(end, words) for end in ends)
                if narrow.literal_value:
                    mark = builder.or_(mark, builder.or_(tie(upper), tie(lower)))
                    upper, lower = nearest(upper), nearest(lower)
                mark = builder.or_(mark, builder.xor(upper, lower))
                _store(code, builder.fadd(builder.bitcast(upper, half), _all(half, 0.0)), code.at(target, 8 * h))
            return [code.at(source, SIDE), code.at(scale, 1), code.at(target, arguments[8]), mark]

        start = [sums, code.place(2, 3), code.place(6, 7), ir.Constant(words, None)]
        *_, mark = code.loop(code.number(SIDE), start, row)
        marks = builder.icmp_signed("!=", mark, ir.Constant(words, None))
        return builder.icmp_unsigned("!=", builder.bitcast(marks, _BYTE), ir.Constant(_BYTE, 0))

    return types.boolean(*given), generate


@intrinsic
def begin_tiles(typing):
    """Eight tiles of 16 rows of 64 bytes, on this thread, until `end_tiles`."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        shape = [1, *[0] * 15, *[DEPTH, 0] * 8, *[0] * 16, *[SIDE] * 8, *[0] * 8]
        place = cgutils.alloca_once_value(builder, _all(ir.VectorType(_BYTE, 64), 0))
        builder.store(ir.Constant(ir.VectorType(_BYTE, 64), shape), place, align=1)
        _call(code, "llvm.x86.ldtilecfg", _VOID, [builder.bitcast(place, _BYTE.as_pointer())])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def end_tiles(typing):
    def generate(context, builder, signature, arguments):
        _call(Code(context, builder, signature, arguments), "llvm.x86.tilerelease", _VOID, [])
        return context.get_dummy_value()

    return types.void(), generate

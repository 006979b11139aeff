"""LLVM code for operations that numba's loops cannot express: a tile of sums in registers, a panel of widened rows, the
modes of the processor's arithmetic.

In: sizes that are constants when a loop is compiled, arrays and places in them. Out: the results of `fused_tile`,
`widen_panel` and `widen_across`. One source for all processors: LLVM maps vectors of any length to registers, and
`llvm.fma` to one instruction if the processor has it (`form_of`). No operation may be reassociated or flushed. Used by
numba/products.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Binary64 words of a cache line.
LINE = 8

_DOUBLE, _I32, _HALF, _BYTE = ir.DoubleType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


@dataclass(frozen=True, slots=True)
class Form:
    """A tile of rows x columns sums: one word of a row at a time is multiplied by the columns, which are in `vectors`
    registers of `lanes` binary64 each. The last rows of a matrix need one, two or three thirds of a tile."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


#: As many sums as fit into the registers with the operands; columns are powers of two, like the rows of pictures.
FORMS = {"avx512f": Form(12, 2, 8), "fma": Form(6, 2, 4), "neon": Form(6, 4, 2)}


def form_of(processor: str, features: str) -> Form | None:
    """The form for LLVM's target triple and features ("+fma,-avx512f.."); None without fused multiply-adds."""
    has = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    if processor.startswith(("aarch64", "arm64")):
        return FORMS["neon"]
    if not processor.startswith("x86_64") or "fma" not in has:
        return None
    return FORMS["avx512f" if "avx512f" in has else "fma"]


class Code:
    """The code generator of the functions below: `builder`, and addresses of words in numba's arrays."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> None:
        self.context, self.builder, self.types, self.arguments = context, builder, signature.args, arguments

    def place(self, array: int, index: int | None = None) -> Any:
        """The address of word arguments[index] of the array arguments[array], or of its first word."""
        data = self.context.make_array(self.types[array])(self.context, self.builder, self.arguments[array]).data
        return data if index is None else self.builder.gep(data, [self.arguments[index]])

    def rows(self, which: Iterable[int]) -> list[Any]:
        """The addresses at which rows of `widen_panel` begin."""
        memory, table, begins = self.place(2), self.place(3), []
        for i in which:
            number = self.builder.add(self.arguments[4], self.number(i))
            inside = self.builder.icmp_signed("<", number, self.arguments[5])
            chosen = self.builder.select(inside, number, self.arguments[5])
            begins.append(self.at(memory, self.builder.load(self.at(table, chosen))))
        return begins

    def vector(self, array: int, lanes: int) -> Any:
        """The type of a vector of an array's words."""
        return ir.VectorType(self.context.get_data_type(self.types[array].dtype), lanes)

    def at(self, place: Any, offset: Any) -> Any:
        return self.builder.gep(place, [offset if isinstance(offset, ir.Value) else self.number(offset)])

    def number(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def load(self, place: Any, vector: Any) -> Any:
        """A vector that begins at a word's address."""
        return self.builder.load(self.builder.bitcast(place, vector.as_pointer()), align=_width(vector) // 8)

    def words(self, place: Any, vector: Any) -> Any:
        """`load`; of halves, the binary32 words."""
        value = self.load(place, vector)
        if vector.element != _HALF:
            return value
        wide = self.builder.zext(value, ir.VectorType(_I32, vector.count))
        shifted = self.builder.shl(wide, ir.Constant(wide.type, [16] * vector.count))
        return self.builder.bitcast(shifted, ir.VectorType(ir.FloatType(), vector.count))

    def store(self, value: Any, place: Any) -> None:
        self.builder.store(value, self.builder.bitcast(place, value.type.as_pointer()), align=_width(value.type) // 8)

    def lanes(self, a: Any, b: Any, which: Iterable[int]) -> Any:
        """The lanes `which` of the vector a, and b behind it."""
        chosen = list(which)
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(chosen)), chosen))

    def joined(self, vectors: Sequence[Any]) -> Any:
        """One vector of several of equal length."""
        whole, *others = vectors
        for i, other in enumerate(others, start=1):
            length = other.type.count
            longer = self.lanes(other, other, [*range(length), *[0] * (length * (i - 1))])
            whole = self.lanes(whole, longer, range(length * (i + 1)))
        return whole

    def transposed(self, vectors: Sequence[Any]) -> list[Any]:
        """The transposed matrix: lane i of vector k is lane k of vector i. Longer vectors: each part of that length."""
        held, distance = list(vectors), len(vectors) // 2
        everywhere = range(held[0].type.count)
        while distance:
            low = [j + len(everywhere) - distance if j & distance else j for j in everywhere]
            high = [j + len(everywhere) if j & distance else j + distance for j in everywhere]
            for i in (i for i in range(len(held)) if not i & distance):
                a, b = held[i], held[i + distance]
                held[i], held[i + distance] = self.lanes(a, b, low), self.lanes(a, b, high)
            distance //= 2
        return held

    def widened(self, words: Any, out: Any, total: Any) -> Any:
        """Store words in binary64; the total of their squares."""
        wide = _wide(words.type.count)
        value = words if words.type == wide else self.builder.fpext(words, wide)
        self.store(value, out)
        return self.fma(value, value, total)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """RN64(a * b + c), lane by lane."""
        kind = ir.FunctionType(a.type, [a.type] * 3)
        name = f"llvm.fma.v{a.type.count}f64"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])

    def call(self, name: str, argument: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [argument.type])
        self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [argument])

    def repeat(self, word: Any, lanes: int) -> Any:
        """A vector of one word."""
        vector = ir.VectorType(word.type, lanes)
        single = self.builder.insert_element(ir.Constant(vector, ir.Undefined), word, ir.Constant(_I32, 0))
        mask = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)

    def loop(self, count: Any, values: Sequence[Any], body: Any) -> list[Any]:
        """values = body(*values), `count` times."""
        before, block = self.builder.block, self.builder.append_basic_block("loop")
        after = self.builder.append_basic_block("after")
        self._branch(count, block, after)
        self.builder.position_at_end(block)
        held = [self.builder.phi(value.type) for value in (count, *values)]
        made = [self.builder.sub(held[0], self.number(1)), *body(*held[1:])]
        self._branch(made[0], block, after)
        for phi, first, later in zip(held, (count, *values), made, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, block)
        self.builder.position_at_end(after)
        ends = [self.builder.phi(value.type) for value in values]
        for phi, first, later in zip(ends, values, made[1:], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, block)
        return ends

    def _branch(self, left: Any, block: Any, after: Any) -> None:
        """Branch to `block` while `left` is above 0, else to `after`."""
        self.builder.cbranch(self.builder.icmp_signed(">", left, self.number(0)), block, after)

    def fetch(self, place: Any) -> None:
        """Prefetch the cache line of a word that will be written into the first cache."""
        address = self.builder.bitcast(place, _BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, _I32, _I32, _I32])
        known = (ir.Constant(_I32, value) for value in (1, 3, 1))  # to write, in all caches, data
        call = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(call, [address, *known])


def _wide(lanes: int) -> Any:
    return ir.VectorType(_DOUBLE, lanes)


def _width(vector: Any) -> int:
    """Bits of a word of a vector."""
    return {_DOUBLE: 64, _HALF: 16}.get(vector.element, 32)


@intrinsic(prefer_literal=True)
def fused_tile(typing, used, rows, vectors, lanes, a, at, b, bt, c, ct, apart, terms, more):
    """c[ct + i * apart + j] = (its old value if `more`, plus) the chain of a[at + k * rows + i] * b[bt + k * columns +
    j], i < used <= rows.

    A chain over k = 0 .. terms-1: x = 0, then x = RN64(a * b + x). Everything is binary64.
    """
    integer = types.intp
    given = used, rows, vectors, lanes, a, integer, b, integer, c, integer, integer, integer, types.boolean
    height, width, wide = used.literal_value, vectors.literal_value, _wide(lanes.literal_value)
    columns = width * wide.count

    def step(code: Code, left: Any, right: Any, *sums: Any) -> list[Any]:
        held = [code.load(code.at(right, v * wide.count), wide) for v in range(width)]
        made = []
        for i in range(height):  # one word of a at a time: LLVM keeps this order, and all words do not fit registers
            word = code.repeat(code.builder.load(code.at(left, i)), wide.count)
            made += [code.fma(word, b, sums[i * width + v]) for v, b in enumerate(held)]
        return [code.at(left, rows.literal_value), code.at(right, columns), *made]

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        out, apart, terms = code.place(8, 9), arguments[10], arguments[11]
        lines = [code.at(out, builder.mul(apart, code.number(i))) for i in range(height)]
        for line, word in itertools.product(lines, range(0, columns, LINE)):
            code.fetch(code.at(line, word))
        values = [code.place(4, 5), code.place(6, 7), *[ir.Constant(wide, None)] * (height * width)]
        two, one = builder.ashr(terms, code.number(1)), builder.and_(terms, code.number(1))
        values = code.loop(two, values, lambda *values: step(code, *step(code, *values)))
        _, _, *sums = code.loop(one, values, lambda *values: step(code, *values))
        places = [code.at(line, v * wide.count) for line in lines for v in range(width)]
        with builder.if_else(arguments[12]) as (then, otherwise):
            with then:
                for place, value in zip(places, sums, strict=True):
                    code.store(builder.fadd(code.load(place, wide), value), place)
            with otherwise:
                for place, value in zip(places, sums, strict=True):
                    code.store(value, place)
        return context.get_dummy_value()

    return types.void(*given), generate


@intrinsic(prefer_literal=True)
def widen_panel(typing, width, beside, x, rows, first, last, columns, ct, terms, y, to, squares):
    """y[to + k * width + i] = x[row_i + columns[ct + k]] in binary64, row_i = rows[min(first + i, last)], i < width.

    squares[i]: the row's sum of squares continued over k = 0 .. terms-1. beside: the number of neighbouring rows that
    are adjacent, row_(i+1) = row_i + 1; it divides the width. x: binary32, binary64 or halves (uint16).
    """
    count, together = width.literal_value, beside.literal_value

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        begins, narrow, wide = code.rows(range(0, count, together)), code.vector(2, together), _wide(count)

        def step(column: Any, out: Any, total: Any) -> list[Any]:
            places = [code.at(begin, builder.load(column)) for begin in begins]
            words = code.joined([code.words(place, narrow) for place in places])
            return [code.at(column, 1), code.at(out, count), code.widened(words, out, total)]

        start = [code.place(6, 7), code.place(9, 10), code.load(code.place(11), wide)]
        *_, total = code.loop(arguments[8], start, step)
        code.store(total, code.place(11))
        return context.get_dummy_value()

    return types.void(*_given(width, beside, x, rows, columns, y, squares)), generate


@intrinsic(prefer_literal=True)
def widen_across(typing, width, along, x, rows, first, last, columns, ct, blocks, y, to, squares):
    """As `widen_panel`, for blocks * along terms, where the words of each block of `along` terms are adjacent: whole
    vectors of every row are read, and transposed in registers. along: a power of two."""
    count, length = width.literal_value, along.literal_value

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        begins, narrow, groups = code.rows(range(count)), code.vector(2, length), -(-count // length)

        def step(column: Any, out: Any, total: Any) -> list[Any]:
            place = builder.load(column)
            vectors = [code.words(code.at(begin, place), narrow) for begin in begins]
            vectors += [ir.Constant(vectors[0].type, ir.Undefined)] * (groups * length - count)
            for k, words in enumerate(code.transposed([code.joined(vectors[i::length]) for i in range(length)])):
                total = code.widened(code.lanes(words, words, range(count)), code.at(out, k * count), total)
            return [code.at(column, length), code.at(out, length * count), total]

        start = [code.place(6, 7), code.place(9, 10), code.load(code.place(11), _wide(count))]
        *_, total = code.loop(arguments[8], start, step)
        code.store(total, code.place(11))
        return context.get_dummy_value()

    return types.void(*_given(width, along, x, rows, columns, y, squares)), generate


def _given(width, beside, x, rows, columns, y, squares) -> tuple:
    """The types of the arguments of `widen_panel` and `widen_across`."""
    integer = types.intp
    return width, beside, x, rows, integer, integer, columns, integer, integer, y, integer, squares


# --- the modes of the processor's arithmetic: rounding to nearest, nothing flushed to zero ---

#: The mode registers: MXCSR with all exceptions masked; FPCR.
_MODES = {"x86_64": 0x1F80, "aarch64": 0, "arm64": 0}


def _processor(builder: Any) -> str:
    return builder.module.triple.split("-")[0]


def _set(code: Code, modes: Any) -> None:
    if _processor(code.builder) == "x86_64":
        word = cgutils.alloca_once_value(code.builder, modes)
        code.call("llvm.x86.sse.ldmxcsr", code.builder.bitcast(word, _BYTE.as_pointer()))
    else:
        wide = code.builder.zext(modes, ir.IntType(64))
        kind = ir.FunctionType(ir.VoidType(), [wide.type])
        code.builder.asm(kind, "msr fpcr, $0", "r,~{memory}", [wide], True)


@intrinsic
def begin_modes(typing):
    """Set IEEE's modes; returns the modes before, an int32."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        if _processor(builder) == "x86_64":
            word = cgutils.alloca_once(builder, _I32)
            code.call("llvm.x86.sse.stmxcsr", builder.bitcast(word, _BYTE.as_pointer()))
            before = builder.load(word)
        else:
            wide = builder.asm(ir.FunctionType(ir.IntType(64), []), "mrs $0, fpcr", "=r,~{memory}", [], True)
            before = builder.trunc(wide, _I32)
        _set(code, ir.Constant(_I32, _MODES[_processor(builder)]))
        return before

    return types.int32(), generate


@intrinsic
def end_modes(typing, before):
    """Restore the modes that `begin_modes` returned."""

    def generate(context, builder, signature, arguments):
        _set(Code(context, builder, signature, arguments), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int32), generate


@intrinsic
def keep_apart(typing):
    """Forbid inlining of the function that calls this: LLVM may move arithmetic across a change of modes, but not out
    of a function."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate

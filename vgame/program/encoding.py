"""Records and program files, canonical to the byte (docs/formats.md section 3). Twin: contracts/Records.sol.

In: operators. Out: records, header, program root, and back. Decoding accepts exactly the results of encoding.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from vgame.arithmetic.functions import Function, arity
from vgame.errors import ProgramError
from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
    Dim,
    Gather,
    Map,
    Operator,
    Philox,
    ReduceMax,
    Ref,
    RefClass,
    Shuffle,
    Variant,
)

VERSION = 2
INTEGER, FINITE, BFLOAT16 = 1, 2, 4  # flags
MAX_INDEX = 1 << 24


class Code(IntEnum):
    """First byte of an operator record."""

    MAP = 1
    COPY = 2
    CONTRACT = 3
    GATHER = 4
    REDUCE_MAX = 5
    ARGMAX = 6
    PHILOX = 7
    SHUFFLE = 8


CODES = {
    Map: Code.MAP,
    Copy: Code.COPY,
    Contract: Code.CONTRACT,
    Gather: Code.GATHER,
    ReduceMax: Code.REDUCE_MAX,
    ArgMax: Code.ARGMAX,
    Philox: Code.PHILOX,
    Shuffle: Code.SHUFFLE,
}


def _ref(ref: Ref) -> bytes:
    if not 0 <= ref.index < MAX_INDEX:
        raise ProgramError(f"{ref.cls.name} {ref.index} cannot be referred to: indices are below {MAX_INDEX}")
    return struct.pack(">I", ref.cls << 24 | ref.index)


def _access(access: Access) -> bytes:
    parts = [_ref(access.ref), struct.pack(">IB", access.fill, len(access.dims))]
    parts += [struct.pack(">IiI", d.size, d.offset, d.divisor) for d in access.dims]
    parts += [struct.pack(">Bi", target, coefficient) for target, coefficient in access.targets]
    return b"".join(parts)


def _space(sizes: tuple[int, ...]) -> bytes:
    return struct.pack(f">B{len(sizes)}I", len(sizes), *sizes)


def _body(operator: Operator) -> bytes:
    match operator:
        case Map():
            return _space(operator.sizes) + b"".join(map(_access, operator.accesses))
        case Copy():
            count = struct.pack(">B", len(operator.accesses))
            return _space(operator.sizes) + count + b"".join(map(_access, operator.accesses))
        case Contract(_, batch, m, n, k, a, b, shared_a, shared_b, _):
            return struct.pack(">4IB", batch, m, n, k, shared_a | shared_b << 1) + _ref(a) + _ref(b)
        case Gather():
            fixed = struct.pack(">4I", operator.count, operator.width, operator.rows, operator.fill)
            return fixed + _ref(operator.index) + _ref(operator.table)
        case ReduceMax():
            return struct.pack(">3I", operator.rows, operator.length, operator.block) + _ref(operator.operand)
        case ArgMax():
            return struct.pack(">2I", operator.rows, operator.length) + _ref(operator.operand)
        case Shuffle():
            return struct.pack(">I", operator.population)
    return b""


def operator_record(operator: Operator, finite: bool) -> bytes:
    """kind ‖ function ‖ flags ‖ elements ‖ body."""
    function = getattr(operator, "function", getattr(operator, "variant", 0))
    flags = (INTEGER if operator.integer else 0) | (FINITE if finite else 0)
    flags |= BFLOAT16 if getattr(operator, "bfloat16", False) else 0
    return struct.pack(">3BI", CODES[type(operator)], function, flags, operator.elements) + _body(operator)


def source_record(integer: bool, elements: int, ref: Ref) -> bytes:
    """dtype ‖ elements ‖ reference."""
    return struct.pack(">BI", integer, elements) + _ref(ref)


def header(counts: tuple[int, ...], sources: bytes, operators: bytes, constants: bytes) -> bytes:
    """version ‖ states ‖ operators ‖ constants ‖ data ‖ scalars ‖ loss ‖ three roots."""
    return struct.pack(">7I", VERSION, *counts) + sources + operators + constants


def program_root(header_bytes: bytes) -> bytes:
    """H(0x03 ‖ header)."""
    return hashlib.sha256(b"\x03" + header_bytes).digest()


Pool = dict[tuple[str, bytes], Any]  # (reading function, bytes) -> object


class Reader:
    """Reads big-endian fields of a record; surplus or missing bytes are an error that names the record."""

    def __init__(self, data: bytes | memoryview, what: str, pool: Pool | None = None) -> None:
        self.data, self.offset, self.what = data, 0, what
        self.pool = {} if pool is None else pool

    def take(self, layout: str) -> tuple:
        return struct.unpack(">" + layout, self.part(struct.calcsize(">" + layout)))

    def part(self, size: int) -> bytes | memoryview:
        """The next `size` bytes, without a copy if the data are a view."""
        if self.offset + size > len(self.data):
            raise ProgramError(f"{self.what} is cut short: {len(self.data)} bytes, more expected")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def shared(self, size: int, read: Callable[[], Any]) -> Any:
        """The object that `read` decodes from the next bytes; equal bytes share one object."""
        key = read.__name__, bytes(self.part(size))
        if key not in self.pool:
            self.offset -= size
            self.pool[key] = read()
        return self.pool[key]

    def ref(self) -> Ref:
        return self.shared(4, self._ref)

    def _ref(self) -> Ref:
        (word,) = self.take("I")
        if word >> 24 not in RefClass._value2member_map_:
            raise ProgramError(f"{self.what} refers to the class {word >> 24}, which does not exist")
        return Ref(RefClass(word >> 24), word & 0xFFFFFF)

    def space(self) -> tuple[int, ...]:
        (rank,) = self.take("B")

        def sizes() -> tuple[int, ...]:
            return self.take(f"{rank}I")

        return self.shared(4 * rank, sizes)

    def access(self, rank: int) -> Access:
        ref = self.ref()
        fill, count = self.take("IB")

        def dims() -> tuple[Dim, ...]:
            return tuple(Dim(*self.take("IiI")) for _ in range(count))

        def targets() -> tuple[tuple[int, int], ...]:
            return tuple(self.take("Bi") for _ in range(rank))

        return Access(ref, self.shared(12 * count, dims), self.shared(5 * rank, targets), fill)

    def done(self) -> None:
        if self.offset != len(self.data):
            raise ProgramError(f"{self.what} has {len(self.data) - self.offset} bytes too many")


def read_operator(record: bytes | memoryview, what: str, pool: Pool | None = None) -> Operator:
    """Decode an operator record. `pool`: parts of other records, shared if they are equal."""
    reader = Reader(record, what, pool)
    code, function, flags, elements = reader.take("3BI")
    try:
        operator = _read_body(reader, Code(code), function, flags, elements)
        again = operator_record(operator, bool(flags & FINITE))
    except (ValueError, ZeroDivisionError, struct.error) as error:
        raise ProgramError(f"{what} is not a valid operator: {error}") from None
    reader.done()
    if again != record:
        raise ProgramError(f"{what} is not in canonical form")
    return operator


def _read_body(reader: Reader, code: Code, function: int, flags: int, elements: int) -> Operator:
    integer, bfloat16 = bool(flags & INTEGER), bool(flags & BFLOAT16)
    match code:
        case Code.MAP:
            sizes = reader.space()
            f = Function(function)
            return Map(f, sizes, tuple(reader.access(len(sizes)) for _ in range(arity(f))), integer, bfloat16)
        case Code.COPY:
            sizes = reader.space()
            (count,) = reader.take("B")
            return Copy(sizes, tuple(reader.access(len(sizes)) for _ in range(count)), integer)
        case Code.CONTRACT:
            batch, m, n, k, shared = reader.take("4IB")
            a, b = reader.ref(), reader.ref()
            return Contract(Variant(function), batch, m, n, k, a, b, bool(shared & 1), bool(shared & 2), bfloat16)
        case Code.GATHER:
            count, width, rows, fill = reader.take("4I")
            return Gather(count, width, rows, reader.ref(), reader.ref(), fill, integer)
        case Code.REDUCE_MAX:
            return ReduceMax(*reader.take("3I"), reader.ref(), integer)
        case Code.ARGMAX:
            return ArgMax(*reader.take("2I"), reader.ref())
        case Code.PHILOX:
            return Philox(elements)
    return Shuffle(elements, *reader.take("I"))

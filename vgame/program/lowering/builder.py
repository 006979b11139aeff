"""Builds the flat list of operators: values are strided views of flat tensors, copies appear only where rows must be
contiguous.

A `Value` carries a meta tensor (no data) of the layout it has over its base, so every view operator of torch gives the
new layout without further rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vgame.arithmetic.functions import COMPARE_F, COMPARE_I, Function, arity
from vgame.errors import ProgramError
from vgame.program.operators import (
    BROADCAST,
    LEAF_TERMS,
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
    Variant,
    immediate,
    yields_integer,
)

Number = int | float | bool
LONGEST_SUM = 1 << 19  # terms; the witness of one block of a longer sum would not fit a transaction


@dataclass(frozen=True, slots=True)
class Value:
    """A strided view `layout` (meta tensor: shape, strides, offset, type) of the flat tensor `ref` of `base` words.

    The type is float32, int32 or bool (an int32 word, 0 or 1).
    """

    ref: Ref
    layout: torch.Tensor
    base: int
    word: int = 0  # the word of an IMMEDIATE

    @property
    def shape(self) -> torch.Size:
        return self.layout.shape

    @property
    def elements(self) -> int:
        return self.layout.numel()

    def like(self, layout: torch.Tensor) -> Value:
        """The same words in another layout."""
        return Value(self.ref, layout, self.base, self.word)

    def retyped(self, dtype: torch.dtype) -> Value:
        """The same words and layout with another type of int32 words (int32 or bool)."""
        base = torch.empty(self.base, dtype=dtype, device="meta")
        return self.like(base.as_strided(self.shape, self.layout.stride(), self.layout.storage_offset()))

    @property
    def integer(self) -> bool:
        return self.layout.dtype != torch.float32

    @property
    def boolean(self) -> bool:
        return self.layout.dtype == torch.bool

    @property
    def is_immediate(self) -> bool:
        return self.ref.cls is RefClass.IMMEDIATE

    @property
    def is_plain(self) -> bool:
        """True if the view is the whole base, row-major."""
        return not self.is_immediate and self.layout.is_contiguous() and self.elements == self.base


class Word(int):
    """The bits of a rounded number, with the number itself for vgame/validation."""

    exact: float

    @classmethod
    def of(cls, bits: int, exact: float) -> Word:
        word = cls(bits)
        word.exact = exact
        return word


def float_word(number: float) -> Word:
    """Bits of RN(number) in binary32; a Python double is rounded only here."""
    word = int.from_bytes(torch.tensor(number, dtype=torch.float32).numpy().tobytes(), "little")
    return Word.of(0x7FC00000 if number != number else word, float(number))


def integer_word(number: int) -> int:
    """Two's complement bits of an int32."""
    if not -(2**31) <= number < 2**31:
        raise ProgramError(f"the integer constant {number} does not fit int32; vgame computes integers in 32 bits")
    return struct.unpack(">I", struct.pack(">i", number))[0]


class Builder:
    """Collects operators and constants; equal operators are emitted once."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.labels: list[str] = []
        self.constants: list[torch.Tensor] = []
        self.label = ""
        self.checked = False  # whether the short form of the rule is valid for the current operator (usual.py)
        self._seen: dict[Operator, int] = {}
        self._constants: dict[tuple[bool, bytes], int] = {}
        self.exact: dict[int, torch.Tensor] = {}  # constants before their rounding to binary32, flat
        self.narrow: set[Ref] = set()  # tensors known to have bfloat16 words (precision.py)

    # ---- values ----

    def tensor(self, ref: Ref, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """A whole tensor, row-major."""
        layout = torch.empty(tuple(shape), device="meta", dtype=dtype)
        return Value(ref, layout, layout.numel())

    def number(self, number: Number, integer: bool) -> Value:
        """A constant that is part of the record (an immediate)."""
        word = integer_word(int(number)) if integer else float_word(float(number))
        return self._immediate(word, torch.int32 if integer else torch.float32)

    @staticmethod
    def _immediate(word: int, dtype: torch.dtype) -> Value:
        return Value(Ref(RefClass.IMMEDIATE), torch.empty((), device="meta", dtype=dtype), 1, word)

    def full(self, shape: Sequence[int], number: Number, integer: bool) -> Value:
        """A constant of any shape, still one word."""
        value = self.number(number, integer)
        return value.like(value.layout.expand(tuple(shape)))

    def constant(self, tensor: torch.Tensor) -> Value:
        """A tensor known at capture: float32 (float64 is rounded), or any integer type that fits int32."""
        integer = not tensor.is_floating_point()
        dtype = torch.bool if tensor.dtype == torch.bool else torch.int32 if integer else torch.float32
        if integer and tensor.numel() and not (int(tensor.min()) >= -(2**31) and int(tensor.max()) < 2**31):
            raise ProgramError(f"an integer constant of shape {tuple(tensor.shape)} does not fit int32")
        flat = tensor.detach().cpu().to(torch.int32 if integer else torch.float32).contiguous().reshape(-1)
        if flat.numel() and (flat.view(torch.int32) == flat.view(torch.int32)[0]).all():
            word = int(flat.view(torch.int32)[0]) & 0xFFFFFFFF
            value = self._immediate(word if integer else Word.of(word, float(tensor.reshape(-1)[0])), dtype)
            return value.like(value.layout.expand(tensor.shape))
        key = (integer, flat.numpy().tobytes())
        if key not in self._constants:
            self._constants[key] = len(self.constants)
            self.constants.append(flat)
            if tensor.dtype == torch.float64:
                self.exact[self._constants[key]] = tensor.detach().reshape(-1)
        return self.tensor(Ref(RefClass.CONSTANT, self._constants[key]), tensor.shape, dtype)

    def emit(self, operator: Operator, shape: Sequence[int], dtype: torch.dtype | None = None) -> Value:
        """The operator's output, row-major in this shape; `dtype`: bool for int32 words that are truth values."""
        index = None if isinstance(operator, Philox) else self._seen.get(operator)
        if index is None:
            index = self._seen[operator] = len(self.operators)
            self.operators.append(operator)
            self.labels.append(self.label)
        dtype = dtype or (torch.int32 if operator.integer else torch.float32)
        return self.tensor(Ref(RefClass.OPERATOR, index), shape, dtype)

    # ---- accesses ----

    def _accesses(self, values: Sequence[Value]) -> tuple[tuple[int, ...], tuple[Access, ...]]:
        """The smallest index space over which values of one shape are strided, and their accesses."""
        shape = values[0].shape
        columns = [
            (n, tuple(0 if v.is_immediate else s for v, s in zip(values, strides, strict=True)))
            for n, *strides in zip(shape, *(v.layout.stride() for v in values), strict=True)
            if n != 1
        ]
        merged: list[tuple[int, tuple[int, ...]]] = []
        for size, strides in columns:
            if merged and all(s == t * size for s, t in zip(merged[-1][1], strides, strict=True)):
                merged[-1] = (merged[-1][0] * size, strides)
            else:
                merged.append((size, strides))
        merged = merged or [(1, (0,) * len(values))]
        sizes = tuple(size for size, _ in merged)
        return sizes, tuple(self._access(v, [s[i] for _, s in merged]) for i, v in enumerate(values))

    def _access(self, value: Value, strides: Sequence[int]) -> Access:
        if value.is_immediate:
            return immediate(value.word, len(strides))
        targets = tuple((0, s) if s else (BROADCAST, 0) for s in strides)
        if value.ref.cls is RefClass.SCALAR:
            return Access(value.ref, (), ((BROADCAST, 0),) * len(strides))
        return Access(value.ref, (Dim(value.base, value.layout.storage_offset()),), targets)

    def plain(self, value: Value) -> Value:
        """The value as a whole row-major tensor: itself, or a copy."""
        if value.is_plain:
            return value
        sizes, accesses = self._accesses([value])
        return self.emit(Copy(sizes, accesses, value.integer), value.shape, value.layout.dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Row-major reshape: a view if torch would give one, else a view of a copy."""
        try:
            return value.like(value.layout.view(tuple(shape)))
        except RuntimeError:
            copied = self.plain(value)
            return copied.like(copied.layout.view(tuple(shape)))

    # ---- operators ----

    def map(self, function: Function, *operands: Value | Number) -> Value:
        """function over broadcast operands; numbers take the function's operand type."""
        if len(operands) != arity(function):
            raise ProgramError(f"{function.name} takes {arity(function)} operands, got {len(operands)}")
        integer = any(v.integer for v in operands[-2:] if isinstance(v, Value))
        values = [v if isinstance(v, Value) else self.number(v, integer) for v in operands]
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        values = [v.like(v.layout.expand(shape)) for v in values]
        sizes, accesses = self._accesses(values)
        output = integer if function is Function.SELECT else yields_integer(function)
        dtype = torch.bool if self._is_truth(function, values) else None
        return self.emit(Map(function, sizes, accesses, output), shape, dtype)

    @staticmethod
    def _is_truth(function: Function, values: Sequence[Value]) -> bool:
        closed = {Function.IAND, Function.IOR, Function.IXOR, Function.SELECT, Function.IMAX, Function.IMIN}
        comparison = function in COMPARE_F or function in COMPARE_I
        return comparison or (function in closed and all(v.boolean for v in values[-2:]))

    def copy(self, shape: Sequence[int], accesses: Sequence[Access], dtype: torch.dtype) -> Value:
        """A copy over the given index space (one dimension per entry of `shape`)."""
        return self.emit(Copy(tuple(shape), tuple(accesses), dtype != torch.float32), shape, dtype)

    def dot(self, a: Value, b: Value) -> Value:
        """[B,M,N] = A [B,M,K] times B [B,N,K] along k."""
        (batch, m, k), n = self._batch(a, b), b.shape[1]
        if k > LONGEST_SUM:
            return self._in_pieces(self.dot, k, a, b)
        (a, shared_a), (b, shared_b) = self._rows(a, batch), self._rows(b, batch)
        if shared_a and shared_b:
            return self._repeated(self.dot(a, b), batch)
        operator = Contract(Variant.DOT, batch, m, n, k, a.ref, b.ref, shared_a, shared_b)
        return self.emit(operator, (batch, m, n))

    def _in_pieces(self, rule: Callable[..., Value], k: int, *operands: Value) -> Value:
        """A sum of more than LONGEST_SUM terms (last dimension): pieces of that length, each rounded, added first to
        last."""
        result = None
        for start in range(0, k, LONGEST_SUM):
            piece = rule(*(v.like(v.layout[..., start : start + LONGEST_SUM]) for v in operands))
            result = piece if result is None else self.map(Function.ADD, result, piece)
        return result

    @staticmethod
    def _batch(a: Value, b: Value) -> tuple[int, int, int]:
        return max(a.shape[0], b.shape[0]), a.shape[1], a.shape[2]

    @staticmethod
    def _repeated(value: Value, batch: int) -> Value:
        return value.like(value.layout.expand(batch, -1, -1))

    def _rows(self, value: Value, batch: int) -> tuple[Value, bool]:
        """(plain value, shared?): an expanded batch dimension is stored once."""
        if batch > 1 and (value.shape[0] == 1 or value.layout.stride(0) == 0):
            return self.plain(value.like(value.layout[:1])), True
        return self.plain(value), False

    def sum_rows(self, value: Value) -> Value:
        """Sums over the last dimension."""
        *rows, k = value.shape
        if k > LONGEST_SUM:
            return self._in_pieces(self.sum_rows, k, value)
        value = self.plain(value)
        count = value.elements // k
        return self.emit(Contract(Variant.SUM, 1, count, 1, k, value.ref), rows)

    def one_hot_sum(self, index: Value, value: Value, m: int) -> Value:
        """[B,M,N]: sums of value [B,N,K] where index [B,K] equals m."""
        batch, n, k = max(index.shape[0], value.shape[0]), value.shape[1], value.shape[2]
        if k > LONGEST_SUM:
            return self._in_pieces(lambda i, v: self.one_hot_sum(i, v, m), k, index, value)
        (index, shared_a), (value, shared_b) = self._rows(index, batch), self._rows(value, batch)
        if shared_a and shared_b:
            return self._repeated(self.one_hot_sum(index, value, m), batch)
        operator = Contract(Variant.ONE_HOT, batch, m, n, k, index.ref, value.ref, shared_a, shared_b)
        return self.emit(operator, (batch, m, n))

    def max_rows(self, value: Value) -> Value:
        """Maximum over the last dimension; long rows in two or more passes."""
        *rows, length = value.shape
        while True:
            value = self.plain(value)
            count, block = value.elements // length, min(length, LEAF_TERMS)
            value = self.emit(ReduceMax(count, length, block, value.ref, value.integer), (count, -(-length // block)))
            length = value.shape[1]
            if length == 1:
                return self.reshape(value, rows)

    def argmax_rows(self, value: Value) -> Value:
        """First position of the maximum over the last dimension."""
        *rows, length = value.shape
        value = self.plain(value)
        return self.emit(ArgMax(value.elements // length, length, value.ref), rows)

    def gather_rows(self, table: Value, index: Value, fill: Number = 0) -> Value:
        """table [V, ...] at index [...]: shape index.shape + table.shape[1:]."""
        table, index = self.plain(table), self.plain(index)
        rows, width = table.shape[0], table.elements // table.shape[0]
        word = self.number(fill, table.integer).word
        operator = Gather(index.elements, width, rows, index.ref, table.ref, word, table.integer)
        return self.emit(operator, (*index.shape, *table.shape[1:]), table.layout.dtype)

    def random_words(self, shape: Sequence[int]) -> Value:
        """Fresh random words."""
        return self.emit(Philox(torch.Size(shape).numel()), shape)

    def iota(self, count: int) -> Value:
        """0, 1, ..., count - 1."""
        return self.constant(torch.arange(count, dtype=torch.int32))

    # ---- shorthands ----

    def to_float(self, value: Value | Number) -> Value:
        """int32 to binary32; binary32 unchanged."""
        if not isinstance(value, Value):
            return self.number(value, False)
        return self.map(Function.ITOF, value) if value.integer else value

    def select(self, condition: Value, yes: Value | Number, no: Value | Number) -> Value:
        """condition != 0 ? yes : no."""
        return self.map(Function.SELECT, condition, yes, no)

"""The operators that a program is made of (docs/formats.md section 3).

An operator is data: frozen, hashable, without torch. Eight kinds, each decidable on chain one element at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from vgame.arithmetic.functions import BINARY_I, COMPARE_F, COMPARE_I, Function

BROADCAST = 0xFF  # target of an output dimension that an operand does not have
LEAF_TERMS = 1024  # a longer sum is decided in blocks
MAX_BLOCKS = 64


class RefClass(IntEnum):
    """The class of an operand."""

    IMMEDIATE = 0
    OPERATOR = 1
    STATE = 2
    CONSTANT = 3
    DATA = 4
    SCALAR = 5


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor by class and index."""

    cls: RefClass
    index: int = 0


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of an operand as an access sees it: coordinate = offset + ..., position = coordinate / divisor."""

    size: int
    offset: int = 0
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Access:
    """The word of `ref` read at each output index; `fill` if the index is out of bounds.

    targets[i] = (operand dimension or BROADCAST, coefficient) of output dimension i.
    """

    ref: Ref
    dims: tuple[Dim, ...] = ()
    targets: tuple[tuple[int, int], ...] = ()
    fill: int = 0

    @property
    def elements(self) -> int:
        return math.prod(d.size for d in self.dims)

    def bounds(self, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
        """(lowest, highest) coordinate of each operand dimension over the index space."""
        result = []
        for j, dim in enumerate(self.dims):
            spans = [c * (n - 1) for (t, c), n in zip(self.targets, sizes, strict=True) if t == j]
            result.append((dim.offset + sum(min(s, 0) for s in spans), dim.offset + sum(max(s, 0) for s in spans)))
        return result

    def always_inside(self, sizes: tuple[int, ...]) -> bool:
        """True if no output index is out of bounds."""
        pairs = zip(self.dims, self.bounds(sizes), strict=True)
        return all(d.divisor == 1 and low >= 0 and high < d.size for d, (low, high) in pairs)

    def position(self, index: tuple[int, ...]) -> int | None:
        """Row-major position that the output index reads, or None if it is out of bounds."""
        position = 0
        for j, dim in enumerate(self.dims):
            coordinate = dim.offset + sum(c * i for (t, c), i in zip(self.targets, index, strict=True) if t == j)
            quotient, remainder = divmod(coordinate, dim.divisor)
            if coordinate < 0 or remainder or quotient >= dim.size:
                return None
            position = position * dim.size + quotient
        return position


@dataclass(frozen=True, slots=True)
class Map:
    """out[idx] = function(operands at idx)."""

    function: Function
    sizes: tuple[int, ...]
    accesses: tuple[Access, ...]
    integer: bool
    bfloat16: bool = False  # the output is rounded to 8 bits, once

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Copy:
    """out[idx] = the word of the first access in bounds, else the last access's fill."""

    sizes: tuple[int, ...]
    accesses: tuple[Access, ...]
    integer: bool

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


class Variant(IntEnum):
    """The second operand of a contraction."""

    DOT = 0
    SUM = 1
    ONE_HOT = 2


@dataclass(frozen=True, slots=True)
class Contract:
    """out[b,m,n] = RN(sum over k of A[b,m,k] * B[b,n,k]); SUM: B = 1; ONE_HOT: A[b,k] == m selects B[b,n,k]."""

    variant: Variant
    batch: int
    m: int
    n: int
    k: int
    a: Ref
    b: Ref = Ref(RefClass.IMMEDIATE)
    shared_a: bool = False
    shared_b: bool = False
    bfloat16: bool = False  # the output is rounded to 8 bits, once
    integer = False

    @property
    def elements(self) -> int:
        return self.batch * self.m * self.n

    @property
    def distinct(self) -> int:
        """Number of batches with different operands; 1 if all batches share their operands, and so their output."""
        shared = self.shared_a and (self.shared_b or self.variant is Variant.SUM)
        return 1 if shared else self.batch

    @property
    def a_elements(self) -> int:
        rows = 1 if self.variant is Variant.ONE_HOT else self.m
        return (1 if self.shared_a else self.batch) * rows * self.k

    @property
    def b_elements(self) -> int:
        return (1 if self.shared_b else self.batch) * self.n * self.k

    @property
    def blocks(self) -> int:
        """Number of blocks in which the referee decides one element; 1: without blocks."""
        return -(-self.k // self.block_length)

    @property
    def block_length(self) -> int:
        return -(-self.k // min(MAX_BLOCKS, -(-self.k // LEAF_TERMS)))


@dataclass(frozen=True, slots=True)
class Gather:
    """out[i,r] = table[index[i], r], or fill where index[i] is not a row of the table."""

    count: int
    width: int
    rows: int
    index: Ref
    table: Ref
    fill: int
    integer: bool

    @property
    def elements(self) -> int:
        return self.count * self.width


@dataclass(frozen=True, slots=True)
class ReduceMax:
    """out[row,j] = maximum of block j of the row; NaN wins; a zero result is +0."""

    rows: int
    length: int
    block: int
    operand: Ref
    integer: bool = False

    @property
    def elements(self) -> int:
        return self.rows * -(-self.length // self.block)


@dataclass(frozen=True, slots=True)
class ArgMax:
    """out[row] = first position of the row's maximum; the first NaN if there is one."""

    rows: int
    length: int
    operand: Ref
    integer = True

    @property
    def elements(self) -> int:
        return self.rows


@dataclass(frozen=True, slots=True)
class Philox:
    """out[e] = the random word of (seed, step, operator, e)."""

    elements: int
    integer = True


@dataclass(frozen=True, slots=True)
class Shuffle:
    """out[i] = sample index at position (step - 1) * elements + i of the keyed permutations of the data set."""

    elements: int
    population: int
    integer = True


Operator = Map | Copy | Contract | Gather | ReduceMax | ArgMax | Philox | Shuffle


def yields_integer(function: Function) -> bool:
    """True if a map of this function gives int32 words (SELECT keeps the type of its operands)."""
    return function in COMPARE_F or function in BINARY_I or function in COMPARE_I or function is Function.FTOI


def operand_refs(operator: Operator) -> tuple[tuple[Ref, int, bool | None], ...]:
    """(reference, elements, integer or None for either type) of each operand."""
    match operator:
        case Map(accesses=accesses):
            types = operand_types(operator)
            return tuple((a.ref, a.elements, t) for a, t in zip(accesses, types, strict=True))
        case Copy(accesses=accesses, integer=integer):
            return tuple((a.ref, a.elements, integer) for a in accesses)
        case Contract(variant=Variant.SUM):
            return ((operator.a, operator.a_elements, False),)
        case Contract():
            one_hot = operator.variant is Variant.ONE_HOT
            return ((operator.a, operator.a_elements, one_hot), (operator.b, operator.b_elements, False))
        case Gather():
            table = (operator.table, operator.rows * operator.width, operator.integer)
            return ((operator.index, operator.count, True), table)
        case ReduceMax():
            return ((operator.operand, operator.rows * operator.length, operator.integer),)
        case ArgMax():
            return ((operator.operand, operator.rows * operator.length, False),)
    return getattr(operator, "reads", ())  # an exchange between ranks (vgame/ranks/part.py), never in a program


def operand_types(operator: Map) -> tuple[bool, ...]:
    """integer? of each operand of a map."""
    function = operator.function
    if function is Function.SELECT:
        return (True, operator.integer, operator.integer)
    integer = function in BINARY_I or function in COMPARE_I or function is Function.ITOF
    return (integer,) * len(operator.accesses)


def identity_access(ref: Ref, elements: int) -> Access:
    """The access of a flat index space that reads word i at index i."""
    return Access(ref, (Dim(elements),), ((0, 1),))


def immediate(word: int, rank: int = 1) -> Access:
    """An access that always yields the word."""
    return Access(Ref(RefClass.IMMEDIATE), (), ((BROADCAST, 0),) * rank, fill=word)

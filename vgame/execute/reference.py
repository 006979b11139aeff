"""Any single output element, slowly and exactly, from the words that it reads. Twins: vgame/execute/ordinary.py,
contracts/Referee.sol.

In: an operator, an element, and `read(ref, first, count)`. Out: the word. The reads and their order are part of the
definition: the openings of docs/formats.md section 6 are exactly these reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference import sums as reference_sums
from vgame.arithmetic.reference.philox import random_word, shuffle_index
from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
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

Read = Callable[[Ref, int, int], list[int]]


@dataclass(frozen=True, slots=True)
class Position:
    """An element and its step."""

    seed: int
    step: int
    operator: int
    element: int


def evaluate(operator: Operator, at: Position, read: Read) -> int:
    """The word of one output element."""
    match operator:
        case Map():
            bits = reference.BFLOAT16_BITS if operator.bfloat16 else reference.SIGNIFICAND_BITS
            word = reference.evaluate(operator.function, *operands(operator, at.element, read), bits=bits)
            return word if operator.integer else canonical(word)
        case Copy():
            word = _copy(operator, unravel(at.element, operator.sizes), read)
            return word if operator.integer else canonical(word)
        case Contract():
            return reference_sums.merge(partial(operator, at.element, j, read) for j in range(operator.blocks)).round()
        case Gather():
            word = _gather(operator, at.element, read)
            return word if operator.integer else canonical(word)
        case ReduceMax():
            words = read(operator.operand, *block_of(operator, at.element))
            return _integer_maximum(words) if operator.integer else reference.reduce_max(words)
        case ArgMax():
            return reference.argmax(read(operator.operand, at.element * operator.length, operator.length))
        case Philox():
            return random_word(at.seed, at.step, at.operator, at.element)
        case Shuffle():
            return shuffle_index(at.seed, at.step, at.element, operator.elements, operator.population)


def canonical(word: int) -> int:
    """Any NaN as the one NaN."""
    return 0x7FC00000 if word & 0x7FFFFFFF > 0x7F800000 else word


def unravel(element: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major index of an element."""
    index = []
    for size in reversed(sizes):
        element, position = divmod(element, size)
        index.append(position)
    return tuple(reversed(index))


def _read_access(access: Access, index: tuple[int, ...], read: Read) -> int | None:
    """The word, or None if the index is out of bounds."""
    if access.ref.cls is RefClass.IMMEDIATE:
        return access.fill
    position = access.position(index)
    return None if position is None else read(access.ref, position, 1)[0]


def operands(operator: Map, element: int, read: Read) -> list[int]:
    """The operand words of a pointwise function."""
    index = unravel(element, operator.sizes)
    return [_operand(a, index, read) for a in operator.accesses]


def _operand(access: Access, index: tuple[int, ...], read: Read) -> int:
    word = _read_access(access, index, read)
    return access.fill if word is None else word


def _copy(operator: Copy, index: tuple[int, ...], read: Read) -> int:
    for access in operator.accesses:
        word = _read_access(access, index, read)
        if word is not None:
            return word
    return operator.accesses[-1].fill


def _gather(operator: Gather, element: int, read: Read) -> int:
    i, r = divmod(element, operator.width)
    row = read(operator.index, i, 1)[0]
    if row >= operator.rows:  # as an unsigned word: negative indices are out of range too
        return operator.fill
    return read(operator.table, row * operator.width + r, 1)[0]


def block_of(operator: ReduceMax, element: int) -> tuple[int, int]:
    """(first word, count) of a maximum's reads."""
    row, block = divmod(element, -(-operator.length // operator.block))
    first = block * operator.block
    return row * operator.length + first, min(operator.block, operator.length - first)


def _integer_maximum(words: list[int]) -> int:
    return max(words, key=lambda w: w ^ 0x80000000)


def rows(operator: Contract, element: int, block: int, read: Read) -> tuple[int, list[int], list[int]]:
    """(m, words of A, words of B) of one block of a contraction; for ONE_HOT (m, index, values), for SUM (m, terms,
    [])."""
    batch, m, n = unravel(element, (operator.batch, operator.m, operator.n))
    start = block * operator.block_length
    count = min(operator.block_length, operator.k - start)
    batch_a, batch_b = (0 if operator.shared_a else batch), (0 if operator.shared_b else batch)
    row_b = (batch_b * operator.n + n) * operator.k + start
    if operator.variant is Variant.ONE_HOT:
        return m, read(operator.a, batch_a * operator.k + start, count), read(operator.b, row_b, count)
    a = read(operator.a, (batch_a * operator.m + m) * operator.k + start, count)
    return m, a, [] if operator.variant is Variant.SUM else read(operator.b, row_b, count)


def partial(operator: Contract, element: int, block: int, read: Read) -> reference_sums.Partial:
    """Exact partial sum of one block of a contraction."""
    m, a, b = rows(operator, element, block, read)
    if operator.variant is Variant.ONE_HOT:
        result = reference_sums.partial_one_hot_sum(a, m, b)
    else:
        is_sum = operator.variant is Variant.SUM
        result = reference_sums.partial_sum(a) if is_sum else reference_sums.partial_dot(a, b)
    return result.narrow() if operator.bfloat16 else result


__all__ = ["Position", "Read", "block_of", "canonical", "evaluate", "operands", "partial", "rows", "unravel"]

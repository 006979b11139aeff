"""bfloat16 in the lowering: find words on the grid of 8 bits, and round values to it.

In: a builder and its values, whose only floating-point type is binary32. Out: values whose words are bfloat16. An
arithmetic operator is emitted again with a bfloat16 output, so that its exact value is rounded once; operators that
move words move rounded ones; states and constants are converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vgame.arithmetic.functions import Function
from vgame.arithmetic.reference.binary32 import round_word
from vgame.arithmetic.reference.functions import BFLOAT16_BITS
from vgame.program.lowering.builder import Builder, Value
from vgame.program.operators import Access, Contract, Copy, Gather, Map, ReduceMax, Ref, RefClass

LOW = 0xFFFF
#: Functions that map words on the grid to words on the grid.
MOVING = (Function.NEG, Function.ABS, Function.MAX, Function.MIN, Function.SELECT)


def on_grid(b: Builder, ref: Ref, word: int = 0) -> bool:
    """Whether every word of the tensor is a bfloat16 value (`word`: the word of an immediate)."""
    match ref.cls:
        case RefClass.IMMEDIATE:
            return word & LOW == 0
        case RefClass.CONSTANT:
            words = b.constants[ref.index]
            return words.is_floating_point() and not bool((words.view(torch.int32) & LOW).any())
        case RefClass.OPERATOR:
            return _gives_grid(b, ref.index)
    return ref in b.narrow


def _gives_grid(b: Builder, index: int) -> bool:
    """Cached; operators read earlier ones only, so the recursion ends."""
    operator = b.operators[index]
    if getattr(operator, "bfloat16", False) or Ref(RefClass.OPERATOR, index) in b.narrow:
        return True
    match operator:
        case Map(function=function, accesses=accesses) if function in MOVING and not operator.integer:
            found = _all_on_grid(b, accesses[-2:])
        case Copy(accesses=accesses, integer=False):
            found = _all_on_grid(b, accesses)
        case Gather(table=table, fill=fill, integer=False):
            found = fill & LOW == 0 and on_grid(b, table)
        case ReduceMax(operand=operand, integer=False):
            found = on_grid(b, operand)
        case _:
            found = False
    if found:
        b.narrow.add(Ref(RefClass.OPERATOR, index))
    return found


def _all_on_grid(b: Builder, accesses: Sequence[Access]) -> bool:
    return all(a.fill & LOW == 0 and on_grid(b, a.ref, a.fill) for a in accesses)


def narrowed(b: Builder, value: Value) -> Value:
    """The value, rounded to bfloat16 once by its own operator."""
    if value.is_immediate:
        return replace(value, word=round_word(value.word, BFLOAT16_BITS))
    return replace(value, ref=_narrowed(b, value.ref, value.base))


def cast(b: Builder, value: Value) -> Value:
    """The value's words, rounded: a conversion, which is an operator of its own."""
    if value.is_immediate or on_grid(b, value.ref):
        return narrowed(b, value)
    whole = b.map(Function.CAST, value)
    return replace(whole, ref=_narrowed(b, whole.ref, whole.base))


def _narrowed(b: Builder, ref: Ref, elements: int) -> Ref:
    if on_grid(b, ref):
        return ref
    operator = b.operators[ref.index] if ref.cls is RefClass.OPERATOR else None
    match operator:
        case Map() | Contract():
            again = replace(operator, bfloat16=True)
        case Copy(accesses=accesses):
            again = replace(operator, accesses=tuple(_rounded(b, a) for a in accesses))
        case Gather(table=table, fill=fill):
            again = replace(
                operator,
                table=_narrowed(b, table, operator.rows * operator.width),
                fill=round_word(fill, BFLOAT16_BITS),
            )
        case ReduceMax(operand=operand):
            again = replace(operator, operand=_narrowed(b, operand, operator.rows * operator.length))
        case _:
            return cast(b, b.tensor(ref, (elements,), torch.float32)).ref
    return b.emit(again, (again.elements,)).ref


def _rounded(b: Builder, access: Access) -> Access:
    ref = access.ref if access.ref.cls is RefClass.IMMEDIATE else _narrowed(b, access.ref, access.elements)
    return replace(access, ref=ref, fill=round_word(access.fill, BFLOAT16_BITS))

"""Remove unneeded operators: the reachable ones, and their new numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vgame.program.operators import (
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    ReduceMax,
    Ref,
    RefClass,
    operand_refs,
)


def reachable(operators: Sequence[Operator], roots: Sequence[Ref]) -> list[int]:
    needed = {ref.index for ref in roots if ref.cls is RefClass.OPERATOR}
    for i in range(len(operators) - 1, -1, -1):
        if i in needed:
            needed.update(r.index for r, _, _ in operand_refs(operators[i]) if r.cls is RefClass.OPERATOR)
    return sorted(needed)


def moved(ref: Ref, renumbered: Mapping[int, int]) -> Ref:
    return Ref(ref.cls, renumbered[ref.index]) if ref.cls is RefClass.OPERATOR else ref


def renumber(operator: Operator, renumbered: Mapping[int, int]) -> Operator:
    match operator:
        case Map() | Copy():
            accesses = tuple(replace(a, ref=moved(a.ref, renumbered)) for a in operator.accesses)
            return replace(operator, accesses=accesses)
        case Contract():
            return replace(operator, a=moved(operator.a, renumbered), b=moved(operator.b, renumbered))
        case Gather():
            return replace(operator, index=moved(operator.index, renumbered), table=moved(operator.table, renumbered))
        case ReduceMax() | ArgMax():
            return replace(operator, operand=moved(operator.operand, renumbered))
    return operator

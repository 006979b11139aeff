"""The outputs of a step that are stored in 2 bytes a word: bfloat16 words, whose low 16 bits are zero.

In: the units of a step on a CPU. Out: the operators concerned. Products and chains write halves; chains and views read
them in place, a product's tile widens the rows that it reads into its own thread's memory, and every other reader gets
a widened copy (`Run.output`). Bits do not change: a word is its high half, followed by zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vgame.execute.chains import Unit
from vgame.execute.layout import box
from vgame.program.operators import Access, Contract, Copy, Operator, RefClass, Variant

#: The bits of a word that a half does not have.
LOW = 0xFFFF


def halves_of(units: Sequence[Unit], operators: Sequence[Operator], kept: Collection[int]) -> frozenset[int]:
    """The operators whose outputs are halves. kept: operators whose outputs are words, as state and loss are."""
    found: set[int] = set()
    for unit in units:
        if unit.fused:
            written = [i for i in unit.fused.results if operators[i].bfloat16]
        elif isinstance(unit.operator, Copy):
            written = [unit.index] if _moves_halves(unit.operator, found) else []
        else:
            is_product = isinstance(unit.operator, Contract) and unit.operator.variant is Variant.DOT
            written = [unit.index] if is_product and unit.operator.bfloat16 else []
        found.update(i for i in written if i not in kept)
    return frozenset(found)


def _moves_halves(operator: Copy, found: Collection[int]) -> bool:
    """Whether all words of a copy are halves, and it has a form that `Run` copies as halves."""
    in_boxes = len(operator.accesses) == 1 or all(box(access, operator.sizes) for access in operator.accesses)
    return (
        in_boxes
        and any(_reads(a, found) for a in operator.accesses)
        and all(is_half(a) and (a.ref.cls is RefClass.IMMEDIATE or _reads(a, found)) for a in operator.accesses)
    )


def _reads(access: Access, found: Collection[int]) -> bool:
    return access.ref.cls is RefClass.OPERATOR and access.ref.index in found


def is_half(access: Access) -> bool:
    """Whether the word outside an access's bounds is a half."""
    return not access.fill & LOW

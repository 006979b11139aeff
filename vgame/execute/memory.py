"""The least memory of a step: a job that does not fit is refused before it fills the machine.

In: the units of a step. Out: words, or a VgameError. Counts only words that are certainly in memory: no views, no
temporaries. A step with a tap (for a dispute) has no chains and writes each output as contiguous words.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from vgame.errors import VgameError
from vgame.execute.chains import Unit
from vgame.execute.layout import plan, row_major
from vgame.program.operators import Contract, Copy, Map, Operator
from vgame.program.program import Program

WORD = 4
GIB = 2**30


def refuse_too_large(
    program: Program, units: Sequence[Unit], data: int, traced: bool, halves: Collection[int] = ()
) -> None:
    """Raise VgameError if the state, `data` words of data and the outputs that live at once cannot fit this machine's
    memory. halves: operators whose outputs take 2 bytes a word."""
    words = data + sum(s.elements for s in program.sources) + words_at_once(units, program.operators, traced, halves)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if WORD * words > there:
        raise VgameError(
            f"a step of this job needs at least {WORD * words / GIB:,.1f} GiB of memory, but this machine has "
            f"{there / GIB:,.1f} GiB; run it on a machine with more memory"
        )


def words_at_once(
    units: Sequence[Unit], operators: Sequence[Operator], traced: bool, halves: Collection[int] = ()
) -> int:
    """Peak number of words of live outputs; two halves count as one."""
    live: dict[int, int] = {}
    held = most = 0
    for unit in units:
        for index in unit.fused.results if unit.fused else (unit.index,):
            words = operators[index].elements if unit.fused else _words(operators[index], traced)
            live[index] = -(-words // 2) if index in halves else words
            held += live[index]
        most = max(most, held)
        for index in unit.free:
            held -= live.pop(index, 0)
    return most


def _in_order(operator: Copy) -> bool:
    """Whether a copy's words may be contiguous in its operand."""
    found = plan(operator.accesses[0], operator.sizes) if len(operator.accesses) == 1 else None
    return found is not None and all(
        step == s or n == 1 for step, s, n in zip(found[0], row_major(operator.sizes), operator.sizes, strict=True)
    )


def _words(operator: Operator, traced: bool) -> int:
    """Words of memory of an operator's output. Without a tap, a copy may be a view and a map one expanded word."""
    if traced and not (isinstance(operator, Copy) and _in_order(operator)):
        return operator.elements
    match operator:
        case Map() | Copy():
            return 0
        case Contract():
            return operator.distinct * operator.m * operator.n
    return operator.elements

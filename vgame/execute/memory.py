"""How much memory a step needs at least: a job that cannot run here is refused before it fills the machine.

In: the units of a step. Out: words, or one sentence. Counted is only what certainly lies in memory: no views, nothing on the way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vgame.errors import VgameError
from vgame.execute.chains import Unit
from vgame.program.operators import Contract, Copy, Map, Operator
from vgame.program.program import Program

WORD = 4
GIB = 2**30


def refuse_too_large(program: Program, units: Sequence[Unit], data: int) -> None:
    """Raise VgameError if the state, `data` words of data and the outputs that live at once cannot fit this machine's memory."""
    words = data + sum(s.elements for s in program.sources) + words_at_once(units, program.operators)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if WORD * words > there:
        raise VgameError(
            f"a step of this job needs at least {WORD * words / GIB:,.1f} GiB of memory, this machine has {there / GIB:,.1f}: "
            "run it on one that has more"
        )


def words_at_once(units: Sequence[Unit], operators: Sequence[Operator]) -> int:
    """The most words of outputs that live at the same time."""
    live: dict[int, int] = {}
    held = most = 0
    for unit in units:
        for index in unit.fused.results if unit.fused else (unit.index,):
            live[index] = operators[index].elements if unit.fused else _words(operators[index])
            held += live[index]
        most = max(most, held)
        for index in unit.free:
            held -= live.pop(index, 0)
    return most


def _words(operator: Operator) -> int:
    """Of an operator's own output. A copy may be a view, a map one word that is seen many times."""
    match operator:
        case Map() | Copy():
            return 0
        case Contract():
            return operator.distinct * operator.m * operator.n
    return operator.elements

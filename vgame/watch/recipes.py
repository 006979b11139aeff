"""The contested number as a recipe: the kind of sum or function, and the words of a proof, so that the page can compute
it. Twin: vgame/watch/page/exact.js.

In: an operator, and a reader of the opened words. Out: plain JSON; words are numbers below 2^32.
"""

from __future__ import annotations

from typing import Any

from vgame.arithmetic.functions import ELEMENTARY
from vgame.execute import reference
from vgame.program.operators import ArgMax, Contract, Copy, Gather, Map, Operator, Philox, ReduceMax, Shuffle, Variant

LOGGED = "in mode `logged` a number depends on the trainer's rounding log too: only the contract computes it"
RANDOM = "a random word is not computed by this page"
SUMS = {Variant.DOT: "dot", Variant.SUM: "sum", Variant.ONE_HOT: "one_hot"}


def recipe(operator: Operator, at: reference.Position, part: int | None, read: reference.Read) -> dict[str, Any]:
    """`kind`, `words` (a list for each operand) and `bits`; or `not`: the reason why the page does not compute it."""
    bits = 8 if getattr(operator, "bfloat16", False) else 24
    common = {"bits": bits, "integer": operator.integer, "part": part}
    match operator:
        case Map(function=function):
            words = reference.operands(operator, at.element, read)
            if function in ELEMENTARY:
                return {"not": f"{function.name.lower()} is an elementary function: only the contract computes it"}
            return common | {"kind": "map", "function": function.name, "words": [words]}
        case Contract():
            row, left, right = reference.rows(operator, at.element, part or 0, read)
            words = [left, right] if right else [left]
            return common | {"kind": SUMS[operator.variant], "row": row, "words": words}
        case Philox() | Shuffle():
            return {"not": RANDOM}
    return common | {"kind": _KINDS[type(operator)], "words": [_moved(operator, at, read)]}


_KINDS = {Copy: "copy", Gather: "copy", ReduceMax: "max", ArgMax: "argmax"}


def _moved(operator: Copy | Gather | ReduceMax | ArgMax, at: reference.Position, read: reference.Read) -> list[int]:
    """The words of a comparison, from its last read; or the resulting word of a copy."""
    found: list[list[int]] = []

    def kept(*where: Any) -> list[int]:
        found.append(read(*where))
        return found[-1]

    word = reference.evaluate(operator, at, kept)
    return found[-1] if isinstance(operator, ReduceMax | ArgMax) else [word]

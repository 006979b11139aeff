"""The computation of the contested number: the operator's formula in plain words, and the operand words of the proof.

In: the bundle's program, and the openings of a `prove` transaction. Out: text and words. Openings are read in the order
of the reference (docs/formats.md section 6), which assigns each to its operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi import decode

from vgame.commit.words import LEAF_WORDS
from vgame.errors import VgameError
from vgame.execute import reference
from vgame.program.operators import (
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
from vgame.program.program import Program
from vgame.runs.history import PROOF_TYPE
from vgame.watch.recipes import recipe

SYMBOLS = {
    "NEG": "−a",
    "ABS": "|a|",
    "SQRT": "√a",
    "EXP": "exp(a)",
    "EXPM1": "exp(a) − 1",
    "LOG": "ln(a)",
    "LOG1P": "ln(1 + a)",
    "SIGMOID": "1 / (1 + exp(−a))",
    "ADD": "a + b",
    "SUB": "a − b",
    "MUL": "a × b",
    "DIV": "a ÷ b",
    "MAX": "the larger of a and b",
    "MIN": "the smaller of a and b",
    "EQ": "a = b ?",
    "NE": "a ≠ b ?",
    "LT": "a < b ?",
    "LE": "a ≤ b ?",
    "SELECT": "b if a is not 0, else c",
    "ITOF": "the integer a as binary32",
    "FTOI": "a as an integer, toward zero",
}
MOST_TERMS = 64  # shown terms


@dataclass(frozen=True, slots=True)
class Terms:
    """A formula, `[name, word, or two words]` for its first terms, and the number of terms."""

    formula: str
    rows: list[list[Any]]
    count: int
    recipe: dict[str, Any]


def formula(operator: Operator) -> str:
    """The formula of one element of the output."""
    match operator:
        case Map(function=function):
            return SYMBOLS.get(
                function.name, f"{function.name.lower()}(a{', b' if len(operator.accesses) > 1 else ''})"
            )
        case Contract(variant=Variant.DOT):
            return f"a[0]·b[0] + a[1]·b[1] + … + a[{operator.k - 1}]·b[{operator.k - 1}], added exactly, rounded once"
        case Contract(variant=Variant.SUM):
            return f"a[0] + a[1] + … + a[{operator.k - 1}], added exactly, rounded once"
        case Contract():
            return f"the sum of those of {operator.k} values whose index is this row, added exactly, rounded once"
        case Gather():
            return "the row of a table that an index names: a copy, no arithmetic"
        case Copy():
            return "a copy of one word"
        case ReduceMax():
            return f"the largest of up to {min(operator.block, operator.length)} words"
        case ArgMax():
            return f"the position of the largest of {operator.length} words"
        case Philox():
            return "a pseudo-random word of (seed, step, operator, element)"
        case Shuffle():
            return "the sample at this place in the shuffled order of (seed, step)"


def terms(program: Program, at: reference.Position, part: int | None, proof: bytes) -> Terms:
    """The terms in a proof; VgameError if the proof cannot be read."""
    operator = program.operators[at.operator]
    try:
        openings = [bytes(words) for words, _, _ in decode([PROOF_TYPE], proof)[0][3]]
        reader = _Shown(openings, (at.step - 1) * program.scalars)
        made = recipe(operator, at, part, reader.read)
        rows = _rows(program, operator, part, reader, made)
    except Exception as error:  # untrusted bytes: reading them can raise anything
        raise VgameError(f"the terms of element {at.element} cannot be read from its proof: {error}") from None
    return Terms(formula(operator), rows[:MOST_TERMS], len(rows), made)


def _rows(
    program: Program, operator: Operator, part: int | None, shown: _Shown, made: dict[str, Any]
) -> list[list[Any]]:
    if not isinstance(operator, Contract):
        return [
            [_called(program, ref, first + i), word]
            for ref, first, words in shown.reads
            for i, word in enumerate(words)
        ]
    start = (part or 0) * operator.block_length
    return [[f"k = {start + k}", *pair] for k, pair in enumerate(zip(*made["words"], strict=True))]


def _called(program: Program, ref: Ref, position: int) -> str:
    """Name of a word: its tensor and position."""
    labels = program.labels
    match ref.cls:
        case RefClass.OPERATOR:
            name = f"output of {program.operator_name(ref.index)}"
        case RefClass.STATE:
            name = labels.state[ref.index].name if ref.index < len(labels.state) else f"state {ref.index}"
        case RefClass.DATA:
            name = labels.data[ref.index].name if ref.index < len(labels.data) else f"data {ref.index}"
        case RefClass.SCALAR:
            return labels.scalars[ref.index] if ref.index < len(labels.scalars) else f"scalar {ref.index}"
        case _:
            name = f"constant {ref.index}"
    return f"{name}[{position}]"


class _Shown:
    """Reads operand words out of openings, in their order."""

    def __init__(self, openings: Sequence[bytes], scalars_before: int) -> None:
        self._openings, self._before = iter(openings), scalars_before
        self.reads: list[tuple[Ref, int, list[int]]] = []

    def read(self, ref: Ref, first: int, count: int) -> list[int]:
        opening = next(self._openings)
        position = first + (self._before + ref.index if ref.cls is RefClass.SCALAR else 0)
        begin = 4 * (position % LEAF_WORDS)
        words = [int.from_bytes(opening[begin + 4 * i : begin + 4 * i + 4], "little") for i in range(count)]
        if len(opening) < begin + 4 * count:
            raise ValueError("an opening is too short")
        self.reads.append((ref, first, words))
        return words

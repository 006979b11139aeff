"""The contents of a program: operators by kind and function, their sizes, and the most expensive leaf for the
referee."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from vgame.program.operators import Contract, Operator
from vgame.program.program import Program
from vgame.program.validate import longest_run, tensors_of, witness_bytes

#: Gas per calldata byte that is not zero at the floor price (EIP-7623), and of a transaction.
FLOOR, BASE = 40, 21_000


@dataclass(frozen=True, slots=True)
class Line:
    """All operators of one kind and function."""

    what: str
    count: int
    elements: int
    largest_sum: int  # words of the longest row that one element reads
    blocks: int
    witness: int

    @property
    def gas(self) -> int:
        """The floor price of the most expensive witness if no byte were zero (sums in blocks: of one block); the
        computation may cost more."""
        return BASE + FLOOR * self.witness


def table(program: Program, data: list[tuple[int, bool]]) -> Iterator[Line]:
    """One line per kind and function, in the order of first use."""
    tensors = tensors_of(program, data)
    groups: dict[str, list[Operator]] = defaultdict(list)
    for i, operator in enumerate(program.operators):
        groups[program.operator_kind(i)].append(operator)
    for what, operators in groups.items():
        yield Line(
            what,
            len(operators),
            sum(op.elements for op in operators),
            max(op.k if isinstance(op, Contract) else longest_run(op) for op in operators),
            max(op.blocks if isinstance(op, Contract) else 1 for op in operators),
            max(witness_bytes(op, tensors, len(program.operators)) for op in operators),
        )


def data_of(program: Program) -> list[tuple[int, bool]]:
    """Sizes of the data tensors by the program's labels."""
    return [(math.prod(label.shape), label.integer) for label in program.labels.data]

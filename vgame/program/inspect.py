"""What a program consists of: operators by kind and function, their sizes, and the dearest leaf that the referee may have to decide."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from vgame.program.file import load_program
from vgame.program.operators import Contract, Operator
from vgame.program.program import Program
from vgame.program.validate import longest_run, tensors_of, witness_bytes
from vgame.system.progress import Reporter

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
        """The floor price of the dearest witness if no byte were zero (sums in blocks: of one block); what is computed may cost more."""
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


def show(path: Path, reporter: Reporter) -> None:
    """Print the table of a program file, of a bundle's or of a run's program."""
    folder = path / "job" if (path / "job").is_dir() else path
    program = load_program(folder / "program.vgp" if folder.is_dir() else path)
    data = _data_of(program)
    lines = list(table(program, data))
    title = f"{len(program.operators)} operators, {len(program.sources)} state tensors, root {program.root.hex()}"
    grid = Table(title=title, title_justify="left")
    for name in (
        "operator",
        "count",
        "elements",
        "longest row",
        "blocks",
        "witness bytes",
        "floor price, gas",
    ):
        grid.add_column(name, justify="left" if name == "operator" else "right")
    for line in lines:
        numbers = (line.count, line.elements, line.largest_sum, line.blocks, line.witness, line.gas)
        grid.add_row(line.what, *(f"{n:,}" for n in numbers))
    if not reporter.json_lines:
        reporter.console.print(grid)
    facts = [asdict(line) | {"gas": line.gas} for line in lines]
    reporter.emit("program", root=program.root.hex(), operators=len(program.operators), lines=facts)


def _data_of(program: Program) -> list[tuple[int, bool]]:
    """Sizes of the data tensors as the program's labels tell them."""
    return [(math.prod(label.shape), label.integer) for label in program.labels.data]

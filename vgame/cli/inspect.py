"""`vgame inspect`: the table of a program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from vgame.program.file import load_program
from vgame.program.inspect import data_of, table
from vgame.system.progress import Reporter


def show(path: Path, reporter: Reporter) -> None:
    """Print the table of a program file, of a bundle's or of a run's program."""
    folder = path / "job" if (path / "job").is_dir() else path
    program = load_program(folder / "program.vgp" if folder.is_dir() else path)
    data = data_of(program)
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

"""Names of operators, tensors and elements of an ordered program, from its bundle; the chain does not store them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgame.errors import VgameError
from vgame.execute.reference import Position
from vgame.job.bundle import Bundle, load_bundle
from vgame.program.program import Program, TensorLabel
from vgame.watch.differences import shown
from vgame.watch.formulas import formula, terms

MOST_NAMES = 4  # tensors of the state, and of the data, named in a job's view


class Programs:
    """Bundles by the root of their program."""

    def __init__(self, folders: list[Path] | None = None) -> None:
        self._known: dict[str, Bundle] = {}
        for folder in folders or []:
            self.add(load_bundle(folder))

    def add(self, bundle: Bundle) -> None:
        """Add a bundle."""
        self._known[bundle.program.root.hex()] = bundle

    def __len__(self) -> int:
        return len(self._known)

    def model(self, root: str) -> dict[str, Any] | None:
        """A description of the model and its data."""
        if (bundle := self._known.get(root)) is None:
            return None
        labels = bundle.program.labels
        return {
            "operators": len(bundle.program.operators), "tensors": len(bundle.program.sources),
            "numbers": sum(t.numel() for t in bundle.state), "before": bundle.before,
            "state": [_sized(label) for label in labels.state[:MOST_NAMES]],
            "data": [_sized(label) for label in labels.data[:MOST_NAMES]],
        }  # fmt: skip

    def operator(self, root: str, index: int) -> dict[str, Any] | None:
        """Kind, module and formula of an operator."""
        program = self._program(root)
        if program is None or not 0 <= index < len(program.operators):
            return None
        labels, operator = program.labels.operators, program.operators[index]
        return {
            "kind": program.operator_kind(index), "module": shown(labels[index]) if index < len(labels) else "",
            "formula": formula(operator), "integer": operator.integer, "elements": operator.elements,
        }  # fmt: skip

    def tensor(self, root: str, index: int) -> str | None:
        """Name of a state tensor."""
        program = self._program(root)
        labels = program.labels.state if program else ()
        return shown(labels[index].name) if index < len(labels) else None

    def terms(self, root: str, at: Position, part: int | None, proof: bytes) -> dict[str, Any] | None:
        """The terms in the proof of an element; None if it cannot be read."""
        if (program := self._program(root)) is None:
            return None
        try:
            found = terms(program, at, part, proof)
        except VgameError:
            return None
        rows = [[shown(row[0]), *row[1:]] for row in found.rows]
        return {"rows": rows, "count": found.count, "recipe": found.recipe}

    def _program(self, root: str) -> Program | None:
        bundle = self._known.get(root)
        return bundle.program if bundle else None


def _sized(label: TensorLabel) -> str:
    """`fc.weight (10 × 64)`."""
    return shown(f"{label.name} ({' × '.join(map(str, label.shape)) or 'one number'})")

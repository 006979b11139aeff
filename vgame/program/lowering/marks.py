"""Positions of the stages of a training step in a program, for vgame/validation only.

In: the lowering's values at the end of each stage. Out: values by the final numbers of their operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from vgame.program.lowering.builder import Value
from vgame.program.operators import Operator, Philox, RefClass
from vgame.program.renumber import moved

Values = Mapping[str, Value | None]


@dataclass(frozen=True)
class Draw:
    """One random operator of the graph, and the Philox operators of its words (None: not needed by the program)."""

    target: str
    operators: tuple[int | None, ...]


def philox_from(operators: Sequence[Operator], first: int) -> tuple[int, ...]:
    """The numbers of the Philox operators from `first` on."""
    return tuple(i for i in range(first, len(operators)) if isinstance(operators[i], Philox))


@dataclass(frozen=True)
class Turn:
    """One loss and the step of its optimizers. `before`, `after`: parameters and buffers when its loss begins, buffers
    when it ends; `draws`: by batch."""

    before: Values
    loss: Value | None
    gradients: Values
    clipped: Values
    after: Values
    draws: tuple[tuple[Draw, ...], ...]

    def renumbered(self, places: Mapping[int, int]) -> Turn:
        """This turn with the final numbers of the operators; None for removed operators."""
        before, gradients, clipped, after = (
            {name: renumbered_value(each, places) for name, each in values.items()}
            for values in (self.before, self.gradients, self.clipped, self.after)
        )
        draws = tuple(tuple(Draw(d.target, tuple(map(places.get, d.operators))) for d in batch) for batch in self.draws)
        return Turn(before, renumbered_value(self.loss, places), gradients, clipped, after, draws)


def renumbered_value(value: Value | None, places: Mapping[int, int]) -> Value | None:
    """The value by the new number of its operator; None if the operator was removed."""
    gone = value is None or (value.ref.cls is RefClass.OPERATOR and value.ref.index not in places)
    return None if gone else replace(value, ref=moved(value.ref, places))


@dataclass(frozen=True)
class Marks:
    """`rows`: the samples of a step, and the Philox operators that draw them; `constants`: by number, before rounding;
    `scalars`: for each column the number at a step, before rounding; `forms`: the first steps of the forms of the
    optimizers; `fills`: initial values of slots made by a step, before rounding; `played`: the optimizers, by number,
    whose own steps are in the program, in place of a rule."""

    turns: tuple[Turn, ...] = ()
    rows: Value | None = None
    row_draws: tuple[int | None, ...] = ()
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict)
    scalars: tuple[Callable[[int], float], ...] = ()
    forms: tuple[int, ...] = ()
    fills: Mapping[str, float] = field(default_factory=dict)
    played: frozenset[int] = frozenset()


@dataclass
class Notes:
    """Marks before the operators of a program have their final numbers."""

    constants: Mapping[int, torch.Tensor]
    turns: list[Turn] = field(default_factory=list)
    draws: list[tuple[Draw, ...]] = field(default_factory=list)  # of the current turn
    rows: Value | None = None
    row_draws: tuple[int, ...] = ()
    scalars: list[Callable[[int], float]] = field(default_factory=list)
    forms: set[int] = field(default_factory=lambda: {1})
    fills: dict[str, float] = field(default_factory=dict)
    played: set[int] = field(default_factory=set)

    def turn(self, before: Values, loss: Value, gradients: Values, clipped: Values, after: Values) -> None:
        self.turns.append(Turn(before, loss, gradients, clipped, after, tuple(self.draws)))
        self.draws = []

    def marks(self, places: Mapping[int, int]) -> Marks:
        turns = tuple(turn.renumbered(places) for turn in self.turns)
        rows, drawn = renumbered_value(self.rows, places), tuple(map(places.get, self.row_draws))
        forms, played = tuple(sorted(self.forms)), frozenset(self.played)
        return Marks(turns, rows, drawn, self.constants, tuple(self.scalars), forms, self.fills, played)

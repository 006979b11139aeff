"""A run in mode `logged` as the game's agents use it: vgame.runs.history with the committed log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from vgame.execute.reference import Position, Read
from vgame.logged import reference
from vgame.logged.kernels import StepEntries
from vgame.logged.rounding import Direction
from vgame.logged.tree import Opening, direction_of, open_entry
from vgame.runs.history import History, OpeningTuple
from vgame.runs.store import Store
from vgame.runs.training import Stepper


class CommittedLog(Protocol):
    """The log that the claim commits to: the trainer's own, or an auditor's copy."""

    log_roots: list[bytes]

    def committed(self, checkpoint: int) -> Sequence[StepEntries]:
        """The entries of a checkpoint's interval; LogError unless they are the committed ones."""


class LoggedHistory(History):
    """Implements vgame.commit.machine.Machine for a stored run in mode `logged`."""

    def __init__(self, store: Store, stepper: Stepper, log: CommittedLog) -> None:
        super().__init__(store, stepper)
        self.log = log
        assert store.bundle.log is not None, "a bundle in mode logged has a LogSpec"
        self.bits = store.bundle.log.bits

    @property
    def logs(self) -> Sequence[bytes]:
        return self.log.log_roots

    @cached_property
    def _intervals(self) -> dict[int, Sequence[StepEntries]]:
        return {}

    def _opening(self, step: int, operator: int, element: int) -> Opening:
        checkpoint, position = (step - 1) // self.interval + 1, (step - 1) % self.interval
        if checkpoint not in self._intervals:
            self._intervals.clear()  # one at a time
            self._intervals[checkpoint] = self.log.committed(checkpoint)
        return open_entry(self.program, self._intervals[checkpoint], position, operator, element)

    def entry(self, step: int, operator: int, element: int) -> Direction:
        """The log's direction for an element."""
        if not reference.reads_log(self.program.operators[operator]):
            return Direction.NONE
        return direction_of(self._opening(step, operator, element).content, element)

    # ---- proofs ----

    def _compute(self, at: Position, read: Read) -> int:
        operator = self.program.operators[at.operator]
        return reference.evaluate(operator, at, read, self.bits, self.entry(at.step, at.operator, at.element))

    def _log_openings(self, step: int, operator: int, element: int) -> list[OpeningTuple]:
        if not reference.reads_log(self.program.operators[operator]):
            return []
        opening = self._opening(step, operator, element)
        return [(opening.content, [], opening.path)]

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        op, reader = self.program.operators[operator], self._reader(step, operator)
        return [reference.moments(op, element, j, reader.read).encode() for j in range(op.blocks)]

    def witness(self, step: int, operator: int, element: int) -> list[bytes]:
        return [self._encode(operator, self._log_openings(step, operator, element))]

"""The protocol of a computation that an agent can prove.

The game's agents see trees, records and proofs through this protocol only; `vgame.runs.history.History` implements it
for training runs, the tests implement it for a toy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

PathOf = Callable[[int], list[bytes]]  # operator -> path of its output in the trace tree of the proof


@dataclass(frozen=True, slots=True)
class RecordProof:
    """A record of the program and its path (struct Record of the contract)."""

    header: bytes
    record: bytes
    path: list[bytes]

    def as_tuple(self) -> tuple[bytes, bytes, list[bytes]]:
        return (self.header, self.record, self.path)


@dataclass(frozen=True, slots=True)
class ElementProof:
    """The referee's proof for an element; `reads_state`: whether the state before the step must be opened."""

    proof: bytes
    reads_state: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """The place where a run diverged."""

    step: int
    operator: int
    element: int


class Machine(Protocol):
    """One side's computation of a job. Checkpoints and steps count from 1; step 0 is the initial state."""

    steps: int
    interval: int

    @property
    def checkpoints(self) -> Sequence[bytes]:
        """State roots of the reached checkpoints."""

    @property
    def logs(self) -> Sequence[bytes] | None:
        """Mode `logged`: roots of the rounding logs of these checkpoints, and of the interval in which the run stopped.
        Else None."""

    @property
    def stop(self) -> Stop | None:
        """The divergence of the run, or None."""

    @property
    def operators(self) -> int:
        """Number of operators of a step."""

    def segment(self, checkpoint: int) -> list[bytes]:
        """State roots S_0..S_n around a checkpoint (fewer if the run stopped inside)."""

    def state(self, step: int) -> list[bytes]:
        """Tensor roots of the state after a step."""

    def trace(self, step: int) -> list[bytes]:
        """Roots of the operator outputs of a step."""

    def words(self, step: int, operator: int) -> bytes | memoryview:
        """Little-endian words of an operator's output."""

    def source(self, tensor: int) -> int | None:
        """The operator whose output becomes a state tensor; None if the tensor is unchanged."""

    def finite(self, operator: int) -> bool:
        """Whether every word of the operator must be finite."""

    def source_record(self, tensor: int) -> RecordProof: ...

    def operator_record(self, operator: int) -> RecordProof: ...

    def blocks(self, operator: int) -> int:
        """The number of blocks of an element of the operator."""

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        """The encoded exact partial sums of an element."""

    def witness(self, step: int, operator: int, element: int) -> list[bytes]:
        """The trainer's addition to posted partial sums: in mode `logged` the proof of the element's log entry."""

    def prove(self, step: int, operator: int, element: int, block: int | None, path_of: PathOf) -> ElementProof:
        """The referee's proof for an element, or for one block of it."""

    def operator_name(self, operator: int) -> str: ...

"""Results and pending work of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

#: Receives every operator's output (flat) and returns its replacement. None on the fast path.
Tap = Callable[[int, torch.Tensor], torch.Tensor]


class Pending(Protocol):
    """Work on an output that is read later."""

    def finish(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """State after a step, its loss, and the first operator whose output must be finite but is not, or None."""

    state: tuple[torch.Tensor, ...]
    loss: torch.Tensor
    not_finite: int | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose kernels have been started: state, loss, the outputs that must be finite, and whether each of them
    is."""

    state: tuple[torch.Tensor, ...]
    loss: torch.Tensor
    checked: tuple[int, ...]
    finite: torch.Tensor

"""Input and result of a validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vgame.program.lower import Lowered
from vgame.tasks.task import Task
from vgame.validation.compare import Tally

T = torch.Tensor


@dataclass
class Report:
    """The comparisons of a validation, for display and validation.json. `unchecked`: reasons for omitted stages."""

    steps: list[int] = field(default_factory=list)
    batches: int = 0
    samples: int = 0  # samples read again from the data set
    tally: Tally = field(default_factory=Tally)
    unchecked: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not self.unchecked


@dataclass(frozen=True)
class Order:
    """The input of a validation. `state`: flat, before training; `before`: number of earlier steps."""

    task: Task
    lowered: Lowered
    state: Sequence[T]
    schedule: Any
    seed: int
    steps: int
    before: int = 0

"""What a validation is about, and what it found."""

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
    """What was compared, for people and for validation.json. `unchecked`: why a stage was left out."""

    steps: list[int] = field(default_factory=list)
    batches: int = 0
    samples: int = 0  # that were read again from the data set
    tally: Tally = field(default_factory=Tally)
    unchecked: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not self.unchecked


@dataclass(frozen=True)
class Order:
    """What a validation is about. `state`: flat, as training begins; `before`: steps that it has behind it."""

    task: Task
    lowered: Lowered
    state: Sequence[T]
    schedule: Any
    seed: int
    steps: int
    before: int = 0

"""The attack "tampered log": a trainer changes values by false directions in its log, and continues with the changed
values, so that its run agrees with its log. Far from a midpoint the auditor's predicate convicts it (admissible.py). At
a midpoint either direction is a rounding that some device makes, and the gain is at most one unit in the last of b
places.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vgame.attacks.computation import activation_of
from vgame.logged.kernels import Enclose, Logged, LoggedExecutor
from vgame.logged.rounding import cells, copy_entries
from vgame.logged.sums import Entries, Site

#: Number of changed values in the demonstration.
STEERED = 64


class Tampering(Logged):
    """Rounds the elements selected by `choose`, of one operator in one step, to the other end of their cells, and logs
    the directions unless `log` is false. A repetition of the step, with its own log, gives the same values."""

    target: tuple[int, int] | None = None

    def strike(
        self, step: int, operator: int, choose: Callable[[Tensor, Tensor, Enclose], list[int]], log: bool = True
    ) -> None:
        """Set the target. choose(positions, sums, enclose) returns the flat positions to change."""
        self.target, self.choose, self.log, self.struck, self.strict = (step, operator), choose, log, [], False
        self.steered: tuple[Tensor, Tensor] | None = None  # positions, values

    def _sum(self, compute: Callable[[Site], Tensor], enclose: Enclose) -> Tensor:
        operator, seen = self._contractions[self._next], {}

        def keep(_: int, positions: Tensor, s: Tensor, e: Tensor) -> None:
            seen.setdefault("positions", []).append(positions.clone())
            seen.setdefault("s", []).append(s.clone())

        struck = (self.step, operator) == self.target
        self.look = keep if struck and self.steered is None else None
        out = super()._sum(compute, enclose)
        if not struck:
            return out
        if self.steered is None:
            self._steer(operator, torch.cat(seen["positions"]), torch.cat(seen["s"]), enclose)
        positions, values = self.steered
        out.view(-1)[positions] = values
        return out

    def _steer(self, operator: int, positions: Tensor, sums: Tensor, enclose: Enclose) -> None:
        """Compute the other ends of the chosen cells, and their log entries."""
        order = torch.argsort(positions)
        chosen = torch.tensor(self.choose(positions[order], sums[order], enclose), dtype=torch.int64)
        s = sums[order][chosen]
        up = cells(s, self.bits)[0] <= s.abs()  # the opposite of the honest direction
        self.steered = chosen, copy_entries(s, self.bits, up)
        self.struck = sorted(chosen.tolist())
        if self.log:
            honest = self.made.get(operator, Entries())
            entries = dict(zip(honest.positions.tolist(), honest.up.tolist(), strict=True))
            entries |= dict(zip(chosen.tolist(), up.tolist(), strict=True))
            self.made[operator] = Entries(np.array(sorted(entries)), np.array([entries[p] for p in sorted(entries)]))


def steer(executor: LoggedExecutor, step: int) -> None:
    """Make the executor change a layer's first activations in one step."""
    kernels = executor.kernels
    tampering = Tampering(kernels.program, kernels.bits, kernels.windows)
    tampering.strike(
        step, activation_of(kernels.program), lambda positions, sums, enclose: positions[:STEERED].tolist()
    )
    executor.kernels = tampering

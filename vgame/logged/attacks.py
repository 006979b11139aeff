"""The attack "tampered log": a trainer that steers values by directions, and computes on with what they give, so that its run agrees with
its log. Far from a midpoint the auditor's predicate convicts it (admissible.py); at a midpoint either direction is a rounding that some
device makes, and what can be won there is one unit in the last of b places.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vgame.logged.kernels import Enclose, Logged
from vgame.logged.rounding import cells, copy_entries
from vgame.logged.sums import Entries, Site


class Tampering(Logged):
    """Rounds the elements that `choose` names of one operator, in one step, to the other end of their cells, and logs that."""

    def strike(self, step: int, operator: int, choose: Callable[[Tensor, Tensor, Enclose], list[int]]) -> None:
        """choose(positions, sums, enclose): the flat positions to tamper with."""
        self.target, self.choose, self.struck = (step, operator), choose, []

    def _sum(self, compute: Callable[[Site], Tensor], enclose: Enclose) -> Tensor:
        operator, seen = self._contractions[self._next], {}

        def keep(_: int, positions: Tensor, s: Tensor, e: Tensor) -> None:
            seen.update(positions=positions.clone(), s=s.clone())

        self.look = keep if (self.step, operator) == self.target else None
        out = super()._sum(compute, enclose)
        if self.look is None or self.given is not None:
            return out
        chosen = torch.tensor(self.choose(seen["positions"], seen["s"], enclose), dtype=torch.int64)
        s = seen["s"][chosen]
        up = cells(s, self.bits)[0] <= s.abs()  # honest would be the other end
        out.view(-1)[chosen] = copy_entries(s, self.bits, up)
        honest = self.made.get(operator, Entries())
        entries = dict(zip(honest.positions.tolist(), honest.up.tolist(), strict=True))
        entries |= dict(zip(chosen.tolist(), up.tolist(), strict=True))
        self.struck = sorted(entries.keys() & set(chosen.tolist()))
        self.made[operator] = Entries(np.array(sorted(entries)), np.array([entries[p] for p in sorted(entries)]))
        return out

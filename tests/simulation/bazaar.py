"""A sale in which trainer and client query three nodes in turn, one of which may become hostile for ever.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

from chorus import Singer, Sluggish, looks_at
from provider import Logs, Party
from sale import Sale


class Quiet(Sluggish):
    """A node with the faults of every story only."""

    logs, other = Logs(), 0.0


class Buyer(Singer, Party):
    """A process of a sale at three nodes."""

    honest = Quiet

    def sit(self) -> None:
        super().sit()
        self.eth = self.eths[self.false - 1]


class Bazaar(Sale):
    """`players`: processes with three nodes."""

    player = Buyer
    looks = property(lambda self: looks_at(self.world))

    def _deadline(self) -> None:
        """None: every block is played, because looks at three nodes are compared by the times of their blocks."""


__all__ = ["Bazaar"]

"""A sale in which trainer and client ask three nodes in turn, of which one may turn hostile for ever.

In: a tape. Out: what the honest lost that they should not have, in sentences; none where all is well.
"""

from __future__ import annotations

from chorus import Singer, Sluggish, looks_at
from provider import Logs, Party
from sale import Sale


class Quiet(Sluggish):
    """A node with the faults of each story alone."""

    logs, other = Logs(), 0.0


class Buyer(Singer, Party):
    """A process of a sale at three nodes."""

    honest = Quiet

    def sit(self) -> None:
        super().sit()
        self.eth = self.eths[self.false - 1]


class Bazaar(Sale):
    """`players`: those at three nodes."""

    player = Buyer
    looks = property(lambda self: looks_at(self.world))

    def _deadline(self) -> None:
        """No blocks are left out: the looks at three nodes are compared by the times of their blocks."""


__all__ = ["Bazaar"]

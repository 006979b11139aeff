"""Where the transactions of a wallet, and jobs and disputes as its player reads them, are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgame.chain.records import Job, Standing


class Listener:
    """Learns what was sent, and what a player reads; nothing follows from it."""

    def sent(self, name: str, args: tuple[Any, ...], value: int, receipt: Any) -> None:
        """A transaction that the state shows."""

    def job(self, job: bytes, state: Job) -> None:
        """A job as a player has read it."""

    def disputes(self, job: bytes, state: Job, standings: Sequence[Standing]) -> None:
        """All its disputes as a player has read them."""

"""The listener for the transactions of a wallet, and for the jobs and disputes that its player reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgame.chain.records import Job, Standing


class Listener:
    """Receives a player's transactions and its reads, and does nothing. It has no effect on the player."""

    def sent(self, name: str, args: tuple[Any, ...], value: int, receipt: Any) -> None:
        """After a transaction whose effect the state shows."""

    def job(self, job: bytes, state: Job) -> None:
        """After a player has read a job."""

    def disputes(self, job: bytes, state: Job, standings: Sequence[Standing]) -> None:
        """After a player has read all disputes of a job."""

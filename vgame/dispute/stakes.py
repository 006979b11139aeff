"""An auditor's record of its stakes, written to disk before each stake is sent.

An endpoint may hide a dispute, for seconds or for good. No second stake can take effect: the contract accepts one
dispute of an account on a claim (I16). After a restart the record gives, whatever the endpoint shows, the jobs to play
and the number of disputes for which gas is kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgame.chain.final import most
from vgame.chain.game import Game
from vgame.errors import StoreError, VgameError
from vgame.system.files import write_atomic

MOST_REFUSED = 1_000  # claims in memory
log = logging.getLogger(__name__)


class Stakes:
    """The claims on which an account has staked. `path`: None keeps them in memory."""

    def __init__(self, game: Game, path: Path | None = None) -> None:
        assert game.wallet is not None
        self.game, self.wallet, self.path = game, game.wallet, path
        self.claims = self._read()
        self.sent: dict[str, list[bytes]] = {}  # by claim: hashes of the stakes of this process
        self.refused: dict[str, set[int]] = {}  # by claim: endpoints that refused a stake because there is one

    @classmethod
    def beside(cls, run: Path, game: Game) -> Stakes:
        """The stakes of this account in this contract for the run in a folder."""
        assert game.wallet is not None
        place = f"{game.chain.chain_id}-{game.address}-{game.wallet.address}"
        return cls(game, run.with_name(f"{run.name}-stakes-{place}.json"))

    @property
    def jobs(self) -> dict[bytes, None]:
        """The jobs with a stake on a claim."""
        return dict.fromkeys(bytes.fromhex(claim[:64]) for claim in self.claims)

    def included(self, claim: str) -> bool:
        """Does the endpoint show the receipt of a stake on the claim that took effect?"""
        receipts = (self.game.chain.receipt(digest, 0) for digest in self.sent.get(claim, ()))
        return any(receipt is not None and receipt["status"] == 1 for receipt in receipts)

    @contextmanager
    def recording(self, claim: str) -> Iterator[None]:
        """Inside this context a transaction is a stake on the claim. It is recorded before it is sent."""

        def signed(digest: bytes) -> None:
            self.record(claim)
            self.sent[claim] = [*self.sent.get(claim, ()), digest]

        self.wallet.before = signed
        try:
            yield
        finally:
            self.wallet.before = None

    def believe(self, claim: str) -> None:
        """Record a stake of another process, once more than half of the endpoints show that there is one: one endpoint
        could invent any number of them."""
        endpoints = self.refused.setdefault(claim, set())
        endpoints.add(self.game.chain.endpoint)
        if len(self.refused) > MOST_REFUSED:
            del self.refused[next(iter(self.refused))]
        if len(endpoints) >= most(self.game.chain):
            self.record(claim)

    def record(self, claim: str) -> None:
        """Add a claim to the record; another process may have added others. A full disk does not prevent the dispute of
        a false claim: then the record is in memory, and is written with the next stake."""
        if claim in self.claims:
            return
        self.claims[claim] = None
        try:
            if self.path:
                write_atomic(self.path, json.dumps([*self._read() | self.claims]).encode())
        except VgameError as error:
            log.warning("a stake on job %s is sent, but not recorded: %s", claim[:16], error)

    def _read(self) -> dict[str, None]:
        if self.path is None or not self.path.exists():
            return {}
        try:
            found: Any = json.loads(self.path.read_bytes())
            if not isinstance(found, list) or any(len(bytes.fromhex(claim)) < 64 for claim in found):
                raise ValueError("it is no list of claims")
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{self.path} cannot be read ({error}): it holds the stakes that this account has sent; restore it, or "
                "move it away if no dispute of this account is open"
            ) from None
        return dict.fromkeys(found)

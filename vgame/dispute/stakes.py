"""An auditor's record of its stakes, written to disk before each stake is sent.

An endpoint may hide a dispute, for seconds or for good. No second stake can take effect: the contract accepts one
dispute of an account on a claim (I16). The record says after a restart, whatever the endpoint shows, which jobs to
play, and for how many disputes to keep gas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgame.chain.game import Game
from vgame.errors import StoreError
from vgame.system.files import write_atomic


class Stakes:
    """The claims on which an account has staked. `path`: None keeps them in memory."""

    def __init__(self, game: Game, path: Path | None = None) -> None:
        assert game.wallet is not None
        self.wallet, self.path = game.wallet, path
        self.claims: dict[str, None] = {}
        if path and path.exists():
            self._load(path)

    @classmethod
    def beside(cls, run: Path, game: Game) -> Stakes:
        """The stakes of this account on this chain for the run in a folder."""
        assert game.wallet is not None
        return cls(game, run.with_name(f"{run.name}-stakes-{game.chain.chain_id}-{game.wallet.address}.json"))

    @property
    def jobs(self) -> dict[bytes, None]:
        """The jobs with a stake on a claim."""
        return dict.fromkeys(bytes.fromhex(claim[:64]) for claim in self.claims)

    @contextmanager
    def recording(self, claim: str) -> Iterator[None]:
        """Inside this context a transaction is a stake on the claim. It is recorded before it is sent, and not sent if
        that fails (StoreError)."""
        self.wallet.before = lambda: self.record(claim)
        try:
            yield
        finally:
            self.wallet.before = None

    def record(self, claim: str) -> None:
        if claim not in self.claims:
            claims = self.claims | {claim: None}
            if self.path:
                write_atomic(self.path, json.dumps([*claims]).encode())
            self.claims = claims

    def _load(self, path: Path) -> None:
        try:
            found: Any = json.loads(path.read_bytes())
            self.claims = {claim: None for claim in found if bytes.fromhex(claim[:64])}
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}): it holds the stakes that this account has sent; restore it, or "
                "move it away if no dispute of this account is open"
            ) from None

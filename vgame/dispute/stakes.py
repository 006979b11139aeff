"""An auditor's memory of its stakes, on disk before each is sent: never two on one claim that may both be included.

An endpoint may hide a dispute for seconds or for good. A stake that is not shown can be sent again only under the same
number of the account's transactions, of which the chain takes one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vgame.chain.connection import quantity
from vgame.chain.game import Game
from vgame.errors import NotYet, StoreError, VgameError
from vgame.system.files import write_atomic


class Stakes:
    """The last stake on each claim, and the transactions whose number it shares. `path`: None keeps them in memory.

    INVARIANT: a claim's next stake has the number of its last one, unless that one is shown as a dispute, has reverted,
    or its number was spent by another transaction of this account.
    """

    def __init__(self, game: Game, path: Path | None = None) -> None:
        assert game.wallet is not None
        self.game, self.path = game, path
        self.address = game.wallet.address
        self.last: dict[str, tuple[int, int]] = {}  # by claim: number of the transaction, own disputes seen before it
        self.sent: dict[int, dict[str, str]] = {}  # by number: hash of a transaction, and the claim that it stakes on
        self._current = ""  # the claim that is staked on now
        if path and path.exists():
            self._load(path)

    @classmethod
    def beside(cls, run: Path, game: Game) -> Stakes:
        """Those of this account on this chain about the run in a folder."""
        assert game.wallet is not None
        return cls(game, run.with_name(f"{run.name}-stakes-{game.chain.chain_id}-{game.wallet.address}.json"))

    def watch(self) -> None:
        """See each transaction of the account from now on."""
        assert self.game.wallet is not None
        self.game.wallet.watchers.append(self._signed)

    def number_for(self, claim: str, seen: int) -> int:
        """The number of the next stake on a claim, as of the block that the round reads: no stake that this block does
        not show can be included beside it. NotYet where one may be under way, or hidden, and where another transaction
        of the account waits. `seen`: own disputes of its job that are shown."""
        eth = self.game.chain.web3.eth
        spent = self.game.chain.ask(lambda: quantity(eth.get_transaction_count(self.address)))
        number, before = self.last.get(claim, (spent, -1))
        waiting = self.game.chain.ask(lambda: quantity(eth.get_transaction_count(self.address, "pending")))
        if waiting > spent and (claim not in self.last or number != spent):
            raise NotYet(
                f"transaction {spent} of {self.address} waits at {self.game.chain.url}, or is younger than the block "
                "that is read: nothing is staked beside it"
            )
        if seen > before or spent == number or (spent > number and self._replaced(claim, number)):
            return spent
        raise NotYet(
            f"{self.game.chain.url} does not show the stake on this claim that is transaction {number} of "
            f"{self.address}, though it counts {spent} of them: nothing more is staked on it; if this goes on use "
            "another endpoint, and no other program with this account"
        )

    def is_unshown(self, claim: str, seen: int) -> bool:
        """Was a stake on the claim sent, of which the disputes that are shown have none?"""
        return claim in self.last and seen <= self.last[claim][1]

    def _replaced(self, claim: str, number: int) -> bool:
        """Has something else than a stake on the claim become the transaction of that number?"""
        for digest, staked in self.sent.get(number, {}).items():
            receipt = self.game.chain.receipt(bytes.fromhex(digest), 0)
            if receipt is not None and (staked != claim or receipt["status"] != 1):
                return True
        return False

    @contextmanager
    def sending(self, claim: str, seen: int, number: int) -> Iterator[None]:
        """Remember a stake of that number; it is sent inside of this context, or forgotten if it was never signed."""
        before = self.last.get(claim)
        self.last[claim], self._current = (number, seen), claim
        try:
            self._save()
            yield
        finally:
            self._current = ""
            if claim not in self.sent.get(number, {}).values():
                self.last = {known: stake for known, stake in self.last.items() if known != claim}
                self.last |= {} if before is None else {claim: before}
                with suppress(VgameError):
                    self._save()

    def _signed(self, number: int, digest: bytes) -> None:
        """A transaction of the account is about to be sent. None waits for the disk: a stake has, in `sending`."""
        if self._current and number != (due := self.last[self._current][0]):
            raise NotYet(f"transaction {due} of {self.address} was spent before the stake was sent: look again")
        held = {n for n, _ in self.last.values()}
        self.sent = {n: known for n, known in self.sent.items() if n >= number or n in held}
        self.sent.setdefault(number, {})[digest.hex()] = self._current
        with suppress(VgameError):
            self._save()

    def _save(self) -> None:
        if self.path:
            write_atomic(self.path, json.dumps({"last": self.last, "sent": self.sent}).encode())

    def _load(self, path: Path) -> None:
        try:
            found: Any = json.loads(path.read_bytes())
            self.last = {str(claim): (int(n), int(seen)) for claim, (n, seen) in found["last"].items()}
            self.sent = {int(n): dict(known) for n, known in found["sent"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}): it holds the stakes that this account has sent; restore it, or "
                "move it away if no dispute of this account is open"
            ) from None

"""An auditor's memory of its stakes, on disk before each is sent: never two disputes of one claim.

An endpoint may hide a dispute for seconds or for good, or show it as ended. A stake can be sent again only under the
same number of the account's transactions, of which the chain takes one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vgame.chain.connection import quantity
from vgame.chain.final import MOMENT, Lasting
from vgame.chain.game import Game
from vgame.errors import NotYet, StoreError, VgameError
from vgame.system.files import write_atomic

GAP = 8  # transactions of an account that a reorganisation loses, at most; more is an endpoint's lie


class Stakes:
    """The last stake on each claim, and the transactions whose number it shares. `path`: None keeps them in memory.

    INVARIANT: of all stakes on a claim the chain takes one without error, at most. They have one number, and the chain
    takes one transaction of a number. A claim gets another number only when a transaction of the first that is no stake
    on it, or has failed, was shown in a block that is final, and in each look since that did not show a dispute: so no
    branch brings the old stake beside the new one, and no false reply that a true one follows before finality. A number
    that the chain has not reached is reached by transfers of nothing, and never given up.
    """

    def __init__(self, game: Game, path: Path | None = None) -> None:
        assert game.wallet is not None
        self.game, self.path, self.wallet, self.address = game, path, game.wallet, game.wallet.address
        self.last: dict[str, int] = {}  # by claim: number of the transaction
        self.sent: dict[int, dict[str, str]] = {}  # by number: hash of a transaction, and the claim that it stakes on
        self.lasting = Lasting(game.chain)  # claims whose number was spent by something else; fewer transactions
        self.shown = self.counted = -1  # transactions of the account in the last look, and as they were believed
        self._current: str | None = None  # the claim that is staked on now
        if path and path.exists():
            self._load(path)

    @classmethod
    def beside(cls, run: Path, game: Game) -> Stakes:
        """Those of this account on this chain about the run in a folder."""
        assert game.wallet is not None
        return cls(game, run.with_name(f"{run.name}-stakes-{game.chain.chain_id}-{game.wallet.address}.json"))

    def watch(self) -> None:
        """See each transaction of the account from now on."""
        self.wallet.watchers.append(self._signed)

    def number_for(self, claim: str) -> int:
        """The number of the next stake on a claim, as of the block that the round reads: no stake that this block does
        not show can be included beside it. NotYet where one may be under way, or hidden, and where another transaction
        of the account waits."""
        spent, waiting = self._counts()
        known = max(self.counted, *(n + 1 for n in self.sent), 0)
        if spent != self.shown:
            self.shown = spent
            self.lasting.held("count", False)
        held, fewer = self.lasting.held("count"), self.lasting.shown("fewer", spent < known)
        if spent < known and not fewer and claim not in self.last:
            raise NotYet(
                f"{self.game.chain.url} counts {spent} transactions of {self.address}, which has sent {known}: it "
                "lags, or a reorganisation has lost some: nothing is staked before it shows them"
            )
        number = self.last.get(claim, spent)
        if waiting > spent and (claim not in self.last or number != spent):
            raise NotYet(
                f"transaction {spent} of {self.address} waits at {self.game.chain.url}, or is younger than the block "
                "that is read: nothing is staked beside it"
            )
        if spent > known and held < MOMENT:
            raise NotYet(
                f"{self.game.chain.url} counts {spent} transactions of {self.address}, which is new: nothing is staked "
                f"before it has shown so for {MOMENT:.0f} s"
            )
        self.counted = max(self.counted, spent)
        if spent == number or (spent > number and self._replaced(claim, number)):
            return spent
        raise NotYet(
            f"{self.game.chain.url} does not show the stake on this claim that is transaction {number} of "
            f"{self.address}, though it counts {spent} of them: nothing more is staked on it; if this goes on use "
            "another endpoint, and no other program with this account"
        )

    def _counts(self) -> tuple[int, int]:
        """Transactions of the account: those that the block has, and those that wait too."""
        chain = self.game.chain
        count = chain.web3.eth.get_transaction_count
        spent = chain.ask(lambda: quantity(count(self.address)))
        return spent, chain.ask(lambda: quantity(count(self.address, "pending")))

    @property
    def jobs(self) -> dict[bytes, None]:
        """Those on whose claims a stake was sent."""
        return dict.fromkeys(bytes.fromhex(claim[:64]) for claim in self.last)

    def look(self, claim: str, shown: bool) -> bool:
        """Was a stake on the claim sent of which no dispute is shown?"""
        if shown:
            self.lasting.shown(claim, False)
        return claim in self.last and not shown

    def fill(self, claim: str) -> bool:
        """Where a reorganisation has lost transactions before the last stake on a claim, and none of them waits, put a
        transfer of nothing in their place."""
        if claim not in self.last:
            return False
        spent, waiting = self._counts()
        if waiting > spent or not 0 < self.last[claim] - spent <= GAP:
            return False
        with self.game.chain.released(), self.sending("", spent):
            self.wallet.send(self.address, b"")
        return True

    def _replaced(self, claim: str, number: int) -> bool:
        """Is something else than a stake on the claim the transaction of that number for good?"""
        chain, known = self.game.chain, self.sent.get(number, {}).items()
        receipts = [(staked, chain.receipt(bytes.fromhex(digest), 0)) for digest, staked in known]
        other = any(receipt and (staked != claim or receipt["status"] != 1) for staked, receipt in receipts)
        return self.lasting.shown(claim, other)

    @contextmanager
    def sending(self, claim: str, number: int) -> Iterator[None]:
        """Remember a stake of that number; it is sent inside of this context, or forgotten if it was never signed."""
        before, self.last, self._current = self.last, self.last | {claim: number}, claim
        try:
            self._save()
            yield
        finally:
            self._current = None
            if claim not in self.sent.get(number, {}).values():
                self.last = before
                with suppress(VgameError):
                    self._save()

    def _signed(self, number: int, digest: bytes) -> None:
        """A transaction of the account is about to be sent. None waits for the disk: a stake has, in `sending`."""
        if self._current is not None and number != (due := self.last[self._current]):
            raise NotYet(f"transaction {due} of {self.address} was spent before it was sent: look again")
        held = {*self.last.values()}
        self.sent = {n: known for n, known in self.sent.items() if n >= number - GAP or n in held}
        self.sent.setdefault(number, {})[digest.hex()] = self._current or ""
        with suppress(VgameError):
            self._save()

    def _save(self) -> None:
        if self.path:
            write_atomic(self.path, json.dumps({"last": self.last, "sent": self.sent}).encode())

    def _load(self, path: Path) -> None:
        try:
            found: Any = json.loads(path.read_bytes())
            self.last = {str(claim): int(number) for claim, number in found["last"].items()}
            self.sent = {int(n): dict(known) for n, known in found["sent"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path} cannot be read ({error}): it holds the stakes that this account has sent; restore it, or "
                "move it away if no dispute of this account is open"
            ) from None

"""An auditor's record of its stakes, written to disk before each stake is sent: one claim never gets two disputes.

An endpoint may hide a dispute, for seconds or for good, or show it as ended. So a stake is sent again only with the
same transaction number (nonce) of the account: the chain takes one transaction per number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgame.chain.connection import quantity
from vgame.chain.final import MOMENT, Lasting
from vgame.chain.game import Game
from vgame.errors import NotYet, StoreError, VgameError
from vgame.system.files import write_atomic

GAP = 8  # most transactions of an account that a reorganisation can lose; if more are missing, the endpoint is wrong


class Stakes:
    """The last stake on each claim, and the transactions with the same number. `path`: None keeps them in memory.

    INVARIANT: the chain takes at most one stake on a claim without error. All stakes on a claim have one number, and
    the chain takes one transaction per number. A claim gets another number only after a transaction with the first
    number that is not a stake on it, or has failed, was shown in a final block, and in each look since then that did
    not show a dispute. So no branch of the chain can hold both stakes, and a false reply has no effect if a true one
    follows before finality. A new number is the account's transaction count, and not below a number that the account
    has signed: otherwise a node that lags would give a stake a used number, and finality would be waited for. Numbers
    whose transactions were lost are used up by transfers of 0 wei (`fill`), which have no effect if they were not.
    """

    def __init__(self, game: Game, path: Path | None = None) -> None:
        assert game.wallet is not None
        self.game, self.path, self.wallet, self.address = game, path, game.wallet, game.wallet.address
        self.last: dict[str, int] = {}  # by claim: number of the transaction
        self.sent: dict[int, dict[str, str]] = {}  # by number: hash of a transaction, and the claim that it stakes on
        self.lasting = Lasting(game.chain)  # claims whose number another transaction has used; "count", "lost", "fewer"
        self.shown = self.counted = -1  # transaction count in the last look, and the count that was accepted
        self.known = 0  # count that the account must have, in the last look
        self._current: tuple[str, int] | None = None  # claim and number of the stake that is sent now
        if path and path.exists():
            self._load(path)

    @classmethod
    def beside(cls, run: Path, game: Game) -> Stakes:
        """The stakes of this account on this chain for the run in a folder."""
        assert game.wallet is not None
        return cls(game, run.with_name(f"{run.name}-stakes-{game.chain.chain_id}-{game.wallet.address}.json"))

    def watch(self) -> None:
        """Record each transaction of the account from now on."""
        self.wallet.watchers.append(self._signed)

    def number_for(self, claim: str) -> int:
        """The number of the next stake on a claim, from the block that the round reads: the chain cannot include it
        together with a stake that this block does not show. NotYet if a stake may be pending or hidden, or if another
        transaction of the account may be."""
        spent, waiting = self._counts()
        url, number = self.game.chain.url, self.last.get(claim)
        if number == spent:
            return spent
        if number is not None and not (spent > number and self._replaced(claim, number)):
            raise NotYet(
                f"{url} counts {spent} transactions of {self.address}, but does not show transaction {number}, the "
                "stake on this claim: no further stake is sent; if this continues, use another endpoint, and use no "
                "other program with this account"
            )
        if waiting > spent:
            raise NotYet(
                f"transaction {spent} of {self.address} is pending at {url}, or is newer than the block of this round: "
                "no stake is sent beside it"
            )
        known = max(self.counted, self.signed)
        if known != self.known:
            self.lasting.held("fewer", False)
            self.known = known
        if spent < known and not self.lasting.shown("fewer"):
            raise NotYet(
                f"{url} counts {spent} transactions of {self.address}, which has sent {known}: the endpoint lags, or "
                "they were lost; no stake is sent before it shows them"
            )
        if spent >= known:
            self.lasting.held("fewer", False)
        if spent > known and self.lasting.held("count") < MOMENT:
            raise NotYet(
                f"{url} counts {spent} transactions of {self.address}, more than before: no stake is sent before it "
                f"has shown this number for {MOMENT:.0f} s"
            )
        self.counted = max(self.counted, spent)
        return spent

    def _counts(self) -> tuple[int, int]:
        """Transaction counts of the account: in the block, and including pending ones."""
        chain = self.game.chain
        count = chain.web3.eth.get_transaction_count
        spent = chain.ask(lambda: quantity(count(self.address)))
        if spent != self.shown:
            self.shown = spent
            for what in ("count", "lost"):
                self.lasting.held(what, False)
        self.lasting.held("count")
        return spent, chain.ask(lambda: quantity(count(self.address, "pending")))

    @property
    def signed(self) -> int:
        """The transaction count of the account after all recorded transactions."""
        return max(self.sent, default=-1) + 1

    @property
    def jobs(self) -> dict[bytes, None]:
        """The jobs with a stake on a claim."""
        return dict.fromkeys(bytes.fromhex(claim[:64]) for claim in self.last)

    def look(self, claim: str, shown: bool) -> bool:
        """Was a stake on the claim sent without a dispute that is shown?"""
        if shown:
            self.lasting.shown(claim, False)
        return claim in self.last and not shown

    def fill(self) -> bool:
        """If each look for MOMENT has shown that the next transaction was signed or is pending, but is not included,
        and it is no stake: send a transfer of 0 wei with its number. The chain includes one of the two. True if it was
        included."""
        spent, waiting = self._counts()
        lost = (waiting > spent or 0 < self.signed - spent <= GAP) and spent not in self.last.values()
        if self.lasting.held("lost", lost) < MOMENT:
            return False
        self.lasting.held("lost", False)
        with self.game.chain.released(), self.sending("", spent):
            self.wallet.fill()
        return True

    def _replaced(self, claim: str, number: int) -> bool:
        """Is the transaction with that number, for good, not a valid stake on the claim?"""
        chain, known = self.game.chain, self.sent.get(number, {}).items()
        receipts = [(staked, chain.receipt(bytes.fromhex(digest), 0)) for digest, staked in known]
        other = any(receipt and (staked != claim or receipt["status"] != 1) for staked, receipt in receipts)
        return self.lasting.shown(claim, other)

    @contextmanager
    def sending(self, claim: str, number: int) -> Iterator[None]:
        """Inside this context a transaction is a stake on the claim ("": none), and has that number. It is recorded
        before it is sent."""
        self._current = claim, number
        try:
            yield
        finally:
            self._current = None

    def _signed(self, number: int, digest: bytes) -> None:
        """Record a transaction of the account that is about to be sent. Raises, so that it is not sent, if the number
        of a stake cannot be recorded."""
        claim, due = self._current or ("", number)
        if number != due:
            raise NotYet(f"transaction number {due} of {self.address} was used by another transaction: read it again")
        before = self.last, self.sent
        if claim:
            self.last = self.last | {claim: number}
        held = {*self.last.values()}
        kept = {n: known for n, known in self.sent.items() if n >= number - GAP or n in held}
        self.sent = kept | {number: kept.get(number, {}) | {digest.hex(): claim}}
        try:
            self._save()
        except VgameError:
            if claim and before[0].get(claim) != number:
                self.last, self.sent = before
                raise

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

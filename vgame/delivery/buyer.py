"""The client's side of a delivery: fetch, verify, confirm; with the key decipher; and what to do where the trainer does
not deliver.

In: a job on chain, its bundle's sizes, something that serves the sealed folder. Out: the leaves of the final state. Who
is killed goes on.

By itself, with no question to anybody (docs/delivery.md section 4):

- `badNode`, `badLeaf`: as soon as one is seen; any wallet may.
- `request`: chunks that did not come, when half of the confirm window is over, or sooner where else an unanswered one
  would not be known as refused before its end. All of them if the contract takes as many and the answers cost less
  than declining does; else one, by chance: is anybody there?
- `refused`, `closeDelivery`: as soon as the trainer is late with an answer or the key.
- `decline`: in the last tenth of the confirm window, if more is missing than is requested.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from vgame.chain.game import Game
from vgame.chain.records import Exchange, Job, Phase
from vgame.delivery.fetch import Get, Missing, Progress, fetch, keep_chunk
from vgame.delivery.opening import BadLeaf, WrongNode, decipher
from vgame.delivery.sealed import Offer, Piece, SealedFolder, Shape
from vgame.delivery.seller import MOST_REQUESTS, open_requests
from vgame.errors import ContractError, DeliveryError, NotYet, Undelivered

HARMLESS = frozenset(
    {
        "AlreadyConfirmed",
        "AlreadyRequested",
        "NotRequested",
        "PriceExceeded",
        "RequestsOpen",
        "TooEarly",
        "TooLate",
        "WrongPhase",
    }
)
STEADY = 4  # times the base fee that a request's price still holds

Write = Callable[[Piece, np.ndarray], None]


def late_trainer(game: Game, job: bytes) -> tuple[Any, ...] | None:
    """The call by which the reward comes back from a trainer that has not answered in time, or not given the key; None
    if there is none."""
    state, now = game.job(job), game.chain.now()
    if state.phase is not Phase.DELIVERING:
        return None
    exchange = game.exchange(job)
    for tensor, chunk, price in open_requests(game, job) if exchange.open else ():
        if now > game.request_since(job, tensor, chunk) + state.spec.key_window and game.chain.fees()[0] <= price:
            return "refused", job, tensor, chunk
    late = not exchange.open and now > exchange.until + state.spec.key_window
    return ("closeDelivery", job) if late else None


class Buyer:
    """Receives one job's state into `folder`. `record`: the source record of a tensor with its path, as the contract
    takes it."""

    def __init__(
        self, game: Game, job: bytes, elements: list[int], get: Get, folder: Path, record: Callable[[int], Any],
        progress: Progress = lambda done, total: None,
    ) -> None:  # fmt: skip
        self.game, self.job, self.shape, self.get, self.folder, self.record = (
            game,
            job,
            Shape(elements),
            get,
            folder,
            record,
        )
        self.progress = progress
        self._sealed: SealedFolder | None = None

    def ready(self) -> bool:
        """The next move; True when the key is out and everything is here. DeliveryError where something is missing,
        Undelivered where the job has ended without its state."""
        job = self.game.job(self.job)
        match job.phase:
            case Phase.CLAIMED:
                self._complaining(self.fetch)
            case Phase.DELIVERING:
                self._deliver(job)
            case Phase.REVEALED | Phase.FINAL:
                self._complaining(self.fetch)
                return True
            case Phase.CREATED | Phase.ACCEPTED:
                raise NotYet(f"job {self.job.hex()[:16]} is {job.phase.name.lower()}: it has no claim yet")
            case _:
                raise Undelivered(f"job {self.job.hex()[:16]} is {job.phase.name.lower()}: its state is not delivered")
        return False

    def receive(self, write: Write) -> None:
        """What `ready` has announced: every leaf, verified, goes to `write`; or a complaint to the contract."""
        self._complaining(lambda: self._open(write))

    @property
    def sealed(self) -> SealedFolder:
        """What was fetched."""
        assert self._sealed is not None
        return self._sealed

    def offer(self) -> Offer:
        """What the claim committed to, by its event, checked against what stands in the contract."""
        for event in self.game.events("Offered", self.job):
            a = event.args
            found = Offer(a["finalState"], a["cipherRoot"], a["keyHash"])
            if self.game.offer_hash(astuple(found)) == self.game.exchange(self.job).offer:
                return found
        raise DeliveryError(
            f"job {self.job.hex()[:16]} has no offer at {self.game.address}: it was ordered without delivery"
        )

    def fetch(self) -> SealedFolder:
        """The ciphertext, every byte verified; what was answered on chain counts too."""
        if self._sealed is None:
            for event in self.game.events("Answered", self.job):
                a = event.args
                keep_chunk(self.shape, self.folder, a["tensor"], a["chunk"], a["leaves"], b"".join(a["trueHashes"]))
            self._sealed = fetch(self.get, self.shape, self.offer(), self.folder, self.progress)
        return self._sealed

    def _open(self, write: Write) -> None:
        key = self.game.events("KeyRevealed", self.job)[-1].args["key"]
        for piece, leaves in decipher(self.fetch(), key, self.job):
            write(piece, leaves)

    # ---- complaints ----

    def _complaining(self, what: Callable[[], Any]) -> None:
        """Do it; what proves that the trainer cheated goes to the contract."""
        try:
            what()
        except WrongNode as wrong:
            self._complain("badNode", "a true hash that is not that of its children", wrong.children, wrong.place)
        except BadLeaf as bad:
            key = self.game.events("KeyRevealed", self.job)[-1].args["key"]
            text = f"leaf {bad.leaf} of tensor {bad.tensor} does not decipher to what was committed"
            self._complain("badLeaf", text, key, bad.tensor, bad.leaf, bad.cipher, bad.place)

    def _complain(self, name: str, text: str, *args: object) -> None:
        phase = self.game.job(self.job).phase
        if phase is Phase.CLAIMED:
            raise DeliveryError(f"{text}: the trainer cheats; the contract hears it when the claim is final")
        if phase is Phase.FINAL:
            raise Undelivered(f"{text}: the trainer cheated, and nobody has said so in time")
        if self.game.wallet is None:
            raise Undelivered(f"{text}: the trainer cheated; say so with a wallet")
        self._attempt(name, self.job, astuple(self.offer()), *args)
        raise Undelivered(f"{text}: the trainer cheated, and the complaint has been sent")

    # ---- before the key ----

    def _deliver(self, job: Job) -> None:
        if self.game.wallet is not None and (late := late_trainer(self.game, self.job)) and self._attempt(*late):
            return
        try:
            self._complaining(self.fetch)
        except Missing as missing:
            if self._own(job):
                self._press(job, missing)
            raise
        exchange = self.game.exchange(self.job)
        if self._own(job) and not exchange.confirmed and not exchange.open and self._left(exchange) > 0:
            self._attempt("confirm", self.job)

    def _own(self, job: Job) -> bool:
        return self.game.wallet is not None and self.game.wallet.address == job.client

    def _left(self, exchange: Exchange) -> int:
        """Seconds of the confirm window."""
        return exchange.until - self.game.chain.now()

    def _press(self, job: Job, missing: Missing) -> None:
        """Requests in time, `decline` where they cannot help any more."""
        exchange, spec = self.game.exchange(self.job), job.spec
        asked = {(e.args["tensor"], e.args["chunk"]) for e in self.game.events("Requested", self.job)}
        left, margin = self._left(exchange), spec.confirm_window // 10
        if exchange.confirmed or left <= 0:
            return
        wanted = [place for place in missing.chunks if place not in asked]
        if left < max(spec.confirm_window // 2, spec.key_window + 2 * margin) and wanted:
            if missing.all_known and self._affordable(job, exchange, wanted):
                return self._request(wanted)
            if left > margin and not exchange.open and exchange.requests < MOST_REQUESTS:
                return self._request([secrets.choice(wanted)])
        if left <= margin and (wanted or not missing.all_known):
            self._attempt("decline", self.job)

    def _affordable(self, job: Job, exchange: Exchange, wanted: list[tuple[int, int]]) -> bool:
        """As many requests are left, and the answers to all of them cost less than `decline` loses."""
        base, count = self.game.chain.fees()[0], len(wanted) + exchange.requests
        most = max(self.game.answer_gas(self.job, self.shape.elements[t], c) for t, c in wanted[:MOST_REQUESTS])
        return count <= MOST_REQUESTS and count * most * base <= job.spec.reward - job.spec.reward // 4

    def _request(self, wanted: list[tuple[int, int]]) -> None:
        price = STEADY * self.game.chain.fees()[0]
        for tensor, chunk in wanted:
            cost = price * self.game.answer_gas(self.job, self.shape.elements[tensor], chunk)
            self._attempt("request", self.job, tensor, chunk, price, self.record(tensor), value=cost)

    def _attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """False where it was not needed any more."""
        try:
            self.game.send(name, *args, value=value)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return False
        return True

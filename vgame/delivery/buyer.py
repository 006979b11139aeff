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

A look at what is served ends when the next of these may be due, however slowly it is served.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from vgame.chain.game import Game
from vgame.chain.http import replies_until
from vgame.chain.records import Exchange, Job, Phase
from vgame.delivery.fetch import Get, Missing, Progress, fetch, keep_chunk
from vgame.delivery.opening import BadLeaf, WrongNode, decipher
from vgame.delivery.sealed import Offer, Piece, SealedFolder, Shape
from vgame.delivery.seller import MOST_REQUESTS, open_requests
from vgame.errors import ChainError, ContractError, DeliveryError, NotYet, Undelivered, VgameError

HARMLESS = frozenset(
    {
        "AlreadyConfirmed",
        "NotRequested",
        "PriceExceeded",
        "RequestsOpen",
        "TooEarly",
        "TooLate",
        "WrongIndex",
        "WrongPhase",
    }
)
STEADY = 4  # times the base fee that a request's price still holds
CALL_GAS = 200_000  # more than the limit of a `request` or a `decline` (docs/gas.json)

Write = Callable[[Piece, np.ndarray], None]


def _margin(job: Job) -> int:
    """Seconds before the end of the confirm window from which on it is declined."""
    return job.spec.confirm_window // 10


def _pressing(job: Job) -> int:
    """Seconds before its end from which on chunks are requested."""
    return max(job.spec.confirm_window // 2, job.spec.key_window + 2 * _margin(job))


def late_trainer(game: Game, job: bytes) -> tuple[Any, ...] | None:
    """The call by which the reward comes back from a trainer that has not answered in time, or not given the key; None
    if there is none."""
    state, now = game.job(job), game.chain.now()
    if state.phase is not Phase.DELIVERING:
        return None
    exchange = game.exchange(job)
    for request in open_requests(game, job) if exchange.open else ():
        if now > request.since + state.spec.key_window and game.chain.fees()[0] <= request.price:
            return "refused", job, request.index
    late = not exchange.open and now > exchange.key_from + state.spec.key_window
    return ("closeDelivery", job, int(Phase.DELIVERING)) if late else None


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
        self._fetched: tuple[Offer, SealedFolder] | None = None
        self._end = self._limit = inf  # of this look, by the chain and by the monotonic clock

    def ready(self) -> bool:
        """The next move; True when the key is out and everything is here. DeliveryError where something is missing,
        Undelivered where the job has ended without its state."""
        job = self.game.job(self.job)
        match job.phase:
            case Phase.CLAIMED:
                with self._until(job.since + job.spec.challenge_window, job):
                    self._complaining(self.fetch)
            case Phase.DELIVERING:
                self._deliver(job)
            case Phase.REVEALED:
                with self._until(self.game.exchange(self.job).key_at + job.spec.complaint_window, job):
                    self._complaining(self.fetch)
                return True
            case Phase.FINAL:
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
        assert self._fetched is not None
        return self._fetched[1]

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
        """The ciphertext of the offer that stands, every byte verified; what was answered on chain counts too."""
        offer = self.offer()
        if self._fetched is None or self._fetched[0] != offer:
            requests = self.game.requests(self.job)
            for event in self.game.events("Answered", self.job) if requests else ():
                a, request = event.args, requests[event.args["index"]]
                hashes = b"".join(a["trueHashes"])
                keep_chunk(self.shape, self.folder, request.tensor, request.chunk, a["leaves"], hashes)
            self._fetched = offer, fetch(self._get, self.shape, offer, self.folder, self.progress)
        return self._fetched[1]

    def _get(self, name: str, first: int, size: int) -> bytes:
        """What is served, in the time of this look: it is the chain's, but passes too where no block comes."""
        with suppress(ChainError):
            if time.monotonic() >= self._limit or self.game.chain.now() >= self._end:
                raise DeliveryError("the time of this look is over")
        with replies_until(self._limit):
            return self.get(name, first, size)

    @contextmanager
    def _until(self, end: int, job: Job) -> Iterator[None]:
        """Nothing is fetched after a time of the chain; a twentieth of the confirm window is left for it, at least."""
        now = self.game.chain.now()
        self._end = max(end, now + job.spec.confirm_window // 20 + 1)
        self._limit = time.monotonic() + self._end - now
        try:
            yield
        finally:
            self._end = self._limit = inf

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
        if self._own(job):
            self._raise_prices(job)
        exchange = self.game.exchange(self.job)
        try:
            with self._until(self._decision(job, exchange), job):
                self._complaining(self.fetch)
        except Missing as missing:
            if self._own(job):
                self._press(job, missing)
            raise
        exchange = self.game.exchange(self.job)
        if self._own(job) and not exchange.confirmed_at and not exchange.open and self._left(exchange) > 0:
            self._confirm(exchange)

    def _confirm(self, exchange: Exchange) -> None:
        """INVARIANT: only the offer whose ciphertext is here."""
        if self._fetched and self.game.offer_hash(astuple(self._fetched[0])) == exchange.offer:
            self._attempt("confirm", self.job, exchange.offer)

    def _decision(self, job: Job, exchange: Exchange) -> int:
        """Time by which a look has to be over: requests are due, or `decline`; then half of what is left."""
        left = self._left(exchange)
        marks = [mark for mark in (_pressing(job) - 1, _margin(job)) if mark < left]
        return exchange.until - (marks[0] if marks else max(0, left) // 2)

    def _own(self, job: Job) -> bool:
        return self.game.wallet is not None and self.game.wallet.address == job.client

    def _left(self, exchange: Exchange) -> int:
        """Seconds of the confirm window."""
        return exchange.until - self.game.chain.now()

    def _press(self, job: Job, missing: Missing) -> None:
        """Requests in time, `decline` where they cannot help any more, or cannot be paid."""
        exchange = self.game.exchange(self.job)
        requests = self.game.requests(self.job)
        asked = {(r.tensor, r.chunk) for r in requests if r.open}  # what was answered is here, what was dropped is not
        if exchange.confirmed_at or self._left(exchange) <= 0:
            return
        wanted, problem = [place for place in missing.chunks if place not in asked], None
        try:
            for place in self._wanted(job, exchange, missing, wanted, len(requests)):
                self._request(*place)
                wanted.remove(place)
        except VgameError as error:
            problem = error
        if self._left(exchange) <= _margin(job) and (wanted or not missing.all_known):
            self._attempt("decline", self.job, exchange.offer)
        elif problem:
            raise problem

    def _wanted(
        self, job: Job, exchange: Exchange, missing: Missing, wanted: list[tuple[int, int]], requested: int
    ) -> list[tuple[int, int]]:
        """The chunks to request now."""
        left = self._left(exchange)
        if left >= _pressing(job) or not wanted:
            return []
        if missing.all_known and self._affordable(job, wanted, requested):
            return list(wanted)
        probes = left > _margin(job) and not exchange.open and requested < MOST_REQUESTS
        return [secrets.choice(wanted)] if probes else []

    def _affordable(self, job: Job, wanted: list[tuple[int, int]], requested: int) -> bool:
        """As many requests are left, and the answers to all of them cost less than `decline` loses."""
        base, count = self.game.chain.fees()[0], len(wanted) + requested
        most = max(self.game.answer_gas(self.job, self.shape.elements[t], c) for t, c in wanted[:MOST_REQUESTS])
        return count <= MOST_REQUESTS and count * most * base <= job.spec.reward - job.spec.reward // 4

    def _request(self, tensor: int, chunk: int) -> None:
        """ChainError where it cannot be paid."""
        price = STEADY * self.game.chain.fees()[0]
        cost = price * self.game.answer_gas(self.job, self.shape.elements[tensor], chunk)
        self._check_funds(cost, tensor, chunk)
        index, offer = len(self.game.requests(self.job)), self.game.exchange(self.job).offer
        self._attempt("request", self.job, offer, index, tensor, chunk, price, self.record(tensor), value=cost)

    def _raise_prices(self, job: Job) -> None:
        """Of requests that the trainer has deferred, before it may drop them. What cannot be paid stops nothing."""
        base, now = self.game.chain.fees()[0], self.game.chain.now()
        for request in open_requests(self.game, self.job):
            if (
                base <= request.price
                or not request.deferred_at
                or now <= request.deferred_at + job.spec.key_window // 2
            ):
                continue
            gas, price = self.game.answer_gas(self.job, request.elements, request.chunk), STEADY * base
            with suppress(VgameError):
                self._check_funds(cost := gas * (price - request.price), request.tensor, request.chunk)
                place = (request.index, request.tensor, request.chunk)
                self._attempt("raise", self.job, *place, price, value=cost)

    def _check_funds(self, cost: int, tensor: int, chunk: int) -> None:
        """ChainError where the account cannot pay it, or could not decline any more; what the contract owes is taken
        first."""
        base, tip = self.game.chain.fees()
        needed, address = cost + 2 * CALL_GAS * (2 * base + tip), self.game.wallet.address
        if self.game.chain.balance(address) < needed and self.game.credits(address):
            self._attempt("withdraw", address)
        if (owned := self.game.chain.balance(address)) < needed:
            raise ChainError(
                f"{address} has {owned} wei; {needed} are needed to request chunk {chunk} of tensor {tensor} and still "
                "decline: send it some ether, or the delivery is declined for three quarters of the reward"
            )

    def _attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """False where it was not needed any more."""
        try:
            self.game.send(name, *args, value=value)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return False
        return True

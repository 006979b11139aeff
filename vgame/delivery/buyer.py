"""The client's side of a delivery: fetch, verify, confirm; with the key decipher; and what to do where the trainer does
not deliver.

In: a job on chain, its bundle's sizes, something that serves the sealed folder. Out: the leaves of the final state. A
killed process goes on.

By itself, without asking the user (docs/delivery.md section 4):

- `badNode`, `badLeaf`: as soon as one is seen; any wallet may.
- `request`: chunks that did not come, when half of the confirm window is over, or sooner where else an unanswered one
  would not be known as refused before its end. All of them if the contract takes as many and the answers cost less
  than declining does; else one, by chance: does the trainer answer?
- `refused`, `closeDelivery`: as soon as the trainer is late with an answer or the key.
- `decline`: in the last tenth of the confirm window, if more is missing than is requested.

A look at what is served ends when the next of these may be due, however slowly it is served.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vgame.chain.final import Lasting, final_jobs
from vgame.chain.game import Game
from vgame.chain.http import replies_until
from vgame.chain.records import Event, Job, JobSpec, Phase, Request
from vgame.delivery.cipher import key_hash
from vgame.delivery.fetch import Get, Missing, Progress, fetch, keep_chunk
from vgame.delivery.opening import BadLeaf, WrongNode, decipher
from vgame.delivery.rules import (
    STEADY,
    Duty,
    Place,
    Snapshot,
    Unaffordable,
    affordable,
    confirming,
    declining,
    look_end,
    may_pass,
    overdue,
    probing,
    raising,
    read,
    requesting,
    undecided,
    unrequested,
)
from vgame.delivery.sealed import Offer, Piece, SealedFolder, Shape
from vgame.errors import (
    ChainError,
    ContractError,
    DeliveryError,
    EndpointError,
    NotYet,
    Paused,
    Undelivered,
    VgameError,
)

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
CALL_GAS = 200_000  # more than the limit of a `request` or a `decline` (docs/gas.json)

FAILED = frozenset({Phase.CONVICTED, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED})  # no state comes

Write = Callable[[Piece, np.ndarray], None]


def late_trainer(game: Game, job: bytes) -> tuple[Any, ...] | None:
    """The call by which the reward comes back from a trainer that is late; None if there is none."""
    return _call(job, overdue(read(game, job)))


def _call(job: bytes, duty: Duty | None) -> tuple[Any, ...] | None:
    if duty is None:
        return None
    return duty.call, job, duty.request.index if duty.request else int(Phase.DELIVERING)


class Buyer:
    """Receives one job's state into `folder`. `record`: the source record of a tensor with its path, as the contract
    takes it. `terms`: those of the bundle, whose hash the job is."""

    def __init__(
        self, game: Game, job: bytes, elements: list[int], get: Get, folder: Path, record: Callable[[int], Any],
        progress: Progress = lambda done, total: None, terms: JobSpec | None = None,
    ) -> None:  # fmt: skip
        self.game, self.job, self.shape = game, job, Shape(elements)
        self.get, self.folder, self.record = get, folder, record
        self.progress, self.terms = progress, terms
        self._lasting = Lasting(game.chain)
        self._fetched: tuple[Offer, SealedFolder] | None = None
        self._end = self._limit = inf  # of this look, by the chain and by the monotonic clock

    def ready(self) -> bool:
        """The next move; True when the key is out and everything is here. DeliveryError where something is missing,
        Undelivered where the job has ended without its state."""
        s = self._read()
        job = s.job
        self._lasting.shown("ended", job.phase in {Phase.FINAL, *FAILED})
        match job.phase:
            case Phase.CLAIMED:
                with self._until(job.since + job.spec.challenge_window, job):
                    self._complaining(self.fetch)
            case Phase.DELIVERING:
                self._deliver(s)
            case Phase.REVEALED:
                with self._until(s.exchange.key_at + job.spec.complaint_window, job):
                    self._complaining(self.fetch)
                return True
            case Phase.FINAL:
                self._complaining(self.fetch)
                return True
            case Phase.CREATED | Phase.ACCEPTED:
                raise NotYet(f"job {self.job.hex()[:16]} is {job.phase.name.lower()}: it has no claim yet")
            case _:
                text = f"job {self.job.hex()[:16]} is {job.phase.name.lower()}: its state is not delivered"
                if self._is_final(FAILED):
                    raise Undelivered(text)
                raise NotYet(f"{text}, if this is final")
        return False

    def _read(self) -> Snapshot:
        """The delivery as the chain shows it, with the terms of the order."""
        s = read(self.game, self.job)
        if self.terms is not None and s.job.phase is not Phase.NONE and s.job.spec != self.terms:
            raise EndpointError(
                f"{self.game.chain.url} shows other terms for job {self.job.hex()[:16]} than the bundle that hashes to "
                "it: the reply is ignored; use another endpoint"
            )
        return replace(s, held=self._lasting.held("late", undecided(s) and s.left <= s.margin))

    def receive(self, write: Write) -> None:
        """What `ready` has announced: every leaf, verified, goes to `write`; or a complaint to the contract."""
        self._complaining(lambda: self._open(write))

    @property
    def sealed(self) -> SealedFolder:
        """What was fetched."""
        assert self._fetched is not None
        return self._fetched[1]

    def offer(self) -> Offer:
        """What the claim committed to, by its hash."""
        job, stands = self.game.job(self.job), self.game.exchange(self.job).offer
        if not any(stands):
            raise DeliveryError(
                f"job {self.job.hex()[:16]} has no offer at {self.game.address}: it has no claim with a delivery"
            )

        def offered(event: Event) -> Offer | None:
            a = event.args
            found = Offer(a["finalState"], a["cipherRoot"], a["keyHash"])
            return found if self.game.offer_hash(astuple(found)) == stands else None

        return self.game.content("Offered", self.job, job.claimed_at, offered, key=stands)

    def fetch(self) -> SealedFolder:
        """The ciphertext of the offer that stands, every byte verified; what was answered on chain counts too."""
        offer = self.offer()
        if self._fetched is None or self._fetched[0] != offer:
            again = partial(fetch, self._get, self.shape, offer, self.folder, self.progress)
            try:
                self._fetched = offer, again()
            except Missing as missing:
                if not (kept := self._keep_answers(missing)):
                    raise
                self._fetched = offer, self._beside(kept, again)
        return self._fetched[1]

    def _keep_answers(self, missing: Missing) -> set[Place]:
        """INVARIANT: what an endpoint shows takes the place of missing chunks only. The chunks that it shows."""
        kept = set()
        for request in self.game.requests(self.job):
            if not (request.open or request.dropped) and (request.tensor, request.chunk) in missing.chunks:
                with suppress(NotYet):  # the endpoint does not show it
                    self._keep_answer(request)
                    kept.add((request.tensor, request.chunk))
        return kept

    def _beside(self, kept: set[Place], again: Callable[[], SealedFolder]) -> SealedFolder:
        """Fetch again. Without the pairs of the chunks an answer cannot be verified before all others are here; it is
        missing only if nothing else is, or it would be requested and paid for twice."""
        try:
            return again()
        except Missing as missing:
            others = [place for place in missing.chunks if place not in kept]
            raise Missing(str(missing), others or missing.chunks, missing.all_known) from None

    def _keep_answer(self, request: Request) -> None:
        """What an endpoint shows is verified with what is fetched."""

        def answer(event: Event) -> tuple[bytes, bytes] | None:
            a = event.args
            return (a["leaves"], b"".join(a["trueHashes"])) if a["index"] == request.index else None

        at = request.answered_at
        leaves, hashes = self.game.content("Answered", self.job, at, answer, key=request.index)
        keep_chunk(self.shape, self.folder, request.tensor, request.chunk, leaves, hashes)

    def key(self) -> bytes:
        """The key that is out, by its hash."""
        known = self.offer().key_hash

        def revealed(event: Event) -> bytes | None:
            key = event.args["key"]
            return key if key_hash(key, self.job) == known else None

        return self.game.content("KeyRevealed", self.job, self.game.exchange(self.job).key_at, revealed, key=known)

    def _get(self, name: str, first: int, size: int) -> bytes:
        """What is served, in the time of this look: it is the chain's, but passes too where no block comes."""
        with suppress(ChainError):
            if time.monotonic() >= self._limit or self.game.chain.now() >= self._end:
                raise DeliveryError("the time of this look is over")
        with replies_until(self._limit):
            return self.get(name, first, size)

    @contextmanager
    def _until(self, end: int, job: Job) -> Iterator[None]:
        """Nothing is fetched after a time of the chain; if that is over, a look lasts a twentieth of the confirm
        window."""
        now = self.game.chain.now()
        self._end = end if end > now else now + job.spec.confirm_window // 20 + 1
        self._limit = time.monotonic() + self._end - now
        try:
            yield
        finally:
            self._end = self._limit = inf

    def _open(self, write: Write) -> None:
        for piece, leaves in decipher(self.fetch(), self.key(), self.job):
            write(piece, leaves)

    # ---- complaints ----

    def _complaining(self, what: Callable[[], Any]) -> None:
        """Do it; what proves that the trainer cheated goes to the contract."""
        try:
            what()
        except WrongNode as wrong:
            self._complain("badNode", "a true hash that is not that of its children", wrong.children, wrong.place)
        except BadLeaf as bad:
            text = f"leaf {bad.leaf} of tensor {bad.tensor} does not decipher to what was committed"
            self._complain("badLeaf", text, self.key(), bad.tensor, bad.leaf, bad.cipher, bad.place)

    def _complain(self, name: str, text: str, *args: object) -> None:
        phase = self.game.job(self.job).phase
        if phase is Phase.CLAIMED:
            raise DeliveryError(f"{text}: the trainer cheats; the contract hears it when the claim is final")
        if phase is Phase.FINAL and self._is_final({Phase.FINAL}):
            raise Undelivered(f"{text}: the trainer cheated, and nobody has said so in time")
        if self.game.wallet is None:
            raise Undelivered(f"{text}: the trainer cheated; say so with a wallet")
        if not self._send(name, self.job, astuple(self.offer()), *args):
            raise DeliveryError(f"{text}: the trainer cheated, but the contract accepts no complaint now")
        late = ", though the job is shown as final" if phase is Phase.FINAL else ""
        raise DeliveryError(f"{text}: the trainer cheated, and the complaint has been sent{late}")

    def _is_final(self, phases: Collection[Phase]) -> bool:
        """Did all looks for long enough show an end, and a final state one of these phases?"""
        if not self._lasting.shown("ended"):
            return False
        final, _ = final_jobs(self.game, [self.job])
        return final is not None and final[0].phase in phases

    # ---- before the key ----

    def _deliver(self, s: Snapshot) -> None:
        if self.game.wallet is not None and (late := _call(self.job, overdue(s))) and self._attempt(*late):
            return
        own = self.game.wallet is not None and self.game.wallet.address == s.job.client
        failed = self._raise_prices(s) if own else {}
        try:
            with self._until(look_end(s), s.job):
                self._complaining(self.fetch)
        except (Missing, OSError, NotYet) as problem:
            if own:
                missing = problem if isinstance(problem, Missing) else Missing("", [], all_known=False)
                self._press(self._read(), missing, failed)
            raise
        offer = self.game.offer_hash(astuple(self._fetched[0])) if self._fetched else None
        if own and confirming(s := self._read(), offer).due:
            self._attempt("confirm", self.job, s.exchange.offer)

    def _press(self, s: Snapshot, missing: Missing, failed: Mapping[int, VgameError] = MappingProxyType({})) -> None:
        """Requests in time, `decline` where they cannot help any more, or cannot be paid. `failed`: requests below the
        base fee whose price was not raised, which the trainer may drop."""
        if not undecided(s):
            return
        wanted, problem = unrequested(s, missing.chunks), None
        try:
            for index, place in enumerate(self._wanted(s, missing, wanted), len(s.requests)):
                if not requesting(s, self.game.chain.now()):
                    break
                self._request(s, index, *place)
                wanted.remove(place)
        except VgameError as error:
            problem = error
        s = self._read()  # each request has taken a block, or more
        late = _call(self.job, overdue(s))
        problems = [problem, *(failed[r.index] for r in s.open if r.index in failed)]
        waits = any(isinstance(p, Paused) for p in problems) or (late is not None and self.game.was_sent(*late))
        lacking = bool(wanted) or not missing.all_known or len(problems) > 1
        if declining(s, lacking, waits).due and not (may_pass(problems) and requesting(s, s.now)):
            self._attempt("decline", self.job, s.exchange.offer)
        elif problem:
            raise problem

    def _wanted(self, s: Snapshot, missing: Missing, wanted: list[Place]) -> list[Place]:
        """The chunks to request now."""
        if s.left >= s.pressing or not wanted:
            return []
        gas = max(self.shape.gas_of(*place) for place in wanted)
        if missing.all_known and affordable(s, len(wanted), gas):
            return list(wanted)
        return [secrets.choice(wanted)] if probing(s) else []

    def _request(self, s: Snapshot, index: int, tensor: int, chunk: int) -> None:
        """Unaffordable where it cannot be paid. A request that was sent is made, until a later look shows otherwise."""
        price = STEADY * s.base
        cost = price * self.game.answer_gas(self.job, self.shape.elements[tensor], chunk)
        self._check_funds(cost, tensor, chunk)
        call = ("request", self.job, s.exchange.offer, index, tensor, chunk, price, self.record(tensor))
        try:
            self._attempt(*call, value=cost)
        except VgameError:
            if not self.game.was_sent(*call):
                raise

    def _raise_prices(self, s: Snapshot) -> dict[int, VgameError]:
        """The requests that were not raised, and why; they stop nothing."""
        failed: dict[int, VgameError] = {}
        for duty in raising(s):
            request = duty.request
            assert request is not None
            gas = self.game.answer_gas(self.job, request.elements, request.chunk)
            try:
                self._check_funds(cost := gas * (duty.price - request.price), request.tensor, request.chunk)
                place = (request.index, request.tensor, request.chunk)
                self._attempt("raise", self.job, *place, duty.price, value=cost)
            except VgameError as problem:
                failed[request.index] = problem
        return failed

    def _check_funds(self, cost: int, tensor: int, chunk: int) -> None:
        """Unaffordable where the account cannot pay it, or could not decline any more; what the contract owes is taken
        first, and Paused if that waits."""
        base, tip = self.game.chain.fees()
        needed, address = cost + 2 * CALL_GAS * (2 * base + tip), self.game.wallet.address
        if self.game.chain.balance(address) < needed and self.game.credits(address):
            self._send("withdraw", address)
        if (owned := self.game.chain.balance(address)) < needed:
            raise Unaffordable(
                f"{address} has {owned} wei; {needed} are needed to request chunk {chunk} of tensor {tensor} and still "
                "decline: send it some ether, or the delivery is declined for three quarters of the reward"
            )

    def _attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """False if it is no longer needed, or if its pause is not over."""
        with suppress(Paused):
            return self._send(name, *args, value=value)
        return False

    def _send(self, name: str, *args: object, value: int = 0) -> bool:
        """False if it is no longer needed."""
        try:
            self.game.move(name, *args, value=value)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return False
        return True

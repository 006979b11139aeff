"""The client's side of a delivery: fetch, verify, confirm, decipher with the key; and the calls against a trainer that
does not deliver.

In: a job on chain, the sizes of its state, a function that reads the served folder. Out: the leaves of the final state.
A killed process can be resumed.

These calls are sent without asking the user (docs/delivery.md section 4):

- `badNode`, `badLeaf`: as soon as one is found; any wallet may send them.
- `request`: chunks that were not received, when half of the confirm window is over; or sooner, so that an unanswered
  request counts as refused before the window ends. All of them if the contract accepts that many and the answers cost
  less than declining does; otherwise one at random, to test whether the trainer answers. No chunk that was already
  answered.
- `refused`, `closeDelivery`: as soon as the trainer is late with an answer or the key.
- `decline`: in the last tenth of the confirm window, if more is missing than is requested.

A look ends when the next of these calls may be due, however slow the server is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from vgame.chain.connection import Chain
from vgame.chain.final import Lasting, final_jobs, most_answering
from vgame.chain.game import Game
from vgame.chain.http import REPLY_TIMEOUT, replies_until
from vgame.chain.records import Event, JobSpec, Phase, Request
from vgame.delivery.calls import Calls, call_of
from vgame.delivery.cipher import key_hash
from vgame.delivery.fetch import Get, Missing, Progress, fetch, fits, keep_chunk
from vgame.delivery.folder import own_folder
from vgame.delivery.opening import BadLeaf, WrongNode, decipher
from vgame.delivery.rules import Place, Snapshot, confirming, look_end, overdue, read, short_look, undecided
from vgame.delivery.sealed import Offer, Piece, SealedFolder, Shape, read_offer, write_offer
from vgame.errors import ChainError, DeliveryError, EndpointError, NotYet, Undelivered, VgameError

FAILED = frozenset({Phase.CONVICTED, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED})  # no state is delivered

Write = Callable[[Piece, np.ndarray], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of the chain, and the same moment on the monotonic clock: time also passes without a new block."""

    second: float
    moment: float

    def is_over(self, chain: Chain) -> bool:
        if time.monotonic() >= self.moment:
            return True
        with suppress(ChainError):
            return chain.now() >= self.second
        return False


NEVER = Deadline(inf, inf)


def _not_served(name: str, first: int, size: int) -> bytes:
    raise DeliveryError("it is not on the disk")


def late_trainer(game: Game, job: bytes) -> tuple[Any, ...] | None:
    """The call that returns the reward if the trainer is late; None if it is not."""
    return call_of(job, overdue(read(game, job)))


class Buyer(Calls):
    """Receives one job's state into `folder`. `terms`: the terms of the bundle, whose hash is the job's id."""

    def __init__(
        self, game: Game, job: bytes, elements: list[int], get: Get, folder: Path, record: Callable[[int], Any],
        progress: Progress = lambda done, total: None, terms: JobSpec | None = None,
    ) -> None:  # fmt: skip
        super().__init__(game, job, Shape(elements), record)
        self.get, self.folder = get, folder
        self.progress, self.terms = progress, terms
        self._lasting = Lasting(game.chain)
        self._fetched: tuple[Offer, SealedFolder] | None = None
        self._wrong: Counter[int] = Counter()  # by request: number of wrong answers that were shown
        self._server = self._logs = NEVER  # of this look: the ends of fetching, and of searching for answers
        self._tried = -1  # the last request whose answer was searched for
        self._fresh = False  # the ciphertext was verified in this look
        #: By endpoint: the highest block that has shown the last tenth of the confirm window, and the time of the last
        #: such look.
        self._late: dict[int, tuple[int, float]] = {}
        self._opened: list[Place] | None = None  # missing chunks when all others were verified with the key

    def ready(self) -> bool:
        """Make the next move; True if the key is revealed and the ciphertext complete. DeliveryError if something is
        missing, Undelivered if the job has ended without its state."""
        self._fresh = False
        self.game.chain.turn()
        s = self._read()
        job = s.job
        self._lasting.shown("ended", job.phase in {Phase.FINAL, *FAILED})
        match job.phase:
            case Phase.CLAIMED:
                with self._until(job.since + job.spec.challenge_window, s):
                    self._complaining(self.fetch)
            case Phase.DELIVERING:
                self._deliver(s)
            case Phase.REVEALED:
                with self._until(s.exchange.key_at + job.spec.complaint_window, s):
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
        s = super()._read()
        if self.terms is not None and s.job.phase is not Phase.NONE and s.job.spec != self.terms:
            raise EndpointError(
                f"{self.game.chain.url} shows other terms for job {self.job.hex()[:16]} than the bundle that hashes to "
                "it: the reply is ignored; use another endpoint"
            )
        return replace(s, held=self._lasting.held("late", self._is_late(s), most_answering))

    def _is_late(self, s: Snapshot) -> bool:
        """Has this look, or an earlier one, shown the last tenth of the confirm window? A lower block, from a node that
        lags, does not contradict the earlier look, for as long as the tenth lasts."""
        endpoint = self.game.chain.endpoint
        number, seen = self._late.get(endpoint, (0, 0.0))
        if undecided(s) and s.left <= s.margin:
            self._late[endpoint] = max(number, s.number), time.monotonic()
            return True
        return s.number < number and time.monotonic() - seen <= s.margin

    def receive(self, write: Write) -> None:
        """After `ready`: pass every leaf, verified, to `write`; or send a complaint to the contract."""
        self._complaining(lambda: self._open(write))

    @property
    def sealed(self) -> SealedFolder:
        """The fetched folder."""
        assert self._fetched is not None
        return self._fetched[1]

    def offer(self) -> Offer:
        """The offer that the claim committed to, checked by its hash: from the disk, or from the log. Then it is
        written to the disk, because an endpoint may hide the log later."""
        job, stands = self.game.job(self.job), self.game.exchange(self.job).offer
        if not any(stands):
            raise DeliveryError(
                f"job {self.job.hex()[:16]} has no offer at {self.game.address}: it has no claim with a delivery"
            )

        def offered(event: Event) -> Offer | None:
            a = event.args
            found = Offer(a["finalState"], a["cipherRoot"], a["keyHash"])
            return found if self.game.offer_hash(astuple(found)) == stands else None

        with suppress(DeliveryError):
            _, kept = read_offer(self.folder)
            if self.game.offer_hash(astuple(kept)) == stands:
                return kept
        found = self.game.content("Offered", self.job, job.claimed_at, offered, key=stands)
        with suppress(VgameError):  # the disk may be full
            own_folder(self.folder)
            write_offer(self.folder, self.job, found)
        return found

    def fetch(self) -> SealedFolder:
        """The ciphertext of the committed offer, every byte verified; it includes chunks that were answered on
        chain."""
        offer = self.offer()
        if self._fetched is None or self._fetched[0] != offer:
            again = partial(fetch, self._get, self.shape, offer, self.folder, self.progress)
            try:
                self._fetched = offer, self._opened_here(offer) or again()
            except Missing as missing:
                kept, hidden = self._keep_answers(missing)
                if kept:
                    self._fetched = offer, self._beside(kept, again)
                elif hidden:
                    raise Missing(f"{missing}; {hidden}", missing.chunks, missing.all_known) from None
                else:
                    raise
            self._fresh = True
        return self._fetched[1]

    def _opened_here(self, offer: Offer) -> SealedFolder | None:
        """Once the key is revealed, the disk is read before the server, which then cannot delay a complaint. The whole
        folder; or None, after every leaf on the disk was verified with the key, if an endpoint shows it."""
        if not self.game.exchange(self.job).key_at:
            return None
        try:
            return fetch(_not_served, self.shape, offer, self.folder)
        except Missing as missing:
            if missing.sealed and missing.chunks != self._opened:
                with suppress(NotYet, ChainError):
                    self._decipher(missing.sealed, lambda piece, leaves: None)
        return None

    def _verified_now(self) -> bool:
        """INVARIANT: `confirm` is sent only if the ciphertext was verified in this look. It is not verified again while
        the call is pending. Data that are no longer here are fetched in the next look."""
        if self._fetched is None:
            return False
        offer = self._fetched[0]
        if not (self._fresh or self.game.was_sent("confirm", self.job, self.game.offer_hash(astuple(offer)))):
            try:
                fetch(_not_served, self.shape, offer, self.folder)
            except (VgameError, OSError):
                self._fetched = None
        return self._fetched is not None

    def _keep_answers(self, missing: Missing) -> tuple[dict[int, Place], VgameError | None]:
        """INVARIANT: answers from an endpoint replace only missing chunks. Returns the requests whose answers are
        shown, and the error for one whose answer is not."""
        kept: dict[int, Place] = {}
        hidden = None
        after = self._tried  # each look begins with another one of the answers that are not shown
        for request in sorted(self.game.requests(self.job), key=lambda r: (r.index <= after, r.index)):
            place = (request.tensor, request.chunk)
            if not (request.open or request.dropped) and place in missing.chunks:
                if self._logs.is_over(self.game.chain):
                    return kept, hidden or NotYet("the time of this look is over")
                self._tried = request.index
                try:
                    self._keep_answer(request)
                    kept[request.index] = place
                except (NotYet, ChainError) as problem:  # a later look searches again
                    hidden = problem
        return kept, hidden

    def _beside(self, kept: Mapping[int, Place], again: Callable[[], SealedFolder]) -> SealedFolder:
        """Fetch again, with the answers. Without the pairs of the chunks an answer cannot be verified before all others
        are here. A wrong answer is read again in a later look."""
        try:
            return again()
        except Missing as missing:
            wrong = [index for index, place in kept.items() if place in missing.chunks]
            verified = len(missing.chunks) < self.shape.first_chunk[-1] or len(wrong) == len(missing.chunks)
            self._wrong.update(wrong if verified else ())
            raise

    def _keep_answer(self, request: Request) -> None:
        """Write the answer to a request to the disk; it is verified with the fetched data."""

        def answer(event: Event) -> tuple[bytes, bytes] | None:
            leaves, hashes = event.args["leaves"], b"".join(event.args["trueHashes"])
            return (leaves, hashes) if event.args["index"] == request.index and fits(piece, leaves, hashes) else None

        piece = self.shape.chunk(request.tensor, request.chunk)
        at, key = request.answered_at, (request.index, self._wrong[request.index])
        leaves, hashes = self.game.content("Answered", self.job, at, answer, key=key)
        keep_chunk(self.shape, self.folder, request.tensor, request.chunk, leaves, hashes)

    def key(self) -> bytes:
        """The revealed key, checked by its hash."""
        known = self.offer().key_hash

        def revealed(event: Event) -> bytes | None:
            key = event.args["key"]
            return key if key_hash(key, self.job) == known else None

        return self.game.content("KeyRevealed", self.job, self.game.exchange(self.job).key_at, revealed, key=known)

    def _get(self, name: str, first: int, size: int) -> bytes:
        """Bytes from the server, within the time of this look."""
        if self._server.is_over(self.game.chain):
            raise DeliveryError("the time of this look is over")
        with replies_until(self._server.moment):
            return self.get(name, first, size)

    @contextmanager
    def _until(self, end: int, s: Snapshot) -> Iterator[None]:
        """In this context nothing is fetched after `end`, a time of the chain; if that has passed, a look lasts as long
        as `short_look`. A look lasts at most half of the confirm window, also by this machine's clock, because the
        snapshot's time may be false; with several endpoints at most as long as `short_look`, so that the next one is
        asked. If there are answers, half of the time is for their logs."""
        answers = any(r.answered_at and not r.dropped for r in s.requests)
        window = s.job.spec.confirm_window
        longest = short_look(s) if self.game.chain.turns else window // 2
        spell = min(end - s.now, longest) if end > s.now else short_look(s) + 1
        now = time.monotonic()
        self._server = Deadline(s.now + spell, now + (spell / 2 if answers else spell))
        self._logs = Deadline(s.now + spell + REPLY_TIMEOUT, now + spell + REPLY_TIMEOUT)
        try:
            yield
        finally:
            self._server = self._logs = NEVER

    def _open(self, write: Write) -> None:
        if lost := self._decipher(self.fetch(), write):
            self._fetched = None  # the next look fetches it again
            raise lost

    def _decipher(self, sealed: SealedFolder, write: Write) -> Missing | None:
        """Decipher and verify all leaves that are here; returns the error for the missing ones, None if there are
        none."""
        try:
            for piece, leaves in decipher(sealed, self.key(), self.job):
                write(piece, leaves)
        except Missing as missing:
            self._opened = missing.chunks
            return missing
        return None

    # ---- complaints ----

    def _complaining(self, what: Callable[[], T]) -> T:
        """Call `what`; if it finds that the trainer cheated, send a complaint to the contract."""
        try:
            return what()
        except WrongNode as wrong:
            self._complain("badNode", "a true hash that is not that of its children", wrong.children, wrong.place)
        except BadLeaf as bad:
            text = f"leaf {bad.leaf} of tensor {bad.tensor} does not decipher to what was committed"
            self._complain("badLeaf", text, self.key(), bad.tensor, bad.leaf, bad.cipher, bad.place)

    def _complain(self, name: str, text: str, *args: object) -> NoReturn:
        phase = self.game.job(self.job).phase
        if phase is Phase.CLAIMED:
            raise DeliveryError(f"{text}: the trainer cheats; the contract accepts the proof when the claim is final")
        if phase is Phase.FINAL and self._is_final({Phase.FINAL}):
            raise Undelivered(f"{text}: the trainer cheated, and the time for a proof is over")
        if self.game.wallet is None:
            raise Undelivered(f"{text}: the trainer cheated; send the proof with a wallet")
        if not self._send(name, self.job, astuple(self.offer()), *args):
            raise DeliveryError(f"{text}: the trainer cheated, but the contract accepts no complaint now")
        late = ", though the job is shown as final" if phase is Phase.FINAL else ""
        raise DeliveryError(f"{text}: the trainer cheated, and the complaint has been sent{late}")

    def _is_final(self, phases: Collection[Phase]) -> bool:
        """Have all looks shown an end for long enough, and does a final state show one of these phases?"""
        if not self._lasting.shown("ended"):
            return False
        final, _ = final_jobs(self.game, [self.job])
        return final is not None and final[0].phase in phases

    # ---- before the key ----

    def _deliver(self, s: Snapshot) -> None:
        sent, unsent = self._claim_back(s)
        if sent:
            return
        own = self.game.wallet is not None and self.game.wallet.address == s.job.client
        failed = self._raise_prices(s) if own else {}
        problem = self._complaining(lambda: self._look(s))
        if own and isinstance(problem, Missing):
            self._press(self._read(), problem, failed, unsent=unsent)
        elif own and problem:
            self._press(self._read(), Missing("", [], all_known=False), failed, problem, unsent)
        elif own:
            self._held(s)  # nothing is missing
            self._lacking = {}
        if failed and not undecided(s):  # the request may be dropped, and declining is no longer possible
            raise next(iter(failed.values()))
        if problem:
            raise problem
        offer = self.game.offer_hash(astuple(self._fetched[0])) if self._fetched else None
        if own and confirming(s := self._read(), offer).due and self._verified_now():
            self._attempt("confirm", self.job, s.exchange.offer)
        if unsent:
            raise unsent

    def _claim_back(self, s: Snapshot) -> tuple[bool, VgameError | None]:
        """Was the call that returns the whole reward sent? And its error, which stops nothing else."""
        call = call_of(self.job, overdue(s))
        try:
            return self.game.wallet is not None and call is not None and self._attempt(*call), None
        except VgameError as problem:
            return False, problem

    def _look(self, s: Snapshot) -> Exception | None:
        """Fetch within the time of a look; returns the error, None if everything is here."""
        try:
            with self._until(look_end(s), s):
                self.fetch()
        except (VgameError, OSError) as problem:
            return problem
        return None

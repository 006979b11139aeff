"""The client's side of a delivery: fetch, verify, confirm; with the key decipher; and what to do where the trainer does
not deliver.

In: a job on chain, its bundle's sizes, something that serves the sealed folder. Out: the leaves of the final state. A
killed process goes on.

By itself, without asking the user (docs/delivery.md section 4):

- `badNode`, `badLeaf`: as soon as one is seen; any wallet may.
- `request`: chunks that did not come, when half of the confirm window is over, or sooner where else an unanswered one
  would not be known as refused before its end. All of them if the contract takes as many and the answers cost less
  than declining does; else one, by chance: does the trainer answer? None that was answered.
- `refused`, `closeDelivery`: as soon as the trainer is late with an answer or the key.
- `decline`: in the last tenth of the confirm window, if more is missing than is requested.

A look at what is served ends when the next of these may be due, however slowly it is served.
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

FAILED = frozenset({Phase.CONVICTED, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED})  # no state comes

Write = Callable[[Piece, np.ndarray], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A second of the chain, and the monotonic clock's at that moment: time passes too where no block comes."""

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
    """The call by which the reward comes back from a trainer that is late; None if there is none."""
    return call_of(job, overdue(read(game, job)))


class Buyer(Calls):
    """Receives one job's state into `folder`. `terms`: those of the bundle, whose hash the job is."""

    def __init__(
        self, game: Game, job: bytes, elements: list[int], get: Get, folder: Path, record: Callable[[int], Any],
        progress: Progress = lambda done, total: None, terms: JobSpec | None = None,
    ) -> None:  # fmt: skip
        super().__init__(game, job, Shape(elements), record)
        self.get, self.folder = get, folder
        self.progress, self.terms = progress, terms
        self._lasting = Lasting(game.chain)
        self._fetched: tuple[Offer, SealedFolder] | None = None
        self._wrong: Counter[int] = Counter()  # by request: answers that were shown and are wrong
        self._server = self._logs = NEVER  # of this look: until when it fetches, until when it looks for answers
        self._tried = -1  # the last request whose answer was looked for
        self._fresh = False  # verified in this look
        #: By endpoint: the highest block that has shown the last tenth of the confirm window, and when it did.
        self._late: dict[int, tuple[int, float]] = {}
        self._opened: list[Place] | None = None  # lacking when all others were verified with the key

    def ready(self) -> bool:
        """The next move; True when the key is out and everything is here. DeliveryError where something is missing,
        Undelivered where the job has ended without its state."""
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
        """Is the last tenth of the confirm window shown? A lower block than one that has shown it, from a node that
        stands still, does not contradict it, as long as the tenth lasts."""
        endpoint = self.game.chain.endpoint
        number, seen = self._late.get(endpoint, (0, 0.0))
        if undecided(s) and s.left <= s.margin:
            self._late[endpoint] = max(number, s.number), time.monotonic()
            return True
        return s.number < number and time.monotonic() - seen <= s.margin

    def receive(self, write: Write) -> None:
        """What `ready` has announced: every leaf, verified, goes to `write`; or a complaint to the contract."""
        self._complaining(lambda: self._open(write))

    @property
    def sealed(self) -> SealedFolder:
        """What was fetched."""
        assert self._fetched is not None
        return self._fetched[1]

    def offer(self) -> Offer:
        """What the claim committed to, by its hash: as it is on the disk, or in the log, which an endpoint may hide
        later."""
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
        with suppress(VgameError):  # a full disk
            own_folder(self.folder)
            write_offer(self.folder, self.job, found)
        return found

    def fetch(self) -> SealedFolder:
        """The ciphertext of the offer that stands, every byte verified; what was answered on chain counts too."""
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
        """Once the key is out, the disk comes before the server, which cannot delay a complaint so: the whole folder,
        or None, and every leaf that is here has been verified, if the key is shown."""
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
        """INVARIANT: only what was verified in this look is confirmed; not again while the call is on its way. What is
        not here any more is fetched in the next look."""
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
        """INVARIANT: what an endpoint shows takes the place of missing chunks only. The requests whose answers are
        shown, and why another one is not."""
        kept: dict[int, Place] = {}
        hidden = None
        after = self._tried  # of the answers that are not shown another one comes first in each look
        for request in sorted(self.game.requests(self.job), key=lambda r: (r.index <= after, r.index)):
            place = (request.tensor, request.chunk)
            if not (request.open or request.dropped) and place in missing.chunks:
                if self._logs.is_over(self.game.chain):
                    return kept, hidden or NotYet("the time of this look is over")
                self._tried = request.index
                try:
                    self._keep_answer(request)
                    kept[request.index] = place
                except (NotYet, ChainError) as problem:  # it is looked for again
                    hidden = problem
        return kept, hidden

    def _beside(self, kept: Mapping[int, Place], again: Callable[[], SealedFolder]) -> SealedFolder:
        """Fetch again. Without the pairs of the chunks an answer cannot be verified before all others are here. One
        that is wrong is read anew."""
        try:
            return again()
        except Missing as missing:
            wrong = [index for index, place in kept.items() if place in missing.chunks]
            verified = len(missing.chunks) < self.shape.first_chunk[-1] or len(wrong) == len(missing.chunks)
            self._wrong.update(wrong if verified else ())
            raise

    def _keep_answer(self, request: Request) -> None:
        """What an endpoint shows is verified with what is fetched."""

        def answer(event: Event) -> tuple[bytes, bytes] | None:
            leaves, hashes = event.args["leaves"], b"".join(event.args["trueHashes"])
            return (leaves, hashes) if event.args["index"] == request.index and fits(piece, leaves, hashes) else None

        piece = self.shape.chunk(request.tensor, request.chunk)
        at, key = request.answered_at, (request.index, self._wrong[request.index])
        leaves, hashes = self.game.content("Answered", self.job, at, answer, key=key)
        keep_chunk(self.shape, self.folder, request.tensor, request.chunk, leaves, hashes)

    def key(self) -> bytes:
        """The key that is out, by its hash."""
        known = self.offer().key_hash

        def revealed(event: Event) -> bytes | None:
            key = event.args["key"]
            return key if key_hash(key, self.job) == known else None

        return self.game.content("KeyRevealed", self.job, self.game.exchange(self.job).key_at, revealed, key=known)

    def _get(self, name: str, first: int, size: int) -> bytes:
        """What is served, in the time of this look."""
        if self._server.is_over(self.game.chain):
            raise DeliveryError("the time of this look is over")
        with replies_until(self._server.moment):
            return self.get(name, first, size)

    @contextmanager
    def _until(self, end: int, s: Snapshot) -> Iterator[None]:
        """Nothing is fetched after a time of the chain; if that is over, a look lasts as long as `short_look`.
        It lasts half of the confirm window at most, by the own clock too, for the time that the snapshot shows
        may be false; with several endpoints no longer than `short_look`, so that the next one is asked. Half of it is
        for the logs of answers, if there are some."""
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
        """What is not here any more, after all other leaves were verified."""
        try:
            for piece, leaves in decipher(sealed, self.key(), self.job):
                write(piece, leaves)
        except Missing as missing:
            self._opened = missing.chunks
            return missing
        return None

    # ---- complaints ----

    def _complaining(self, what: Callable[[], T]) -> T:
        """Do it; what proves that the trainer cheated goes to the contract."""
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
        if failed and not undecided(s):  # the request may be dropped, and cannot be declined any more
            raise next(iter(failed.values()))
        if problem:
            raise problem
        offer = self.game.offer_hash(astuple(self._fetched[0])) if self._fetched else None
        if own and confirming(s := self._read(), offer).due and self._verified_now():
            self._attempt("confirm", self.job, s.exchange.offer)
        if unsent:
            raise unsent

    def _claim_back(self, s: Snapshot) -> tuple[bool, VgameError | None]:
        """Whether the call for the whole reward was sent; why not, which stops nothing else."""
        call = call_of(self.job, overdue(s))
        try:
            return self.game.wallet is not None and call is not None and self._attempt(*call), None
        except VgameError as problem:
            return False, problem

    def _look(self, s: Snapshot) -> Exception | None:
        """Fetch in the time of a look; why it is not all here."""
        try:
            with self._until(look_end(s), s):
                self.fetch()
        except (VgameError, OSError) as problem:
            return problem
        return None

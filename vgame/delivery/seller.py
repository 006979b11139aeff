"""The trainer's side of a delivery: the key, the folder that is served, and the moves after finality.

    FOLDER/key       32 bytes, of this job alone; nobody else may read it
    FOLDER/public    what is served (sealed.py)

Who is killed goes on: the key is written before anything is sealed with it, the offer last.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from vgame.chain.game import Game
from vgame.chain.records import Job, Phase, Request
from vgame.delivery.cipher import KEY_BYTES, key_hash
from vgame.delivery.sealed import Offer, SealedFolder, Shape, read_offer, seal
from vgame.errors import Abstain, DeliveryError

Attempt = Callable[..., bool]
MOST_REQUESTS = 64  # Delivery.MAX_REQUESTS
WORST_INCLUSION = 600  # seconds before its deadline at which the key goes out at the latest
FIRST_ANSWERS = 4  # that are paid for before the pay of the first one is there


class Seller:
    """What a trainer delivers for one job. `words`: those of the tensors of its final state, asked for when they are
    sealed."""

    def __init__(self, folder: Path, job: bytes, elements: Sequence[int], words: Callable[[], Iterable[Any]]) -> None:
        self.folder, self.job, self.shape, self.words = folder, job, Shape(elements), words

    @property
    def public(self) -> Path:
        return self.folder / "public"

    def key(self, make: bool = False) -> bytes:
        """The key; `make` one if there is none. DeliveryError where it is not 32 bytes."""
        path = self.folder / "key"
        if make and not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            half = self.folder / ".key.half"
            half.unlink(missing_ok=True)
            descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.rename(half, path)  # whole or not there
        try:
            found = path.read_bytes()
        except OSError as error:
            raise DeliveryError(f"{path} cannot be read: {error.strerror}; restore it, or the bond is lost") from None
        if len(found) != KEY_BYTES:
            raise DeliveryError(f"{path} holds {len(found)} bytes, a key has {KEY_BYTES}; restore it from a copy")
        return found

    def offer(self, make: bool = True) -> Offer:
        """What the claim commits to; the state is sealed where it was not yet, with a new key if there is none
        (`make`)."""
        key = self.key(make)
        if (self.public / "offer.json").exists():
            job, offer = read_offer(self.public)
            if job == self.job and offer.key_hash == key_hash(key, job):
                return offer
        return seal(self.words(), self.shape, key, self.job, self.public)

    def answers_gas(self) -> tuple[int, int]:
        """Gas at most of the first answers that a client may ask for, and of all."""
        count = min(MOST_REQUESTS, self.shape.first_chunk[-1])
        return min(FIRST_ANSWERS, count) * self.shape.answer_gas, count * self.shape.answer_gas

    # ---- after finality ----

    def committed(self, game: Game) -> Offer:
        """The offer, which must be the claim's: with another key nothing can be answered or revealed."""
        offer = self.offer(make=False)
        if game.offer_hash(astuple(offer)) != game.exchange(self.job).offer:
            raise Abstain(
                f"{self.folder} holds another key or state than the claim committed to; restore the folder of the "
                "machine that claimed"
            )
        return offer

    def duties(self, game: Game, job: Job, attempt: Attempt) -> list[Callable[[], bool]]:
        """The moves that may be due, those first whose time ends first. One that fails or waits stops no other."""
        if job.phase is Phase.REVEALED:
            return [partial(self._close, game, job, attempt)]
        offer, base = self.committed(game), game.chain.fees()[0]
        requests = [
            partial(self._defer, game, job, request, attempt)
            if base > request.price
            else partial(self._answer, offer, request, attempt)
            for request in open_requests(game, self.job)
        ]
        return [*requests, partial(self._reveal, game, job, offer, attempt)]

    def _close(self, game: Game, job: Job, attempt: Attempt) -> bool:
        over = game.chain.now() > game.exchange(self.job).key_at + job.spec.complaint_window
        return over and attempt("closeDelivery", self.job, int(Phase.REVEALED))

    def _answer(self, offer: Offer, request: Request, attempt: Attempt) -> bool:
        content = SealedFolder(self.public, self.shape).answer(request.tensor, request.chunk)
        return attempt("answer", self.job, astuple(offer), request.index, *content)

    def _defer(self, game: Game, job: Job, request: Request, attempt: Attempt) -> bool:
        """Above the price of a request its time is begun anew when half of it is over, and the request is dropped when
        the client has not raised the price for a key window."""
        now, window = game.chain.now(), job.spec.key_window
        dropped = request.deferred_at and now > request.deferred_at + window
        return (dropped or now > request.since + window // 2) and attempt("defer", self.job, request.index)

    def _reveal(self, game: Game, job: Job, offer: Offer, attempt: Attempt) -> bool:
        return self._key_is_due(game, job) and attempt("revealKey", self.job, astuple(offer), self.key())

    def _key_is_due(self, game: Game, job: Job) -> bool:
        """Not before the client's word, or its silence, is final, for a key cannot be taken back; where that takes too
        long, when the newest block shows it and the key has to go out: to keep it costs reward and bond."""
        exchange, window = game.exchange(self.job), job.spec.key_window
        if exchange.open:
            return False

        def decided(time: int) -> bool:
            return exchange.key_from <= time if exchange.confirmed_at else exchange.until < time

        now = game.chain.now()
        late = now >= exchange.key_from + window - min(WORST_INCLUSION, window // 2)
        return decided(now) and (late or decided(game.chain.final_time(window // 2)))


def open_requests(game: Game, job: bytes) -> list[Request]:
    """The requests that are not answered; first the one whose time began first."""
    return sorted((r for r in game.requests(job) if r.open), key=lambda r: r.since)

"""The trainer's side of a delivery: the key, the folder that is served, and the moves after finality.

    FOLDER/key       32 bytes, of this job alone; readable by the owner only
    FOLDER/public    the served folder (sealed.py)

A killed process can be resumed: the key is written before anything is sealed with it, the offer last.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from vgame.chain.connection import Chain
from vgame.chain.final import Lasting, most, most_answering
from vgame.chain.game import Game
from vgame.chain.records import Job, Phase, Request
from vgame.delivery.cipher import KEY_BYTES, key_hash
from vgame.delivery.folder import own_folder
from vgame.delivery.looks import Looks
from vgame.delivery.rules import MOST_REQUESTS, Duty, Snapshot, selling
from vgame.delivery.sealed import (
    Offer,
    SealedFolder,
    Shape,
    check_sizes,
    read_offer,
    seal,
    seal_files,
    write_offer,
)
from vgame.errors import Abstain, DeliveryError, VgameError
from vgame.system.files import remove_halves, write_atomic

PAUSES = 9  # the pause before the state is sealed once more, as a multiple of the time that sealing took
Attempt = Callable[..., bool]
FIRST_ANSWERS = 16  # answers whose gas must be held before the first one is paid for


class Seller:
    """A trainer's delivery for one job. `words`: returns the words of the tensors of the final state; called when they
    are sealed."""

    def __init__(self, folder: Path, job: bytes, elements: Sequence[int], words: Callable[[], Iterable[Any]]) -> None:
        self.folder, self.job, self.shape, self.words = folder, job, Shape(elements), words
        self.lasting: Lasting | None = None  # how long each look has shown the client's decision
        self._late_from: dict[int, int] = {}  # by endpoint: `late_from` in its last look
        self.looks = Looks()
        self._sealed: Offer | None = None  # the offer after sealing again, with the key of that time
        self._again = 0.0  # when it may be sealed again, on the monotonic clock

    @property
    def public(self) -> Path:
        return self.folder / "public"

    def make_key(self) -> bytes:
        """The key, created if there is none. Called before the claim. The folders must be this account's own: another
        account would know a key that it has put there."""
        for folder in (self.folder, self.public):
            own_folder(folder, 0o755)
        remove_halves(self.folder)
        if not (path := self.folder / "key").exists():
            write_atomic(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        return self.key()

    def key(self) -> bytes:
        """The key; DeliveryError unless it is 32 bytes."""
        path = self.folder / "key"
        try:
            found = path.read_bytes()
        except OSError as error:
            raise DeliveryError(f"{path} cannot be read: {error.strerror}; restore it, or the bond is lost") from None
        if len(found) != KEY_BYTES:
            raise DeliveryError(f"{path} holds {len(found)} bytes, a key has {KEY_BYTES}; restore it from a copy")
        return found

    def offer(self) -> Offer:
        """The offer, to which the claim commits. The state is sealed first, if that was not done or files are too
        short."""
        key = self.make_key()
        with suppress(DeliveryError):
            check_sizes(self.public, self.shape)
            if offer := self._written(key):
                return offer
        return seal(self.words(), self.shape, key, self.job, self.public)

    @property
    def unsealed(self) -> int:
        """Bytes of the sealed state that the disk does not hold yet."""
        found = {path.name: path.stat().st_size for path in self.public.glob("*") if path.is_file()}
        return sum(max(0, size - found.get(name, 0)) for name, size in self.shape.sizes.items())

    def _written(self, key: bytes) -> Offer | None:
        """The offer on the disk, if it is one of this job and key."""
        with suppress(DeliveryError):
            job, offer = read_offer(self.public)
            if job == self.job and offer.key_hash == key_hash(key, job):
                return offer
        return None

    def _seal_files(self, key: bytes) -> Offer:
        return seal_files(self.words(), self.shape, key, self.job, self.public)

    def answers_gas(self) -> tuple[int, int]:
        """Maximum gas of the first answers that a client may request, and of all."""
        count = min(MOST_REQUESTS, self.shape.first_chunk[-1])
        return min(FIRST_ANSWERS, count) * self.shape.answer_gas, count * self.shape.answer_gas

    # ---- after finality ----

    def committed(self, game: Game, s: Snapshot) -> Offer:
        """The offer, which must be the claim's: with another key nothing can be answered or revealed. If it is not on
        the disk any more, it is computed again from the state. To reveal the key, no other files are needed."""

        def fits(offer: Offer | None) -> TypeGuard[Offer]:
            return offer is not None and game.offer_hash(astuple(offer)) == s.exchange.offer

        key = self.key()
        if fits(offer := self._written(key)):
            return offer
        if self._sealed is None or self._sealed.key_hash != key_hash(key, self.job):
            self._sealed = self._seal_files(key)
        if not fits(self._sealed):
            raise Abstain(
                f"{self.folder} holds another key or state than the claim committed to; restore the folder of the "
                "machine that claimed"
            )
        with suppress(VgameError):  # it can be used without being written
            write_offer(self.public, self.job, self._sealed)
        return self._sealed

    def _mend(self, offer: Offer) -> bool:
        """Seal the state again if files are missing or too short. Changed contents are found by an answer. False: no
        transaction is sent."""
        try:
            check_sizes(self.public, self.shape)
        except DeliveryError:
            self._seal_again(offer)
        return False

    def _seal_again(self, offer: Offer) -> None:
        """Seal the state again. This takes at most a tenth of the time, because other duties must not wait if it does
        not help. INVARIANT: the committed offer stays: the key can be revealed with it, whatever the files hold."""
        begun = time.monotonic()
        if begun < self._again:
            raise DeliveryError(f"{self.public} was sealed again a moment ago, and is damaged still")
        try:
            if self._seal_files(self.key()) != offer:
                raise DeliveryError(f"{self.public} is damaged, and the run's final state is another one; restore both")
        finally:
            now = time.monotonic()
            self._again = now + PAUSES * (now - begun)

    def _answer(self, offer: Offer, tensor: int, chunk: int) -> tuple[bytes, list[bytes], list[bytes]]:
        """The arguments of an answer. A folder that has changed is sealed again first."""
        self.shape.chunk(tensor, chunk)  # DeliveryError if there is no such chunk, before the state is sealed again
        with suppress(DeliveryError, OSError):
            return self._verified(offer).answer(tensor, chunk)
        self._seal_again(offer)
        return self._verified(offer).answer(tensor, chunk)

    def _verified(self, offer: Offer) -> SealedFolder:
        """The folder, if its pairs match the offer; otherwise DeliveryError."""
        sealed = SealedFolder(self.public, self.shape)
        if sealed.tree.root != (offer.cipher_root, offer.final_state):
            raise DeliveryError(f"{self.public / 'chunks'} has changed since the state was sealed")
        return sealed

    def duties(self, game: Game, job: Job, attempt: Attempt) -> list[Callable[[], bool]]:
        """The moves that are due, decided on one block and the terms of the order. A move that fails does not stop the
        others."""
        s = self.looks.read(game, self.job)
        decided = s.job.phase is Phase.DELIVERING and s.decided(s.now)
        self.lasting = self.lasting or Lasting(game.chain)
        s = replace(
            s,
            job=replace(s.job, spec=job.spec),
            held=self.lasting.held("decided", decided, most_answering if self._is_late(game.chain, s) else most),
        )
        offer = self.committed(game, s) if s.job.phase is Phase.DELIVERING else None
        duties: list[Callable[[], bool]] = [partial(self._do, duty, offer, attempt) for duty in selling(s) if duty.due]
        return [*duties, partial(self._mend, offer)] if offer else duties

    def _is_late(self, chain: Chain, s: Snapshot) -> bool:
        """Must the key be sent now, by the last looks at most endpoints? One endpoint alone could show a confirmation
        of long ago while the others do not answer."""
        self._late_from[chain.endpoint] = s.late_from
        shown, needed = sorted(self._late_from.values()), most(chain)
        return len(shown) >= needed and s.now >= shown[needed - 1]

    def _do(self, duty: Duty, offer: Offer | None, attempt: Attempt) -> bool:
        match duty.call, duty.request:
            case "closeDelivery", _:
                return attempt("closeDelivery", self.job, int(Phase.REVEALED))
            case "defer", Request(index=index):
                return attempt("defer", self.job, index)
            case "answer", Request() as request:
                content = self._answer(offer, request.tensor, request.chunk)
                return attempt("answer", self.job, astuple(offer), request.index, *content)
        return attempt("revealKey", self.job, astuple(offer), self.key())

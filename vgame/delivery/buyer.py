"""The client's side of a delivery: fetch, verify, confirm; with the key decipher, and complain where a leaf is not what was committed.

In: a job on chain, its bundle's sizes, something that serves the sealed folder. Out: the words of the final state. Who is killed goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import numpy as np

from vgame.chain.game import Game, Phase
from vgame.delivery.fetch import Get, fetch
from vgame.delivery.opening import BadLeaf, decipher
from vgame.delivery.sealed import Offer, SealedFolder, Shape
from vgame.errors import ContractError, DeliveryError, NotYet

Attempt = Callable[..., bool]
HARMLESS = frozenset({"AlreadyConfirmed", "TooLate", "WrongPhase"})


class Buyer:
    """Receives one job's state into `folder`."""

    def __init__(self, game: Game, job: bytes, elements: list[int], get: Get, folder: Path) -> None:
        self.game, self.job, self.shape, self.get, self.folder = game, job, Shape(elements), get, folder
        self._sealed: SealedFolder | None = None

    def receive(self) -> list[np.ndarray] | None:
        """The next move; the uint32 words of each tensor when the key is out. DeliveryError where the state does not come."""
        phase = self.game.job(self.job).phase
        match phase:
            case Phase.CLAIMED:
                self.fetch()
            case Phase.DELIVERING:
                self.fetch()
                self._confirm()
            case Phase.REVEALED | Phase.FINAL:
                self.fetch()
                return self._open(phase)
            case Phase.CREATED | Phase.ACCEPTED:
                raise NotYet(f"job {self.job.hex()[:16]} is {phase.name.lower()}: it has no claim yet")
            case _:
                raise DeliveryError(f"job {self.job.hex()[:16]} is {phase.name.lower()}: its state is not delivered")
        return None

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
        """The ciphertext, every byte verified."""
        if self._sealed is None:
            self._sealed = fetch(self.get, self.shape, self.offer(), self.folder)
        return self._sealed

    def _confirm(self) -> None:
        """The client alone; before the end of the window."""
        job, exchange = self.game.job(self.job), self.game.exchange(self.job)
        own = self.game.wallet is not None and self.game.wallet.address == job.client
        if own and not exchange.confirmed and not exchange.open and self.game.chain.now() < exchange.until:
            self._attempt("confirm", self.job)

    def _open(self, phase: Phase) -> list[np.ndarray]:
        key = self.game.events("KeyRevealed", self.job)[-1].args["key"]
        plain: list[list[np.ndarray]] = [[] for _ in self.shape.elements]
        try:
            for piece, leaves in decipher(self.fetch(), key, self.job):
                plain[piece.tensor].append(leaves.reshape(-1))
        except BadLeaf as bad:
            if phase is Phase.REVEALED and self.game.wallet is not None:
                args = (bad.tensor, bad.leaf, bad.cipher, bad.place)
                self._attempt("badLeaf", self.job, astuple(self.offer()), key, *args)
            raise DeliveryError(
                f"leaf {bad.leaf} of tensor {bad.tensor} does not decipher to what was committed: the trainer cheated, and the "
                f"complaint has been sent"
                if phase is Phase.REVEALED
                else f"leaf {bad.leaf} of tensor {bad.tensor} is wrong"
            ) from None
        return [
            np.concatenate(parts).view("<u4")[:count] for parts, count in zip(plain, self.shape.elements, strict=True)
        ]

    def _attempt(self, name: str, *args: object) -> None:
        try:
            self.game.send(name, *args)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise

"""All attacks of either side in a delivery: the real seller and buyer, each with one change. The demo and the tests
play them.

In: an ordered job, its trainer and its client, on a chain whose clock can be moved. Out: the end of the job, and the
calls that the contract refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vgame.chain.game import Game
from vgame.chain.records import ENDED, IN_DELIVERY, Phase, delivery_window
from vgame.delivery.buyer import Buyer
from vgame.delivery.cipher import job_key
from vgame.delivery.fetch import Get
from vgame.delivery.opening import bad_leaf, root_node
from vgame.delivery.rules import MOST_REQUESTS, STEADY, read
from vgame.delivery.sealed import Change, Piece, SealedFolder, read_offer, seal, write_offer
from vgame.delivery.seller import Seller
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError, DeliveryError, Undelivered, VgameError

ROUNDS = 60 + 4 * MOST_REQUESTS


@dataclass(frozen=True)
class Cheat:
    """`end`: the phase in which the job must end. `change`: the change of the committed ciphertext; `other`: the state
    that is encrypted instead. `silent`: calls that the trainer never makes. `unserved`, `garbled`: files that are
    missing or damaged. `absent`: the client does nothing. `tries`: further calls at the start of a phase."""

    name: str
    title: str
    end: Phase
    change: Change | None = None
    other: Callable[[list[np.ndarray]], list[np.ndarray]] | None = None
    silent: frozenset[str] = frozenset()
    unserved: frozenset[str] = frozenset()
    garbled: frozenset[str] = frozenset()
    absent: bool = False
    tries: dict[Phase, Callable[[Exchange], None]] = field(default_factory=dict)


class _Silent(Trainer):
    """A trainer that never makes some calls."""

    silent: frozenset[str] = frozenset()

    def attempt(self, name: str, *args: object, value: int = 0) -> bool:
        return False if name in self.silent else super().attempt(name, *args, value=value)


class Exchange:
    """One job with delivery, from its acceptance to its end. `words`: the words of the final state, uint32."""

    def __init__(
        self,
        cheat: Cheat,
        client: Game,
        trainer: Game,
        machine: Any,
        job: bytes,
        words: list[np.ndarray],
        folder: Path,
        record: Callable[[int], Any],
        write: Callable[[Buyer], None] = lambda buyer: buyer.receive(lambda piece, leaves: None),
    ) -> None:
        self.cheat, self.client, self.job, self.words, self.write = cheat, client, job, words, write
        self.elements = [w.size for w in words]
        self.trainer = _Silent(trainer, job, machine)
        self.trainer.silent = cheat.silent
        self.trainer.seller = self.seller = Seller(folder / "seller", job, self.elements, lambda: words)
        self.get: Get = self._read
        self.buyer = Buyer(client, job, self.elements, self._served, folder / "buyer", record)
        self.begun: set[Phase] = set()
        self.refusals: list[str] = []
        self.received = False

    @property
    def phase(self) -> Phase:
        return self.client.job(self.job).phase

    @property
    def offer(self) -> tuple[bytes, ...]:
        return astuple(read_offer(self.seller.public)[1])

    # ---- the served files ----

    def _read(self, name: str, first: int, size: int) -> bytes:
        return (self.seller.public / name).read_bytes()[first : first + size]

    def _served(self, name: str, first: int, size: int) -> bytes:
        if name in self.cheat.unserved:
            raise DeliveryError(f"{name} is not served")
        data = self.get(name, first, size)
        return bytes(len(data)) if name in self.cheat.garbled else data

    # ---- the course ----

    def claim(self) -> None:
        """Accept, encrypt with the cheat's change, claim."""
        self.trainer.accept()
        if self.cheat.change or self.cheat.other:
            self._seal()
        self.trainer.claim()

    def _seal(self) -> None:
        """Encrypt with the cheat's change. The offer always has the true final state, because the claim is honest."""
        seller, key = self.seller, self.seller.make_key()
        final = self.trainer.checkpoint(len(self.trainer.machine.checkpoints))[0]
        words = self.cheat.other(self.words) if self.cheat.other else self.words
        offer = seal(words, seller.shape, key, self.job, seller.public, self.cheat.change)
        write_offer(seller.public, self.job, replace(offer, final_state=final))

    def play(self) -> Phase:
        """Play from the end of the challenge window to the end of the job and the last withdrawal."""
        for _ in range(ROUNDS):
            if (phase := self.phase) in ENDED:
                for game in (self.client, self.trainer.game):
                    if game.credits(game.wallet.address):
                        game.send("withdraw", game.wallet.address)
                return phase
            if phase not in self.begun:
                self.begun.add(phase)
                self.cheat.tries.get(phase, lambda _: None)(self)
            elif not (self._client_moves() | self.trainer.step()):
                self._wait()
        raise VgameError(f"{self.cheat.name}: the job is still {phase.name.lower()} after {ROUNDS} rounds")

    def _wait(self) -> None:
        """Move the clock by a third of the present window."""
        job = self.client.job(self.job)
        if job.phase in IN_DELIVERY:
            window, _ = delivery_window(job, self.client.exchange(self.job), self.client.chain.now())
            self.client.chain.advance(getattr(job.spec, window) // 3 + 1)

    def _client_moves(self) -> bool:
        if self.cheat.absent or self.received:
            return False
        before = self.client.exchange(self.job), self.phase
        try:
            if self.buyer.ready():
                self.write(self.buyer)
                self.received = True
        except (Undelivered, DeliveryError):
            pass
        return before != (self.client.exchange(self.job), self.phase)

    def refused(self, error: str, game: Game, name: str, *args: object) -> None:
        """Make a call that the contract must refuse with an error."""
        try:
            game.send(name, *args)
        except ContractError as found:
            if found.name != error:
                raise
            self.refusals.append(f"{name}: {error}")
            return
        raise VgameError(f"{self.cheat.name}: the contract accepted {name}, but must refuse it with {error}")


# ---- changes of the committed ciphertext ----


def _garbage(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    cipher[:] = np.random.default_rng(piece.at).integers(0, 256, cipher.shape, np.uint8)


def _one_bit(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.at == 0:
        cipher[-1, 0] ^= 1


def _wrong_hash(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    if piece.at == 0:
        true[0, 0] ^= 1


def _plain(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    """Zeros instead of the ciphertext."""
    cipher[:] = 0


def _swapped(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
    """Two leaves of a tensor change places, in the ciphertext only."""
    if piece.count > 1:
        cipher[[0, 1]] = cipher[[1, 0]]


# ---- further calls ----


def _honest_leaf(x: Exchange) -> tuple[object, ...]:
    key = x.buyer.key()
    leaf = bad_leaf(SealedFolder(x.seller.public, x.seller.shape), 0, 0)
    return x.job, x.offer, key, leaf.tensor, leaf.leaf, leaf.cipher, leaf.place


def _moved_leaf(x: Exchange) -> tuple[object, ...]:
    job, offer, key, tensor, leaf, cipher, place = _honest_leaf(x)
    return job, offer, key, tensor, leaf + 1, cipher, place  # type: ignore[operator]


def _honest_node(x: Exchange) -> tuple[object, ...]:
    root = root_node(SealedFolder(x.seller.public, x.seller.shape).tree, read_offer(x.seller.public)[1].final_state)
    return x.job, x.offer, root.children, root.place


def _request_all(x: Exchange) -> None:
    """Request every chunk, up to the contract's maximum; one more request is refused."""
    places = [(t, c) for t, count in enumerate(x.seller.shape.chunks) for c in range(count)]
    now = read(x.client, x.job)
    for index, place in enumerate(places[:MOST_REQUESTS]):
        x.buyer._request(now, index, *place, STEADY * now.base)
    if len(places) >= MOST_REQUESTS:
        request = (*_offered(x), MOST_REQUESTS, *places[0], 0, x.buyer.record(0))
        x.refused("TooManyRequests", x.client, "request", *request)


def _then(
    error: str, side: str, name: str, args: Callable[[Exchange], tuple[object, ...]]
) -> Callable[[Exchange], None]:
    """An attempt to make a call, which the contract refuses with an error."""
    return lambda x: x.refused(error, x.client if side == "client" else x.trainer.game, name, *args(x))


def _offered(x: Exchange) -> tuple[object, ...]:
    return x.job, x.client.exchange(x.job).offer


def _closing(phase: Phase) -> Callable[[Exchange], tuple[object, ...]]:
    return lambda x: (x.job, int(phase))


def _confirm_first(then: Callable[[Exchange], None]) -> Callable[[Exchange], None]:
    def both(x: Exchange) -> None:
        x.buyer.ready()
        then(x)

    return both


def _other_key(x: Exchange) -> tuple[object, ...]:
    return x.job, x.offer, job_key(x.seller.key(), x.job)


LEAVES = frozenset({"leaves"})
ALL = frozenset({"leaves", "hashes", "chunks"})
HONEST = Cheat("honest-exchange", "the state for the reward", Phase.FINAL)
_NO = Phase.UNDELIVERED

CHEATS = {
    cheat.name: cheat
    for cheat in (
        # the trainer
        Cheat("garbage-ciphertext", "commits to garbage instead of the ciphertext", _NO, change=_garbage),
        Cheat("no-ciphertext", "commits to zeros instead of the ciphertext", _NO, change=_plain),
        Cheat("one-wrong-leaf", "one bit of one leaf's ciphertext is flipped", _NO, change=_one_bit),
        Cheat("moved-leaves", "two leaves of the ciphertext change places", _NO, change=_swapped),
        Cheat("wrong-true-hash", "puts a false hash below the final state", _NO, change=_wrong_hash),
        Cheat(
            "other-state", "sells another state than the trained one", _NO, other=lambda words: [w ^ 1 for w in words]
        ),
        Cheat(
            "wrong-key",
            "reveals another key",
            _NO,
            silent=frozenset({"revealKey"}),
            tries={
                Phase.DELIVERING: _confirm_first(_then("BadProof", "trainer", "revealKey", _other_key)),
            },
        ),
        Cheat("no-key", "keeps the key", _NO, silent=frozenset({"revealKey"})),
        Cheat(
            "early-key",
            "reveals the key before the client has confirmed",
            Phase.FINAL,
            tries={
                Phase.DELIVERING: _then(
                    "NotConfirmed", "trainer", "revealKey", lambda x: (x.job, x.offer, x.seller.key())
                ),
            },
        ),
        Cheat("serves-nothing", "serves no file, answers no request", _NO, silent=frozenset({"answer"}), unserved=ALL),
        Cheat(
            "refused-chunk", "serves no leaf, answers no request", _NO, silent=frozenset({"answer"}), unserved=LEAVES
        ),
        Cheat("answers-on-chain", "serves no file, but answers every request", Phase.FINAL, unserved=ALL),
        Cheat("garbled-service", "serves another ciphertext than it committed to", Phase.FINAL, garbled=LEAVES),
        Cheat(
            "early-reward",
            "wants the reward before the complaint window has ended",
            Phase.FINAL,
            tries={
                Phase.REVEALED: _then("TooEarly", "trainer", "closeDelivery", _closing(Phase.REVEALED)),
            },
        ),
        Cheat(
            "confirms-itself",
            "confirms in the client's place",
            Phase.FINAL,
            tries={
                Phase.DELIVERING: _then("NotClient", "trainer", "confirm", _offered),
            },
        ),
        # the client
        Cheat(
            "false-complaint",
            "complains about an honest leaf",
            Phase.FINAL,
            tries={
                Phase.REVEALED: _then("NothingWrong", "client", "badLeaf", _honest_leaf),
            },
        ),
        Cheat(
            "moved-complaint",
            "complains about an honest leaf with a wrong position",
            Phase.FINAL,
            tries={
                Phase.REVEALED: _then("BadProof", "client", "badLeaf", _moved_leaf),
            },
        ),
        Cheat(
            "false-node",
            "complains about an honest node",
            Phase.FINAL,
            tries={
                Phase.DELIVERING: _then("NothingWrong", "client", "badNode", _honest_node),
            },
        ),
        Cheat(
            "declines",
            "declines an honest delivery",
            Phase.DECLINED,
            tries={
                Phase.DELIVERING: lambda x: x.client.send("decline", *_offered(x)),
            },
        ),
        Cheat(
            "declines-late",
            "declines after it has confirmed",
            Phase.FINAL,
            tries={
                Phase.DELIVERING: _confirm_first(_then("AlreadyConfirmed", "client", "decline", _offered)),
            },
        ),
        Cheat(
            "early-refund",
            "wants the reward back before the key is due",
            Phase.FINAL,
            tries={
                Phase.DELIVERING: _then("TooEarly", "client", "closeDelivery", _closing(Phase.DELIVERING)),
            },
        ),
        Cheat(
            "requests-to-the-limit",
            "requests the maximum number of chunks",
            Phase.FINAL,
            tries={Phase.DELIVERING: _request_all},
        ),
        Cheat("silent-client", "makes no call at all", Phase.FINAL, absent=True),
    )
}

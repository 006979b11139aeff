"""An exchange over the toy machine: a claim that nobody challenges, of a state of arbitrary words, and what the trainer
makes of it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scene import Play, Scene, Setup
from toy import Operator, Program, State

from vgame.chain.records import Phase
from vgame.commit.merkle import Kind, Tree
from vgame.commit.trees import run_leaf
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK
from vgame.delivery.opening import bad_leaf
from vgame.delivery.sealed import Change, Offer, SealedFolder, Shape, leaf_path, seal

KEY = b"\x4b" * 32
CONFIRM, KEY_WINDOW, COMPLAINT = 900, 700, 800
WINDOWS = {"confirm_window": CONFIRM, "key_window": KEY_WINDOW, "complaint_window": COMPLAINT}
#: A tensor of one word, one of two chunks and a bit, one of an uneven number of leaves.
SIZES = (1, 2 * CHUNK * 128 + 1, 5 * 128)
PROGRAM = Program((Operator(1),), tuple(State(n) for n in SIZES))
DELIVERY = Setup(PROGRAM, terms=WINDOWS)
ONE = replace(DELIVERY, program=Program((Operator(1),), (State(300),)))


@dataclass
class Exchange:
    """One job after its claim."""

    play: Play
    trainer: Any
    offer: Offer
    sealed: SealedFolder
    words: list[np.ndarray]

    @property
    def id(self) -> bytes:
        return self.play.id

    @property
    def client(self) -> Any:
        return self.play.client

    @property
    def phase(self) -> Phase:
        return self.play.phase

    def state(self) -> Any:
        """IDelivery.Exchange: offer, until, requests, open, confirmed, deposits."""
        return self.client._call("getExchange", self.id)

    def finalize(self) -> Exchange:
        self.play.pass_window()
        self.trainer.send("finalize", self.id)
        return self

    def after_window(self, seconds: int = 1) -> None:
        """The next transaction comes `seconds` after the end of the confirm window."""
        self.play.advance(self.state()[1] + seconds - 1 - self.play.scene.chain.now())

    def request(self, tensor: int, chunk: int, price: int = 0) -> None:
        elements = self.play.setup.program.states[tensor].elements
        cost = price * self.client._call("answerGas", self.id, elements, chunk)
        record = self.play.setup.honest.source_record(tensor).as_tuple()
        self.client.send("request", self.id, tensor, chunk, price, record, value=cost)

    def answer(self, tensor: int, chunk: int) -> Any:
        return self.trainer.send("answer", *self.answer_args(tensor, chunk))

    def answer_args(self, tensor: int, chunk: int) -> tuple[Any, ...]:
        return self.id, astuple(self.offer), tensor, chunk, *self.sealed.answer(tensor, chunk)

    def reveal(self, key: bytes = KEY) -> Any:
        return self.trainer.send("revealKey", self.id, astuple(self.offer), key)

    def bad_leaf(self, tensor: int, leaf: int, key: bytes = KEY) -> tuple[Any, ...]:
        bad = bad_leaf(self.sealed, tensor, leaf)
        return self.id, astuple(self.offer), key, tensor, leaf, bad.cipher, bad.place

    def bad_node(self, tensor: int, leaf: int, true_hash: bytes) -> tuple[Any, ...]:
        """The node over the leaves `leaf` and `leaf + 1`, with the true hash that was committed beside it."""
        chunk = self.sealed.shape.chunk(tensor, leaf // CHUNK)
        cipher, true = self.sealed.read(chunk)
        pairs = np.concatenate([bulk.cipher_leaves(cipher, tensor, chunk.first), true], axis=1)
        index, path = leaf_path(self.sealed.shape, self.sealed.tree, chunk, pairs, leaf)
        at = leaf - chunk.first
        children = [h for pair in bulk.from_rows(pairs[at : at + 2]) for h in pair]
        return self.id, astuple(self.offer), children, (true_hash, index >> 1, path[2:])


def words_of(sizes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(len(sizes))
    return [random.integers(0, 2**32, n, dtype=np.uint32) for n in sizes]


def offered(
    scene: Scene, folder: Path, setup: Setup = DELIVERY, change: Change | None = None, wallet: Any = None
) -> Exchange:
    """A claimed job and what its trainer offers; `change`: how it cheats in what it commits to; `wallet`: the
    client's."""
    play = scene.post(setup, wallet)
    trainer = scene.game()
    trainer.send("acceptJob", play.id, value=setup.spec.trainer_bond)
    sizes = tuple(s.elements for s in setup.program.states)
    words, shape = words_of(sizes), Shape(sizes)
    offer = seal(words, shape, KEY, play.id, folder, change)
    claim(trainer, play, offer)
    return Exchange(play, trainer, offer, SealedFolder(folder, shape), words)


def claim(trainer: Any, play: Play, offer: Offer) -> None:
    """The last checkpoint holds the final state, the others anything: nobody looks."""
    count = -(-play.setup.steps // play.setup.interval)
    roots = [bytes([c]) * 32 for c in range(count - 1)] + [offer.final_state]
    tree = Tree(Kind.RUN, [run_leaf(root, None) for root in roots])
    trainer.send(
        "postClaimAndOffer",
        play.id,
        tree.root,
        offer.final_state,
        tree.path(0, count - 1),
        offer.cipher_root,
        offer.key_hash,
    )

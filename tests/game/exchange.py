"""An exchange over the toy machine: an unchallenged claim of a state of arbitrary words, and the trainer's delivery of
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scene import Play, Scene, Setup
from toy import Operator, Program, State

from vgame.chain.records import Exchange as Standing
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
#: A tensor of one word, one of slightly more than two chunks, one of an odd number of leaves.
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

    def state(self) -> Standing:
        return self.client.exchange(self.id)

    def finalize(self) -> Exchange:
        self.play.pass_window()
        self.trainer.send("finalize", self.id)
        return self

    def after_window(self, seconds: int = 1) -> None:
        """The next transaction comes `seconds` after the end of the confirm window."""
        self.play.advance(self.state().until + seconds - 1 - self.play.scene.chain.now())

    def gas(self, tensor: int, chunk: int) -> int:
        """The paid gas of an answer."""
        return self.client.answer_gas(self.id, self.play.setup.program.states[tensor].elements, chunk)

    def request_args(self, tensor: int, chunk: int, price: int = 0, index: int | None = None) -> tuple[Any, ...]:
        record = self.play.setup.honest.source_record(tensor).as_tuple()
        index = len(self.client.requests(self.id)) if index is None else index
        return self.id, self.state().offer, index, tensor, chunk, price, record

    def request(self, tensor: int, chunk: int, price: int = 0) -> None:
        self.client.send("request", *self.request_args(tensor, chunk, price), value=price * self.gas(tensor, chunk))

    def raise_price(self, index: int, price: int) -> None:
        r = self.client.requests(self.id)[index]
        value = (price - r.price) * self.gas(r.tensor, r.chunk)
        self.client.send("raise", self.id, index, r.tensor, r.chunk, price, value=value)

    def confirm(self) -> None:
        self.client.send("confirm", self.id, self.state().offer)

    def close(self, phase: Phase = Phase.DELIVERING) -> None:
        self.client.send("closeDelivery", self.id, int(phase))

    def answer(self, index: int = 0) -> Any:
        return self.trainer.send("answer", *self.answer_args(index))

    def answer_args(self, index: int = 0) -> tuple[Any, ...]:
        r = self.client.requests(self.id)[index]
        return self.id, astuple(self.offer), index, *self.sealed.answer(r.tensor, r.chunk)

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
    """A claimed job and its trainer's offer; `change`: the cheat in its commitments; `wallet`: the client's."""
    play = scene.post(setup, wallet)
    trainer = scene.game()
    trainer.send("acceptJob", play.id, value=setup.spec.trainer_bond)
    sizes = tuple(s.elements for s in setup.program.states)
    words, shape = words_of(sizes), Shape(sizes)
    offer = seal(words, shape, KEY, play.id, folder, change)
    claim(trainer, play, offer)
    return Exchange(play, trainer, offer, SealedFolder(folder, shape), words)


def run_tree_of(setup: Setup, offer: Offer) -> Tree:
    """The last checkpoint has the final state; the others are arbitrary, since they are never read."""
    count = -(-setup.steps // setup.interval)
    roots = [bytes([c]) * 32 for c in range(count - 1)] + [offer.final_state]
    return Tree(Kind.RUN, [run_leaf(root, None) for root in roots])


def claim(trainer: Any, play: Play, offer: Offer) -> None:
    tree = run_tree_of(play.setup, offer)
    last = (tree.root, offer.final_state, tree.path(0, tree.count - 1))
    trainer.send("postClaim", play.id, *last, offer.cipher_root, offer.key_hash)


def flip(name: str, at: int) -> Callable[[Path], None]:
    """One bit of a file of a folder is damaged."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return damage

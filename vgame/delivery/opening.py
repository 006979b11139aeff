"""Complaints: a leaf that does not decipher to its true hash, or a node whose true hash is not that of its children.

In: a sealed folder whose pairs are known to be those of the claim, and which may have been damaged since; the key. Out:
the leaves of each tensor, or a `BadLeaf`; a `WrongNode` if the trainer committed to a false true hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vgame.commit.merkle import Kind
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, job_key, padding_pair
from vgame.delivery.sealed import CipherTree, Missing, Piece, SealedFolder, leaf_pairs, leaf_path
from vgame.errors import DeliveryError


@dataclass(eq=False)
class BadLeaf(Exception):
    """The arguments of `IDelivery.badLeaf` beside offer and key: the leaf, its ciphertext, its place."""

    tensor: int
    leaf: int
    cipher: bytes
    true_hash: bytes
    index: int
    path: list[bytes]

    @property
    def place(self) -> tuple[bytes, int, list[bytes]]:
        return self.true_hash, self.index, self.path


@dataclass(eq=False)
class WrongNode(Exception):
    """The arguments of `IDelivery.badNode` beside the offer: the pairs of its two children, its place."""

    children: list[bytes]
    place: tuple[bytes, int, list[bytes]]


def root_node(tree: CipherTree, final_state: bytes) -> WrongNode:
    """The complaint about the root, whose children do not hash to the final state."""
    left, right = bulk.from_rows(tree.state[-2] if len(tree.state) > 1 else tree.tensors[0][-2])
    return WrongNode([*left, *right], (final_state, 0, []))


def node_of_chunk(tree: CipherTree, tensor: int, chunk: int, below: np.ndarray, own: np.ndarray) -> WrongNode:
    """The complaint about the node of a chunk. `own`: its committed pair; `below`: the pairs of its children, only one
    if the tensor ends between them."""
    padding = padding_pair(Kind.TENSOR, tree.shape.chunk_height(tensor) - 1)
    left, right = [*bulk.from_rows(below), padding][:2]
    place = bulk.from_rows(own[None])[0].plain, tree.index(tensor, chunk), tree.path(tensor, chunk)
    return WrongNode([*left, *right], place)


def decipher(sealed: SealedFolder, key: bytes, job: bytes) -> Iterator[tuple[Piece, np.ndarray]]:
    """(piece, its plain leaves) in order; raises BadLeaf. INVARIANT: a leaf is checked with bytes that match the pair
    of their chunk, as they were read at that time. Missing is raised at the end if some chunks do not match."""
    secret, lost = job_key(key, job), list[tuple[int, int]]()
    for whole in sealed.shape.pieces():
        for piece, found in _verified(sealed, whole):
            if found is None:
                lost.append((piece.tensor, piece.first // CHUNK))
                continue
            cipher, true = found
            plain = cipher ^ bulk.keystreams(secret, piece.tensor, piece.first, piece.count)
            wrong = np.flatnonzero((bulk.true_hashes(plain) != true).any(axis=1))
            if wrong.size:
                raise _bad_leaf(sealed, piece, cipher, true, piece.first + int(wrong[0]))
            yield piece, plain
    if lost:
        tensor, chunk = lost[0]
        why = f"tensor {tensor}, chunk {chunk}: {sealed.folder} has changed, or cannot be read"
        raise Missing(why, lost, all_known=True, sealed=sealed)


Bytes = tuple[np.ndarray, np.ndarray]  # ciphertext, true hashes


def _verified(sealed: SealedFolder, piece: Piece) -> Iterator[tuple[Piece, Bytes | None]]:
    """A piece with its bytes. If some of them do not match, each of its chunks instead, with its bytes, or None if they
    do not match the chunk's pair."""
    try:
        yield piece, sealed.verified(piece)
    except DeliveryError:
        if piece.count <= CHUNK:
            yield piece, None
            return
        for first in range(piece.first, piece.first + piece.count, CHUNK):
            yield from _verified(sealed, sealed.shape.chunk(piece.tensor, first // CHUNK))


def bad_leaf(sealed: SealedFolder, tensor: int, leaf: int) -> BadLeaf:
    chunk = sealed.shape.chunk(tensor, leaf // CHUNK)
    return _bad_leaf(sealed, chunk, *sealed.read(chunk), leaf)


def _bad_leaf(sealed: SealedFolder, piece: Piece, cipher: np.ndarray, true: np.ndarray, leaf: int) -> BadLeaf:
    """The complaint about a leaf of a piece, from the piece's bytes."""
    chunk = sealed.shape.chunk(piece.tensor, leaf // CHUNK)
    begin, own = chunk.first - piece.first, leaf - chunk.first
    cipher, true = cipher[begin : begin + chunk.count], true[begin : begin + chunk.count]
    index, path = leaf_path(sealed.shape, sealed.tree, chunk, leaf_pairs(chunk, cipher, true), leaf)
    return BadLeaf(piece.tensor, leaf, cipher[own].tobytes(), true[own].tobytes(), index, path)

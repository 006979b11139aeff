"""Deciphering: with the key every leaf must have its true hash; the first that has not is a complaint.

In: a sealed folder whose pairs are known to be those of the claim, the key. Out: the words of each tensor, or a `BadLeaf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK, job_key
from vgame.delivery.sealed import Piece, SealedFolder, leaf_path


@dataclass(eq=False)
class BadLeaf(Exception):
    """What `IDelivery.badLeaf` takes beside offer and key: the leaf, its ciphertext, its place."""

    tensor: int
    leaf: int
    cipher: bytes
    true_hash: bytes
    index: int
    path: list[bytes]

    @property
    def place(self) -> tuple[bytes, int, list[bytes]]:
        return self.true_hash, self.index, self.path


def decipher(sealed: SealedFolder, key: bytes, job: bytes) -> Iterator[tuple[Piece, np.ndarray]]:
    """(piece, its plain leaves) in order; raises BadLeaf."""
    secret = job_key(key, job)
    for piece in sealed.shape.pieces():
        cipher, true = sealed.read(piece)
        plain = cipher ^ bulk.keystreams(secret, piece.tensor, piece.first, piece.count)
        wrong = np.flatnonzero((bulk.true_hashes(plain) != true).any(axis=1))
        if wrong.size:
            raise bad_leaf(sealed, piece.tensor, piece.first + int(wrong[0]))
        yield piece, plain


def bad_leaf(sealed: SealedFolder, tensor: int, leaf: int) -> BadLeaf:
    chunk = sealed.shape.chunk(tensor, leaf // CHUNK)
    cipher, true = sealed.read(chunk)
    pairs = np.concatenate([bulk.cipher_leaves(cipher, tensor, chunk.first), true], axis=1)
    index, path = leaf_path(sealed.shape, sealed.tree, chunk, pairs, leaf)
    own = leaf - chunk.first
    return BadLeaf(tensor, leaf, cipher[own].tobytes(), true[own].tobytes(), index, path)

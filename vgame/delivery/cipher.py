"""Keystream, cipher leaves and pairs, one at a time, by hashlib (docs/delivery.md section 2). Twin:
contracts/Cipher.sol.

In: a key, a job, leaves of tensors. Out: ciphertext, hashes. `bulk.py` does the same for many leaves at once.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from vgame.commit.merkle import Kind, leaf_hash, node_hash, padding
from vgame.commit.words import LEAF_BYTES

KEY_BYTES = 32
BLOCK_BYTES = 32
#: Leaves in a chunk, the unit of requests.
CHUNK = 64
CHUNK_HEIGHT = 6


class Pair(NamedTuple):
    """A node's hash in the cipher tree, and the hash of the same node in the tree of the state."""

    cipher: bytes
    plain: bytes


def job_key(key: bytes, job: bytes) -> bytes:
    """H(0x05 ‖ key ‖ job)."""
    return hashlib.sha256(b"\x05" + key + job).digest()


def key_hash(key: bytes, job: bytes) -> bytes:
    """H(0x06 ‖ key ‖ job)."""
    return hashlib.sha256(b"\x06" + key + job).digest()


def keystream(key: bytes, tensor: int, leaf: int) -> bytes:
    """512 bytes: block j is H(0x07 ‖ K' ‖ tensor u32 ‖ leaf u40 ‖ j u8), with K' the `job_key`."""
    place = b"\x07" + key + tensor.to_bytes(4) + leaf.to_bytes(5)
    return b"".join(hashlib.sha256(place + bytes([j])).digest() for j in range(LEAF_BYTES // BLOCK_BYTES))


def cipher_leaf(content: bytes, tensor: int, leaf: int) -> bytes:
    """H(0x00 ‖ CIPHER ‖ 512 bytes ‖ tensor u32 ‖ leaf u40)."""
    return leaf_hash(Kind.CIPHER, content + tensor.to_bytes(4) + leaf.to_bytes(5))


def parent(kind: Kind, left: Pair, right: Pair) -> Pair:
    """The parent of two pairs; `kind`: the kind of the tree of true hashes."""
    return Pair(
        hashlib.sha256(bytes([1, Kind.CIPHER]) + b"".join(left + right)).digest(),
        node_hash(kind, left.plain, right.plain),
    )


@cache
def padding_pair(kind: Kind, height: int) -> Pair:
    """The pair of a node of padding."""
    if height == 0:
        return Pair(padding(Kind.CIPHER, 0), padding(kind, 0))
    below = padding_pair(kind, height - 1)
    return parent(kind, below, below)

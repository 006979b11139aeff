"""Words of a tensor as leaves of its tree, without torch (docs/formats.md section 1).

Large tensors are hashed by sha_kernel.py if the processor supports it; the hashes are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np

from vgame.commit.merkle import LEAF_PREFIX, Kind, Tree, fold, padding, tree_height

LEAF_WORDS = 128
LEAF_BYTES = 4 * LEAF_WORDS
#: Number of hashes from which on loading compiled code pays off.
MANY = 1 << 10
#: Number of nodes up to which hashlib is used.
FEW = 8


def leaf_count(elements: int) -> int:
    return -(-elements // LEAF_WORDS)


def tensor_height(elements: int) -> int:
    """Height of the TENSOR tree over that many words."""
    return tree_height(leaf_count(elements))


def leaf_bytes(words: bytes | memoryview, leaf: int) -> bytes:
    """The 512 bytes of one leaf of little-endian words, padded with zeros."""
    return bytes(words[leaf * LEAF_BYTES : (leaf + 1) * LEAF_BYTES]).ljust(LEAF_BYTES, b"\0")


@cache
def kernel() -> ModuleType | None:
    """The compiled hashes, imported at first use."""
    from vgame.commit import sha_kernel

    return sha_kernel if sha_kernel.available() else None


def leaf_hashes(words: bytes | memoryview) -> list[bytes]:
    """H(0x00 ‖ TENSOR ‖ 512 bytes) of every leaf."""
    if len(words) >= MANY * LEAF_BYTES and kernel():
        digests = _leaf_digests(words).tobytes()
        return [digests[i : i + 32] for i in range(0, len(digests), 32)]
    start = hashlib.sha256(LEAF_PREFIX[Kind.TENSOR])
    hashes = []
    for offset in range(0, len(words), LEAF_BYTES):
        leaf = start.copy()
        chunk = words[offset : offset + LEAF_BYTES]
        leaf.update(chunk)
        if len(chunk) < LEAF_BYTES:
            leaf.update(bytes(LEAF_BYTES - len(chunk)))
        hashes.append(leaf.digest())
    return hashes


def _leaf_digests(words: bytes | memoryview) -> np.ndarray:
    """The leaf hashes as uint8 [leaves, 32], by the kernel."""
    whole = len(words) // LEAF_BYTES * LEAF_BYTES
    digests = kernel().leaf_hashes(np.frombuffer(words, np.uint8, whole), Kind.TENSOR)
    return _append(digests, leaf_hashes(words[whole:])) if whole < len(words) else digests


def _append(digests: np.ndarray, hashes: list[bytes]) -> np.ndarray:
    return np.concatenate([digests, np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)])


def words_tree(words: bytes | memoryview) -> Tree:
    """All nodes over little-endian words."""
    return WordsTree(Kind.TENSOR, leaf_hashes(words))


class WordsTree(Tree):
    """A tree with large levels hashed by compiled code."""

    def above(self, below: Sequence[bytes]) -> list[bytes]:
        if len(below) < MANY or not kernel():
            return super().above(below)
        digests = kernel().node_hashes(np.frombuffer(b"".join(below), np.uint8).reshape(-1, 32), self.kind).tobytes()
        return [digests[i : i + 32] for i in range(0, len(digests), 32)]


def words_range_proof(words: memoryview, first: int, last: int) -> list[bytes]:
    """Twin: words_tree(words).range_proof(first, last), in the memory of one level: each sibling is the root of its own
    words."""
    siblings = []
    for height in range(tensor_height(len(words) // 4)):
        for index, needed in ((first - 1, first % 2), (last + 1, last % 2 == 0)):
            if needed:
                below = words[index * LEAF_BYTES << height : (index + 1) * LEAF_BYTES << height]
                siblings.append(words_root(below, height) if len(below) else padding(Kind.TENSOR, height))
        first, last = first // 2, last // 2
    return siblings


def words_root(words: bytes | memoryview, height: int | None = None) -> bytes:
    """Root over little-endian words; `height`: that of a higher tree, whose other leaves are padding."""
    height = tensor_height(len(words) // 4) if height is None else height
    if len(words) < MANY * LEAF_BYTES or not kernel():
        return fold(Kind.TENSOR, leaf_hashes(words), height)
    level, base = _leaf_digests(words), 0
    while len(level) > FEW:
        level = _append(level, [padding(Kind.TENSOR, base)]) if len(level) % 2 else level
        level, base = kernel().node_hashes(level, Kind.TENSOR), base + 1
    return fold(Kind.TENSOR, [row.tobytes() for row in level], height - base, base)

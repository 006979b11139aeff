"""Keystreams and hashes of many leaves and pairs at once, with the processor's SHA instructions if it has them. Twin:
cipher.py.

In and out: uint8 arrays; leaves [n, 512], hashes [n, 32], pairs [n, 64] (cipher hash, true hash).
"""

from __future__ import annotations

import numpy as np

from vgame.commit.merkle import Kind
from vgame.commit.words import LEAF_BYTES, kernel
from vgame.delivery.cipher import Pair, cipher_leaf, keystream, padding_pair, parent

HASH = 32
PAIR = 2 * HASH
#: Compiled code is used for at least this many leaves or pairs.
FEW = 64


def keystreams(key: bytes, tensor: int, first: int, count: int) -> np.ndarray:
    """Keystream of the leaves first..first + count - 1."""
    if count >= FEW and kernel():
        from vgame.delivery import kernel as compiled

        return compiled.keystreams(key, tensor, first, count)
    return _rows([keystream(key, tensor, first + i) for i in range(count)], LEAF_BYTES)


def cipher_leaves(leaves: np.ndarray, tensor: int, first: int) -> np.ndarray:
    """The leaves' hashes in the cipher tree."""
    if len(leaves) >= FEW and kernel():
        from vgame.delivery import kernel as compiled

        return compiled.cipher_leaves(leaves, tensor, first)
    return _rows([cipher_leaf(leaf.tobytes(), tensor, first + i) for i, leaf in enumerate(leaves)], HASH)


def true_hashes(leaves: np.ndarray) -> np.ndarray:
    """The leaves' hashes in the tree of the tensor."""
    from vgame.commit.words import leaf_hashes

    return _rows(leaf_hashes(memoryview(np.ascontiguousarray(leaves)).cast("B")), HASH)


def next_level(kind: Kind, pairs: np.ndarray, base: int) -> np.ndarray:
    """The parents of pairs at height `base`; an odd last one is completed by padding."""
    if len(pairs) % 2:
        pairs = np.concatenate([pairs, to_rows([padding_pair(kind, base)])])
    if len(pairs) >= FEW and kernel():
        from vgame.delivery import kernel as compiled

        plain = kernel().node_hashes(np.ascontiguousarray(pairs[:, HASH:]), kind)
        return np.concatenate([compiled.cipher_nodes(pairs), plain], axis=1)
    found = from_rows(pairs)
    return to_rows([parent(kind, found[i], found[i + 1]) for i in range(0, len(found), 2)])


def levels(kind: Kind, pairs: np.ndarray, height: int, base: int = 0) -> list[np.ndarray]:
    """All levels from `pairs`, which are at height `base`, to `height` levels above them."""
    found = [pairs]
    for h in range(base, base + height):
        found.append(next_level(kind, found[-1], h))
    return found


def to_rows(pairs: list[Pair]) -> np.ndarray:
    return _rows([b"".join(p) for p in pairs], PAIR)


def from_rows(pairs: np.ndarray) -> list[Pair]:
    return [Pair(row[:HASH].tobytes(), row[HASH:].tobytes()) for row in pairs]


def _rows(items: list[bytes], size: int) -> np.ndarray:
    return np.frombuffer(b"".join(items), np.uint8).reshape(-1, size)

"""Merkle trees over SHA-256 with a kind in every hash (docs/formats.md sections 1 and 2). Twin: contracts/Merkle.sol.

In: leaf hashes. Out: roots, paths, range proofs. Positions beyond the count hold the padding leaf of the kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from functools import cache

from vgame.errors import ProofError


class Kind(IntEnum):
    """The second byte of every hash: the kind of its tree."""

    RUN = 1
    SEGMENT = 2
    STATE = 3
    TRACE = 4
    TENSOR = 5
    OPERATORS = 6
    SOURCES = 7
    CONSTANTS = 8
    DATA = 9
    PARTIAL = 10
    LOG = 11
    CIPHER = 12


LEAF_PREFIX = [bytes([0, kind]) for kind in range(13)]
NODE_PREFIX = [bytes([1, kind]) for kind in range(13)]


def leaf_hash(kind: Kind, content: bytes) -> bytes:
    """H(0x00 ‖ kind ‖ content)."""
    return hashlib.sha256(LEAF_PREFIX[kind] + content).digest()


def node_hash(kind: Kind, left: bytes, right: bytes) -> bytes:
    """H(0x01 ‖ kind ‖ left ‖ right)."""
    return hashlib.sha256(NODE_PREFIX[kind] + left + right).digest()


@cache
def padding(kind: Kind, height: int) -> bytes:
    """Root of an empty subtree of the given height: H(0x02 ‖ kind) at height 0."""
    if height == 0:
        return hashlib.sha256(bytes([2, kind])).digest()
    below = padding(kind, height - 1)
    return node_hash(kind, below, below)


def tree_height(count: int) -> int:
    """ceil(log2(count)), 0 for count <= 1."""
    return (count - 1).bit_length() if count > 1 else 0


def fold(kind: Kind, nodes: Sequence[bytes], depth: int, base: int = 0) -> bytes:
    """Root of `depth` levels over `nodes` of height `base`; missing nodes are padding."""
    level = list(nodes)
    for height in range(base, base + depth):
        if len(level) % 2:
            level.append(padding(kind, height))
        prefix, sha256 = NODE_PREFIX[kind], hashlib.sha256
        level = [sha256(prefix + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
    return level[0] if level else padding(kind, base + depth)


class Tree:
    """All nodes of a tree, level by level, without its padding."""

    def __init__(self, kind: Kind, leaves: Sequence[bytes]) -> None:
        self.kind = kind
        self.count = len(leaves)
        self.height = tree_height(self.count)
        self.levels = [list(leaves)]
        for height in range(self.height):
            below = self.levels[-1]
            if len(below) % 2:
                below = [*below, padding(kind, height)]
            self.levels.append(self.above(below))

    def above(self, below: Sequence[bytes]) -> list[bytes]:
        """The nodes over an even number of nodes."""
        return [node_hash(self.kind, below[i], below[i + 1]) for i in range(0, len(below), 2)]

    @property
    def root(self) -> bytes:
        return self.node(self.height, 0)

    def node(self, height: int, index: int) -> bytes:
        """The node that covers leaves index * 2^height and following."""
        if not (0 <= height <= self.height and 0 <= index < 1 << (self.height - height)):
            raise ProofError(f"no node at height {height}, index {index} of a {self.kind.name} tree of {self.count}")
        level = self.levels[height]
        return level[index] if index < len(level) else padding(self.kind, height)

    def descendants(self, height: int, index: int, depth: int) -> list[bytes]:
        """The 2^depth nodes that lie `depth` levels below the given one, left to right."""
        first = index << depth
        return [self.node(height - depth, first + i) for i in range(1 << depth)]

    def path(self, height: int, index: int, top: int | None = None) -> list[bytes]:
        """Siblings from the node at (height, index) up to height `top` (the root)."""
        top = self.height if top is None else top
        return [self.node(h, (index >> (h - height)) ^ 1) for h in range(height, top)]

    def range_proof(self, first: int, last: int) -> list[bytes]:
        """The hashes that determine the root together with the leaves first..last, from the lowest level up."""
        siblings = []
        for height in range(self.height):
            if first % 2:
                siblings.append(self.node(height, first - 1))
            if last % 2 == 0:
                siblings.append(self.node(height, last + 1))
            first, last = first // 2, last // 2
        return siblings


def path_root(kind: Kind, node: bytes, index: int, path: Sequence[bytes]) -> bytes:
    """The node that the path leads to. INVARIANT I7: the caller fixes len(path), and index < 2^len(path)."""
    if index >> len(path):
        raise ProofError(f"index {index} does not fit a path of {len(path)} siblings")
    for sibling in path:
        node = node_hash(kind, sibling, node) if index & 1 else node_hash(kind, node, sibling)
        index >>= 1
    return node

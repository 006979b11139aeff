"""Trees of a claim from an agent's view: its own nodes where both agree, revealed nodes where they differ.

An honest auditor's path is the first difference, so all nodes left of it are its own, and every sibling to the right
was revealed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgame.commit.merkle import Kind, Tree, fold, leaf_hash, padding, tree_height
from vgame.errors import Abstain

Revealed = Mapping[tuple[int, int, bytes], Sequence[bytes]]  # (kind, height, node) -> children


def reveal_depth(height: int, depth: int) -> int:
    """Levels of one reveal: ceil(h / ceil(h / d)). Twin: Merkle.revealDepth."""
    if height == 0:
        return 0
    turns = -(-height // depth)
    return -(-height // turns)


def run_leaf(state: bytes, log: bytes | None = None) -> bytes:
    """H(0x00 ‖ RUN ‖ state ‖ log, the empty one unless given). Twin: Merkle.runLeaf."""
    return leaf_hash(Kind.RUN, state + (log or padding(Kind.LOG, 0)))


def run_tree(checkpoints: Sequence[bytes], count: int, logs: Sequence[bytes] | None = None) -> Tree:
    """The run tree over the state roots of checkpoints 1..count (and the roots of their logs, mode `logged`); missing
    leaves are padding."""
    leaves = map(run_leaf, checkpoints, logs) if logs is not None else map(run_leaf, checkpoints)
    return known_tree(Kind.RUN, list(leaves), count, padding(Kind.RUN, 0))


def known_tree(kind: Kind, leaves: Sequence[bytes], count: int, unknown: bytes) -> Tree:
    """A tree of `count` leaves of which this side knows only the first ones. `unknown` must be unpredictable for the
    trainer, so that these leaves differ from any claim."""
    return Tree(kind, [*leaves[:count], *[unknown] * (count - len(leaves))])


def subtree_path(kind: Kind, children: Sequence[bytes], index: int, base: int) -> list[bytes]:
    """Siblings from child `index` up to the node over all children, which have height `base`."""
    depth = tree_height(len(children))
    path = []
    for level in range(depth):
        width = 1 << level
        first = ((index >> level) ^ 1) * width
        path.append(fold(kind, children[first : first + width], level, base))
    return path


class ClaimedTree:
    """The trainer's tree under `root`, seen from `own`."""

    def __init__(self, kind: Kind, root: bytes, own: Tree, revealed: Revealed) -> None:
        self.kind, self.root, self.own, self.revealed = kind, root, own, revealed

    def path(self, height: int, index: int) -> list[bytes]:
        """Siblings from the node at (height, index) up to the root."""
        top, node, position = self.own.height, self.root, 0
        parts: list[list[bytes]] = []
        while top > height and node != self.own.node(top, position):
            children = self.revealed.get((self.kind, top, node))
            if children is None:
                raise Abstain(f"the {self.kind.name} node {node.hex()[:16]} differs from mine and was never revealed")
            down = min(tree_height(len(children)), top - height)
            base = top - tree_height(len(children))
            child = (index >> (top - down - height)) - (position << down)
            if top - down > base:  # the wanted node lies inside the revealed block
                return [*self._inside(children, base, height, index, top, position), *_joined(parts)]
            parts.append(subtree_path(self.kind, children, child, base))
            top, position, node = base, (position << down) + child, children[child]
        return [*self.own.path(height, index, top), *_joined(parts)]

    def _inside(
        self, children: Sequence[bytes], base: int, height: int, index: int, top: int, position: int
    ) -> list[bytes]:
        first = position << (top - height)
        path = []
        for h in range(height, top):
            sibling = ((index - first) >> (h - height)) ^ 1
            width = 1 << (h - base)
            path.append(fold(self.kind, children[sibling * width : (sibling + 1) * width], h - base, base))
        return path

    def node(self, height: int, index: int) -> bytes:
        """The claimed node at (height, index), computed from the path's surroundings."""
        top, node, position = self.own.height, self.root, 0
        while top > height and node != self.own.node(top, position):
            children = self.revealed.get((self.kind, top, node))
            if children is None:
                raise Abstain(f"the {self.kind.name} node {node.hex()[:16]} differs from mine and was never revealed")
            span = tree_height(len(children))
            base = top - span
            if base < height:
                width = 1 << (height - base)
                first = (index - (position << (top - height))) * width
                return fold(self.kind, children[first : first + width], height - base, base)
            child = (index >> (base - height)) - (position << span)
            top, position, node = base, (position << span) + child, children[child]
        return node if top == height else self.own.node(height, index)


def _joined(parts: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Parts were collected from the top down; a path goes from the bottom up."""
    return [node for part in reversed(parts) for node in part]

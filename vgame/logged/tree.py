"""The LOG tree: a checkpoint interval's rounding log, every entry with a bounded witness at (step, operator, element).

In: the entries of an interval's steps. Out: its root, which the run tree commits; the opening of one leaf.

    interval -> step (counted from the interval's first) -> operator (its index in the program) -> leaf (128 elements)

An operator's tree is as high as that of its output; leaf i holds the entries of the words of leaf i there: `present`
u128 ‖ `up` u128, big-endian, bit j for word j. A leaf without entries is the padding leaf, so trees without entries are
constants and a root costs (entries x height) hashes. Twin of `Opening`: contracts/Logged.sol, _entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from vgame.commit.merkle import Kind, Tree, leaf_hash, node_hash, padding, tree_height
from vgame.commit.words import LEAF_WORDS, tensor_height
from vgame.logged.kernels import StepEntries
from vgame.logged.rounding import Direction
from vgame.logged.sums import Entries
from vgame.program.program import Program

NODE_PREFIX = bytes([1, Kind.LOG])


def leaves_of(entries: Entries) -> dict[int, bytes]:
    """The 32 bytes of each leaf that has entries."""
    if not len(entries):
        return {}
    leaves, place = np.unique(entries.positions // LEAF_WORDS, return_inverse=True)
    bits = np.zeros((len(leaves), 2 * LEAF_WORDS), np.uint8)
    last = LEAF_WORDS - 1 - entries.positions % LEAF_WORDS  # big-endian: bit 0 comes last
    bits[place, last] = 1
    bits[place, LEAF_WORDS + last] = entries.up
    contents = np.packbits(bits, axis=1)
    return {int(leaf): content.tobytes() for leaf, content in zip(leaves, contents, strict=True)}


def direction_of(content: bytes, element: int) -> Direction:
    """The direction of an element in a leaf (empty: the padding leaf)."""
    bits = int.from_bytes(content, "big") >> element % LEAF_WORDS
    if not bits >> LEAF_WORDS & 1:
        return Direction.NONE
    return Direction.UP if bits & 1 else Direction.DOWN


class OperatorLog:
    """The tree of one operator's entries in one step, without its empty parts."""

    def __init__(self, entries: Entries, elements: int) -> None:
        self.height, self.contents = tensor_height(elements), leaves_of(entries)
        level = {leaf: leaf_hash(Kind.LOG, content) for leaf, content in self.contents.items()}
        self.levels = [level]
        sha256 = hashlib.sha256
        for height in range(self.height):
            empty, below = padding(Kind.LOG, height), level
            level = {}
            for index in below:
                if index >> 1 not in level:
                    left, right = below.get(index & ~1, empty), below.get(index | 1, empty)
                    level[index >> 1] = sha256(NODE_PREFIX + left + right).digest()
            self.levels.append(level)

    @property
    def root(self) -> bytes:
        return self.levels[-1].get(0, padding(Kind.LOG, self.height))

    def path(self, leaf: int) -> list[bytes]:
        """Siblings from a leaf up to the root."""
        return [self.levels[h].get(leaf >> h ^ 1, padding(Kind.LOG, h)) for h in range(self.height)]


def _heights(program: Program) -> tuple[int, ...]:
    """Height of each operator's tree."""
    return tuple(tensor_height(op.elements) for op in program.operators)


def step_tree(program: Program, entries: StepEntries) -> Tree:
    """The tree over the operators of a step."""
    roots = [padding(Kind.LOG, height) for height in _heights(program)]
    for operator, one in entries.items():
        roots[operator] = OperatorLog(one, program.operators[operator].elements).root
    return Tree(Kind.LOG, roots)


@cache
def _empty_step(heights: tuple[int, ...]) -> bytes:
    return Tree(Kind.LOG, [padding(Kind.LOG, height) for height in heights]).root


def step_root(program: Program, entries: StepEntries) -> bytes:
    """Root over the operators of a step."""
    return step_tree(program, entries).root if any(map(len, entries.values())) else _empty_step(_heights(program))


def interval_root(program: Program, steps: Sequence[StepEntries]) -> bytes:
    """Root of the log of one checkpoint interval."""
    return Tree(Kind.LOG, [step_root(program, entries) for entries in steps]).root


@dataclass(frozen=True, slots=True)
class Opening:
    """The leaf with an element's entry or its absence (empty: the padding leaf), and its path to the interval's
    root."""

    content: bytes
    path: list[bytes]

    def root(self, index: int) -> bytes:
        """The root of the path from position `index` of the whole tree."""
        node = leaf_hash(Kind.LOG, self.content) if self.content else padding(Kind.LOG, 0)
        for sibling in self.path:
            node = node_hash(Kind.LOG, sibling, node) if index & 1 else node_hash(Kind.LOG, node, sibling)
            index >>= 1
        return node


def place(program: Program, step: int, operator: int, element: int) -> int:
    """Position of an element's leaf in the tree of its interval; `step` counts from 0 in the interval."""
    index = step << tree_height(len(program.operators)) | operator
    return index << tensor_height(program.operators[operator].elements) | element // LEAF_WORDS


def open_entry(program: Program, steps: Sequence[StepEntries], step: int, operator: int, element: int) -> Opening:
    """The opening of an element's entry; `step` counts from 0 in the interval."""
    leaf = element // LEAF_WORDS
    own = OperatorLog(steps[step].get(operator, Entries()), program.operators[operator].elements)
    interval = Tree(Kind.LOG, [step_root(program, entries) for entries in steps])
    path = [*own.path(leaf), *step_tree(program, steps[step]).path(0, operator), *interval.path(0, step)]
    return Opening(own.contents.get(leaf, b""), path)

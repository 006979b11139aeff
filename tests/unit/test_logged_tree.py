"""The LOG tree: every entry, and every absence of one, has an opening that leads to the root only from its place."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import torch

from vgame.arithmetic.functions import Function
from vgame.commit.merkle import Kind, leaf_hash, node_hash, padding
from vgame.logged.logfile import LogFile
from vgame.logged.rounding import Direction
from vgame.logged.sums import Entries
from vgame.logged.tree import direction_of, interval_root, leaves_of, open_entry, place, step_root
from vgame.program.operators import Contract, Map, Ref, RefClass, Variant, identity_access
from vgame.program.program import Program, Source

STATE = Ref(RefClass.STATE, 0)


def program() -> Program:
    """Sums of 700 and of 3 elements, and a square between them."""
    square = Map(Function.MUL, (700,), (identity_access(Ref(RefClass.OPERATOR, 0), 700),) * 2, False)
    operators = (
        Contract(Variant.SUM, 1, 700, 1, 2, STATE),
        square,
        Contract(Variant.SUM, 1, 3, 1, 2, STATE),
    )
    return Program(operators, (Source(STATE, 1400, False),), (torch.zeros(1),), 0, 0, 2)


def entries(*named: tuple[int, bool]) -> Entries:
    positions, up = zip(*named, strict=True)
    return Entries(np.array(positions, np.int64), np.array(up))


STEPS = [
    {},
    {0: entries((0, True), (127, False), (128, False), (699, True)), 2: entries((2, False))},
    {2: entries((0, True), (1, True))},
]


def test_every_element_opens_to_its_log_entry() -> None:
    root = interval_root(program(), STEPS)
    for step, log in enumerate(STEPS):
        for operator, elements in ((0, 700), (2, 3)):
            one = log.get(operator, Entries())
            entries = dict(zip(one.positions.tolist(), one.up.tolist(), strict=True))
            for element in range(elements):
                opening = open_entry(program(), STEPS, step, operator, element)
                expected = Direction(2 * entries[element]) if element in entries else Direction.NONE
                assert direction_of(opening.content, element) is expected
                index = place(program(), step, operator, element)
                assert opening.root(index) == root and len(opening.path) == 2 + 2 + (3 if operator == 0 else 0)


def test_an_opening_fails_at_another_place() -> None:
    root = interval_root(program(), STEPS)
    opening = open_entry(program(), STEPS, 1, 0, 128)
    index = place(program(), 1, 0, 128)
    assert all(opening.root(index ^ 1 << bit) != root for bit in range(len(opening.path)))


def test_the_format_by_hand() -> None:
    """docs/formats.md, section 1."""
    content = ((1 << 0 | 1 << 127) << 128 | 1 << 0).to_bytes(32, "big")
    assert leaves_of(STEPS[1][0])[0] == content and sorted(leaves_of(STEPS[1][0])) == [0, 1, 5]
    empty = hashlib.sha256(bytes([2, 11])).digest()
    pad = [empty]
    for _ in range(3):
        pad.append(node_hash(Kind.LOG, pad[-1], pad[-1]))
    assert pad[3] == padding(Kind.LOG, 3)
    small = leaf_hash(Kind.LOG, (3 << 128 | 3).to_bytes(32, "big"))
    operators = [pad[3], pad[3], small, empty]
    pairs = [node_hash(Kind.LOG, *operators[:2]), node_hash(Kind.LOG, *operators[2:])]
    assert step_root(program(), STEPS[2]) == node_hash(Kind.LOG, *pairs)


def test_a_step_without_entries_is_a_constant() -> None:
    assert step_root(program(), {}) == step_root(program(), {0: Entries()}) != step_root(program(), STEPS[2])


def test_the_root_of_a_large_log_needs_memory_for_one_step(tmp_path: Path) -> None:
    """The trainer determines the size of the log: up to an entry for every element of every step."""
    size = 1 << 14
    program = Program((Contract(Variant.DOT, 1, size, 1, 2, STATE, STATE),), (Source(STATE, 4, False),), (), 0, 0, 0)
    log = LogFile(tmp_path / "log", program, bytes(32), 32)
    every = {0: Entries(np.arange(size), np.ones(size, np.bool_))}
    log.append(dict.fromkeys(range(1, 33), every))

    def peak(last: int) -> int:
        tracemalloc.start()
        log.root(1, last)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    log.root(1, 1)
    assert peak(32) < 2 * peak(1)

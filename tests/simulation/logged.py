"""A story in mode `logged`: each leaf of a claim also has the root of its interval's log, and long sums a log entry.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure. All sides have the same
logs, because an auditor follows the log of the trainer. The toy machine decides in this mode too; the entries and their
proofs are those of tests/twin and tests/game/test_logged.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from unittest.mock import patch

import judge
import seats
import story
import strangers
from frauds import SETUP
from seats import Table
from story import Cast, Story
from tape import Tape
from toy import Lies
from world import World

from vgame.chain.records import JobSpec
from vgame.commit.merkle import Tree
from vgame.commit.trees import run_tree

BITS = 26  # the job's mode: the bits to which values were rounded
COUNT = -(-SETUP.steps // SETUP.interval)  # intervals


class LoggedTable(Table):
    """The toy machine with logs."""

    logs = [hashlib.sha256(b"log %d" % c).digest() for c in range(1, COUNT + 1)]  # noqa: RUF012

    def witness(self, step: int, operator: int, element: int) -> list[bytes]:
        """It does not change the sum."""
        return [bytes(32)]


@lru_cache(None)
def logged_table(lies: int = -1) -> LoggedTable:
    """The right run, or one of the lies."""
    changed = strangers.LIES[lies] if lies >= 0 else Lies()
    return LoggedTable(SETUP.program, SETUP.seed, SETUP.steps, SETUP.interval, changed)


def logged_tree(checkpoints: Sequence[bytes], count: int, _: object) -> Tree:
    return run_tree(checkpoints, count, LoggedTable.logs)


def logged_terms(world: World, claims: int, looks: int = 0) -> JobSpec:
    return replace(TERMS(world, claims, looks), mode=BITS)


TERMS = story.terms


@contextmanager
def logs() -> Iterator[None]:
    """In this context all players of a story have logs."""
    with ExitStack() as stack:
        for module in (seats, strangers, judge):
            stack.enter_context(patch.object(module, "table", logged_table))
        for module in (strangers, judge):
            stack.enter_context(patch.object(module, "run_tree", logged_tree))
        stack.enter_context(patch.object(story, "terms", logged_terms))
        yield


class Logged(Story):
    def __init__(self, tape: Tape, inside: bool = True, cast: Cast = Cast()) -> None:
        with logs():
            super().__init__(tape, inside, cast)

    def play(self) -> list[str]:
        with logs():
            return super().play()


__all__ = ["Logged"]

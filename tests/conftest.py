"""All tests can import what is beside this file: pytest puts its folder on the path."""

from __future__ import annotations

import gc
from itertools import groupby

import forked
import pytest

gc.set_threshold(100_000)  # torch is 300,000 objects, and every captured graph thousands that refer to each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders take turns, file by file: what waits for other processes (most of tests/node) stands beside what
    computes, so that no core rests."""
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    folders = [list(group) for _, group in groupby(files, key=lambda file: file[0].path.parent)]
    turns = [((i + 0.5) / len(folder), file) for folder in folders for i, file in enumerate(folder)]
    items[:] = [item for _, file in sorted(turns, key=lambda turn: turn[0]) for item in file]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device's process begins at once; it is that device (tests/node/test_nursery.py)."""
    monkeypatch.setattr("vgame.runs.own_process.subprocess", forked)


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that audit parts of a run begin at once."""
    monkeypatch.setattr("vgame.runs.worker.subprocess", forked)

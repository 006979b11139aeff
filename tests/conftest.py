"""All tests can import what is beside this file: pytest puts its folder on the path."""

from __future__ import annotations

import gc

import forked
import pytest

gc.set_threshold(100_000)  # torch is 300,000 objects, and every captured graph thousands that refer to each other


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device's process begins at once; it is that device (tests/node/test_nursery.py)."""
    monkeypatch.setattr("vgame.runs.own_process.subprocess", forked)


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that audit parts of a run begin at once."""
    monkeypatch.setattr("vgame.runs.worker.subprocess", forked)

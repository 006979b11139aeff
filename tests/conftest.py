"""All tests can import what is beside this file: pytest puts its folder on the path."""

from __future__ import annotations

import gc
import logging
import os

import forked
import pytest
import torch  # noqa: F401 (makes its loggers, which are changed here)
import wide

# Thousands of tests prepare jobs; those of validation ask for it (docs/validation.md).
os.environ.setdefault("VGAME_VALIDATE", "0")
# Torch is 300,000 objects, and every captured graph thousands that refer to each other.
gc.set_threshold(100_000)
# Pytest listens to every logger that does not propagate, and to whom somebody listens torch tells each traced call.
logging.getLogger("torch.__trace").propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wide.mark_long(items)  # before pytest selects by marks
    wide.begin_waiting(items)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is there now stays


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device's process begins at once; it is that device (tests/node/test_nursery.py)."""
    monkeypatch.setattr("vgame.runs.own_process.subprocess", forked)


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that audit parts of a run begin at once."""
    monkeypatch.setattr("vgame.runs.worker.subprocess", forked)

"""Fixtures of several test files of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs_at_hand import begun, run, trained  # noqa: F401


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of these tests share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jobs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are faster on one thread, and much faster beside other computing processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads_come_back() -> Iterator[None]:
    """For tests that set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

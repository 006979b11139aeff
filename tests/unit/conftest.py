"""Fixtures that several test files of this folder ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are faster on one thread, and much faster where other processes compute too."""
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

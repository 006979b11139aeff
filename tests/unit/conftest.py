"""Fixtures of several test files of this folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """Three endpoints of one node."""
    from vgame.chain.embedded import serve

    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}/{n}" for n in range(3)]
    server.shutdown()
    server.server_close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the modules that know several endpoints."""
    from vgame.chain import final, http, turns

    now = [1_000.0]
    for module in (final, http, turns):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now

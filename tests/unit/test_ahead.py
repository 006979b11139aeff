"""Contested segments executed by other processes equal the history's own, even if processes die."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from audited_runs import bundle

import vgame
from vgame.runs.ahead import Ahead
from vgame.runs.folder import executor_of, open_run
from vgame.runs.history import History
from vgame.runs.worker import WorkerProcess

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgame.train(bundle(), tmp_path_factory.mktemp("runs") / "run").folder


def history(run: Path) -> History:
    store = open_run(run)
    return History(store, executor_of(store.bundle, "cpu"))


def test_segments_of_other_processes_equal_the_historys_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, helped = history(run), history(run)
    ahead = Ahead(helped, "default", 1)
    try:
        helped.prefetched = ahead.segment
        ahead.want([2, 5, 7])  # there is no 7
        assert ahead.segment(2) == own.segment(2) and ahead.segment(5) == own.segment(5)
        assert ahead.segment(7) is None and ahead.segment(3) is None and len(ahead.workers) == 1
        monkeypatch.setattr(helped.stepper, "step", None)  # no requested segment is executed here
        assert helped.segment(5) == own.segment(5)
    finally:
        ahead.end()


def test_segments_are_right_if_a_worker_dies_or_answers_wrongly(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, wrong = WorkerProcess.segment, []

    def killed(self: WorkerProcess, c: int) -> list[bytes]:
        if c == 1:
            os.kill(self.process.pid, signal.SIGKILL)
        found = segment(self, c)
        wrong.append(c)
        return {2: [*found[:-1], bytes(32)], 3: [bytes(32), *found[1:]], 4: [*found[:2], *found[-1:]]}[c]

    monkeypatch.setattr(WorkerProcess, "segment", killed)
    own, helped = history(run), history(run)
    ahead = Ahead(helped, "default", 1)
    try:
        helped.prefetched = ahead.segment
        ahead.want([1, 2, 3, 4])
        assert all(helped.segment(c) == own.segment(c) for c in (1, 2, 3, 4)) and wrong == [2, 3, 4]
        assert all(ahead.segment(c) is None for c in (1, 2, 3, 4))
    finally:
        ahead.end()


def test_segments_are_right_after_a_lack_of_file_descriptors(run: Path) -> None:
    own, helped = history(run), history(run)
    ahead, (soft, hard) = Ahead(helped, "default", 1), resource.getrlimit(resource.RLIMIT_NOFILE)
    helped.prefetched = ahead.segment
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        ahead.want([2])
        while not ahead.segments[2].done():
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ahead.end()
    assert not ahead.workers and helped.segment(2) == own.segment(2)


def test_the_starter_sends_the_hash_of_its_code() -> None:
    """The files may have been upgraded since: they are hashed when they are loaded."""
    asks = "import vgame.runs.worker, vgame.system.version as v; print(v.sources.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True).stdout == "1\n"

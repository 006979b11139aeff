"""Contested segments that other processes execute are the history's own, whatever becomes of the processes."""

from __future__ import annotations

import os
import signal
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


def test_segments_of_others_are_the_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, helped = history(run), history(run)
    ahead = Ahead(helped, "default", 1)
    try:
        helped.ahead = ahead.segment
        ahead.want([2, 5, 7])  # there is no 7
        assert ahead.segment(2) == own.segment(2) and ahead.segment(5) == own.segment(5)
        assert ahead.segment(7) is None and ahead.segment(3) is None and len(ahead.workers) == 1
        monkeypatch.setattr(helped.stepper, "step", None)  # whatever is asked for is not executed here
        assert helped.segment(5) == own.segment(5)
    finally:
        ahead.end()


def test_a_worker_that_dies_or_errs_is_done_without(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, errs = WorkerProcess.segment, []

    def killed(self: WorkerProcess, c: int) -> list[bytes]:
        if c == 1:
            os.kill(self.process.pid, signal.SIGKILL)
        found = segment(self, c)
        errs.append(c)
        return [*found[:-1], bytes(32)]

    monkeypatch.setattr(WorkerProcess, "segment", killed)
    own, helped = history(run), history(run)
    ahead = Ahead(helped, "default", 1)
    try:
        helped.ahead = ahead.segment
        ahead.want([1, 2])
        assert helped.segment(1) == own.segment(1) and helped.segment(2) == own.segment(2) and errs == [2]
        assert ahead.segment(1) is None and ahead.segment(2) is None
    finally:
        ahead.end()

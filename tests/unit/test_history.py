"""A history's memory for a dispute stays within its bound, and is counted incrementally."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vgame.execute.executor import Executor
from vgame.job.file import JobFile
from vgame.runs import history as module
from vgame.runs.folder import executor_of
from vgame.runs.history import Hashes, History
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train


def test_outputs_are_kept_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobFile(
        model="vgame.tasks.digits:task", args={"batch": 4}, seed=1, steps=2, interval=1, schedule={"lr": "0.1"}
    )
    bundle = prepare(job)
    executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed)
    history = History(Store(tmp_path, bundle), executor)
    everything = history.trace(1)
    whole = {key: output.clone() for key, output in history._outputs.items()}
    assert len(whole) == len(everything) and history._cached == sum(4 * t.numel() for t in whole.values())
    monkeypatch.setattr(module, "CACHE_BYTES", history._cached // 3)
    small = History(Store(tmp_path, bundle), executor)
    assert small.trace(1) == everything
    assert small._cached == sum(4 * t.numel() for t in small._outputs.values()) <= module.CACHE_BYTES
    assert 0 < len(small._outputs) < len(whole)
    assert all(small.words(1, i) == whole[1, i].numpy().tobytes() for i in range(len(everything)))


def test_outputs_of_a_few_steps_are_kept(tmp_path: Path) -> None:
    """A history may serve a hundred disputes, each about one step."""
    job = JobFile(
        model="vgame.tasks.digits:task", args={"batch": 4}, seed=1, steps=9, interval=9, schedule={"lr": "0.1"}
    )
    bundle = prepare(job)
    history = History(Store(tmp_path, bundle), Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed))
    for step in range(1, 10):
        history.trace(step)
    assert {step for step, _ in history._outputs} == {6, 7, 8, 9} and len(history._outputs) == 4 * history.operators
    assert history._cached == history.room == sum(4 * t.numel() for t in history._outputs.values())
    assert history.words(1, 0) and {step for step, _ in history._outputs} >= {1, 7, 8, 9}


WORDS = 1 << 24
CHILD = r"""
import re, sys, tempfile, torch
from pathlib import Path
from vgame.runs.store import Store
from vgame.runs.training import train
from vgame.runs import history
from vgame.runs.folder import executor_of
from vgame.program.operators import *
from vgame.arithmetic.functions import Function
from vgame.program.program import Program
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
history.CACHE_BYTES = 2**20
words = int(sys.argv[2])
read = [Ref(RefClass.OPERATOR, i) for i in range(4)]
operators = (
    Philox(words),
    Map(Function.ITOF, (words,), (identity_access(read[0], words),), False),
    Map(Function.MUL, (words,), (identity_access(read[1], words),) * 2, False),
    Contract(Variant.DOT, 1, words // 1024, 1, 1024, read[2], Ref(RefClass.DATA, 0)),
    Contract(Variant.SUM, 1, 1, 1, words // 1024, read[3]),
)
data = (torch.ones(1024),)
bundle = Bundle(Program(operators, (), (), 1, 0, 4), (), data, torch.zeros(1, 0), 1, 1, 1, 5, "correct", Terms())
executor = executor_of(bundle, "cpu")
if sys.argv[1] == "step":
    executor.step(1, (), lambda _, output: output)
else:
    history.History(Store(Path(tempfile.mkdtemp()), bundle), executor).rehearse()
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak(what: str, words: int) -> int:
    """Peak memory of a process in bytes."""
    command = [sys.executable, "-c", CHILD, what, str(words)]
    return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.wide
def test_a_dispute_needs_little_more_memory_than_an_observed_step() -> None:
    """Beyond the bounded cache: the operands of one operator for a while, and the hashes over one tensor."""
    size = 4 * WORDS
    for words in (1024, WORDS):
        peak("rehearsal", words)  # compiles the loops, if not cached
    step, dispute = (peak(what, WORDS) for what in ("step", "rehearsal"))
    assert step > peak("step", 1024) + 1.5 * size, "the tensors decide"
    assert dispute < step + size


def test_a_rehearsal_leaves_the_caches_empty(tmp_path: Path) -> None:
    job = JobFile(
        model="vgame.tasks.digits:task", args={"batch": 4}, seed=1, steps=2, interval=1, schedule={"lr": "0.1"}
    )
    bundle = prepare(job)
    history = History(Store(tmp_path, bundle), executor_of(bundle, "cpu"))
    history.rehearse()
    assert not (history._outputs or history._states or history._traces or history._roots or history._cached)
    assert history.trace(1) == History(Store(tmp_path, bundle), executor_of(bundle, "cpu")).trace(1)


def test_hashes_are_kept_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other accounts determine the number of requested pieces, in all disputes together."""
    job = JobFile(
        model="vgame.tasks.digits:task", args={"batch": 4}, seed=1, steps=6, interval=2, schedule={"lr": "0.1"}
    )
    bundle = prepare(job)
    store, executor = Store(tmp_path, bundle), executor_of(bundle, "cpu")
    train(store, executor)
    whole, small = History(store, executor), History(store, executor)
    whole_traces = [whole.trace(step) for step in range(1, 7)]
    monkeypatch.setattr(Hashes, "MOST", 3 * whole.operators)
    for _ in range(2):
        assert [small.trace(step) for step in range(1, 7)] == whole_traces
        assert [small.segment(c) for c in (1, 2, 3)] == [whole.segment(c) for c in (1, 2, 3)]
        assert [small.state(step) for step in range(7)] == [whole.state(step) for step in range(7)]
    for kept in (small._traces, small._segments, small._roots):
        assert 0 < kept.held == sum(map(len, kept.values())) <= Hashes.MOST
    assert [*small._traces] == [4, 5, 6]

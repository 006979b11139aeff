"""What a history keeps in memory for a dispute stays within its bound, and is counted, not summed up again at every operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgame.commit.store import Store
from vgame.execute import history as module
from vgame.execute.executor import Executor
from vgame.execute.history import History
from vgame.spec import JobFile, prepare


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

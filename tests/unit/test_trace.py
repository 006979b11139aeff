"""`vgame trace` shows the data that a dispute over the run would reveal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_files import write

from vgame.cli.runs import trace, train_offline
from vgame.errors import VgameError
from vgame.job.bundle import load_bundle
from vgame.runs.folder import executor_of
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.system.progress import Reporter

QUIET = Reporter(json_lines=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    train_offline(write(folder / "job.toml"), folder / "run", "default", 1, QUIET)
    return folder / "run"


def test_a_trace_shows_the_reveals_of_a_dispute(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(run, load_bundle(run / "job"), writable=False)
    history = History(store, executor_of(store.bundle, "cpu"))
    operator, step, element = 1, 4, 100
    capsys.readouterr()
    trace(run, step, "default", QUIET, operator, element)
    trace(run, step, "compatible", QUIET)
    text = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    whole = [line["root"] for line in text if line["event"] == "output"]
    assert whole[1:] == [root.hex() for root in history.trace(step)] and whole[0] == whole[1 + operator]
    assert len({line["root"] for line in text if line["event"] == "traced"}) == 1
    words = history.words(step, operator)[4 * element :][:4]
    assert [line["word"] for line in text if line["event"] == "word"] == [f"0x{int.from_bytes(words, 'little'):08x}"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((0, None, None), "the run has the steps 1 to 6"),
        ((7, None, None), "the run has the steps 1 to 6"),
        ((1, 10**6, None), "the program has the operators 0 to"),
        ((1, -1, None), "the program has the operators 0 to"),
        ((1, None, 0), "needs an operator"),
        ((1, 0, 10**9), "has the elements 0 to"),
    ],
)
def test_a_place_outside_of_the_run_is_refused(place: tuple, message: str, run: Path) -> None:
    with pytest.raises(VgameError, match=message):
        trace(run, place[0], "default", QUIET, *place[1:])

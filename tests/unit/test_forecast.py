"""The forecast of a run: exact for the disk, within a factor for time and memory."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import job_files
import pytest
import torch
from small_tasks import squares

import vgame
from vgame.cli.runs import train_offline
from vgame.errors import StoreError
from vgame.job.bundle import load_bundle, save_bundle
from vgame.job.forecast import Forecast, duration, size
from vgame.runs import forecast
from vgame.runs.folder import open_run
from vgame.system.progress import Reporter
from vgame.tasks import digits, shipped

pytestmark = pytest.mark.usefixtures("one_thread")
#: Allowed factor between forecast and measurement, on a busy machine.
FACTOR = 3


MODES = {"correct": {}, "logged": {"mode": "logged", "log": vgame.LogTerms(thresholds="proven")}}


def grown(folder: Path) -> int:
    """Bytes of a run without its bundle, its header, which exists before the forecast, and a log."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in ("run.json", "rounding.vglog"))
    return sum(p.stat().st_size for p in files if p.parent.name != "job")


def events(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def job(steps: int, **options) -> vgame.Job:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    task = vgame.Task(model, squares, optimizer, {"x": torch.randn(8, 6)}, batch=4)
    return vgame.Job(task, steps=steps, **options)


@pytest.mark.parametrize("task", [digits.task, shipped.small_resnet], ids=["digits", "small_resnet"])
def test_a_shipped_job_takes_about_the_forecast_time(task, tmp_path: Path) -> None:
    """In one of three runs, since other load may change between forecast and run."""
    bundle = vgame.prepare(vgame.Job(task(), steps=120, interval=30, seed=1), validate=0)
    for n in range(3):
        folder, begun = tmp_path / f"run {n}", []
        run = vgame.train(bundle, folder, progress=lambda *_, begun=begun: begun or begun.append(time.monotonic()))
        took, found = time.monotonic() - begun[0], run.forecast
        assert found is not None and found.seconds is not None and found.memory is not None
        if in_time := found.seconds / FACTOR < took < found.seconds * FACTOR:
            break
    assert in_time, (found.seconds, took)
    assert found.disk == grown(folder)
    assert forecast.peak() < FACTOR * found.memory < FACTOR * FACTOR * forecast.peak()
    assert found.cost in repr(run) and " of memory, " in found.cost


SHORT = [(7, 2, 1), (7, 2, 2), (8, 2, 3)]


@pytest.mark.parametrize("mode, steps, interval, keep", [
    *(("correct", *numbers) for numbers in [*SHORT, (120, 50, 1), (120, 1, 9)]), *(("logged", *n) for n in SHORT)
])  # fmt: skip
def test_the_disk_forecast_is_exact_also_for_the_rest_of_a_run(
    mode: str, steps: int, interval: int, keep: int, tmp_path
) -> None:
    bundle, made = vgame.prepare(job(steps, interval=interval, **MODES[mode])), []
    whole = vgame.train(bundle, tmp_path / "whole", keep=keep)
    assert whole.forecast.disk == grown(tmp_path / "whole")
    with pytest.raises(vgame.Cancelled):
        vgame.train(bundle, tmp_path / "part", keep=keep, cancel=lambda: made.append(0) or len(made) > steps // 2)
    before = grown(tmp_path / "part")
    assert before >= whole.forecast.disk // 4
    rest = vgame.train(bundle, tmp_path / "part", keep=keep)
    assert rest.root == whole.root and rest.forecast.disk == grown(tmp_path / "part") - before


def test_programs_read_the_forecast_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(vgame.prepare(job(100, interval=50)), tmp_path / "bundle")
    train_offline(tmp_path / "bundle", tmp_path / "run", "default", 1, Reporter(json_lines=True))
    reported = events(capsys)
    first = next(line for line in reported if line["event"] in ("forecast", "progress"))
    assert first["event"] == "forecast" and first["steps"] == 100 and first["checkpoints"] == 2
    assert first["seconds"] == 100 * first["step"] + 2 * first["checkpoint"] and first["memory"] > 10**7
    assert not list((tmp_path / "run").rglob("*.half*"))
    train_offline(tmp_path / "bundle", tmp_path / "run", "default", 1, Reporter(json_lines=True))
    assert [line["event"] for line in events(capsys)] == ["trained"]  # nothing is left


def test_a_short_run_is_not_measured_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(vgame.prepare(job(9, interval=3)), tmp_path / "bundle")
    train_offline(tmp_path / "bundle", tmp_path / "run", "default", 1, Reporter())
    lines = capsys.readouterr().out.splitlines()
    first, later = (line for line in lines if " steps take about " in line)
    assert first.startswith("9 steps take about ") and first.endswith(" of disk; time and memory once 3 are made")
    assert later.startswith("6 steps take about ") and " a step), " in later and " of memory, " in later
    train_offline(job_files.write(tmp_path / "job.toml"), tmp_path / "other", "default", 1, Reporter())
    assert "6 steps take about " in capsys.readouterr().out


@pytest.mark.parametrize("mode", MODES)
def test_a_forecast_changes_no_root(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = vgame.prepare(job(100, interval=50, **MODES[mode]))
    run = vgame.train(bundle, tmp_path / "told")
    log = run.forecast.disk - grown(tmp_path / "told")  # log bytes of the measured steps, per step
    assert log == 0 if mode == "correct" else 0 < log < 3 * (tmp_path / "told/rounding.vglog").stat().st_size
    monkeypatch.setattr(forecast, "LEAST", 10**9)
    assert vgame.train(bundle, tmp_path / "plain").root == run.root
    assert run.forecast.checkpoint and not vgame.Run.open(tmp_path / "told").forecast


def test_the_rest_of_a_log_is_forecast_from_its_steps(tmp_path: Path) -> None:
    bundle, made = vgame.prepare(job(120, interval=5, **MODES["logged"])), []
    with pytest.raises(vgame.Cancelled):
        vgame.train(bundle, tmp_path, cancel=lambda: made.append(0) or len(made) > 7)
    before, log = grown(tmp_path), tmp_path / "rounding.vglog"
    begun = log.stat().st_size
    run = vgame.train(bundle, tmp_path)
    found, grew = run.forecast.disk - (grown(tmp_path) - before), log.stat().st_size - begun
    assert run.done and grew / FACTOR < found < grew * FACTOR


@pytest.mark.parametrize("steps", [6, 120])
def test_a_disk_without_enough_space_is_refused_before_the_first_step(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = vgame.prepare(job(steps, interval=3))
    need, usage = bundle.forecast.disk, shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need - 1))
    with pytest.raises(
        StoreError, match=r"this run needs [\d.]+ KB more of its disk, [\d.]+ KB are free; free space, keep"
    ):
        vgame.train(bundle, tmp_path / "run")
    assert open_run(tmp_path / "run").step == 0 and not list((tmp_path / "run/states").iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need))
    assert vgame.train(bundle, tmp_path / "run").done  # the lock was given back


def test_prepare_reports_the_forecast_too(tmp_path: Path) -> None:
    counted = vgame.prepare(job(200, interval=50))
    assert counted.forecast.memory is None and counted.forecast.step is None
    assert repr(counted).endswith(" KB of disk)") and "200 steps take about " in counted._repr_html_()
    measured = vgame.prepare(job(200, interval=50), validate=30)
    assert measured.forecast.seconds and measured.forecast.memory and " of memory, " in repr(measured)
    save_bundle(measured, tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").forecast is None  # stored in no file: it differs by machine
    assert load_bundle(tmp_path / "bundle").identity == measured.identity
    run = vgame.train(measured, tmp_path / "run")
    assert run.forecast.disk == measured.forecast.disk == grown(tmp_path / "run")


def test_a_machine_that_cannot_execute_a_step_still_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise vgame.VgameError("a step of this job needs at least 900 GiB of memory")

    monkeypatch.setattr("vgame.execute.executor.refuse_too_large", too_large)
    found = vgame.prepare(job(200), validate=30).forecast
    assert found.step is None and found.memory is None and found.disk > 0


@pytest.mark.parametrize("reported", [Forecast(6, 2, 10**7), Forecast(6, 2, 10**7, 0.013, 0.1, 4 * 10**8)])
def test_an_event_has_all_fields(reported: Forecast) -> None:
    assert Forecast.of(json.loads(json.dumps(reported.fields | {"who": "", "event": "forecast"}))) == reported


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0013, "1.3 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (4.21, "4.2 s"), (59.4, "59 s"), (59.6, "1 min"),
        (61, "1 min 1 s"), (3599.6, "1 h"), (12_000, "3 h 20 min"), (86_399, "24 h"), (100_000, "1 d 4 h"),
    ],
)  # fmt: skip
def test_times_for_people(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    "count, text", [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (999_499, "999 KB"), (1_274_000_000, "1.27 GB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text

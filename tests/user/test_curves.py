"""Curves of a training: for any tool by `metrics`, for TensorBoard by `--tensorboard`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_afterwards import job
from typer.testing import CliRunner

import vgame
from vgame.cli import app
from vgame.runs.metrics import Meter


class Run:
    """A stand-in for the client of an experiment tracker, like those of wandb.init() and mlflow."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float | str]] = {}

    def log(self, values: dict[str, float | str], step: int) -> None:
        assert step not in self.rows
        self.rows[step] = values


def decaying() -> vgame.Job:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    halved = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = {"x": torch.randn(16, 4)}
    own = vgame.Task(model, lambda m, b: m(b["x"]).square().mean(), optimizer, data, batch=8, schedulers=[halved])
    return job(5, task=own)


def test_each_committed_step_is_reported_once_also_after_a_resume(tmp_path: Path) -> None:
    tracked, bundle = Run(), vgame.prepare(decaying())
    stopped = iter([False, False, True])
    with pytest.raises(vgame.Cancelled):
        vgame.train(
            bundle, tmp_path / "run", metrics=lambda step, values: tracked.log(dict(values), step),
            cancel=lambda: next(stopped),
        )  # fmt: skip
    assert list(tracked.rows) == [1, 2]  # the third step is not committed
    run = vgame.train(bundle, tmp_path / "run", metrics=lambda step, values: tracked.log(dict(values), step))
    assert list(tracked.rows) == [1, 2, 3, 4, 5]
    rows = tracked.rows.values()
    assert [row["loss"] for row in rows] == run.losses.tolist()
    (rate,) = (name for name in tracked.rows[1] if name not in {"loss", "seconds", "open"})
    assert [row[rate] for row in rows] == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert all(row["seconds"] > 0 and 0 <= row["open"] <= 1 for row in rows)
    assert [step for step, row in tracked.rows.items() if "root" in row] == [2, 4, 5]
    assert tracked.rows[5]["root"] == run._store.roots[-1].hex()


def test_a_rank_reports_committed_steps_without_cost(tmp_path: Path) -> None:
    run, rows = vgame.train(vgame.prepare(job(2)), tmp_path / "run"), []
    Meter(lambda step, values: rows.append((step, dict(values)))).committing(None)(run._store, [], run.losses.tolist())
    assert [step for step, _ in rows] == [1, 2] and "seconds" not in rows[0][1] and "root" in rows[1][1]


def test_tensorboard_reads_the_commands_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    vgame.prepare(job(5)).save(tmp_path / "bundle")
    run, curves = tmp_path / "run", tmp_path / "curves"
    done = CliRunner().invoke(app, ["train", str(tmp_path / "bundle"), "--out", str(run), "--tensorboard", str(curves)])
    assert done.exit_code == 0, done.output
    read = EventAccumulator(str(curves))
    read.Reload()
    losses = [(e.step, e.value) for e in read.Scalars("loss")]
    assert losses == list(enumerate(vgame.Run.open(run).losses.tolist(), 1))
    assert {"loss", "seconds", "open"} < set(read.Tags()["scalars"])
    text = [bytes(e.tensor_proto.string_val[0]).decode() for e in read.Tensors("root/text_summary")]
    assert text == [root.hex() for root in vgame.Run.open(run)._store.roots]


def test_without_the_package_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    vgame.prepare(job(2)).save(tmp_path / "bundle")
    arguments = ["train", str(tmp_path / "bundle"), "--out", str(tmp_path / "run"), "--tensorboard", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, vgame.MissingPackage) and "[tensorboard]" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_device_in_another_process_refuses_callbacks(tmp_path: Path) -> None:
    with pytest.raises(vgame.VgameError, match="cannot call your functions"):
        vgame.train(vgame.prepare(job()), tmp_path / "run", device="compatible", metrics=lambda *_: None)
    assert not (tmp_path / "run").exists()


def test_the_lines_of_the_guide_for_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the services' clients are stand-ins."""
    page = (Path(__file__).resolve().parents[2] / "docs/guide.md").read_text()
    (block,) = (b for b in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "wandb" in b)
    tracked, tags = Run(), []
    wandb = SimpleNamespace(init=lambda project: tracked)
    mlflow = SimpleNamespace(
        log_metrics=lambda values, step: [*map(float, values.values())],
        set_tag=lambda name, value: tags.append((name, value)),
    )
    monkeypatch.chdir(tmp_path)
    names = {"vgame": vgame, "bundle": vgame.prepare(job(4)), "wandb": wandb, "mlflow": mlflow}
    exec(block, names)
    assert list(tracked.rows) == [1, 2, 3, 4]
    vgame.train(names["bundle"], "other", metrics=names["numbers"])
    assert tags[3] == ("root", tracked.rows[4]["root"])

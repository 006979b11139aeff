"""Small runs to damage, and the messages about them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from job_files import write

from vgame.cli.runs import audit_offline, train_offline
from vgame.system.progress import Reporter

QUIET = Reporter(json_lines=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train_offline(write(folder / "job.toml"), folder / "run", "default", 1, QUIET)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def begun(run: Path, tmp_path: Path) -> Path:
    """The same run after one and a half of three checkpoints."""
    roots, losses = run / "roots.bin", run / "losses.bin"
    roots.write_bytes(roots.read_bytes()[:32])
    losses.write_bytes(losses.read_bytes()[:20])  # the next two steps' losses exist, their root not yet
    for step in (4, 6):
        (run / f"states/{step:010d}.safetensors").unlink()
    return run


def audit(run: Path, segment: str | None = None, sample: float | None = None, seed: int = 1) -> bool:
    return audit_offline(run, "default", segment, sample, seed, QUIET)


def last_event(capsys: pytest.CaptureFixture[str], event: str) -> dict:
    """The last output event of this name."""
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return [line for line in lines if line["event"] == event][-1]


def sentence(capsys: pytest.CaptureFixture[str], run: Path, **chosen) -> str:
    """The sentence at the end of an audit."""
    capsys.readouterr()
    audit_offline(run, "default", chosen.get("segment"), chosen.get("sample"), 1, Reporter())
    return capsys.readouterr().out.strip().splitlines()[-1]


# ---- weights of another run ----


def weights(run: Path, step: int) -> Path:
    return run / f"states/{step:010d}.safetensors"

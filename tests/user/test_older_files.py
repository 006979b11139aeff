"""Files of an older vgame: refused by one sentence with a remedy, and not changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_afterwards import job
from typer.testing import CliRunner

import vgame
from vgame.cli import app

OLD = Path(__file__).resolve().parents[1] / "vectors" / "run-version-1"  # a bundle and a run, as their vgame left them


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "run")
    return tmp_path / "run"


def held(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    "command",
    ["audit {run}", "train {run}/job --out {run}", "train {run}/job --out {new}", "export {run} --out {new}",
     "trace {run} --step 1", "locate {run} {run}", "terms {run}/job"],
)  # fmt: skip
def test_a_bundle_of_version_1(command: str, old: Path, tmp_path: Path) -> None:
    before = held(tmp_path)
    done = CliRunner().invoke(app, command.format(run=old, new=tmp_path / "new").split())
    assert isinstance(done.exception, vgame.BundleError), done.output
    assert "is a bundle of version 1, this vgame reads version 3, " in str(done.exception)
    assert "prepare the job again, or read it with the vgame that wrote it" in str(done.exception)
    assert held(tmp_path) == before


def test_the_weights_of_an_older_run_are_ordinary_safetensors(old: Path) -> None:
    assert {t.shape for t in load_file(old / "states/0000000004.safetensors").values()} == {(2, 2), (2,)}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_run_of_another_version(version: object, tmp_path: Path) -> None:
    bundle, run = vgame.prepare(job()), tmp_path / "run"
    vgame.train(bundle, run)
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(header | {"version": version}))
    before = held(run)
    for use in (lambda: vgame.train(bundle, run), lambda: vgame.audit(run), lambda: vgame.Run.open(run)):
        message = f"is a run of version {version}, this vgame reads version 1: use the vgame that wrote it"
        with pytest.raises(vgame.StoreError, match=message):
            use()
    assert held(run) == before

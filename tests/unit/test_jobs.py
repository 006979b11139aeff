"""Jobs from end to end, as files: captured, trained on one device, audited on another, with identical roots. The
shipped small models and three modules of a user (tests/user)."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vgame.cli.runs import train_offline
from vgame.errors import VgameError
from vgame.job.bundle import load_bundle, save_bundle
from vgame.job.file import JobFile, read_job_file
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.system.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("digits", "small_resnet", "small_gpt", "small_llama", "small_lstm", "gpt2")
STEPS = 5  # of a short run, each with a checkpoint
# transformers' GPT-2, smaller
TINY = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 256, "length": 12}
USER = {
    "spatial": '{ kind = "constant", lr = "0.05" }',
    "transformer": '{ kind = "step", lr = "0.5", every = 2 }',
    "translation": '{ kind = "cosine", lr = "0.01", warmup = 2 }',
}


def job(name: str, folder: Path, steps: int) -> JobFile:
    """The job file, with a local text and other numbers of steps."""
    if name in SHIPPED:
        path = ROOT / f"vgame/tasks/{name}.toml"
    else:
        path = folder / f"{name}.toml"
        path.write_text(f'model = "tutorials:{name}"\nseed = 5\nsteps = 9\ninterval = 3\nschedule = {USER[name]}\n')
    job = read_job_file(path)
    args = job.args | ({"text": str(ROOT / "LICENSE")} if "text" in job.args else {}) | (TINY if name == "gpt2" else {})
    return job.model_copy(update={"args": args, "steps": steps, "interval": max(steps // 3, 1)})


AUDIT = """
import json, sys
from pathlib import Path
from vgame.execute.devices import prepare_environment
prepare_environment("compatible")
from vgame.cli.runs import audit_offline
from vgame.system.progress import Reporter
for run in sys.argv[1:]:
    found = audit_offline(Path(run), "compatible", None, None, 0, Reporter())
    print(json.dumps([Path(run).name, found]), file=sys.stderr)
"""


def prepared(name: str, folder: Path, steps: int = STEPS) -> Path:
    """The folder of a job's bundle, made once by the first process that needs it."""
    if str(ROOT / "tests/user") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests/user"))
    made = folder / f"{name}-bundle"
    with open(folder / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (made / "spec.json").exists():
            save_bundle(prepare(job(name, folder, steps)), made)
    return made


def trained(bundles: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Runs on the device "default", one folder each."""
    runs = {name: folder / name for name in bundles}
    for name, bundle in bundles.items():
        train_offline(bundle, runs[name], "default", 1, Reporter(json_lines=True))
    return runs


def audited(runs: dict[str, Path]) -> dict[str, bool]:
    """Whether the device "compatible", in a process of its own, computes the same roots."""
    command = [sys.executable, "-c", AUDIT, *map(str, runs.values())]
    result = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(json.loads(line) for line in result.stderr.splitlines() if line.startswith("["))


@pytest.fixture(scope="module")
def short(jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, bool]]:
    """Every job, some steps."""
    runs = trained({name: prepared(name, jobs) for name in (*SHIPPED, *USER)}, tmp_path_factory.mktemp("runs"))
    return runs, audited(runs)


@pytest.mark.parametrize("name", [*SHIPPED, *USER])
def test_a_job_is_trained_on_one_device_and_audited_on_another(name: str, short) -> None:
    runs, matches = short
    assert matches[name]
    store = Store(runs[name], load_bundle(runs[name] / "job"))
    assert store.done and len(set(store.roots)) == STEPS and np.isfinite(store.losses()).all()


def test_an_audit_reports_a_run_of_another_job(short) -> None:
    """The damaged twin: one bit of one committed root."""
    runs, _ = short
    root = runs["digits"] / "roots.bin"
    before = root.read_bytes()
    try:
        root.write_bytes(before[:40] + bytes([before[40] ^ 1]) + before[41:])
        assert audited({"digits": runs["digits"]}) == {"digits": False}
    finally:
        root.write_bytes(before)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_300_steps_of_the_small_models_on_two_devices(tmp_path: Path) -> None:
    runs = trained({name: prepared(name, tmp_path, 300) for name in SHIPPED[1:5]}, tmp_path)
    assert audited(runs) == dict.fromkeys(SHIPPED[1:5], True)
    for name, run in runs.items():
        losses = Store(run, load_bundle(run / "job")).losses()
        assert losses[-20:].mean() < 0.8 * losses[:20].mean(), name


def test_a_program_runs_without_the_models_source(short) -> None:
    """The audit above ran in a folder from which `tutorials` cannot be imported."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tutorials') is not None)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/").returncode == 0


def test_missing_files_of_a_job_file() -> None:
    common = {"seed": 1, "steps": 1, "interval": 1, "schedule": {"lr": "0.1"}}
    for model, args, expected in (
        ("nowhere:task", {}, "cannot be loaded"),
        ("vgame.tasks.digits:nothing", {}, "cannot be loaded"),
        ("vgame.tasks.digits:images", {}, "a vgame.tasks.task.Task is expected"),
        ("vgame.tasks.digits:task", {"size": 3}, "does not take args"),
        ("vgame.tasks.shipped:language_model", {"text": "/nowhere.txt"}, "cannot be read"),
        ("vgame.tasks.shipped:resnet50", {"folder": "/nowhere"}, "vgame never downloads"),
    ):
        with pytest.raises(VgameError, match=expected) as caught:
            prepare(JobFile.model_validate({"model": model, "args": args, **common}))
        assert "\n" not in str(caught.value)

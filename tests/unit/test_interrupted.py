"""`vgame train` as a process: killed, or out of disk in the middle of a checkpoint. Nothing is lost, and it resumes to
the same bits."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

from vgame.errors import StoreError
from vgame.job.bundle import save_bundle
from vgame.job.file import JobFile
from vgame.runs.folder import open_run
from vgame.runs.prepare import prepare

STEPS, INTERVAL = 40, 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = JobFile(
        model="vgame.tasks.digits:task",
        args={"batch": 8},
        seed=3,
        steps=STEPS,
        interval=INTERVAL,
        schedule={"lr": "0.05"},
    )
    folder = tmp_path_factory.mktemp("interrupted") / "bundle"
    save_bundle(prepare(job), folder)
    return folder


def start(bundle: Path, run: Path, file_size: int | None = None) -> subprocess.Popen:
    """`file_size`: limit of a file's size, as on a full disk."""
    command = [sys.executable, "-B", "-m", "vgame.cli", "train", str(bundle), "--out", str(run), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return forked.Popen(command, text=True, file_size=file_size, **pipes)


def finish(process: subprocess.Popen) -> tuple[int, dict, str]:
    """Exit code, the last event, stderr."""
    out, err = process.communicate(timeout=300)
    lines = out.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, err


def committed(run: Path) -> int:
    found = list(run.rglob("roots.bin"))
    return found[0].stat().st_size // 32 if found else 0


def killed_after(bundle: Path, run: Path, checkpoints: int) -> None:
    process = start(bundle, run)
    end = time.monotonic() + 240
    while committed(run) < checkpoints:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def whole(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The run root of an undisturbed run."""
    code, last, _ = finish(start(bundle, tmp_path_factory.mktemp("whole") / "run"))
    assert code == 0
    return last["root"]


@pytest.fixture(scope="module")
def begun(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after three checkpoints or more."""
    run = tmp_path_factory.mktemp("begun") / "run"
    killed_after(bundle, run, 3)
    assert committed(run) < STEPS // INTERVAL
    return run


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(begun, tmp_path / "run")


def test_a_killed_run_is_resumed_to_the_same_bits(bundle: Path, whole: str, run: Path) -> None:
    killed_after(bundle, run, committed(run) + 1)
    assert committed(run) < STEPS // INTERVAL
    code, last, _ = finish(start(bundle, run))
    assert (code, last["root"]) == (0, whole)


def test_a_second_writer_is_refused_and_leftovers_of_a_kill_are_removed(bundle: Path, whole: str, run: Path) -> None:
    (left,) = {path.parent for path in run.rglob("*.safetensors") if path.parent.name == "states"}
    for name in (
        "states/.0000000004.safetensors.a1b2c3d4.half",
        ".checks.bin.a1b2c3d4.half",
        "job/.spec.json.a1b2c3d4.half",
    ):
        (left.parent / name).write_bytes(b"half")
    store = open_run(run, writable=True)
    store.lock()
    assert not list(run.rglob(".*"))
    code, _, err = finish(start(bundle, run))
    assert code == 1 and err.count("\n") == 1 and "is being written by another process" in err
    late = open_run(run, writable=True)
    store.release()
    code, last, _ = finish(start(bundle, run))
    assert (code, last["root"]) == (0, whole)
    with pytest.raises(StoreError, match="has just written to"):
        late.lock()


def test_damaged_roots_are_neither_continued_nor_used(bundle: Path, whole: str, run: Path) -> None:
    """The root of a state that is not kept: no other check would detect it."""
    for ended in (False, True):
        if ended:
            assert finish(start(bundle, run))[0] == 0
        (path,) = run.rglob("roots.bin")
        roots = path.read_bytes()
        path.write_bytes(roots[:33] + bytes([roots[33] ^ 1]) + roots[34:])
        code, _, err = finish(start(bundle, run))
        assert code == 1 and err.count("\n") == 1 and "damaged at checkpoint 2" in err
        path.write_bytes(roots)
    (checks,) = run.rglob("checks.bin")
    kept = checks.read_bytes()
    path.write_bytes(roots[:-1] + bytes([roots[-1] ^ 1]))
    checks.write_bytes(kept[:-32])
    with pytest.raises(StoreError, match=f"damaged at checkpoint {STEPS // INTERVAL}"):
        open_run(run, writable=True).lock()
    checks.write_bytes(kept)
    path.write_bytes(roots)
    assert finish(start(bundle, run))[1]["root"] == whole
    (state,) = (path for path in run.rglob("states/*.safetensors") if int(path.stem) == STEPS)
    state.write_bytes(state.read_bytes()[:-1] + bytes([state.read_bytes()[-1] ^ 1]))
    code, _, err = finish(start(bundle, run))
    assert code == 1 and err.count("\n") == 1 and "is damaged: its root is" in err


def test_a_full_disk_is_one_sentence_and_loses_nothing(bundle: Path, whole: str, run: Path) -> None:
    (state, *_) = sorted(run.rglob("states/*.safetensors"))
    before = committed(run)
    code, _, err = finish(start(bundle, run, file_size=state.stat().st_size // 2))
    assert code == 1 and committed(run) == before
    assert err.count("\n") == 1 and "cannot be written" in err and "Traceback" not in err
    assert not list(run.rglob(".*safetensors.*"))  # no half file is left
    code, last, _ = finish(start(bundle, run))
    assert (code, last["root"]) == (0, whole)


def test_a_disk_that_is_full_from_the_start(bundle: Path, whole: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, _, err = finish(start(bundle, run, file_size=1000))
    assert code == 1 and err.count("\n") == 1 and "cannot be written" in err
    code, last, _ = finish(start(bundle, run))
    assert (code, last["root"]) == (0, whole)

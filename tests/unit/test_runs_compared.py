"""Audits and `locate` on runs in progress, diverged or repeated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from job_files import write
from runs_at_hand import QUIET, audit, sentence, weights

from vgame.cli.runs import locate, ranges, train_offline
from vgame.errors import StoreError, VgameError
from vgame.job.bundle import load_bundle
from vgame.runs.folder import executor_of, open_run
from vgame.runs.header import Divergence
from vgame.runs.training import train

STEPS, INTERVAL = 6, 2


# ---- runs in progress, parts of runs, runs that diverged ----


def test_a_run_in_progress_matches_so_far(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(begun)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[-1]["match"], lines[-1]["complete"], lines[-1]["checked"]) == (True, False, [1])
    assert {line["total"] for line in lines if line["event"] == "progress"} == {2}  # no step beyond the stored ones
    assert sentence(capsys, begun).startswith("MATCH so far: 1 of 3 checkpoints: theirs ")
    roots = begun / "roots.bin"
    roots.write_bytes(bytes(32))
    weights(begun, 2).unlink()
    with pytest.raises(StoreError, match="checkpoint 1 is damaged"):
        audit(begun)


def test_reading_a_run_in_progress_changes_nothing(begun: Path, trained: Path) -> None:
    (begun / "roots.bin").write_bytes((begun / "roots.bin").read_bytes() + b"half")
    before = {name: (begun / name).read_bytes() for name in ("roots.bin", "losses.bin")}
    store = open_run(begun, writable=True)
    assert (len(store.roots), len(store.losses())) == (1, 2)
    assert {name: (begun / name).read_bytes() for name in before} == before
    train(store, executor_of(store.bundle, "cpu"))
    for name in before:
        assert (begun / name).read_bytes() == (trained / name).read_bytes()


def test_a_killed_fork_is_made_again(trained: Path, tmp_path: Path) -> None:
    store = open_run(trained)
    store.fork(tmp_path / "fork", 2)
    (tmp_path / "fork/roots.bin").write_bytes(b"half")  # all losses, not a single root
    again = store.fork(tmp_path / "fork", 2)
    assert (again.roots, again.losses().tolist()) == (store.roots[:2], store.losses()[:4].tolist())
    assert (tmp_path / "fork/roots.bin").read_bytes() == b"".join(store.roots[:2])
    assert (tmp_path / "fork/losses.bin").stat().st_size == 16


def test_the_validation_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence(capsys, run, segment="2..3").startswith("MATCH of 2 of 3 segments (2..3): theirs ")
    assert sentence(capsys, run, sample=1.0).startswith("MATCH of 3 of 3 segments (1..3): theirs ")
    assert (
        sentence(capsys, run, sample=1e-9)
        .split("), ")[1]
        .startswith(
            "drawn at random, with a chance of 33.3 % to find a single false segment, of 66.7 % if 2 are false: theirs "
        )
    )
    assert sentence(capsys, run).startswith("MATCH: theirs ")
    assert ranges([2, 5, 6, 7, 9]) == "2, 5..7, 9"
    assert ranges(range(1, 99, 2)).endswith(" ...")


def test_segment_and_sample_exclude_each_other(run: Path) -> None:
    with pytest.raises(VgameError, match=r"--segment and --sample were both given"):
        audit(run, "1..2", 0.5)


def diverged(run: Path, step: int) -> Path:
    """A run with a recorded divergence at a step, and the earlier data."""
    store = open_run(run, writable=True)
    store.roots = store.roots[: (step - 1) // INTERVAL]
    (run / "roots.bin").write_bytes(b"".join(store.roots))
    store.diverged(Divergence(step, 0, 0))
    return run


def test_a_part_of_a_run_that_diverged_before_its_first_checkpoint_is_refused(run: Path) -> None:
    diverged(run, 1)
    for segment, sample in ((None, 0.5), ("1..1", None)):
        with pytest.raises(VgameError, match="diverged before its first checkpoint"):
            audit(run, segment, sample)


def test_a_false_divergence_is_found_at_its_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diverged(run, 3)
    for chosen in ({"segment": "1..1"}, {"sample": 1.0}):
        text = sentence(capsys, run, **chosen)
        assert text.startswith("NO MATCH at checkpoint 2: theirs diverged at step 3, operator 0, element 0, mine no")
    assert not audit(run)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["differs"] == 2 and {line["total"] for line in lines if line["event"] == "progress"} == {3}


@pytest.mark.parametrize(("stops", "step"), [((3, None), 3), ((None, 4), 4), ((5, 3), 3), ((3, 4), 3)])
def test_locate_names_a_divergence_that_only_one_run_has(
    stops: tuple, step: int, trained: Path, tmp_path: Path
) -> None:
    runs = [shutil.copytree(trained, tmp_path / name) for name in ("first", "second")]
    for run, stop in zip(runs, stops, strict=True):
        if stop:
            diverged(run, stop)
    found = locate(*runs, "default", QUIET)
    which = stops.index(step)
    assert found is not None and (found.step, found.element, (found.first, found.second)[which]) == (
        step,
        0,
        "not finite",
    )
    assert found.note.startswith(
        f"only the {('first', 'second')[which]} run records a divergence there; re-execution gives 0x"
    )
    assert found.operator == load_bundle(trained / "job").program.operator_name(0)


def test_locate_accepts_a_run_in_progress(begun: Path, trained: Path, tmp_path: Path) -> None:
    other = diverged(shutil.copytree(trained, tmp_path / "other"), 3)
    assert locate(begun, other, "default", QUIET) is None  # one has not reached the other's divergence
    assert locate(other, other, "default", QUIET) is None


def test_a_missing_last_state_is_recomputed(run: Path, trained: Path) -> None:
    for step in (4, 6):
        weights(run, step).unlink()
    train_offline(run / "job", run, "default", 1, QUIET)
    assert weights(run, 6).read_bytes() == weights(trained, 6).read_bytes() and audit(run)


def test_another_root_in_a_mode_that_does_not_replicate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path / "job.toml")
    job.write_text(job.read_text().replace("seed = 1", 'seed = 1\nmode = "fp32"'))
    train_offline(job, tmp_path / "run", "default", 1, QUIET)
    roots = tmp_path / "run/roots.bin"
    roots.write_bytes(bytes(32) + roots.read_bytes()[32:])
    for file in (tmp_path / "run/states").glob("*2.safetensors"):
        file.unlink()
    output = sentence(capsys, tmp_path / "run")
    assert output.startswith("NO MATCH") and output.endswith(
        "in mode 'fp32' an honest run on another device may differ too"
    )

"""`vgame locate` on two different runs in mode `logged`: another device, too small a threshold, a tampered log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from logged_runs import job, tampered, trained_on
from perturbed import perturbed_products as perturbed

from vgame.cli.runs import audit_offline, locate
from vgame.job.bundle import load_bundle, save_bundle
from vgame.logged.encoding import LogError
from vgame.logged.kernels import TamperedLog
from vgame.runs.prepare import prepare
from vgame.runs.thresholds import LEAST
from vgame.system.progress import Reporter

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(json_lines=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    save_bundle(prepare(job()), folder)
    return folder


@pytest.fixture(scope="module")
def honest(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("honest") / "run"
    trained_on(bundle, run)
    return run


def test_two_trainers_on_two_devices(tmp_path: Path) -> None:
    """Each run is right by its own log; they differ at one sum, by one unit in the last place, and an audit of both
    matches."""
    save_bundle(prepare(job(args=job().args | {"batch": 64}, steps=2)), tmp_path / "bundle")
    runs = [tmp_path / "up", tmp_path / "down"]
    for run in runs:
        trained_on(tmp_path / "bundle", run, perturbed(run.name))
    found = locate(*runs, "default", QUIET)
    assert found is not None and found.operator is not None and found.note == "the executions differ"
    assert abs(int(found.first, 16) - int(found.second, 16)) == 1
    assert locate(*runs[::-1], "default", QUIET) == replace(found, first=found.second, second=found.first)
    assert all(audit_offline(run, "default", None, None, 0, QUIET) for run in runs)


def test_a_device_for_which_the_threshold_is_too_small(bundle: Path, tmp_path: Path) -> None:
    """Its run does not replicate here, the log does not show the reason, and locate names the run with the differing
    state."""
    made = load_bundle(bundle)
    small = made.log.model_copy(update={"thresholds": "adaptive", "windows": (LEAST,) * len(made.log.windows)})
    save_bundle(replace(made, log=small), tmp_path / "bundle")
    runs = [tmp_path / "here", tmp_path / "there"]
    trained_on(tmp_path / "bundle", runs[0])
    trained_on(tmp_path / "bundle", runs[1], perturbed("up", 64))
    matches = [audit_offline(run, "default", None, None, 0, QUIET) for run in runs]
    assert matches == [True, False]
    found = locate(*runs, "default", QUIET)
    assert found is not None and found.first != found.second
    assert "the second run was not computed as ordered" in found.note


def test_a_tampered_run(bundle: Path, honest: Path, tmp_path: Path) -> None:
    """Step, operator and element of the tampered entry, and the log's run."""
    tampered(bundle, tmp_path / "run", lambda positions, s, enclose: [7, 70])
    for pair in ((honest, tmp_path / "run"), (tmp_path / "run", honest)):
        with pytest.raises(TamperedLog, match=r"step 3, operator \d+ contract dot hidden, element 7: ") as caught:
            locate(*pair, "default", QUIET)
        assert str(caught.value).startswith(f"{tmp_path / 'run'}: ") and caught.value.exit_code == 2


def test_a_damaged_log(bundle: Path, honest: Path, tmp_path: Path) -> None:
    """Never a wrong answer: the log's run, and the place."""
    trained_on(bundle, tmp_path / "run", perturbed("midpoint"))
    log = tmp_path / "run/rounding.vglog"
    data = bytearray(log.read_bytes())
    data[-10] ^= 1
    log.write_bytes(data)
    with pytest.raises(LogError, match=r"run/rounding\.vglog: step 4, operator \d+ contract \w+ .*damaged"):
        locate(honest, tmp_path / "run", "default", QUIET)

"""Runs in mode `logged` from end to end: trained on one device, audited on another; killed and resumed; logs that are
not the committed ones, and logs that were tampered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from logged_runs import ROOT, job, tampered

from vgame.cli.runs import audit_offline, train_offline
from vgame.errors import VgameError
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import LogTerms, read_job_file
from vgame.logged.encoding import LogError
from vgame.logged.kernels import TamperedLog, sum_operators
from vgame.logged.logfile import LogFile
from vgame.runs.folder import open_run
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.prepare import prepare
from vgame.runs.thresholds import LEAST, calibrate, is_safe, search
from vgame.runs.training import train
from vgame.system.progress import Reporter

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(json_lines=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    save_bundle(prepare(job()), folder)
    return folder


@pytest.fixture(scope="module")
def trained(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    train_offline(bundle, run, "default", 1, QUIET)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def audit(run: Path, segment: str | None = None) -> bool:
    return audit_offline(run, "reversed", segment, None, 0, QUIET)


def test_another_device_gives_the_same_roots(run: Path, capsys: pytest.CaptureFixture) -> None:
    store = open_run(run)
    assert isinstance(store, LoggedStore) and store.log.steps == 4 and len(set(store.log_roots)) == 2
    assert audit(run) and audit(run, "2..2")
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"log"' in line]
    assert output[0]["event"] == "log" and output[0]["bytes"] == store.log.path.stat().st_size


@pytest.mark.parametrize("bits", (26, 29))
def test_fewer_bits(bits: int, tmp_path: Path) -> None:
    save_bundle(prepare(job(bits=bits)), tmp_path / "bundle")
    train_offline(tmp_path / "bundle", tmp_path / "run", "default", 1, QUIET)
    assert audit(tmp_path / "run")
    state = open_run(tmp_path / "run").load_state(2)
    words = [t.contiguous().view(torch.int32) for t in state if t.is_floating_point()]
    assert not any(bool((w & (1 << 32 - bits) - 1).any()) for w in words)


def test_a_killed_trainer_resumes(run: Path, bundle: Path, tmp_path: Path) -> None:
    store = LoggedStore(tmp_path / "again", load_bundle(bundle))

    class Kill(Exception):
        pass

    def kill(step: int, loss: float) -> None:
        if step == 3:
            raise Kill

    executor = make_executor(store.bundle, "cpu")
    store.record(executor)
    with pytest.raises(Kill):
        train(store, executor, kill)
    log = tmp_path / "again/rounding.vglog"
    store.release()
    log.write_bytes(log.read_bytes() + b"half a record")
    roots = tmp_path / "again/logs.bin"
    roots.write_bytes(roots.read_bytes() + bytes(40))  # a root without its checkpoint, and a part of one
    again = LoggedStore(tmp_path / "again", load_bundle(bundle))
    assert again.step == 2
    executor = make_executor(again.bundle, "cpu")
    again.record(executor)
    train(again, executor)
    for name in ("rounding.vglog", "logs.bin", "roots.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes(), name


def test_a_damaged_root_of_a_log_is_detected_before_a_claim(run: Path) -> None:
    open_run(run).check()
    roots = bytearray((run / "logs.bin").read_bytes())
    roots[40] ^= 1
    (run / "logs.bin").write_bytes(roots)
    with pytest.raises(VgameError, match="are damaged at checkpoint 2"):
        open_run(run).check()


def damage(at: Callable[[LogFile], int]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        log = open_run(run).log
        data = bytearray(log.path.read_bytes())
        data[at(log)] ^= 1
        log.path.write_bytes(data)

    return change


def cut(run: Path) -> None:
    path = run / "rounding.vglog"
    path.write_bytes(path.read_bytes()[:-3])


def another(run: Path) -> None:
    """A whole and valid log of the same job, without entries."""
    log = open_run(run).log
    log.path.unlink()
    LogFile(log.path, log.program, load_bundle(run / "job").identity, 32).append({s: {} for s in range(1, 5)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            damage(lambda log: log.records[1].start + log.records[1].length - 5),
            r"step 2, operator \d+ contract \w+ .*: its entries are damaged",
        ),
        (cut, "ends after step 3: the entries of step 4 are missing"),
        (another, "has the root .* was committed with checkpoint 1"),
        (lambda run: (run / "rounding.vglog").unlink(), r"rounding\.vglog cannot be read"),
    ],
    ids=["damaged", "cut", "another", "gone"],
)
def test_a_log_that_is_not_the_committed_one_is_refused(change, message: str, run: Path) -> None:
    change(run)
    with pytest.raises(LogError, match=message):
        audit(run)


def test_a_tampered_log_is_convicted(bundle: Path, tmp_path: Path) -> None:
    _, attack = tampered(bundle, tmp_path / "run", lambda positions, s, enclose: [7, 70])
    assert attack.struck == [7, 70]
    with pytest.raises(
        TamperedLog, match=r"step 3, operator \d+ contract dot hidden, element 7: the log has"
    ) as caught:
        audit(tmp_path / "run")
    assert caught.value.exit_code == 2


def test_effects_of_a_tampering_trainer(run: Path, bundle: Path, tmp_path: Path) -> None:
    """The remaining freedom: if the bound reaches over a midpoint, each of the two words is the rounding of some
    device."""
    log, free = open_run(run).log, []
    for step in range(1, 5):
        for operator, entries in log.read(step).items():

            def choose(positions, s, enclose, logged=entries.positions) -> list[int]:
                free.extend(p for p in logged.tolist() if enclose(p).free)
                return free

            _, attack = tampered(bundle, tmp_path / f"{step} {operator}", choose, step, operator)
            if free:
                assert attack.struck == free and audit(tmp_path / f"{step} {operator}")
                return
    raise AssertionError("no sum of these steps lies at a midpoint")


def test_tampering_without_log_entries_is_a_difference(bundle: Path, tmp_path: Path) -> None:
    """A trainer that computes with the tampered values but does not log them does not match."""
    store, _ = tampered(bundle, tmp_path / "run", lambda positions, s, enclose: [7])
    honest = LoggedStore(tmp_path / "honest", store.bundle)
    executor = make_executor(store.bundle, "cpu")
    honest.record(executor)
    train(honest, executor)
    for name in ("rounding.vglog", "logs.bin"):
        shutil.copy(tmp_path / "honest" / name, tmp_path / "run" / name)
    assert not audit(tmp_path / "run")


@pytest.mark.wide
def test_thresholds_are_calibrated_on_two_devices() -> None:
    made: Bundle = prepare(job(log=LogTerms(thresholds="adaptive", calibration=1)))
    assert made.log is not None and len(made.log.windows) == len(sum_operators(made.program))
    assert all(LEAST <= w <= 2 for w in made.log.windows)
    assert made.identity != prepare(job()).identity


def test_the_search_finds_the_least_safe_window() -> None:
    bounds = np.array([1.0, 2.0, 4.0])
    apart = np.array([0.1, 0.5, 0.2])
    window = search(apart, bounds)
    assert is_safe(window, apart, bounds) and not is_safe(window - 2.0**-11, apart, bounds)
    assert search(np.zeros(3), bounds) == 0.0
    assert search(2 * bounds, bounds) == 2.0


def test_calibration_reports_the_failure() -> None:
    made = prepare(job())
    with pytest.raises(VgameError, match=r"calibration on device nowhere failed: .*there is no device 'nowhere'"):
        calibrate(made, 1, ("nowhere",))


def test_valid_fields_of_a_job_file(tmp_path: Path) -> None:
    text = (ROOT / "vgame/tasks/digits.toml").read_text()
    for old, new, message in (
        ('mode = "correct"', 'mode = "logged"\nlog = { bits = 25 }', "log.bits"),
        ('mode = "correct"', 'mode = "logged"\nlog = { thresholds = "some" }', "log.thresholds"),
    ):
        path = tmp_path / "job.toml"
        path.write_text(text.replace(old, new))
        with pytest.raises(VgameError, match=message):
            read_job_file(path)
    with pytest.raises(VgameError, match=r"\[log\] belongs to mode = 'logged'"):
        prepare(job(mode="correct"))

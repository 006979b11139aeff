"""An audit by several processes has the verdict of an audit by one, even if processes die."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import forked
import pytest
from audited_runs import bundle, cheat, executing
from logged_runs import job, trained_on

import vgame
from vgame.execute.executor import Executor
from vgame.job.bundle import save_bundle
from vgame.runs import parallel_audit
from vgame.runs.folder import open_run
from vgame.runs.parallel_audit import Workers, audit_in_parallel, chance, parts_of
from vgame.runs.prepare import prepare
from vgame.runs.worker import WorkerProcess as _Worker
from vgame.system.progress import NULL_PROGRESS

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgame.train(bundle(), tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_the_verdict_is_that_of_one_process(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    one, two = (vgame.audit(run, workers=n, progress=lambda *event: seen.append(event[3])) for n in (1, 2))
    assert one == two and two.match and two.checked == (1, 2, 3, 4, 5, 6)
    assert seen[-1] == "######"


def test_the_lowest_difference_is_reported(copy: Path) -> None:
    cheat(copy, (3, 5))
    one, two = vgame.audit(copy), vgame.audit(copy, workers=2)
    assert not two.match and (one.differs, one.mine) == (two.differs, two.mine) == (3, one.mine)


def test_a_state_visible_to_one_process_only(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may claim missing states when the parts are cut; a part must not be executed from step 1."""
    store = open_run(copy)
    monkeypatch.setattr(store, "nearest", lambda c: c)
    (copy / "states" / "0000000008.safetensors").unlink()
    with pytest.raises(vgame.VgameError, match="the state of checkpoint 2 disappeared during the audit"):
        audit_in_parallel(store, "default", [3], Workers(2), NULL_PROGRESS)


def test_only_the_part_of_a_killed_worker_is_repeated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, audit = [], _Worker.audit

    def killed_once(self: _Worker, part):
        calls.append(part)
        if len(calls) == 3:
            os.kill(self.process.pid, signal.SIGKILL)
        return audit(self, part)

    monkeypatch.setattr(_Worker, "audit", killed_once)
    assert vgame.audit(run, record=tmp_path / "record").match
    assert calls == [(c, c, c - 1) for c in (1, 2, 3, 3, 4, 5, 6)]


def test_a_part_that_kills_every_worker_ends_the_audit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always_killed(self: _Worker, part):
        os.kill(self.process.pid, signal.SIGKILL)
        return self._answer()

    monkeypatch.setattr(_Worker, "audit", always_killed)
    with pytest.raises(vgame.VgameError, match=r"checkpoints 2\.\.2: 3 workers ended .*give fewer"):
        vgame.audit(run, workers=2, segments=(2, 2))


def test_a_worker_that_hangs_is_named_and_its_part_executed_by_another(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, not killed: only the time limit detects it."""
    stopped, stages, audit = [], [], _Worker.audit

    def stopped_once(self: _Worker, part):
        if not stopped:
            os.kill(self.process.pid, signal.SIGSTOP)
            stopped.append((self.process.pid, part))
            self.timeout = 0.5
        return audit(self, part)

    monkeypatch.setattr(_Worker, "audit", stopped_once)
    monkeypatch.setattr(vgame.api._Listener, "stage", lambda self, text: stages.append(text))
    assert vgame.audit(run, workers=2, segments=(1, 1)).match
    (pid, (first, last, _)) = stopped[0]
    named = f"checkpoints {first}..{last}: worker {pid} hung before its first step: no sign of life for 0.5 s"
    assert f"{named}; another worker executes them" in stages
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_timeout_limits_the_time_without_a_step_not_the_time_of_a_part() -> None:
    """Signs of life every 0.3 s for 1.8 s, with 1.5 s allowed; then silence."""
    worker = _Worker.__new__(_Worker)
    code = "import time\nfor n in range(6): print('{\"begins\": %d}' % n, flush=True); time.sleep(0.3)\ntime.sleep(60)"
    worker.process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    worker.timeout, worker.begun, worker.unread = 30.0, "before its first step", b""
    worker._line()  # the interpreter has started
    worker.timeout = 1.5
    with pytest.raises(parallel_audit.WorkerDied, match=r"hung at step 5: no sign of life for 1\.5 s"):
        worker._answer()


@pytest.mark.parametrize("timeout", [0, -1, 2_000_001, float("nan"), float("inf")])
def test_an_invalid_timeout_is_refused(run: Path, timeout: float) -> None:
    with pytest.raises(
        vgame.VgameError, match=r"--timeout .*: a number of seconds above 0 and up to 2,000,000 is expected"
    ):
        vgame.audit(run, workers=2, timeout=timeout)


def test_a_run_with_a_log(tmp_path: Path) -> None:
    """Mode `logged`: the workers follow the log that the run holds."""
    save_bundle(prepare(job()), tmp_path / "bundle")
    folder = trained_on(tmp_path / "bundle", tmp_path / "run").folder
    one, two = (vgame.audit(folder, workers=n) for n in (1, 2))
    assert two.match and two == one


def test_a_stopped_audit_is_resumed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    seen: list[int] = []

    def enough() -> bool:
        return len(seen) >= 2

    with pytest.raises(vgame.Cancelled):
        vgame.audit(run, record=record, progress=lambda *event: seen.append(event[1]), cancel=enough)
    known = len(record.read_text().splitlines())
    assert 2 <= known < 6
    calls, audit = [], _Worker.audit
    monkeypatch.setattr(_Worker, "audit", lambda self, part: calls.append(part) or audit(self, part))
    assert vgame.audit(run, record=record).match
    assert len(calls) == 6 - known


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGTERM, 143, ""), (signal.SIGINT, 1, "vgame: interrupted; start the same command again to go on")],
)
def test_a_signal_ends_an_audit_and_its_workers_at_once(copy: Path, number: int, code: int, sentence: str) -> None:
    """Ctrl-C reaches all of them; one is stopped, and would never end by itself."""
    command = [sys.executable, "-m", "vgame.cli", "audit", str(copy), "--workers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process, end = forked.Popen(command, text=True, session=True, **pipes), time.monotonic() + 60
    try:
        while len(executing(copy)) < 2:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        os.kill(executing(copy)[0], signal.SIGSTOP)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        assert process.communicate(timeout=20)[1].strip() == sentence
        assert process.returncode == code and not executing(copy)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_an_audit_ended_by_a_signal_is_resumed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, stopped, audit, record = [], [], _Worker.audit, tmp_path / "record"

    def audited(self: _Worker, part):
        calls.append(part)
        if len(calls) == 3:
            os.kill(self.process.pid, signal.SIGSTOP)
            stopped.append(self.process.pid)
            os.kill(os.getpid(), signal.SIGUSR1)
        return audit(self, part)

    monkeypatch.setattr(_Worker, "audit", audited)
    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit):
            vgame.audit(run, workers=2, record=record)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)
    known = len(record.read_text().splitlines())
    assert 1 <= known < 6
    calls = [None] * 3
    assert vgame.audit(run, record=record).match and len(calls) == 3 + 6 - known


def test_a_record_of_another_run_is_ignored(run: Path, tmp_path: Path) -> None:
    other = vgame.train(bundle("0.2"), tmp_path / "other").folder
    assert vgame.audit(other, record=tmp_path / "record").match  # one worker
    store = open_run(run)
    assert not any(parallel_audit.Record(tmp_path / "record", store).holds((c, c)) for c in range(1, 7))


ROOTS = ("roots.bin", "checks.bin")


def test_a_run_that_changes_before_its_workers_read_it_is_refused(
    run: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cheat's roots exist when the audit begins, honest ones when its workers read: this must be no MATCH and no
    record."""
    other, begin = vgame.train(bundle("0.2"), tmp_path / "other").folder, _Worker.__init__
    for name in ROOTS:
        shutil.copy(other / name, copy / name)

    def late(self: _Worker, *given) -> None:
        for name in ROOTS:
            shutil.copy(run / name, copy / name)
        begin(self, *given)

    monkeypatch.setattr(_Worker, "__init__", late)
    with pytest.raises(vgame.VgameError, match="was changed while it was audited"):
        vgame.audit(copy, segments=(2, 3), record=tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_a_run_that_grows_meanwhile_is_audited_as_far_as_it_went(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, begin = {name: (copy / name).read_bytes() for name in ROOTS}, _Worker.__init__
    for name in ROOTS:
        (copy / name).write_bytes(whole[name][: 32 * 4])

    def late(self: _Worker, *given) -> None:
        for name in ROOTS:
            (copy / name).write_bytes(whole[name])
        begin(self, *given)

    monkeypatch.setattr(_Worker, "__init__", late)
    found = vgame.audit(copy, record=tmp_path / "record")
    assert found.match and found.checked == (1, 2, 3, 4) and not found.complete


def test_losses_changed_after_the_record_are_found(copy: Path, tmp_path: Path) -> None:
    assert vgame.audit(copy, record=tmp_path / "record").match
    losses = bytearray((copy / "losses.bin").read_bytes())
    losses[4 * 9] ^= 1
    (copy / "losses.bin").write_bytes(losses)
    found = vgame.audit(copy, record=tmp_path / "record")
    assert not found.match and found.step == 10


@pytest.mark.parametrize("held", ["bytes", "folder", "pipe", "link"])
def test_an_invalid_record_is_refused(run: Path, tmp_path: Path, held: str) -> None:
    """One sentence, without a traceback; nothing is written through a link, and a pipe is not waited for."""
    path, target = tmp_path / "record", tmp_path / "target"
    make = {"bytes": lambda: path.write_bytes(b"\xff\n"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to(target)}  # fmt: skip
    make[held]()
    with pytest.raises(vgame.VgameError, match="is not the record of an audit"):
        vgame.audit(run, workers=2, record=path)
    assert not target.exists()


def test_a_divergence_before_the_last_checkpoint(copy: Path, tmp_path: Path) -> None:
    """A whole run is changed to a divergence at step 3."""
    header = json.loads((copy / "run.json").read_text())
    header["divergence"] = {"step": 3, "operator": 0, "element": 0}
    (copy / "run.json").write_text(json.dumps(header))
    assert not vgame.audit(copy).match and not vgame.audit(copy, record=tmp_path / "record").match


def test_a_part_of_several_checkpoints_executes_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints must not each be re-executed from the kept state: 1 + 2 + ... + n intervals."""
    folder, executed = vgame.train(bundle(), tmp_path / "run", keep=6).folder, []
    step = Executor.step
    monkeypatch.setattr(Executor, "step", lambda self, n, *given: executed.append(n) or step(self, n, *given))
    assert vgame.audit(folder, segments=(1, 6)).match
    assert executed == list(range(1, 25))


def test_parts_begin_where_a_state_is_kept(tmp_path: Path) -> None:
    folder = vgame.train(bundle(), tmp_path / "run", keep=3).folder
    store = open_run(folder)
    assert parts_of(store, range(1, 7)) == [(1, 3, 0), (4, 6, 3)]
    assert parts_of(store, [2, 5, 6]) == [(2, 2, 0), (5, 6, 3)]


def test_the_chance_of_a_sample() -> None:
    assert chance(10, 3, 1) == pytest.approx(0.3)
    assert chance(10, 3, 8) == pytest.approx(1.0)
    assert chance(100, 10, 10) == pytest.approx(0.6695, abs=1e-4)


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.nightly)])
def test_workers_killed_at_random_moments(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """The verdict equals that of an audit without deaths, and no part is omitted. At most two deaths a part."""
    dice, audit = random.Random(kills), _Worker.audit
    died: list[tuple[int, parallel_audit.Part]] = []  # number of the audit, part

    def at_risk(self: _Worker, part: parallel_audit.Part):
        if len(died) >= kills or died.count((audits, part)) >= parallel_audit.TRIES - 1:
            return audit(self, part)
        timer = threading.Timer(dice.random() * 0.05, self.process.kill)
        timer.start()
        try:
            return audit(self, part)
        except parallel_audit.WorkerDied:
            died.append((audits, part))
            raise
        finally:
            timer.cancel()
            timer.join()

    audits, alone = 0, vgame.audit(run)
    monkeypatch.setattr(_Worker, "audit", at_risk)
    while len(died) < kills:
        audits += 1
        record = tmp_path / str(audits)
        assert vgame.audit(run, workers=2, record=record) == alone
        assert len(record.read_text().splitlines()) == 6

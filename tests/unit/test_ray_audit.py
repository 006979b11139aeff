"""An audit on a Ray cluster has the verdict of one process, even if tasks fail. The cluster belongs to another
process."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from audited_runs import bundle, cheat, executing

import vgame
from vgame.runs import worker

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # read when Ray is imported
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
from vgame.runs import ray_workers  # noqa: E402

SERVES = """
import logging, os, sys
os.environ["RAY_worker_niceness"] = "0"  # other tests compute beside it
import ray
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that another process has started; both know its token."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SERVES], text=True, **pipes)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgame.train(bundle(), tmp_path_factory.mktemp("runs") / "run").folder


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_verdict_is_that_of_one_process_and_only_parts_of_killed_tasks_are_repeated(
    run: Path, address: str
) -> None:
    """A process of the first task that is done is killed, and the Ray worker of another one."""
    seen: list[str] = []
    killed: list[int] = []

    def kill_at(what: str, done: int, total: int, detail: str) -> None:
        seen.append(detail)
        if done in (1, 3) and len(killed) < done:
            pid = executing(run)[0]
            for victim in [pid, parent(pid)][: done // 2 + 1]:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    assert vgame.audit(run, ray=address, progress=kill_at) == vgame.audit(run)
    assert seen[-1] == "######" and len(killed) == 3
    assert not ray.is_initialized()


def test_another_version_of_ray_is_refused(run: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "1.0.0")
    with pytest.raises(vgame.VgameError, match=r"no cluster that this Ray 1\.0\.0 can use: Version mismatch"):
        vgame.audit(run, ray=address)
    assert not ray.is_initialized()


@pytest.mark.parametrize("bad", ["127.0.0.1:1", "nowhere", "127.0.0.1:0", "127.0.0.1:99999", "", "ray://x"])
def test_an_invalid_address_is_refused(run: Path, tmp_path: Path, bad: str) -> None:
    with pytest.raises(
        vgame.VgameError, match=r"no cluster answers there|HOST:PORT, ray://HOST:PORT, auto or local is expected"
    ):
        vgame.audit(run, ray=bad, record=tmp_path / "record")
    assert not (tmp_path / "record").exists()


class TestConnected:
    """A process with its own connection, which stays open: existing workers are reused."""

    @pytest.fixture(scope="class", autouse=True)
    def connection(self, address: str) -> Iterator[None]:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        yield
        assert ray.is_initialized()
        ray.shutdown()

    def test_the_lowest_difference_is_reported(self, run: Path, tmp_path: Path, address: str) -> None:
        copy = Path(shutil.copytree(run, tmp_path / "copy"))
        cheat(copy, (3, 5))
        one, many = vgame.audit(copy), vgame.audit(copy, ray=address, record=tmp_path / "record")
        assert not many.match and (one.differs, one.mine) == (many.differs, many.mine)
        assert len((tmp_path / "record").read_text().splitlines()) == 2

    def test_a_stopped_audit_is_resumed(self, run: Path, tmp_path: Path, address: str) -> None:
        record, done = tmp_path / "record", []
        with pytest.raises(vgame.Cancelled):
            vgame.audit(
                run,
                ray=address,
                record=record,
                progress=lambda *call: done.append(call),
                cancel=lambda: len(done) > 1,
            )
        known = len(record.read_text().splitlines())
        assert 2 <= known < 6
        done.clear()
        assert vgame.audit(run, ray=address, record=record, progress=lambda *call: done.append(call)).match
        assert done[-1][1:3] == (6 - known, 6 - known)

    def test_a_signal_ends_it_at_once(self, run: Path, tmp_path: Path, address: str) -> None:
        """While its processes are stopped and would never end by themselves."""
        copy, output = Path(shutil.copytree(run, tmp_path / "copy")), []

        def stop() -> None:
            while not (found := executing(copy)):
                time.sleep(0.01)
            for pid in found:
                os.kill(pid, signal.SIGSTOP)
            output.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(143))
        thread = threading.Thread(target=stop)
        thread.start()
        try:
            with pytest.raises(SystemExit):
                vgame.audit(copy, ray=address, timeout=20)
            assert time.monotonic() - output[0] < 10, "it did not wait until they were taken for dead"
        finally:
            signal.signal(signal.SIGUSR1, before)
            thread.join()
            for pid in executing(copy):
                os.kill(pid, signal.SIGKILL)

    def test_another_version_of_vgame_on_a_worker_is_refused(
        self, run: Path, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        init = worker.Given.__init__
        monkeypatch.setattr(worker.Given, "__init__", lambda self, *given: init(self, *given, vgame="0.0.9 (00000000)"))
        with pytest.raises(
            vgame.VgameError, match=r"the worker on \S+ has vgame .*, the audit has 0\.0\.9 \(00000000\): install"
        ):
            vgame.audit(run, ray=address)

    def test_a_run_that_the_cluster_cannot_read_is_named(self, run: Path, tmp_path: Path, address: str) -> None:
        given = worker.Given(str(tmp_path / "elsewhere"), 6, "", "default")
        with ray_workers.cluster(address) as (cores, make):
            assert cores == 2
            with pytest.raises(vgame.VgameError, match="elsewhere is not the folder of a run"):
                make(given).audit((1, 1, 0))

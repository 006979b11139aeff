"""A disk that fills while a run is written: after a failure of any write an agent waits and continues to the same
files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from logged_runs import job

from vgame.agents.retry import Retry
from vgame.cli.runs import audit_offline
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.runs.header import Divergence
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train
from vgame.system.progress import Reporter

pytestmark = pytest.mark.usefixtures("one_thread")
STOP = Divergence(3, 0, 0)


@pytest.fixture(scope="module", params=["correct", "logged"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    changes = {} if request.param == "logged" else {"mode": "correct", "log": None}
    save_bundle(prepare(job(**changes)), folder)
    return load_bundle(folder)


def once(write: Callable[[], None]) -> None:
    write()


def agent(write: Callable[[], None]) -> None:
    """A writer like an agent's."""
    Retry(Reporter(), 0.0, 0.0).insist(write)


def compute(folder: Path, bundle: Bundle, insist: Callable, halt: int = 0, keep: int = 1) -> Store:
    """A run of the bundle, to the end or until it has made step `halt`."""
    if bundle.mode == "logged":
        store, stepper = LoggedStore(folder, bundle, keep), make_executor(bundle, "cpu")
        store.record(stepper)
    else:
        store = Store(folder, bundle, keep)
        stepper = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, "cpu")

    def progress(step: int, _: float) -> None:
        if step == halt:
            raise InterruptedError

    with suppress(InterruptedError):
        train(store, stepper, progress, insist)
    return store


def diverged(folder: Path, bundle: Bundle, insist: Callable) -> Store:
    """A run recorded as diverged at step 3."""
    store = compute(folder, bundle, insist, STOP.step)
    insist(lambda: store.diverged(STOP))
    return store


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Full:
    """A disk that is full at the n-th flush and the next two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
        self.flushes, self.n = 0, n
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, _: int) -> None:
        self.flushes += 1
        if self.n <= self.flushes < self.n + 3:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("run", [compute, diverged])
def test_every_failed_write_of_a_run_is_repeated(
    bundle: Bundle,
    run: Callable[..., Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = Full(monkeypatch, 10**9)
    run(tmp_path / "whole", bundle, agent)
    whole, writes = files(tmp_path / "whole"), disk.flushes
    assert writes > 5 and not capsys.readouterr().out
    opening = 2 if bundle.mode == "logged" else 1  # files that every new store writes, before any data
    for n in range(opening + 1, writes + 1):
        disk, folder = Full(monkeypatch, n), tmp_path / f"{n}"
        store = run(folder, bundle, agent)
        text = capsys.readouterr().out
        assert "No space left on device" in text and "(trying again)" in text
        assert files(folder) == whole and disk.flushes > n + 2
        store.release()
        type(store)(folder, bundle).lock()  # its checks are whole
        shutil.rmtree(folder)


def test_a_disk_that_refuses_truncation_and_removal_is_waited_for(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a quota that counts every change. A state that cannot be removed stays."""
    compute(tmp_path / "whole", bundle, once, keep=9)
    cut, remove, refused = os.truncate, Path.unlink, []

    def truncate(*args: object) -> None:
        refused.append(args)
        if len(refused) < 3:
            raise OSError(122, "Disk quota exceeded")
        cut(*args)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".safetensors":
            raise OSError(122, "Disk quota exceeded")
        remove(path, missing_ok)

    monkeypatch.setattr(os, "truncate", truncate)
    monkeypatch.setattr(Path, "unlink", unlink)
    for n in range(5, 9):
        disk = Full(monkeypatch, n)
        refused.clear()
        compute(tmp_path / f"{n}", bundle, agent, keep=9)
        assert disk.flushes > n + 2
        for name, content in files(tmp_path / "whole").items():
            assert (tmp_path / f"{n}" / name).read_bytes() == content
    assert len(refused) > 2


def test_without_an_agent_a_full_disk_is_one_sentence(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full(monkeypatch, 4)
    with pytest.raises(VgameError, match="cannot be written: No space left on device"):
        compute(tmp_path, bundle, once)


def test_a_run_is_resumed_on_a_full_disk(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted agent writes nothing before new data, also after a kill that left a check without its root."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    compute(whole, bundle, once)
    compute(folder, bundle, once, 3).release()
    with open(folder / "checks.bin", "ab") as file:
        file.write(bytes(32))
    disk = Full(monkeypatch, 1)
    compute(folder, bundle, agent)
    assert files(folder) == files(whole) and disk.flushes > 3


def test_an_audit_writes_nothing(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute(tmp_path, bundle, once)
    save_bundle(bundle, tmp_path / "job")
    before = files(tmp_path)
    Full(monkeypatch, 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert audit_offline(tmp_path, "default", None, None, 0, Reporter(json_lines=True))
    assert files(tmp_path) == before

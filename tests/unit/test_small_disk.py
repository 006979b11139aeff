"""A role without space for the whole run ends before it stakes or begins; a run that has begun continues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_tasks import squares

import vgame
from vgame.agents import auditor_service, roles
from vgame.agents.config import AgentConfig
from vgame.agents.delivery import seller_of
from vgame.agents.local_run import LocalRun
from vgame.agents.named_jobs import Limits
from vgame.delivery.sealed import Shape
from vgame.errors import StoreError
from vgame.runs.training import train
from vgame.system.progress import Reporter

pytestmark = pytest.mark.usefixtures("one_thread")
JOB = bytes(32)
STEPS = 40
MODES = {"correct": {}, "logged": {"mode": "logged", "log": vgame.LogTerms(thresholds="proven")}}
Free = Callable[[int], None]


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Free:
    usage = shutil.disk_usage(tmp_path)
    return lambda count: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=count))


def seat(folder: Path, mode: str = "correct", **terms: int) -> AgentConfig:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    task = vgame.Task(model, squares, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.randn(8, 6)}, batch=4)
    money = {"reward": 10**18, "trainer_bond": 10**18, "auditor_bond": 10**17, "diverged_pay": 0}
    job = vgame.Job(task, steps=STEPS, interval=1, terms=vgame.Terms(**money | terms), **MODES[mode])
    vgame.prepare(job, validate=0).save(folder / "bundle")
    return AgentConfig("", "", folder / "bundle", folder / "store", poll=0.0)


def begun(run: LocalRun, checkpoints: int) -> LocalRun:
    train(run.store, run.stepper, lambda *_: None, lambda write: write(), most=checkpoints)
    return run


def grown(run: LocalRun) -> int:
    """Bytes of the run's files; states count in whole blocks."""
    block = os.statvfs(run.store.folder).f_frsize
    files = [p for p in run.store.folder.rglob("*") if p.is_file() and p.name != "run.json" and p.parent.name != "job"]
    return sum(-(-p.stat().st_size // block) * block if p.parent.name == "states" else p.stat().st_size for p in files)


@pytest.mark.parametrize("made", [0, 7, STEPS])
def test_the_missing_part_of_a_run_must_fit(tmp_path: Path, free: Free, made: int) -> None:
    run = begun(LocalRun(seat(tmp_path), "cpu", Reporter()), made)
    whole = begun(LocalRun(AgentConfig("", "", tmp_path / "bundle", tmp_path / "whole"), "cpu", Reporter()), STEPS)
    missing = grown(whole) - grown(run)
    free(missing)
    run.refuse_small_disk()
    if missing:
        free(missing - 1)
        with pytest.raises(StoreError, match=r"needs [\d.]+ KB more of its disk, [\d.]+ KB are free; free"):
            run.refuse_small_disk()
    run.store.release()


@pytest.mark.parametrize("files", [0, 10**6])
def test_each_checkpoint_needs_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """`files`: all of the disk; 0 where they are not counted."""
    run, usage = LocalRun(seat(tmp_path), "cpu", Reporter()), os.statvfs(tmp_path)
    fields = {name: getattr(usage, name) for name in dir(usage) if name.startswith("f_")}
    left = SimpleNamespace(**fields | {"f_files": files, "f_favail": STEPS - 1})
    monkeypatch.setattr(os, "statvfs", lambda _: left)
    if files:
        with pytest.raises(StoreError, match="needs 40 more files, its disk takes 39; remove files, or choose"):
            run.refuse_small_disk()
        left.f_favail += 1
    run.refuse_small_disk()


def test_the_sealed_state_must_fit_too(tmp_path: Path, free: Free) -> None:
    run = LocalRun(seat(tmp_path), "cpu", Reporter())
    seller = seller_of(run.bundle, run.history, tmp_path / "store", JOB)
    sealed = sum(Shape([source.elements for source in run.bundle.program.sources]).sizes.values())
    need = _needs(run, free)
    free(need + sealed - 1)
    with pytest.raises(StoreError):
        run.refuse_small_disk(seller)
    free(need + sealed)
    run.refuse_small_disk(seller)
    begun(run, STEPS)
    seller.offer()
    free(0)
    run.refuse_small_disk(seller)  # nothing is missing


def _needs(run: LocalRun, free: Free) -> int:
    """The least free space that is not refused."""
    low, high = 0, 2**30
    while low < high:
        free(middle := (low + high) // 2)
        try:
            run.refuse_small_disk()
            high = middle
        except StoreError:
            low = middle + 1
    return low


def test_a_log_counts(tmp_path: Path, free: Free) -> None:
    run = LocalRun(seat(tmp_path, "logged"), "cpu", Reporter())
    need = _needs(run, free)
    begun(run, STEPS)
    log = (run.store.folder / "rounding.vglog").stat().st_size
    assert log and grown(run) - log < need < grown(run) + 3 * log


def _auditor(seat: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(auditor_service.Stakes, "beside", lambda *_: None)
    return auditor_service.auditor_of(SimpleNamespace(), seat, "cpu", Reporter(), Limits())  # type: ignore[arg-type]


def _delegate(seat: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(roles, "open_game", lambda *_: SimpleNamespace())
    monkeypatch.setattr(roles, "find_order", lambda *_: None)
    return roles.run_delegate(seat, JOB, Reporter())


@pytest.mark.parametrize("role", [_auditor, _delegate])
def test_a_role_without_a_stake_is_refused_before_it_begins(
    role: Callable[..., Any], tmp_path: Path, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, ran = seat(tmp_path), []
    monkeypatch.setattr(LocalRun, "run", lambda *_: ran.append(0) or 1 / 0)
    free(1000)
    with pytest.raises(StoreError, match="more of its disk"):
        role(own, monkeypatch)
    begun(run := LocalRun(own, "cpu", Reporter()), 1)
    run.store.release()
    with pytest.raises(ZeroDivisionError):  # a run that has begun waits for space
        role(own, monkeypatch)
    assert ran == [0]

"""The profile of a run: every operator is counted once, in both tables; the compiling step is not; profiling changes no
bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import vgame.tasks
from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.execute.profile import Profile
from vgame.job.bundle import Bundle
from vgame.job.file import read_job_file
from vgame.runs.folder import executor_of
from vgame.runs.prepare import prepare


@cache
def digits() -> Bundle:
    return prepare(read_job_file(Path(vgame.tasks.__file__).parent / "digits.toml"))


def test_a_finished_run_has_no_profile():
    assert "the run in this folder had already ended" in Profile(digits().program).text()


def test_every_operator_is_counted_once():
    bundle = digits()
    profile = Profile(bundle.program)
    for step in range(3):
        for i in range(len(bundle.program.operators)):
            profile.record(i, 9.0 if step == 0 else 0.001)
    count = len(bundle.program.operators)
    for rows in (profile.kinds(), profile.modules()):
        assert sum(row.operators for row in rows) == count
        assert sum(row.milliseconds for row in rows) == pytest.approx(count)  # the first step's 9 s are gone
        assert [row.milliseconds for row in rows] == sorted((row.milliseconds for row in rows), reverse=True)
    names = {row.name: row.operators for row in profile.kinds()}
    assert names["contract dot"] == 11 and names["shuffle"] == 1
    assert any(row.name == "conv2 backward" for row in profile.modules())
    assert profile.text().count("\n") > len(names) and "contract dot" in profile.text()


def test_profiling_changes_no_bit():
    executor = executor_of(digits(), "cpu")
    state = executor.initial(digits().state)
    expected = tensors_root(Kind.STATE, executor.step(1, state).state)
    profile = Profile(digits().program)
    executor.watch = profile.record
    assert tensors_root(Kind.STATE, executor.step(1, state).state) == expected
    assert profile.steps == 1 and min(profile.seconds) > 0
    assert tensors_root(Kind.STATE, executor.step(2, state).state) != expected


def test_a_program_without_labels_is_profiled():
    program = replace(digits().program, labels=type(digits().program.labels)())
    profile = Profile(program)
    profile.record(0, 1.0)
    assert [row.name for row in profile.modules()] == ["unknown"]

"""Code of the user, of libraries and of Python is distinguished: a job is refused alike in a file, at a prompt, in a
notebook and by `python -c`."""

from __future__ import annotations

import os
import re
import runpy
import site
import sys
import sysconfig
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import vgame
from vgame.program.functions_held import parts
from vgame.system.installed import is_installed, is_of_python, is_of_user, is_own_module
from vgame.tasks.reach import reached
from vgame.validation.held import Held

COUNTERS = """
import job
import torch
import vgame
from dataclasses import dataclass

class Named:
    n = 0

@dataclass
class Row:
    n: int = 0

class Counting:
    n = 0
    def __call__(self, model, batch):
        Counting.n += 1
        return late(model, batch, self.n)

class Model(torch.nn.Linear):
    n = 0
    def forward(self, x):
        Model.n += 1
        return super().forward(x) * (1.0 if Model.n < 9 else 2.0)

n, row = 0, Row()

def late(model, batch, n):
    return model(batch["x"]).sum() * (1.0 if n < 9 else 2.0)

def of_class(model, batch):
    Named.n += 1
    return late(model, batch, Named.n)

def of_object(model, batch):
    row.n += 1
    return late(model, batch, row.n)

def of_module(model, batch):
    job.n += 1
    return late(model, batch, job.n)

def of_globals(model, batch):
    global n
    n += 1
    return late(model, batch, n)

def catching(model, batch):
    try:
        return model(batch["x"]).sum() * max(1.0, batch["x"].sum().item())
    except Exception:
        return model(batch["x"]).sum()

def plain(model, batch):
    return model(batch["x"]).sum()

errors = []
for loss in (of_class, of_object, of_module, of_globals, Counting(), catching, plain):
    model = (Model if loss is plain else torch.nn.Linear)(3, 3)
    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.ones(4, 3)}, batch=2)
    try:
        vgame.prepare(vgame.Job(task, steps=1, interval=1), validate=0)
    except vgame.ProgramError as error:
        errors.append(error)
"""
MANNERS = {
    "file": "job.py", "prompt": "<stdin>", "command": "<string>", "cell": "<command-7>",
    "notebook": "/ipykernel_1/2.py",
}  # fmt: skip


@pytest.mark.parametrize("manner", MANNERS)
def test_a_counter_is_refused_wherever_its_code_is(manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, job = MANNERS[manner], types.ModuleType("job")
    if manner == "file":
        job.__file__ = file
    monkeypatch.setitem(sys.modules, "job", job)
    exec(compile(COUNTERS, file, "exec"), vars(job))
    lines = [re.split(", which|, and| by the code", str(error))[0] for error in job.errors]
    changes = [("Named.n", 32), ("row.n", 36), ("job.n", 40), ("n", 45), ("loss.n", 16)]
    name = Path(file).name
    assert lines == [
        *(f"the loss or the model changes {what} ({name} line {line})" for what, line in changes),
        f"an error while the step is traced is caught at {name} line 50",
        "the model changes its attribute `n` in the forward pass",
    ]


def test_files_of_the_user_of_libraries_and_of_python() -> None:
    library, stdlib = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
    own = ["/me/train.py", "/me/vgame/train.py", f"{stdlib}-mine/x.py", "<stdin>", "<ipython-input-1-a>"]
    assert [is_of_user(file) for file in own] == [True] * len(own)
    libraries = [f"{library}/a.py", f"{site.getusersitepackages()}/a.py", torch.__file__]
    assert [(is_installed(file), is_of_python(file)) for file in libraries] == [(True, False)] * 3
    pythons = [os.__file__, f"{stdlib}/a/b.py", "<frozen os>", "<eval_with_key>.0"]
    assert [is_of_python(file) for file in pythons] == [True] * len(pythons)
    assert not is_of_user(vgame.__file__) and not is_installed(vgame.__file__)


def test_modules_of_the_user_and_of_libraries() -> None:
    own, of_libraries = [types.ModuleType("__main__"), types.ModuleType("mine")], [os, sys, torch, nn]
    assert [is_own_module(module) for module in (*own, vgame)] == [True] * 3
    assert [is_own_module(module) for module in of_libraries] == [False] * 4


def test_objects_of_a_module_with_a_name_of_pythons_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("sched")
    own.__file__ = "/me/sched.py"
    exec("class Loss:\n    def __init__(self):\n        self.n = 0\n", vars(own))
    monkeypatch.setitem(sys.modules, "sched", own)
    assert ("loss.n", 0) in reached([("loss", own.Loss())]) and parts("loss", own.Loss()) == [("loss.n", 0)]


def test_values_of_code_in_a_folder_called_vgame_are_searched(tmp_path: Path) -> None:
    (tmp_path / "vgame").mkdir()
    (tmp_path / "vgame" / "train.py").write_text("seen = [0]\ndef loss(model, batch):\n    seen[0] += 1\n")
    names = runpy.run_path(str(tmp_path / "vgame" / "train.py"))
    before, again = (Held({"loss": names["loss"]}, nn.Identity()).found for _ in range(2))
    names["loss"](None, None)
    assert before == again != Held({"loss": names["loss"]}, nn.Identity()).found

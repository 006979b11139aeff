"""Mistakes of a first day: each is refused by one sentence with value, expectation and remedy, and with the user's line
if it is the user's code; no partial files are left."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

import vgame

LINE = r", test_beginners\.py line \d+"
X, Y = torch.linspace(-1, 1, 64).reshape(16, 4), torch.arange(16) % 3


def classify(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def bundle(
    loss: Any = classify, model: Any = None, optimizer: Any = None, data: Any = None, batch: Any = 4, **job: Any
):
    torch.manual_seed(0)
    model = model or nn.Linear(4, 3)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    task = vgame.Task(model, loss, optimizer, {"x": X, "y": Y} if data is None else data, batch=batch)
    return vgame.prepare(vgame.Job(task, **({"steps": 2, "interval": 1, "seed": 1} | job)))


def in_place(model, batch):
    h = model(batch["x"]).exp()
    h += 1
    return h.exp().sum() + h.sum()


def changes_a_parameter(model, batch):
    model.weight += 1
    return classify(model, batch)


def decides(model, batch):
    out = model(batch["x"])
    return out.mean() if out.mean() > 0 else -out.mean()


def without_gradient(model, batch):
    with torch.no_grad():
        return classify(model, batch)


def float16(model, batch):
    with torch.autocast("cpu", dtype=torch.float16):
        return classify(model, batch)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(4), 0)])


LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "reduction left out": (
        lambda m, b: F.cross_entropy(m(b["x"]), b["y"], reduction="none"),
        r"the loss has shape \(4,\) and type torch\.float32; one float32 is expected: write \.mean\(\)$",
    ),
    "another type": (
        lambda m, b: classify(m, b).double(),
        r"the loss has shape \(\) and type torch\.float64; one float32 is expected: write \.float\(\)$",
    ),
    "a key of another batch": (
        lambda m, b: m(b["input_ids"]).mean(),
        rf"KeyError: 'input_ids'{LINE}; the batch has the keys 'x', 'y'$",
    ),
    "no gradient": (
        without_gradient,
        r"depends on no trained parameter \(weight, bias\); .*without torch\.no_grad",
    ),
    "no model": (
        lambda m, b: b["x"].mean(),
        r"depends on no trained parameter \(weight, bias\); compute it from the model's",
    ),
    "no return": (lambda m, b: None, r"returns a NoneType; .*return the tensor to minimise$"),
    "a number": (lambda m, b: classify(m, b).item(), r"one float32 is expected: remove \.item\(\) and float\(\)$"),
    "a condition": (decides, rf"branches on the values of its tensors \(a condition{LINE}\)"),
    "NumPy": (lambda m, b: torch.tensor(m(b["x"]).detach().numpy()), rf"numpy\(\).*{LINE}; compute with torch only$"),
    "Python's random": (
        lambda m, b: classify(m, b) * random.random(),
        r"draws numbers from Python's random .*with torch",
    ),
    "the clock": (lambda m, b: classify(m, b) * time.time(), r"two forward passes .* differ: .*the clock"),
    "in place": (in_place, r"overwrites a tensor that the gradient needs \(output 0 of Exp\w*\); write x = x \+ y"),
    "a parameter in place": (
        changes_a_parameter,
        rf"in-place operation\.{LINE}; only the optimizer may change",
    ),
    "a device": (
        lambda m, b: classify(m, {k: t.cuda() for k, t in b.items()}),
        rf"(cuda|CUDA).*{LINE}; name no device in the loss: vgame\.train\(\.\.\., device=\.\.\.\)",
    ),
    "a wrong name": (lambda m, b: m.forwrd(b["x"]), rf"AttributeError: .*'forwrd'{LINE}$"),
    "float16": (float16, r"autocast to torch\.float16 is not supported; write torch\.autocast\(\.\., dtype=torch\.bf"),
    "a criterion": (
        nn.CrossEntropyLoss(),
        r"called as loss\(model, batch\); write a function, such as lambda model, b",
    ),
    "an operator": (
        lambda m, b: torch.linalg.eigvalsh(m(b["x"]).T @ m(b["x"])).sum(),
        r"operators that are not supported: aten\._linalg_eigh\.default in ",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_unusable_loss_is_refused(name: str) -> None:
    loss, sentence = LOSSES[name]
    refused(lambda: bundle(loss), sentence, vgame.ProgramError)


def another_models_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)


TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "a label too many": ({"data": {"x": X, "y": torch.arange(16)}}, r"y holds the index 3 in sample 3, but 0 to 2 are"),
    "labels of float": ({"data": {"x": X, "y": X[:, 0]}}, rf"got torch\.float32.*{LINE}; .*: labels\.long\(\)$"),
    "float64": ({"data": {"x": X.double(), "y": Y}}, r"x is torch\.float64, .*convert it with \.float\(\)"),
    "float16": ({"data": {"x": X.half(), "y": Y}}, r"x is torch\.float16; .*convert it with \.float\(\)"),
    "a model of float64": ({"model": nn.Linear(4, 3).double()}, r"weight, bias are torch\.float64; .*\.float\(\)"),
    "arrays": ({"data": {"x": X.numpy(), "y": Y}}, r"x is of type ndarray; .*torch\.as_tensor makes one$"),
    "lists": ({"data": {"x": X.tolist(), "y": Y}}, r"x is of type list; .*torch\.as_tensor makes one$"),
    "one tensor": (
        {"data": X},
        r"the data is a Tensor; a dictionary of tensors, a Dataset or a DataLoader is expected",
    ),
    "nothing": ({"data": {}}, r"every data tensor needs the same number of samples, got no data"),
    "lengths": ({"data": {"x": X, "y": Y[:15]}}, r"the same number of samples, got \{'x': 16, 'y': 15\}"),
    "NaN": (
        {"data": {"x": torch.where(X > 0.9, np.nan, X), "y": Y}},
        r"x holds \d+ NaN, the first in row 15; clean it",
    ),
    "a stream": ({"data": Stream()}, r"Stream has no length .*; use list\(dataset\)$"),
    "batch 0": ({"batch": 0}, r"batch = 0: a whole number of at least 1 is expected"),
    "batch 4.5": ({"batch": 4.5}, r"batch = 4\.5: a whole number"),
    "another model's optimizer": (
        {"optimizer": another_models_optimizer()},
        r"trains 2 tensors that are not parameters of the model",
    ),
    "an optimizer's class": ({"model": nn.Linear(4, 3), "optimizer": torch.optim.SGD}, r"SGD.*Optimizer is expected$"),
    "no module": (
        {"model": print, "optimizer": another_models_optimizer()},
        r"the task's model is .*; a torch\.nn\.Module is expected$",
    ),
    "another width": ({"model": nn.Linear(5, 3)}, rf"\[4, 4\] X \[5, 3\]\.{LINE}$"),
    "steps": ({"steps": -1}, r"`steps` = -1; it should be greater than or equal to 1$"),
    "half a step": ({"steps": 2.5}, r"`steps` = 2\.5; it should be a valid integer$"),
    "steps and epochs": ({"epochs": 2}, r"steps = 2, epochs = 2: either steps or epochs, more than 0, is expected"),
    "interval": ({"interval": 0}, r"`interval` = 0; it should be greater"),
    "no seed": ({"seed": None}, r"`seed` = None; it should be a valid integer$"),
    "a rate in words": ({"schedule": vgame.Constant(lr="fast")}, r"'fast'.*\"0\.01\""),
    "a rate as a number": (
        {"schedule": vgame.Constant(lr=0.1)},
        r"lr = 0\.1 is a binary number.*: write lr = \"0\.1\"$",
    ),
    "a frozen model": (
        {"model": nn.Linear(4, 3).requires_grad_(False)},
        r"all parameters \(weight, bias\) are frozen: there is nothing to train; .*requires_grad_\(True\)$",
    ),
    "a bare rate": ({"schedule": 0.1}, r"`schedule` = 0\.1; vgame\.Constant\(lr=\"0\.01\"\) or another schedule"),
    "a mode": ({"mode": "exact"}, r"`mode` = 'exact'; it should be 'correct', 'logged', 'nearest' or 'fp32'$"),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_invalid_task_or_job_is_refused(name: str) -> None:
    arguments, sentence = TASKS[name]
    refused(lambda: bundle(**arguments), sentence, vgame.VgameError)


def test_wrong_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    run = vgame.train(bundle(), tmp_path / "run")
    bundle().save(tmp_path / "bundle")
    job = vgame.Job(
        vgame.Task(nn.Linear(4, 3), classify, another_models_optimizer(), {"x": X, "y": Y}, batch=4),
        steps=1,
        interval=1,
        seed=1,
    )
    there = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    for call, sentence in {
        (lambda: vgame.train(bundle(), tmp_path / "new", device="tpu")): r"no device 'tpu'; known are default, ",
        (lambda: vgame.train(job, tmp_path / "new")): r"optimizer trains 2 tensors that are not parameters of",
        (lambda: vgame.train(bundle(seed=2), tmp_path / "run")): r"holds another job \(other seed\); choose another f",
        (lambda: vgame.Bundle.load(tmp_path / "text")): r"text/spec\.json cannot be read: .*`vgame prepare`$",
        (lambda: vgame.Bundle.load(tmp_path / "none")): r"none/spec\.json cannot be read: .*`vgame prepare`$",
        (lambda: vgame.Run.open(tmp_path / "none")): r"none is not the folder of a run: .*`vgame train JOB",
        (lambda: vgame.audit(tmp_path / "bundle")): r"bundle is not the folder of a run: .*`vgame train JOB",
        (lambda: run.state_dict(step=17)): r"step = 17: a step from 0 to 2, the last of the run, is expected",
    }.items():
        refused(call, sentence, vgame.VgameError)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == there


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (lambda m: [m.weight], r"1 parameters stay as they are; not trained, as no optimizer holds them: bias; give"),
        (
            lambda m: [{"params": [m.bias]}, {"params": [m.weight], "lr": 0.0}],
            r"1 parameters stay as they are; not trained, as their learning rate is 0: weight; give",
        ),
    ],
)
def test_parameters_that_are_not_trained_are_named(optimizer: Callable[..., Any], sentence: str) -> None:
    model = nn.Linear(4, 3)
    with pytest.warns(UserWarning, match=sentence):
        bundle(model=model, optimizer=torch.optim.SGD(optimizer(model), lr=0.1))


def test_training_a_job_file_names_untrained_parameters(tmp_path: Path) -> None:
    (tmp_path / "half_net.py").write_text(
        "import torch, vgame\nfrom torch import nn\n"
        "def task():\n    torch.manual_seed(0)\n    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))\n"
        "    loss = lambda m, b: m[1](m[0](b['x']).detach()).mean()\n"
        "    return vgame.Task(m, loss, torch.optim.SGD(m.parameters(), lr=.1), {'x': torch.ones(8, 3)}, 4)\n"
    )
    (tmp_path / "job.toml").write_text('model = "half_net:task"\nseed = 1\nsteps = 1\ninterval = 1\n')
    with pytest.warns(UserWarning, match="not trained, as no gradient reaches them: 0.weight, 0.bias"):
        vgame.train(tmp_path / "job.toml", tmp_path / "run")


def test_a_batch_larger_than_the_data_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"batch = 64 is more than the 16 samples of the data"):
        bundle(batch=64)


def refused(call: Callable[[], Any], sentence: str, kind: type[Exception]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind, match=sentence) as error:
            call()
    assert len(str(error.value)) < 350 and "\n" not in str(error.value)

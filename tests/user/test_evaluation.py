"""An evaluation: the numbers are torch's, the run is checked like every other, and a false number is found."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import forked
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vgame
from vgame.arithmetic.functions import Function
from vgame.errors import ValidationError
from vgame.program.lowering import HANDLERS


class Net(nn.Module):
    """Batch norm, dropout and a mode of its own, which behave differently in evaluation; tied weights; a buffer that no
    state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = True
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def train(self, mode: bool = True) -> nn.Module:
        self.moves = mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves:
            self.shift = self.shift + 0.25
        return self.last(self.dropout(F.relu(self.norm(self.first(x))))) + self.shift


def loss(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def measure(model: nn.Module, batch) -> dict[str, torch.Tensor]:
    logits = model(batch["x"])
    wrong = F.cross_entropy(logits, batch["y"], reduction="sum")
    return {"correct": (logits.argmax(1) == batch["y"]).sum(), "loss": wrong}


def task(measure=measure, batch: int = 10, samples: int = 40, **options) -> vgame.Task:
    torch.manual_seed(1)
    model, x, held = Net(), torch.randn(32, 4), torch.randn(samples, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    evaluation = vgame.Evaluation(measure, {"x": held, "y": held.argmax(1)}, batch)
    return vgame.Task(
        model, loss, optimizer, {"x": x, "y": x.argmax(1)}, 8, order="shuffled", evaluate=evaluation, **options
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vgame.Run:
    job = vgame.Job(task(), steps=30, interval=10, seed=3)
    return vgame.train(vgame.prepare(job), tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.usefixtures("apart")
def test_the_numbers_are_torchs_on_the_trained_weights(run: vgame.Run, tmp_path: Path) -> None:
    ordered = task()
    found = vgame.evaluate(run, ordered, tmp_path / "evaluation")
    ordered.model.load_state_dict(run.state_dict())
    ordered.model.shift = run.start().state["shift"]
    expected = measure(ordered.model.eval(), ordered.evaluate.data)
    assert found.samples == 40 and found.totals["correct"] == expected["correct"] > 20
    assert found.totals["loss"] == pytest.approx(expected["loss"].item(), rel=1e-6)
    assert found.mean("correct") == found.totals["correct"] / 40
    assert vgame.audit(found.run, device="compatible").match
    again = vgame.evaluated(tmp_path / "evaluation")
    assert again.totals == found.totals and again.run.root == found.run.root


LOG_SOFTMAX, EQUAL = torch.ops.aten._log_softmax.default, torch.ops.aten.eq.Tensor
WRONG: dict[str, tuple[Any, Any]] = {
    "loss": (LOG_SOFTMAX, lambda b, *a: b.map(Function.MUL, HANDLERS_BEFORE[LOG_SOFTMAX](b, *a), 1 + 2.0**-20)),
    "correct": (EQUAL, lambda b, *a: HANDLERS_BEFORE[torch.ops.aten.ne.Tensor](b, *a)),
}
HANDLERS_BEFORE = dict(HANDLERS)


def test_the_program_is_compared_with_the_measuring_code(run: vgame.Run, tmp_path: Path) -> None:
    found = vgame.evaluate(run, task(), tmp_path / "evaluation", validate=60)
    reply = found.run.bundle.validation
    assert reply["validated"] and reply["complete"] and reply["batches"] >= 2


@pytest.mark.parametrize("total", WRONG)
def test_a_program_that_measures_something_else_is_refused(run: vgame.Run, tmp_path: Path, total: str) -> None:
    operator, rule = WRONG[total]
    with patch.dict(HANDLERS, {operator: rule}), pytest.raises(ValidationError, match=rf"totals\.{total}"):
        vgame.evaluate(run, task(), tmp_path / "evaluation", validate=60)


def test_a_false_number_is_found(run: vgame.Run, tmp_path: Path) -> None:
    found = vgame.evaluate(run, task(), tmp_path / "evaluation")
    newest = sorted((found.run.folder / "states").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    word = found.totals["correct"].to_bytes(4, "little")
    at = data.rindex(word)
    data[at : at + 4] = (40).to_bytes(4, "little")
    newest.write_bytes(data)
    assert not vgame.audit(found.run.folder).match


def test_non_finite_values_are_reported(run: vgame.Run, tmp_path: Path) -> None:
    def infinite(model: nn.Module, batch) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch["x"]).sum() * 0 + 1) / 0}

    with pytest.raises(vgame.ProgramError, match="not finite after batch 1; measure in integers"):
        vgame.evaluate(run, task(infinite), tmp_path / "evaluation")


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"batch": 12}, "40 held-out samples are not a multiple of batch = 12; write batch=10, or leave 4"),
        ({"measure": lambda model, batch: model(batch["x"]).sum()}, "a dict of sums over the batch is expected"),
        (
            {"measure": lambda model, batch: {"logits": model(batch["x"])}},
            r"logits = a tensor of shape \(10, 4\); a tensor of one",
        ),
        ({"measure": lambda model, batch: {"samples": batch["x"].sum()}}, "the name 'samples'"),
        (
            {"measure": lambda model, batch: {"training": batch["x"].sum()}},
            "the name 'training'; .* no attribute of a module",
        ),
        ({"batch": 0}, "batch = 0: a whole number of at least 1 is expected"),
        ({"samples": 0}, "there are no held-out samples"),
    ],
)
def test_unsupported_totals_are_refused(run: vgame.Run, tmp_path: Path, changed, sentence: str) -> None:
    with pytest.raises(vgame.ProgramError, match=sentence):
        vgame.evaluate(run, task(**changed), tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()


@pytest.mark.parametrize("each, fits", [(2**23, True), (2**25, False), (-(2**25), False)])
def test_a_total_beyond_32_bits_is_refused(run: vgame.Run, tmp_path: Path, each: int, fits: bool) -> None:
    """40 samples of 2^25 are 2^30; at 2^31 the sum would wrap to -2^31, and is refused."""

    def count(model: nn.Module, batch) -> dict[str, torch.Tensor]:
        return {"tokens": (torch.full_like(batch["y"], each) + 0 * model(batch["x"]).argmax(1)).sum()}

    if fits:
        assert vgame.evaluate(run, task(count), tmp_path / "evaluation").totals == {"tokens": 40 * each}
        return
    with pytest.raises(vgame.ProgramError, match="of tokens; integers are added up in 32 bits"):
        vgame.evaluate(run, task(count), tmp_path / "evaluation")


def test_runs_of_another_module_or_without_an_evaluation_are_refused(run: vgame.Run, tmp_path: Path) -> None:
    other = task()
    other.model.last = nn.Linear(4, 4)
    with pytest.raises(vgame.ProgramError, match=r"trains another module: it has no last\.weight of shape \(4, 4\)"):
        vgame.evaluate(run, other, tmp_path / "evaluation")
    with pytest.raises(vgame.StoreError, match="not the run of a complete evaluation"):
        vgame.evaluated(run)
    job = vgame.Job(task(), steps=5, interval=5, seed=3)
    plain = vgame.Task(job.task.model, loss, job.task.optimizer, job.task.data, 8, order="shuffled")
    with pytest.raises(vgame.ProgramError, match=r"Task\(..., evaluate="):
        vgame.evaluate(run, plain, tmp_path / "evaluation")


def test_the_command(tmp_path: Path) -> None:
    """The shipped digits, briefly."""
    digits = (Path(vgame.__file__).parent / "tasks" / "digits.toml").read_text()
    job = tmp_path / "digits.toml"
    job.write_text(digits.replace("steps = 240", "steps = 20"))

    def vgame_(*words: object) -> str:
        done = forked.run([sys.executable, "-m", "vgame.cli", *map(str, words)], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "training: 20 of 20 loss " in vgame_("train", job, "--out", tmp_path / "run")
    evaluation = tmp_path / "evaluation"
    reply = json.loads(vgame_("evaluate", tmp_path / "run", job, "--out", evaluation, "--json").splitlines()[-1])
    assert reply["samples"] == 360 and 36 < reply["totals"]["correct"] <= 360
    shutil.rmtree(evaluation)
    lines = vgame_("evaluate", tmp_path / "run", job, "--out", evaluation) + vgame_("audit", evaluation)
    assert "evaluating: " in lines and "MATCH: " in lines and not re.search("training|6 loss", lines)

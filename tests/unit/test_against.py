"""`against`: the first losses of a user's own loop, compared with the program's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import vgame
from vgame.cli.commands import app
from vgame.errors import ValidationError, VgameError

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
COUNT, BATCH, STEPS = 64, 8, 12


def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {"x": torch.randn(COUNT, 16, generator=generator), "y": torch.randint(0, 5, (COUNT,), generator=generator)}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def in_bfloat16(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(model, batch)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def loop(optimizer: Any = adamw, loss: Any = loss_of, clip: float = 0.0, start: int = 0) -> list[float]:
    """A user's own loop."""
    model, samples, losses = network(), data(), []
    optimizer = optimizer(model.parameters())
    for step in range(STEPS):
        rows = (start + BATCH * step + torch.arange(BATCH)) % COUNT
        value = loss(model, {name: tensor[rows] for name, tensor in samples.items()})
        optimizer.zero_grad()
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def job(optimizer: Any = adamw, loss: Any = loss_of, order: Any = "sequential", **options: Any) -> vgame.Job:
    model = network()
    task = vgame.Task(model, loss, optimizer(model.parameters()), data(), BATCH, order=order, **options)
    return vgame.Job(task, steps=STEPS, interval=4, seed=1)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": adamw,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_losses_of_the_same_loop(name: str) -> None:
    found = vgame.prepare(job(OPTIMIZERS[name]), validate=0, against=loop(OPTIMIZERS[name])).validation
    assert found["against"]["losses"] == STEPS and found["against"]["share_of_bound"] < 0.5


def test_the_losses_of_a_loop_in_bfloat16() -> None:
    found = vgame.prepare(job(loss=in_bfloat16), validate=0, against=loop(loss=in_bfloat16)).validation
    assert found["against"]["losses"] == STEPS


def smoothed(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=1e-4)


OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "another rate": ({"optimizer": lambda p: torch.optim.AdamW(p, lr=3.001e-3)}, 2),
    "no decay of weights": ({"optimizer": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.0)}, 2),
    "clipping": ({"clip": 0.5}, 2),
    "label smoothing": ({"loss": smoothed}, 1),
    "other samples": ({"start": 8}, 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_losses_of_another_loop(name: str) -> None:
    options, step = OTHERS[name]
    with pytest.raises(
        ValidationError, match=r"^step \d+: your loop's loss is [\d.]+, the program's is [\d.]+; rounding "
    ) as e:
        vgame.prepare(job(), validate=0, against=loop(**options))
    assert int(str(e.value).split()[1][:-1]) >= step


def test_samples_that_the_job_shuffles_are_reported() -> None:
    with pytest.raises(ValidationError, match=r'draws its samples from its seed.*compare with order="sequential"'):
        vgame.prepare(job(order=None), validate=0, against=loop())


def test_a_file_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["step,loss,lr", *(f"{n},{loss:.5f},0.003" for n, loss in enumerate(loop(), 1))]
    (tmp_path / "losses.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "job.toml").write_text('model = "test_against:task"\nseed = 1\nsteps = 12\ninterval = 4\n')
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    call = ["prepare", str(tmp_path / "job.toml"), "--against", str(tmp_path / "losses.csv"), "--out"]
    done = CliRunner().invoke(app, [*call, str(tmp_path / "bundle")])
    assert done.exit_code == 0 and done.output.count("validated: ") == 1, done.output
    assert json.loads((tmp_path / "bundle/validation.json").read_text())["against"]["losses"] == STEPS
    lines[3] = lines[3].replace(",", ",1", 1)
    (tmp_path / "losses.csv").write_text("\n".join(lines))
    done = CliRunner().invoke(app, [*call, str(tmp_path / "other")])
    assert done.exit_code == 1 and not (tmp_path / "other").exists()


def task() -> vgame.Task:
    return job().task


BAD = {
    "nothing": ("", "has no losses; the losses of the first steps"),
    "words": ("a,b\nc,d\n", "loss 1 is 'a,b'; one number per line is expected"),
    "a hole": ("step,loss\n1,0.5\n2,\n", "loss 2 is ''; one number per line"),
    "several columns": ("1,0.5\n2,0.4\n", "loss 1 is '1,0.5'; one number per line is expected"),
    "not finite": ("loss\n0.5\nnan\n", "loss 2 is nan; finite numbers are expected"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_without_losses(name: str, tmp_path: Path) -> None:
    text, sentence = BAD[name]
    (tmp_path / "losses.csv").write_text(text)
    with pytest.raises(VgameError, match=sentence):
        vgame.prepare(job(), validate=0, against=tmp_path / "losses.csv")
    with pytest.raises(VgameError, match=r"cannot be read: .*a CSV file with a column `loss` is expected"):
        vgame.prepare(job(), validate=0, against=str(tmp_path / "none.csv"))

"""Warnings where a job differs from a loop: a model in evaluation mode, a training that diverged."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vgame


def task(model: nn.Module, labels: torch.Tensor | None = None) -> vgame.Task:
    torch.manual_seed(0)
    x, y = torch.randn(32, 6), torch.arange(32) % 3 if labels is None else labels
    loss = lambda m, b: cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": x, "y": y}, 8, order="sequential")


def network(*inner: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), *inner, nn.Linear(16, 3))


class Dropped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ([nn.BatchNorm1d(16), nn.Dropout(0.1)], "BatchNorm1d, Dropout"),
        ([nn.Dropout(0.5)], "Dropout"),
        ([Dropped()], "Dropped"),
    ],
)
def test_a_model_in_evaluation_mode_gives_a_warning(inner: list[nn.Module], named: str) -> None:
    with pytest.warns(UserWarning, match=f"evaluation mode.* is trained in training mode, with {named}"):
        vgame.prepare(vgame.Job(task(network(*inner).eval()), steps=2))


class Pooled(nn.Module):
    """Generalised mean pooling with a trained exponent of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(16) * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.p


def test_a_mode_that_does_not_matter_gives_no_warning() -> None:
    partly = network(nn.BatchNorm1d(16))
    partly[1].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (
            network(Pooled()).eval(),
            network(nn.Tanh(), nn.Dropout(0.0)).eval(),
            network(nn.Dropout(0.1)),
            partly,
        ):
            vgame.prepare(vgame.Job(task(model), steps=2))


def test_a_training_that_diverges_gives_a_warning(tmp_path: Path) -> None:
    """A batch without a label has a loss of nan; a loop of torch continues after it."""
    labels = torch.arange(32) % 3
    labels[16:24] = -100
    bundle = vgame.prepare(vgame.Job(task(network(nn.Tanh()), labels), steps=4, interval=1), validate=0)
    with pytest.warns(UserWarning, match=r"diverged at step 3: element 0 of operator .* are those of step 2"):
        run = vgame.train(bundle, tmp_path / "run")
    assert run.divergence is not None and len(run.losses) == 2

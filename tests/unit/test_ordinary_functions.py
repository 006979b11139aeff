"""Functions of ordinary training scripts are captured exactly, as validation finds, or refused with the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

import vgame
from vgame.errors import DataError, ProgramError, VgameError
from vgame.program.capture import capture

Loss = Callable[[nn.Module, Any], torch.Tensor]


def data() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(32, 6, generator=made),
        "y": torch.randint(0, 3, (32,), generator=made),
        "t": torch.rand(32, 3, generator=made),
        "n": torch.randint(1, 4, (32,), generator=made),
    }


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def usual(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def task_of(loss: Loss, model: nn.Module | None = None, **options: Any) -> vgame.Task:
    model = model or plain()
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data(), 8, **options)


def is_exact(task: vgame.Task) -> bool:
    """Whether validation has compared the program with the task's own code."""
    return vgame.prepare(vgame.Job(task, steps=6, interval=3), validate=60).validation["validated"]


class Counting(nn.Module):
    """A normalisation, and a buffer that is replaced at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.norm(x) * (1 + 0.1 * self.calls)


class Checkpointed(nn.Module):
    """Its inner modules run twice in each step, so their buffers change twice."""

    def __init__(self, reentrant: bool, inner: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant, self.first, self.last = reentrant, nn.Linear(6, 8), nn.Linear(8, 3)
        self.inner = nn.Sequential(nn.Linear(8, 8), inner, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_buffers_of_a_checkpointed_part(reentrant: bool, accumulate: int) -> None:
    assert is_exact(task_of(usual, Checkpointed(reentrant, nn.BatchNorm1d(8)), accumulate=accumulate))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_buffer_that_a_checkpointed_part_reads_too(reentrant: bool) -> None:
    """torch's second call of the part computes with the buffer that the first one left."""
    assert is_exact(task_of(usual, Checkpointed(reentrant, Counting())))


@contextmanager
def detecting() -> Iterator[None]:
    torch.autograd.set_detect_anomaly(True)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(False)


def in_the_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autograd.detect_anomaly():
        found = usual(model, batch)
        (gradient,) = torch.autograd.grad(found, model[0].weight, create_graph=True)
        return found + gradient.square().sum()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_the_detection_of_anomalies() -> None:
    with detecting():
        assert capture(task_of(usual)) and capture(task_of(in_the_loss))
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert capture(task_of(in_the_loss)) and not torch.is_anomaly_enabled()


VARIANCES: dict[str, Callable[[torch.Tensor], Any]] = {
    "each element": lambda y: y.exp(),
    "each row": lambda y: y.exp().mean(1),
    "each row, a column": lambda y: y.exp().mean(1, keepdim=True),
    "one number": lambda y: 2.0,
    "some below the least": lambda y: F.relu(y),
}


@pytest.mark.parametrize("variance", VARIANCES.values(), ids=VARIANCES)
def test_gaussian_nll_loss(variance: Callable[[torch.Tensor], Any]) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        y = model(batch["x"])
        return F.gaussian_nll_loss(y, batch["t"], variance(y), full=True, eps=0.1, reduction="sum") / 8

    assert is_exact(task_of(loss))


def weighted(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], weight=8 / (1 + torch.bincount(batch["y"], minlength=3)))


def sums(model: nn.Module, batch: Any) -> torch.Tensor:
    shares = torch.bincount(batch["y"], weights=batch["t"][:, 0], minlength=4)
    return usual(model, batch) + (shares * torch.arange(4.0)).sum() * model[0].bias.sum()


def of_guesses(model: nn.Module, batch: Any) -> torch.Tensor:
    y = model(batch["x"])
    return (y * y.argmax(1).bincount(minlength=3)).mean() + usual(model, batch)


def of_constants(model: nn.Module, batch: Any) -> torch.Tensor:
    return usual(model, batch) + (torch.tensor([0, 1, 1, 2]).bincount() * model(batch["x"])).mean()


@pytest.mark.parametrize("loss", [weighted, sums, of_guesses, of_constants], ids=lambda loss: loss.__name__)
def test_bincount(loss: Loss) -> None:
    assert is_exact(task_of(loss))


COVARIANCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "covariances": lambda y: torch.cov(y.T),
    "covariances, divided by n": lambda y: y.T.cov(correction=0),
    "a variance": lambda y: torch.cov(y[:, 0]),
    "correlations": lambda y: torch.corrcoef(y.T).triu(1),
}


@pytest.mark.parametrize("found", COVARIANCES.values(), ids=COVARIANCES)
def test_covariances(found: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert is_exact(task_of(lambda m, b: found(m(b["x"])).square().sum()))


def packed(model: nn.Module, batch: Any) -> torch.Tensor:
    return rnn.pack_padded_sequence(batch["x"].view(-1, 3, 2), batch["n"], True, False).data.mean()


def ctc(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.ctc_loss(model(batch["x"]).log_softmax(1)[:, None], batch["y"][:2, None], [8], [2])


REFUSED: dict[str, tuple[Loss, type[VgameError], str]] = {
    "bincount of unknown length": (
        lambda m, b: usual(m, b) + b["y"].bincount().float().std(), ProgramError,
        r"bincount without minlength \(test_ordinary_functions.py line \d+\)",
    ),
    "bincount of too great numbers": (
        lambda m, b: usual(m, b) + (b["y"].bincount(minlength=2) * m[0].bias.sum()).sum(), DataError,
        "the data y holds the index 2 in sample",
    ),
    "packed sequences": (packed, ProgramError, r"pack_padded_sequence \(test_ordinary_functions.py line \d+\) makes"),
    "covariances of three dimensions": (
        lambda m, b: torch.cov(m(b["x"])[None]).sum(), ProgramError, "expected input to have two or fewer dimensions",
    ),
    "weights of covariances": (
        lambda m, b: torch.cov(m(b["x"]).T, aweights=b["t"][:, 0]).sum(), ProgramError,
        r"cov with weights \(test_ordinary_functions.py line \d+\) is not supported",
    ),
    "an operator that fails with the data": (
        lambda m, b: m(b["x"]).repeat_interleave(b["n"], dim=0, output_size=3).mean(), DataError,
        r"repeat_interleave.Tensor in loss, .* line \d+ fails with samples of the data, as it would in a loop: al",
    ),
    "ctc_loss": (ctc, ProgramError, r"ctc_loss \(test_ordinary_functions.py line \d+\) is not supported"),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(loss: Loss, error: type[VgameError], text: str) -> None:
    with pytest.raises(error, match=text):
        vgame.prepare(vgame.Job(task_of(loss), steps=6, interval=3), validate=0)

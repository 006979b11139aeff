"""Wrapped models, and losses that leave something behind, are refused with the user's line or the right advice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_tasks import Made, lowered
from torch import nn

from vgame.errors import ProgramError

pytestmark = pytest.mark.usefixtures("one_thread")


class OptimizedModule(nn.Sequential):
    """Stands for the class of torch.compile, whose import changes torch for later tests."""

    __module__ = "torch._dynamo.eval_frame"


def _compiled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("Detected that you are using FX to symbolically trace a dynamo-optimized function.")


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        (nn.DataParallel, "the model is wrapped: DataParallel; pass its .module"),
        (lambda m: nn.Sequential(nn.DataParallel(m)), "the module 0 is wrapped: DataParallel"),
        (lambda m: torch.jit.trace(m, torch.ones(2, 3)), "ScriptModule; pass the module from which torch.jit made it"),
        (torch.jit.script, "ScriptModule; pass the module"),
        (lambda m: OptimizedModule(m), "OptimizedModule; pass the module without torch.compile"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrapped_models_are_refused(wrapped, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(wrapped(nn.Sequential(nn.Linear(3, 3))))


OUTSIDE = torch.zeros(3)


def _assigned(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    OUTSIDE[:] = x.mean(0)
    return x + OUTSIDE


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (_compiled, r"test_wrapped.py line \d+; remove torch.compile: vgame captures the step itself"),
        (
            lambda m, x: F.dropout(m.first(x), training=m.training) + 0 * m.eval().first(x),
            r"another mode \(\(model\), fi",
        ),
        (lambda m, x: x + OUTSIDE.add_(1.0), r"is not a buffer of it .*test_wrapped.py line \d+\); make it one"),
        (_assigned, r"is not a buffer of it .*test_wrapped.py line \d+\); make it one"),
        (
            lambda m, x: x + x[:, :0].sum(),
            r"aten.sum.default \(of a tensor without elements\) in \(model\), test_wrapped",
        ),
        (lambda m, x: F.embedding(torch.arange(4), m.first.weight, max_norm=0.1) + x, "make them buffers"),
    ],
)
def test_state_that_a_loss_leaves_behind_is_named(then, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(Made(then))


def test_an_embedding_that_limits_its_rows_is_named() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0))
    with pytest.raises(ProgramError, match=r"writes to its parameters 0.weight \(in 0, .*; remove max_norm of 0"):
        lowered(model, {"x": torch.arange(8) % 5})


class Logging:
    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []

    def __call__(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.losses.append(model(batch["x"]).mean())
        return sum(self.losses)


def test_a_log_of_losses_is_named_with_its_line() -> None:
    with pytest.raises(ProgramError, match=r"loss.losses.1 \(test_wrapped.py line \d+\), which a program does not"):
        lowered(nn.Linear(3, 3), loss=Logging())

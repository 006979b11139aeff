"""Gradients equal those of torch's loop: also from backward passes inside the backward pass, and in models that test
whether a tensor is a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_tasks import lowered
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from traced import Case, compare
from typer.testing import CliRunner

import vgame
from vgame.cli import app
from vgame.errors import ProgramError

pytestmark = pytest.mark.usefixtures("one_thread")

Forward = Callable[["Net", torch.Tensor], torch.Tensor]


class Again(torch.autograd.Function):
    """A layer that is recomputed and differentiated in the backward pass."""

    @staticmethod
    def forward(context, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        context.layer = layer
        context.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x = context.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = context.layer(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class Special(nn.Parameter):
    """A class of the user's own."""


class Net(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.each = nn.ParameterList(torch.randn(3, 3) for _ in range(3))
        self.named = nn.ParameterDict({"a": torch.ones(3), "b": torch.ones(3)})
        self.special, self.kept = Special(torch.ones(3)), nn.Buffer(torch.ones(3))
        self.special.factor = 2.0
        self.how = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)


def reentrant(part: Callable, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(part, x, use_reentrant=True)


def _layers(weights, x: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x


def _tests_for_parameters(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = _layers([w for w in m.parameters() if isinstance(w, nn.Parameter) and w.shape == (3, 3)], x)
    if isinstance(m.special, Special) and not isinstance(m.first.weight, Special):
        x = x * m.special * getattr(m.special, "factor", 1.0)
    return m.last(x)


FORWARD: dict[str, Forward] = {
    "checkpoints from the first layer on": lambda m, x: m.last(
        reentrant(m.second, reentrant(m.first, x.requires_grad_()))
    ),
    "a checkpoint behind a layer": lambda m, x: m.last(reentrant(m.second, m.first(x))),
    "a sequence of checkpoints": lambda m, x: m.last(
        checkpoint_sequential(nn.Sequential(m.first, nn.Tanh(), m.second), 2, x.requires_grad_(), use_reentrant=True)
    ),
    "a checkpoint around the model": lambda m, x: reentrant(lambda y: m.last(m.first(y)), x.requires_grad_()),
    "a checkpoint in a checkpoint": lambda m, x: m.last(
        reentrant(lambda y: reentrant(m.second, m.first(y)) * 2, x.requires_grad_())
    ),
    "one layer in two checkpoints": lambda m, x: m.last(reentrant(m.first, reentrant(m.first, x.requires_grad_()))),
    "a function that calls backward": lambda m, x: m.last(
        Again.apply(torch.tanh(Again.apply(m.first(x), m.second)), m.second)
    ),
    "a slice of a list": lambda m, x: m.last(_layers(m.each[:-1], x)),
    "a list made of parameters": lambda m, x: m.last(_layers(nn.ParameterList([m.each[0], m.each[2]]), x)),
    "a copied dictionary": lambda m, x: m.last(x * sum(m.named.copy().values())),
    "tests for a parameter": _tests_for_parameters,
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_parameters_move_as_in_torchs_loop(name: str) -> None:
    compare(Case(lambda: Net(FORWARD[name]), lambda: {"x": torch.randn(10, 3)}, steps=2, recorded=False))


def test_a_buffer_of_torchs_class_is_recognised() -> None:
    def _tests_for_a_buffer(m: Net, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(m.kept, nn.Buffer)
        return m.last(x)

    assert lowered(Net(_tests_for_a_buffer)).program.operators


def squares(model: nn.Module, batch) -> torch.Tensor:
    return model(batch["x"]).square().mean()


def _keeps(model: nn.Module, batch) -> torch.Tensor:
    loss = squares(model, batch)
    loss.backward(retain_graph=True)
    return loss


def _penalty(model: nn.Module, batch) -> torch.Tensor:
    model.first.weight.square().sum().backward()
    return squares(model, batch)


def _attack(model: nn.Module, batch) -> torch.Tensor:
    x = batch["x"].clone().requires_grad_()
    squares(model, {"x": x}).backward()
    return squares(model, {"x": (x + x.grad.sign()).detach()})


@pytest.mark.parametrize("loss", [_keeps, _penalty, _attack])
def test_a_loss_that_calls_backward_is_refused_with_its_line(loss) -> None:
    with pytest.raises(ProgramError, match=r"the loss calls backward, test_gradients\.py line \d+; remove backward"):
        lowered(Net(lambda m, x: m.last(m.first(x))), loss=loss)


def test_a_loss_may_compute_gradients_that_it_clears() -> None:
    def loss(model: nn.Module, batch) -> torch.Tensor:
        x = batch["x"].clone().requires_grad_()
        squares(model, {"x": x}).backward()
        model.zero_grad()
        return squares(model, {"x": (x + 0.1 * x.grad.sign()).detach()})

    data = {"x": torch.randn(8, 3)}
    compare(Case(lambda: Net(lambda m, x: m.last(m.first(x))), lambda: data, loss, recorded=False))
    with pytest.raises(ProgramError, match="the loss clears gradients"):  # also those of other batches
        lowered(Net(lambda m, x: m.last(m.first(x))), loss=loss, accumulate=2)


# ---- parameters without a gradient ----


def job(forward: Forward) -> vgame.Job:
    model = Net(forward)
    task = vgame.Task(model, squares, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.ones(8, 3)}, batch=4)
    return vgame.Job(task, steps=1, interval=1, seed=1)


UNTRAINED = ("special", "first.weight", "first.bias", "second.weight", "second.bias", "each.0", "each.1", "each.2")


def test_parameters_without_a_gradient_are_named() -> None:
    """As in torch, a re-entrant checkpoint of an input without a gradient gives none."""
    with pytest.warns(
        UserWarning, match=r"^10 parameters stay as they are; not trained, as no gradient reaches them: sp"
    ):
        bundle = vgame.prepare(job(lambda m, x: m.last(reentrant(m.first, x))))
    assert bundle.without_gradient == (*UNTRAINED, "named.a", "named.b")


def test_the_command_line_names_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "untrained_net.py").write_text(
        "import torch, vgame\nfrom torch import nn\n"
        "def task():\n    torch.manual_seed(0)\n    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))\n"
        "    loss = lambda m, b: m[1](m[0](b['x']).detach()).mean()\n"
        "    return vgame.Task(m, loss, torch.optim.SGD(m.parameters(), lr=.1), {'x': torch.ones(8, 3)}, 4)\n"
    )
    (tmp_path / "job.toml").write_text('model = "untrained_net:task"\nseed = 1\nsteps = 1\ninterval = 1\n')
    with pytest.warns(UserWarning, match=r"not trained, as no gradient reaches them: 0.weight, 0.bias"):
        done = CliRunner().invoke(app, ["prepare", str(tmp_path / "job.toml"), "--out", str(tmp_path / "bundle")])
    assert done.exit_code == 0, done.output


def test_a_loss_that_depends_on_its_data_alone_is_refused() -> None:
    with pytest.raises(ProgramError, match="depends on no trained parameter"):
        lowered(Net(lambda m, x: x.requires_grad_() * m.last.weight.detach().sum()))
    model = Net(lambda m, x: F.relu(x.requires_grad_()))
    with pytest.raises(ProgramError, match="depends on no trained parameter"):
        lowered(model)


def test_a_loss_that_reads_a_gradient_is_refused() -> None:
    """It is that of the step before, if the loop calls zero_grad() after the forward pass."""
    with pytest.raises(ProgramError, match=r"reads the gradient of last.bias, test_gradients.py line \d+, which is"):
        lowered(Net(lambda m, x: m.last(x) if m.last.bias.grad is None else x))

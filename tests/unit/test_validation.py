"""The program is compared with the task's own code (docs/validation.md): right programs pass, wrong ones are found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vgame
from vgame.errors import BundleError, ValidationError, VgameError
from vgame.program.lower import lower_task
from vgame.program.lowering import HANDLERS
from vgame.tasks.task import Task
from vgame.validation.report import Order, Report
from vgame.validation.steps import validate

pytestmark = pytest.mark.usefixtures("one_thread")
aten = torch.ops.aten


def data(count: int = 20) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"x": torch.randn(count, 6, generator=generator), "y": torch.randn(count, 4, generator=generator)}


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 4))


def task(model: nn.Module | None = None, loss: Any = squares, optimizer: Any = None, **options: Any) -> Task:
    model = model or network()
    make = optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-3))
    return Task(model, loss, make(model.parameters()), data(), 4, **options)


def report(one: Task, steps: int = 12, seconds: float = 100.0, schedule: Any = None) -> Report:
    lowered = lower_task(one, schedule, steps)
    return validate(Order(one, lowered, lowered.state, schedule, 11, steps), seconds)


def test_a_step_with_everything_is_the_same() -> None:
    found = report(task(clip=1.0, clip_value=0.1, accumulate=2, average=0.99))
    assert found.complete and found.steps == [1, 2] and found.batches == 4 and not found.tally.flips
    assert set(found.tally.compared) == {"loss and gradients", "clipping", "optimizer", "average"}


class Freezing(nn.Sequential):
    """As the backbones of mmdetection, whose train() calls _freeze_stages."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[0].requires_grad_(not mode)
        return self


def test_parameters_that_train_freezes_are_not_trained() -> None:
    model = Freezing(nn.Linear(6, 8), nn.Linear(8, 4))
    one = task(model, optimizer=lambda p: torch.optim.AdamW(p, weight_decay=0.1))
    assert report(one).complete
    assert lower_task(one, None, 2).marks.turns[0].gradients.keys() == {"1.weight", "1.bias"}
    assert all(p.requires_grad for p in model.parameters()), "a capture does not change the model"


class FreezingLater(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.__class__ is torch.Tensor:  # not in the capture
            self.bias.requires_grad_(False)
        return super().forward(x)


def test_a_parameter_that_only_torch_freezes_is_found() -> None:
    with pytest.raises(ValidationError, match=r"gradient.bias differs in .* only the program computes it"):
        report(task(FreezingLater(6, 4)))


class Adapted(nn.Sequential):
    """As in libraries of adapters, parameters() gives the optimizer the adapter alone."""

    def parameters(self, recurse: bool = True) -> Any:
        return self[1].parameters()


def test_parameters_that_the_model_does_not_give_are_not_trained() -> None:
    one = task(Adapted(nn.Linear(6, 8), nn.Linear(8, 4)), clip=0.01)
    assert report(one).complete and lower_task(one, None, 2).marks.turns[0].gradients.keys() == {"1.weight", "1.bias"}
    assert one.model[0].weight.grad is None


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "asgd that averages": lambda p: torch.optim.ASGD(p, t0=2),
    "two rates of the same words": lambda p: torch.optim.SGD(
        [{"params": each, "lr": rate} for each, rate in zip([*p], (0.1, 0.1 + 1e-10) * 2, strict=True)]
    ),
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_form_of_an_optimizer(name: str) -> None:
    assert report(task(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), optimizer=OPTIMIZERS[name])).complete


def test_a_mean_of_squares_is_drawn_above_the_square_of_a_mean() -> None:
    """If both were drawn alike, the difference would have no correct digits for some of so many elements."""
    model = nn.Sequential(nn.Linear(6, 4000), nn.Tanh(), nn.Linear(4000, 4))
    assert report(task(model, optimizer=OPTIMIZERS["rmsprop"])).complete


def test_parameters_that_are_frozen_for_a_while() -> None:
    assert report(task(frozen={"0.*": 5, "4.bias": (3, 4)}, clip=0.5, average="equal")).complete


@pytest.mark.parametrize("order", ["sequential", "streams", "replacement", [3, 1, 2, 3, 3], None])
def test_every_order(order: Any) -> None:
    assert report(task(order=order)).complete


def test_samples_that_are_drawn_by_weights() -> None:
    assert report(task(weights=torch.arange(20.0))).complete


class Groups(nn.Module):
    """Rows of each expert: the forms of torch's product of groups, two of them by its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(
            x[:, :4] * self.experts.sum(), self.experts, offs=torch.tensor([1, 3, 4], dtype=torch.int32)
        )


def test_products_of_groups() -> None:
    assert report(task(Groups())).complete


@pytest.mark.parametrize("scale", [30, 100, 200])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_probabilities_next_to_0_and_1(scale: float, reduction: str) -> None:
    """torch divides by no less than 1e-12, a number of binary32 also in binary64."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        chance, right = torch.sigmoid(model(batch["x"]) * scale), (batch["y"] > 0).float()
        return F.binary_cross_entropy(chance, right, batch["y"].square(), reduction=reduction)

    torch.manual_seed(0)
    assert report(task(nn.Linear(6, 4), loss)).complete


LIMITS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "below": lambda x, limit: torch.clamp(x, limit, 0.3),
    "above": lambda x, limit: x.clip(-0.3, max=limit),
    "in place": lambda x, limit: (x * 1).clamp_(min=limit, max=0.3),
    "both": lambda x, limit: x.clamp(limit, limit + 0.2),
}


@pytest.mark.parametrize("limited", LIMITS.values(), ids=LIMITS)
def test_a_limit_that_follows_from_the_data(limited: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return limited(model(batch["x"]), batch["x"].mean()).square().mean()

    torch.manual_seed(0)
    assert report(task(nn.Linear(6, 4), loss)).complete


def test_losses_that_take_turns() -> None:
    model = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(4, 4)})
    losses = [
        lambda m, batch: F.mse_loss(m["b"](m["a"](batch["x"])), batch["y"]),
        lambda m, batch: m["b"](m["a"](batch["x"]).detach()).square().mean(),
    ]
    optimizers = [torch.optim.SGD(model["a"].parameters(), lr=0.1), torch.optim.Adam(model["b"].parameters())]
    assert report(Task(model, losses, optimizers, data(), 4)).complete


# ---- found differences ----


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, aten.gelu.default, lambda b, x, approximate="none": HANDLERS[aten.relu.default](b, x))
    with pytest.raises(ValidationError, match=r"loss differs in the stage 'loss and gradients' of step 1"):
        report(task())


def test_a_layer_that_the_program_does_not_train_is_found() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
                hidden = hidden.detach()  # the effect of a capture that traces other code than eager
            return self.second(hidden)

    with pytest.raises(ValidationError, match=r"first.weight differs .* only your code computes it"):
        report(task(Cut()))


@pytest.fixture(autouse=True)
def no_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))


def calls() -> int:
    file = Path(os.environ["CALLS"])
    return int(file.read_text()) if file.exists() else 0


def nth_call() -> int:
    """Counted outside the capture's view, in a file."""
    Path(os.environ["CALLS"]).write_text(str(calls() + 1))
    return calls()


def test_the_model_stays_unchanged_also_if_its_code_fails() -> None:
    model = network()

    def loss(m: nn.Module, batch: Any) -> torch.Tensor:
        if nth_call() > 2:
            raise KeyError("no such thing")
        return squares(m, batch)

    one = task(model, loss)
    before, chance = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    found = report(one)
    assert "KeyError: 'no such thing'" in found.unchecked[0] and not found.tally.compared
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and torch.equal(chance, torch.get_rng_state())


def test_a_random_draw_missing_in_the_program_is_never_a_pass() -> None:
    def loss(m: nn.Module, batch: Any) -> torch.Tensor:
        noise = torch.rand_like(batch["x"]) if nth_call() > 2 else torch.zeros_like(batch["x"])
        return F.mse_loss(m(batch["x"] + noise), batch["y"])

    found = report(task(nn.Linear(6, 4), loss))
    assert "random numbers of aten.rand_like" in found.unchecked[0] and not found.tally.compared


def test_the_comparison_stops_after_its_seconds() -> None:
    found = report(task(), seconds=1e-3)
    assert found.unchecked == ["the part after 0.001 seconds"] and not found.tally.compared


# ---- the bundle, the API, the command line ----


def test_the_comparison_is_in_the_bundle(tmp_path: Path) -> None:
    job = vgame.Job(task(), steps=3, interval=1, seed=1)
    bundle = vgame.prepare(job, validate=60)
    bundle.save(tmp_path)
    record = json.loads((tmp_path / "validation.json").read_text())
    assert record["validated"] and record["complete"] and record["program_root"] == bundle.program.root.hex()
    assert vgame.Bundle.load(tmp_path).validation == record == bundle.validation
    plain = vgame.prepare(job, validate=0)
    assert not plain.validation["validated"] and plain.identity == bundle.identity
    (tmp_path / "validation.json").unlink()
    assert vgame.Bundle.load(tmp_path).validation is None


@pytest.mark.parametrize("found", ["{}", "[]", '{"compared": {"loss": "many"}}', "{"])
def test_an_invalid_record_is_refused_when_the_bundle_is_read(found: str, tmp_path: Path) -> None:
    """Bundles are untrusted; a notebook and a model card show the record."""
    vgame.prepare(vgame.Job(task(), steps=3, interval=1, seed=1), validate=0).save(tmp_path)
    (tmp_path / "validation.json").write_text(found)
    with pytest.raises(BundleError, match=r"validation\.json is damaged: .*delete it, no root depends on it"):
        vgame.Bundle.load(tmp_path)


def test_a_number_of_seconds_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    job = vgame.Job(task(nn.Linear(6, 4)), steps=3, interval=1, seed=1)
    with pytest.raises(VgameError, match="validate = -1: a number of seconds is expected"):
        vgame.prepare(job, validate=-1)
    monkeypatch.setenv("VGAME_VALIDATE", "soon")
    with pytest.raises(VgameError, match="VGAME_VALIDATE = soon: a number of seconds is expected"):
        vgame.prepare(job)
    monkeypatch.setenv("VGAME_VALIDATE", "30")
    assert vgame.prepare(job).validation["validated"]


# ---- data, and state outside the model ----


class Pairs(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.x = torch.randn(40, 6)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "y": self.x[i, :4]}


def test_a_data_set_that_changes_while_it_is_read_is_found() -> None:
    class Later(Pairs):
        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            found = super().__getitem__(i)
            return found | {"x": found["x"] + (nth_call() if calls() else 0)}

    model = nn.Linear(6, 4)
    one = Task(model, squares, torch.optim.SGD(model.parameters(), lr=0.1), Later(), 4)
    nth_call()
    with pytest.raises(ValidationError, match=r"Later gives another sample \d+ when it is read again"):
        report(one)


def test_a_collation_that_computes_over_its_batch_later_is_found() -> None:
    def centred(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        x = torch.stack(samples)
        return {"x": x - x.mean(0) if nth_call() > 5 else x, "y": x[:, :4]}

    model = nn.Linear(6, 4)
    loader = torch.utils.data.DataLoader(torch.randn(12, 6), 4, collate_fn=centred)
    one = Task(model, squares, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with pytest.raises(ValidationError, match="collate_fn gives other rows of x"):
        report(one)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.calls += nth_call() > 2
        return F.mse_loss(a, b) if self.calls < 50 else F.l1_loss(a, b)


def test_a_criterion_that_counts_from_its_third_call_on_is_found() -> None:
    criterion = Counting()
    with pytest.raises(
        ValidationError,
        match=r"criterion in the loss \(test_validation.py line \d+\)\.calls has changed after the compared steps",
    ):
        report(task(nn.Linear(6, 4), lambda m, batch: criterion(m(batch["x"]), batch["y"])))

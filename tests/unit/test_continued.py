"""Jobs that continue a run, compared with a torch loop that continues with the same model and optimizer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from wide import of_many

import vgame

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.05),
    "amsgrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.05),
    "radam": lambda p: optim.RAdam(p, lr=0.05),
}
Frozen = Mapping[str, tuple[int, int]]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data(count: int = 32, seed: int = 1) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)), "y": torch.arange(count) % 3}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def trained(folder: Path, make: Callable, steps: int, initial=None, found=None, order="sequential", **options):
    model = net()
    task = vgame.Task(model, loss, make(model.parameters()), found or data(), 8, order=order, **options)
    return vgame.train(vgame.prepare(vgame.Job(task, steps=steps, interval=steps, initial=initial)), folder)


def by_torch(make: Callable, jobs: list[tuple[int, Frozen]]) -> nn.Module:
    model, samples, place = net(), data(), 0
    optimizer = make(model.parameters())
    for steps, frozen in jobs:
        for step in range(1, steps + 1):
            for name, p in model.named_parameters():
                p.requires_grad_(not any(fnmatchcase(name, n) and a <= step <= z for n, (a, z) in frozen.items()))
            optimizer.zero_grad()
            loss(model, {name: t[place : place + 8] for name, t in samples.items()}).backward()
            optimizer.step()
            place = (place + 8) % 32
    return model


@pytest.mark.parametrize("make", of_many(OPTIMIZERS.values(), OPTIMIZERS["adamw"]), ids=OPTIMIZERS)
@pytest.mark.parametrize(
    "frozen",
    [
        [{"0.*": (1, 2)}, {}],
        [{"0.*": (2, 2), "2.bias": (3, 9)}, {}],
        [{"0.*": (1, 1)}, {"0.*": (2, 3)}],
        [{"0.*": (1, 2)}, {}, {"2.*": (1, 1), "0.weight": (1, 2)}],
        [{"0.*": (2, 2)}, {"0.*": (1, 9)}, {}],
    ],
)  # fmt: skip
def test_frozen_counts_the_steps_of_its_own_job(make: Callable, frozen: list[Frozen], tmp_path: Path) -> None:
    """The optimizer's counts of a parameter continue those of the run."""
    run = None
    for number, each in enumerate(frozen):
        run = trained(tmp_path / str(number), make, 3, run and run.folder, frozen=each)
    want = by_torch(make, [(3, each) for each in frozen]).state_dict()
    for name, tensor in run.state_dict().items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-4, atol=1e-5)


def test_frozen_steps_of_anothers_file_are_checked(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", OPTIMIZERS["adamw"], 3, frozen={"0.*": 2})
    file = run.folder / "job/validation.json"
    file.write_text(file.read_text().replace('"frozen": {', '"frozen": {"2.bias": 5, '))
    with pytest.raises(vgame.VgameError, match=r"`frozen` of the run's validation.json is not"):
        trained(tmp_path / "next", OPTIMIZERS["adamw"], 3, run.folder)


@pytest.mark.parametrize(("first", "second"), [("adamw", "nadam"), ("nadam", "adamw"), ("adamw", "radam")])
def test_the_state_of_another_optimizer_is_refused(first: str, second: str, tmp_path: Path) -> None:
    """Their slots have the same names."""
    run = trained(tmp_path / "run", OPTIMIZERS[first], 3)
    for make, initial in ((OPTIMIZERS[second], run), (OPTIMIZERS[second], run.folder)):
        with pytest.raises(
            vgame.JobFileError, match=r"was trained by \w+, whose state \w+ cannot continue; take the same"
        ):
            trained(tmp_path / "next", make, 3, initial)
    trained(tmp_path / "next", OPTIMIZERS[second], 3, run.state_dict())


def test_the_optimizer_of_an_older_or_damaged_run(tmp_path: Path) -> None:
    """A class that the optimizer extends may continue its run."""
    run = trained(tmp_path / "run", OPTIMIZERS["adamw"], 3)
    trained(tmp_path / "adam", lambda p: optim.Adam(p, lr=0.05), 3, run)
    file = run.folder / "job/validation.json"
    text = file.read_text()
    for damaged in ('"optimizers": 3', '"optimizers": [[]]', '"optimizers": [3]'):
        file.write_text(re.sub(r'"optimizers": \[\s*\[.*?\]\s*\]', damaged, text, flags=re.DOTALL))
        assert file.read_text() != text
        with pytest.raises(vgame.VgameError, match=r"`optimizers` of the run's validation.json is not"):
            trained(tmp_path / "next", OPTIMIZERS["adamw"], 3, run.folder)
    file.write_text(text.replace('"optimizers"', '"unknown"'))
    trained(tmp_path / "next", OPTIMIZERS["nadam"], 3, run.folder)


@pytest.mark.parametrize(
    ("first", "second", "goes_on"),
    [
        ({}, {}, True),
        ({}, {"found": data(seed=2)}, False),
        ({}, {"found": data(40)}, False),
        ({"order": [3, 4, 5, *range(20)]}, {"order": [3, 4, 5, *range(20)]}, True),
        ({"order": [3, 4, 5, *range(20)]}, {"order": [4, 3, 5, *range(20)]}, False),
        ({"order": "streams"}, {"order": "streams"}, True),
        ({"order": "streams"}, {}, False),
    ],
)
def test_an_order_continues_with_the_same_data_only(first: dict, second: dict, goes_on: bool, tmp_path: Path) -> None:
    make = OPTIMIZERS["sgd"]
    run = trained(tmp_path / "run", make, 1, **first)
    more = trained(tmp_path / "more", make, 1, run, **second)
    place = next(i for i, label in enumerate(more.bundle.program.labels.state) if label.name == "data.position")
    assert bool(more.bundle.state[place].any()) == goes_on


def test_new_schedulers_of_a_continued_run_are_warned_of(tmp_path: Path) -> None:
    """They continue where the run ended; new ones in a torch loop start again."""
    run = trained(tmp_path / "run", OPTIMIZERS["sgd"], 3)

    def second(initial: object) -> torch.Tensor:
        model = net()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        warm = optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3)
        task = vgame.Task(model, loss, optimizer, data(), 8, order="sequential", schedulers=[warm])
        bundle = vgame.prepare(vgame.Job(task, steps=2, interval=2, initial=initial), validate=0)
        return bundle.scalars.flatten()

    message = "the task's schedulers are new, but go on after the run's 3 steps: this job's first step has their rate"
    with pytest.warns(UserWarning, match=message):
        assert second(run).tolist() == pytest.approx([0.1, 0.1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert second(run.state_dict()).tolist() == pytest.approx([0.01, 0.04])

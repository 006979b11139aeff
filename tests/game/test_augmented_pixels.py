"""Augmentation in disputes on the real contracts: wrong pixels, and wrong numbers that lead to pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import pytest
import torch
from real_jobs import AtElement, Scene
from revm_chain import RevmChain
from torch import nn
from wide import of_many

import vgame
from vgame import augment
from vgame.attacks.computation import CheatingHistory, Output, Patch, PatchedExecutor
from vgame.chain.records import Phase
from vgame.commit.tensor import from_words, to_words
from vgame.dispute.auditor import Auditor
from vgame.execute.executor import Executor
from vgame.program.operators import Philox
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.runs.training import train

STEPS, STRIKE, BATCH = 2, 2, 4


def crop_and_flip(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.Sequential(augment.RandomCrop(6, padding=1), augment.RandomHorizontalFlip())(x)


def colours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return augment.ColorJitter(0.4, 0.4, 0.4, 0.1)(x)


def erasing_and_noise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.Sequential(augment.RandomErasing(1.0), augment.GaussianNoise())(x)


def resized_crop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return augment.RandomResizedCrop(6)(x)


def mixup(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, labels = augment.MixUp(0.4, 3)(x, y)
    return x + labels.sum()


def cutmix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, labels = augment.CutMix(1.0, 3)(x, y)
    return x + labels.sum()


def masked_tokens(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tokens, labels = augment.TokenMasking(3, 100, 0.5, special=(0,))((x * 100).long().flatten(1))
    return (tokens + labels).float().view_as(x)


AUGMENTATIONS = (crop_and_flip, colours, erasing_and_noise, resized_crop, mixup, cutmix, masked_tokens)


class Net(nn.Module):
    """The augmentation's operators carry the name of their module in the program."""

    def __init__(self, augmentation: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.augmentation, self.output = Named(augmentation), nn.Linear(108, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.output(self.augmentation(x, y).flatten(1))


class Named(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


class Job:
    """Two steps of a linear layer on augmented images of 3 x 6 x 6, and the honest run."""

    def __init__(self, augmentation: Callable[..., torch.Tensor], folder: Path) -> None:
        torch.manual_seed(0)
        model, self.folder = Net(augmentation), folder
        data = {"x": torch.rand(12, 3, 6, 6), "y": torch.arange(12) % 3}
        loss = lambda model, batch: nn.functional.cross_entropy(model(batch["x"], batch["y"]), batch["y"])  # noqa: E731
        task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, BATCH)
        job = vgame.Job(task, steps=STEPS, interval=1, seed=3, schedule=vgame.Constant(lr="0.01"))
        self.bundle = vgame.prepare(job)
        self.honest = self.history("honest", Patch(), History)

    def history(self, name: str, patch: Patch, cls: type[History] = CheatingHistory) -> History:
        b = self.bundle
        executor = PatchedExecutor(Executor(b.program, b.data, b.scalars, b.seed), patch)
        return cls(train(Store(self.folder / name, b), executor), executor)

    @property
    def inside(self) -> list[int]:
        """The augmentation's operators; the last one makes the pixels."""
        program = self.bundle.program
        names = {i: program.operator_name(i) for i in range(len(program.operators))}
        return [i for i, name in names.items() if "augmentation" in name and "grad" not in name]

    @cached_property
    def cheats(self) -> dict[str, tuple[int, History]]:
        """For each kind and function an operator, and the run of a cheat about it; kinds in which a lie changes nothing
        (the mask hides it, or a shift) are left out."""
        found: dict[str, tuple[int, History]] = {}
        for place in reversed(self.inside):
            kind = self.bundle.program.operator_kind(place)
            if kind not in found and (run := self.cheat(place)):
                found[kind] = place, run
        return found

    def cheat(self, place: int) -> History | None:
        """The run of a cheat that claims another word: the first lie of 16 that changes the run."""
        count = self.bundle.program.operators[place].elements
        for element in sorted({count - 1 - i * count // 16 for i in range(min(count, 16))}):
            history = self.history(f"{place}-{element}", Patch(output=self.lie(place, element), first=STRIKE))
            if history.checkpoints != self.honest.checkpoints:
                return history
        return None

    def lie(self, place: int, element: int) -> Output:
        """Another exponent, the lowest bit of an integer, or all bits of a random word."""
        drawn = isinstance(self.bundle.program.operators[place], Philox)

        def output(step: int, operator: int, value: torch.Tensor, before: tuple) -> torch.Tensor:
            if (step, operator) != (STRIKE, place):
                return value
            words = to_words(value).copy()
            words[element] ^= 0xFFFFFFFF if drawn else 1 << 23 if value.is_floating_point() else 1
            return from_words(words, integer=not value.is_floating_point()).view_as(value)

        return output


@pytest.fixture(
    scope="module", params=of_many(AUGMENTATIONS, crop_and_flip, resized_crop, mixup), ids=lambda f: f.__name__
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield Job(request.param, tmp_path_factory.mktemp("augmented"))


def test_a_wrong_word_of_an_augmentation_is_convicted(system: tuple[RevmChain, str], job: Job) -> None:
    kinds = {job.bundle.program.operator_kind(place) for place in job.inside}
    assert job.inside[-1] in [place for place, _ in job.cheats.values()], "the pixel"
    assert "philox" in job.cheats and len(job.cheats) > 0.75 * len(kinds), kinds - set(job.cheats)
    for name, (place, run) in job.cheats.items():
        scene = Scene(system, job.bundle)
        trainer = scene.trainer(run)
        assert scene.play(trainer, Auditor(scene.game(), scene.id, job.honest)) is Phase.CONVICTED, name
        verdict = scene.view.verdict(scene.id)
        assert (verdict.step, verdict.operator, scene.causes) == (STRIKE, place, [("Convicted", "element")]), name


def test_a_false_accuser_of_an_augmented_pixel_loses(system: tuple[RevmChain, str], job: Job) -> None:
    scene, place = Scene(system, job.bundle), job.inside[-1]
    trainer = scene.trainer(job.honest)
    accuser = AtElement(scene.game(), scene.id, job.honest, step_wanted=STRIKE, operator=place, element=1)
    assert scene.play(trainer, accuser) is Phase.FINAL and scene.causes == [("Dismissed", "element")]

"""torchvision's transforms in a loss: deterministic ones are captured, random ones are refused by a sentence that names
vgame's."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn
from torchvision_anyhow import torchvision

import vgame

v1, v2 = torchvision.transforms, importlib.import_module("torchvision.transforms.v2")


def prepared(transform) -> vgame.Bundle:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = {"x": torch.rand(8, 3, 10, 10), "y": torch.arange(8) % 2}

    def loss(model, batch):
        return nn.functional.cross_entropy(model(transform(batch["x"]).mean((2, 3))), batch["y"])

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=4)
    return vgame.prepare(vgame.Job(task, steps=2, interval=1, seed=3, schedule=vgame.Constant(lr="0.1")))


@pytest.mark.parametrize(
    ("transform", "ours"),
    [
        (v2.RandomCrop(8, padding=2), "vgame.augment.RandomCrop"),
        (v1.RandomCrop(8), "vgame.augment.RandomCrop"),
        (v2.RandomResizedCrop(8), "vgame.augment.RandomResizedCrop"),
        (v2.RandomHorizontalFlip(), "vgame.augment.RandomHorizontalFlip"),
        (v1.RandomVerticalFlip(), "vgame.augment.RandomVerticalFlip"),
        (v2.ColorJitter(0.4, 0.4), "vgame.augment.ColorJitter"),
        (v2.RandomErasing(1.0), "vgame.augment.RandomErasing"),
        (v2.Compose([v2.Normalize([0.5], [0.5]), v2.RandomGrayscale()]), "vgame.augment.RandomGrayscale"),
        (v2.RandomRotation(10), "those of vgame.augment"),
    ],
)
def test_random_transforms_are_refused_by_name(transform, ours: str) -> None:
    with pytest.raises(vgame.ProgramError, match=r"for the whole batch .* cannot be captured") as refused:
        prepared(transform)
    assert f"use {ours}," in str(refused.value), refused.value


@pytest.mark.parametrize(
    "transform",
    [v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.2]), v1.Normalize([0.5], [0.5]), v2.CenterCrop(6), v2.Grayscale(3)],
)
def test_transforms_without_random_numbers_are_captured(transform) -> None:
    assert prepared(transform).program.operators


def test_the_names_are_torchvisions() -> None:
    """Only the import must change, except for transforms that torchvision does not have."""
    ours = set(vgame.augment.__all__) - {"TokenMasking"}
    assert all(hasattr(v2, name) for name in ours)
    assert torchvision.__version__

"""The main job: scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels, shipped inside the package)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from vgame.errors import MissingPackage
from vgame.tasks.models import DigitsNet
from vgame.tasks.task import Batch, Evaluation, Task

TRAINING_IMAGES = 1437  # the rest is the test set


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """All images [1797, 1, 8, 8] with pixels in 0..1, and their labels, in a fixed shuffled order."""
    rows = torch.from_numpy(np.loadtxt(_file(), delimiter=","))  # 64 pixels and a label
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    pixels = rows[:, :64].reshape(-1, 1, 8, 8).float() / 16
    return pixels[order], rows[order, 64].long()


def _file() -> Path:
    """The file that scikit-learn's `load_digits` reads; importing scikit-learn would take longer than a short job."""
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return path
    raise MissingPackage("scikit-learn", "demo")


def cross_entropy(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of a batch."""
    return F.cross_entropy(model(batch["image"]), batch["label"])


def measure(model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """The number of correctly classified images, and the sum of the cross-entropies of all."""
    logits = model(batch["image"])
    losses = F.cross_entropy(logits, batch["label"], reduction="sum")
    return {"correct": (logits.argmax(1) == batch["label"]).sum(), "loss": losses}


def task(seed: int = 0, batch: int = 64, momentum: float = 0.9, weight_decay: float = 0.0005, width: int = 16) -> Task:
    """DigitsNet of this width, cross-entropy, SGD with momentum and weight decay, on the training images."""
    torch.manual_seed(seed)
    model = DigitsNet(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum, weight_decay=weight_decay)
    pixels, labels = images()
    data = {"image": pixels[:TRAINING_IMAGES], "label": labels[:TRAINING_IMAGES]}
    held_out = {"image": pixels[TRAINING_IMAGES:], "label": labels[TRAINING_IMAGES:]}
    return Task(model, cross_entropy, optimizer, data, batch, evaluate=Evaluation(measure, held_out, batch=60))


def accuracy(state: dict[str, torch.Tensor]) -> float:
    """Share of the held-out images that a trained state classifies correctly, computed by torch; for any rounding
    mode."""
    model = DigitsNet(len(state["conv1.weight"]))
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    pixels, labels = (t[TRAINING_IMAGES:] for t in images())
    with torch.no_grad():
        return int(measure(model.eval(), {"image": pixels, "label": labels})["correct"]) / len(labels)

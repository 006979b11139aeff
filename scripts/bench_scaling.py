"""The cost of exactness by K, batch, model size and checkpoint interval; and its picture."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_compare import Contestants, compare, show
from bench_steps import STEPS

from vgame.arithmetic.certified import dot
from vgame.job.file import read_job_file
from vgame.runs.folder import executor_of
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train
from vgame.tasks import digits, shipped
from vgame.tasks.task import Task

Points = Iterator[tuple[int, Contestants]]


def by_terms() -> Points:
    """A product of 256 x 256 elements of K terms."""
    for k in (64, 256, 1024, 4096, 16384):
        a, b = torch.randn(1, 256, k), torch.randn(1, 256, k)
        plain = partial(lambda a, b: (a[0].double() @ b[0].double().mT).float(), a, b)
        yield k, {"certified": partial(dot, a, b), "fp64": plain}


def _steps(task: Callable[[], Task]) -> Contestants:
    return {kind: STEPS[kind](task()) for kind in ("certified", "eager fp64", "eager fp32")}


def by_batch() -> Points:
    """A step of SmallResNet."""
    for batch in (8, 32, 128):
        yield batch, _steps(lambda: shipped.small_resnet(batch=batch))  # noqa: B023


def perceptron(width: int) -> Task:
    """Two hidden layers of a width, 128 digits a step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    )  # fmt: skip
    pixels, labels = digits.images()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    return Task(model, digits.cross_entropy, optimizer, {"image": pixels, "label": labels}, 128)


def by_width() -> Points:
    """A step of a perceptron."""
    for width in (64, 256, 1024, 2048):
        yield width, _steps(lambda: perceptron(width))  # noqa: B023


def by_interval() -> Points:
    """Training 24 steps of the digits job with its checkpoints, and the same steps without any."""
    job = read_job_file(Path(digits.__file__).with_suffix(".toml"))
    for interval in (1, 4, 12, 24):
        bundle = prepare(job.model_copy(update={"steps": 24, "interval": interval}))
        executor = executor_of(bundle, "cpu")

        def training() -> None:
            with tempfile.TemporaryDirectory() as folder:
                train(Store(Path(folder), bundle), executor)  # noqa: B023

        def steps() -> None:
            state = executor.initial(bundle.state)  # noqa: B023
            for step in range(1, 25):
                state = executor.step(step, state).state  # noqa: B023

        yield interval, {"with checkpoints": training, "without": steps}


CURVES: dict[str, Callable[[], Points]] = {
    "K, terms of a sum": by_terms,
    "batch of SmallResNet": by_batch,
    "width of a perceptron": by_width,
    "steps between checkpoints": by_interval,
}


def scaling(only: str) -> dict:
    """Ratios of times by varied quantity."""
    found = {}
    for name, points in CURVES.items():
        if only in name:
            curve = {str(x): compare(contestants, 1.0) for x, contestants in points()}
            found[name] = {"points": show(name, curve)}
    return found


def draw(curves: dict[str, Any], path: Path) -> None:
    """One panel per curve: the processor's time against each other contestant's."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "vgame"
    figure, panels = plt.subplots(2, 2, figsize=(10, 7))
    for panel, (name, curve) in zip(panels.flat, curves.items(), strict=False):
        points = {int(x): point["cpu"] for x, point in curve["points"].items()}
        for other in next(iter(points.values())):
            panel.plot(list(points), [ratios[other] for ratios in points.values()], marker="o", label=f"/ {other}")
        panel.axhline(1, color="grey", linewidth=0.5)
        panel.set(xscale="log", xlabel=name, ylabel="ratio of processor time", ylim=(0, None))
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

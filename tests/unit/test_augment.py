"""vgame.augment in a program, against the same arithmetic by torch with the same random words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vgame import audit, augment, train
from vgame.arithmetic.reference.philox import random_word, shuffle_index
from vgame.errors import ProgramError
from vgame.execute.executor import Executor
from vgame.job.bundle import load_bundle, save_bundle
from vgame.job.file import read_job_file
from vgame.program.lower import Lowered, lower_task
from vgame.program.operators import Philox
from vgame.program.schedule import Schedule
from vgame.program.validate import validate
from vgame.runs.prepare import prepare
from vgame.tasks import cifar10, shipped
from vgame.tasks.task import Task

SEED, STEPS, BATCH = 23, 2, 6


class Seen(nn.Module):
    """It trains one number, and keeps its augmented tensors in buffers, which become state."""

    def __init__(self, augmentation: nn.Module, *examples: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.augmentation = nn.Parameter(torch.ones(())), augmentation
        for i, example in enumerate(examples):
            self.register_buffer(f"seen{i}", torch.zeros_like(example))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        made = several(self.augmentation(*inputs))
        for i, output in enumerate(made):
            getattr(self, f"seen{i}").copy_(output)
        return self.weight * made[0].float().mean()


def several(output: Any) -> tuple[torch.Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


class SameWords(TorchFunctionMode):
    """torch's random functions return the words of a program's random operators, in their order."""

    def __init__(self, program: Lowered, step: int) -> None:
        super().__init__()
        random = [i for i, o in enumerate(program.program.operators) if isinstance(o, Philox)]
        self.left, self.step = random, step

    def words(self, shape: Any) -> torch.Tensor:
        operator, count = self.left.pop(0), math.prod(shape)
        words = [random_word(SEED, self.step, operator, e) for e in range(count)]
        return torch.tensor(words, dtype=torch.int64).view(*shape)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.rand:
            return (self.words(args[0] if isinstance(args[0], torch.Size) else args) >> 8) * 2.0**-24
        if function is torch.randint:
            low, high, shape = args
            return low + (self.words(shape) >> 1) % (high - low)
        if function is torch.randn_like:
            radius = ((self.words(args[0].shape) >> 8) + 1).double() * 2.0**-24
            turn = (self.words(args[0].shape) >> 8).double() * 2.0**-24
            return ((-2 * radius.log()).sqrt() * (2 * math.pi * turn).cos()).float()
        if function is torch.Tensor.exp:
            return args[0].double().exp().float()
        return function(*args, **(kwargs or {}))


def images() -> dict[str, torch.Tensor]:
    return {"image": torch.rand(20, 3, 9, 8, generator=torch.Generator().manual_seed(1))}


def labelled() -> dict[str, torch.Tensor]:
    return images() | {"label": torch.arange(20) % 4}


def tokens() -> dict[str, torch.Tensor]:
    return {"token": torch.randint(0, 50, (20, 12), generator=torch.Generator().manual_seed(1))}


def task_of(make: Callable[[], nn.Module], data: dict[str, torch.Tensor]) -> Task:
    augmentation = make()
    examples = several(augmentation(*(t[:BATCH] for t in data.values())))
    model = Seen(augmentation, *examples)
    loss = lambda model, batch: model(*batch.values())  # noqa: E731
    return Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, BATCH)


def executed(task: Task) -> Iterator[tuple[Lowered, int, list[torch.Tensor], list[torch.Tensor]]]:
    """(program, step, the batch, its augmentation by the program)."""
    lowered = lower_task(task, Schedule(lr="0.1"), STEPS)
    validate(lowered.program, [(t.numel(), not t.is_floating_point()) for t in lowered.data], STEPS)
    executor = Executor(lowered.program, lowered.data, lowered.scalars, SEED)
    state, labels = executor.initial(lowered.state), lowered.program.labels.state
    for step in range(1, STEPS + 1):
        state = executor.step(step, state).state
        named = {l.name: t.reshape(l.shape) for l, t in zip(labels, state, strict=True)}
        chosen = torch.tensor([shuffle_index(SEED, step, e, BATCH, 20) for e in range(BATCH)])
        batch = list(task.samples(chosen).values())
        yield lowered, step, batch, [t for name, t in sorted(named.items()) if name.startswith("seen")]


EXACT = {
    "crop": (lambda: augment.RandomCrop(8, padding=2), images),
    "crop of another shape and fill": (lambda: augment.RandomCrop((5, 7), padding=1, fill=0.5), images),
    "crop without padding": (lambda: augment.RandomCrop(6), images),
    "flip": (lambda: augment.RandomHorizontalFlip(), images),
    "vertical flip": (lambda: augment.RandomVerticalFlip(0.7), images),
    "grayscale": (lambda: augment.RandomGrayscale(0.5), images),
    "brightness": (lambda: augment.ColorJitter(brightness=0.5), images),
    "saturation": (lambda: augment.ColorJitter(saturation=0.5), images),
    "hue": (lambda: augment.ColorJitter(hue=0.3), images),
    "erasing": (lambda: augment.RandomErasing(0.8, value=0.25), images),
    "some": (lambda: augment.RandomApply([augment.ColorJitter(0.4)], 0.5), images),
    "crop, flip, erasing": (
        lambda: nn.Sequential(augment.RandomCrop(8, 4), augment.RandomHorizontalFlip(), augment.RandomErasing()),
        images,
    ),
    "mixup": (lambda: augment.MixUp(0.4, 4), labelled),
    "cutmix": (lambda: augment.CutMix(1.0, 4), labelled),
    "token masking": (lambda: augment.TokenMasking(3, 50, 0.4, special=(0, 7)), tokens),
}
#: Modules with sums of many terms or logarithms: torch's own are not correctly rounded.
CLOSE = {
    "contrast": (lambda: augment.ColorJitter(contrast=0.5), images),
    "all colours": (lambda: augment.ColorJitter(0.4, 0.4, 0.4, 0.1), images),
    "noise": (lambda: augment.GaussianNoise(0.1, 0.2), images),
    "noise without limits": (lambda: augment.GaussianNoise(clip=False), images),
    "resized crop": (lambda: augment.RandomResizedCrop((6, 10)), images),
}


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_a_program_augments_as_torch_does_with_the_same_words(name: str) -> None:
    make, data = (EXACT | CLOSE)[name]
    changed = 0
    for lowered, step, batch, made in executed(task_of(make, data())):
        with SameWords(lowered, step) as words:
            wanted = several(make()(*batch))
        assert not words.left and len(wanted) == len(made)
        for mine, theirs in zip(made, wanted, strict=True):
            if name in EXACT:
                assert torch.equal(mine.to(theirs.dtype), theirs), float((mine - theirs).abs().max())
            else:
                torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=1e-6)
        changed += made[0].shape != batch[0].shape or not torch.equal(made[0].to(batch[0].dtype), batch[0])
        with SameWords(lowered, step + 1):  # the damaged twin: words of another step
            others = several(make()(*batch))
        assert not torch.equal(made[0].to(others[0].dtype), others[0])
    assert changed == STEPS


# ---- the shipped recipe of CIFAR-10 ----


def published_form(folder: Path) -> dict[str, torch.Tensor]:
    """CIFAR-10's binary form with random pixels, through the real loader."""
    for name in cifar10.TRAINING:
        records = np.random.default_rng(0).integers(0, 256, (cifar10.IMAGES, cifar10.RECORD), np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / f"{name}.bin")
    images, labels = cifar10.load(folder)
    return {"image": images, "label": labels}


def test_the_recipe_of_cifar10_is_torchs_own(tmp_path: Path) -> None:
    """Crop and flip of the published bytes, then the normalisation, as torch's data loaders do."""
    data = {name: t[:20] for name, t in published_form(tmp_path).items()}
    seen = shipped.cropped_and_flipped(lambda model, batch: batch["image"])

    class Recipe(nn.Module):
        def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return seen(None, {"image": image, "label": label})

    for lowered, step, batch, (made,) in executed(task_of(Recipe, data)):
        with SameWords(lowered, step):
            wanted = Recipe()(*batch)
        assert torch.equal(made, wanted) and wanted.shape == (BATCH, 3, 32, 32)
        assert not torch.equal(made, cifar10.normalized(batch[0]))


def test_the_recipe_ships_as_a_job(tmp_path: Path) -> None:
    """The job file's own factory and arguments; the data are the published bytes."""
    published_form(tmp_path)
    job = read_job_file(Path(shipped.__file__).parent / "resnet50_augmented.toml")
    assert (job.model, job.args["augmented"]) == ("vgame.tasks.shipped:resnet50", True)
    task = shipped.resnet50(**(job.args | {"folder": str(tmp_path), "check": False}))
    assert task.batch == 64 and task.data["image"].dtype == torch.uint8 and task.population == 50_000


@pytest.mark.nightly
def test_the_job_trains_and_audits(tmp_path: Path) -> None:
    published_form(tmp_path)
    job = read_job_file(Path(shipped.__file__).parent / "resnet50_augmented.toml")
    args = job.args | {"folder": str(tmp_path), "check": False, "batch": 2}
    bundle = prepare(job.model_copy(update={"args": args, "steps": 1, "interval": 1}))
    save_bundle(bundle, tmp_path / "bundle")
    assert audit(train(load_bundle(tmp_path / "bundle"), tmp_path / "run")).match


# ---- deterministic modules, and refusals ----


def test_nothing_is_augmented_in_evaluation_mode() -> None:
    x, y, t = images()["image"], labelled()["label"], tokens()["token"]
    for make, data in (EXACT | CLOSE).values():
        if data is images:
            assert make().eval()(x) is x
    for make in (augment.MixUp, augment.CutMix):
        same, wanted = make(1.0, 4).eval()(x, y)
        assert same is x and torch.equal(wanted, nn.functional.one_hot(y, 4).float())
    same, labels = augment.TokenMasking(3, 50).eval()(t)
    assert same is t and bool((labels == -100).all())


def test_probabilities_of_0_and_1_are_never_and_always() -> None:
    x, t = images()["image"], tokens()["token"]
    assert torch.equal(augment.RandomHorizontalFlip(0)(x), x) and torch.equal(
        augment.RandomVerticalFlip(1)(x), x.flip(2)
    )
    assert not augment.RandomErasing(1, scale=(1, 1), ratio=(1, 1))(x[..., :8, :8]).any()
    masked, labels = augment.TokenMasking(3, 50, 1, special=(5,))(t)
    assert torch.equal(labels, torch.where(t == 5, -100, t)) and bool((masked[t == 5] == 5).all())


def test_shares_of_mixup_are_quantiles_of_the_beta_distribution() -> None:
    assert augment.beta_quantiles(1.0)[0] == 2.0**-11 and len(set(augment.beta_quantiles(1.0))) == 1024
    for alpha in (0.2, 0.4, 2.0):
        found = torch.tensor(augment.beta_quantiles(alpha), dtype=torch.float64)
        assert bool((found.diff() >= 0).all()) and torch.equal(found * 2**16, (found * 2**16).round())
        assert float(found.mean()) == 0.5
        assert float(found.var(correction=0)) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=5e-3)


X = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: augment.RandomCrop(4)(X[0]),
            r"RandomCrop takes a batch of images .* not \(3, 8, 8\): use it in the loss",
        ),
        (lambda: augment.RandomCrop(12, padding=1)(X), r"\(12, 12\) is larger than the padded image, \(10, 10\)"),
        (lambda: augment.RandomHorizontalFlip(1.5), r"p = 1.5, a probability from 0 to 1 is expected"),
        (lambda: augment.RandomErasing(scale=(0.5, 0.1)), r"\(0.5, 0.1\), two numbers above 0 are expected"),
        (lambda: augment.RandomGrayscale(1.0)(X[:, :1]), "3 channels, red, green and blue; these have 1"),
        (lambda: augment.ColorJitter(hue=0.1)(X[:, :2]), "these have 2"),
        (lambda: augment.ColorJitter(brightness=-0.1), "brightness = -0.1: a number of at least 0"),
        (lambda: augment.ColorJitter(hue=0.6), "hue = 0.6: a number from 0 to 0.5"),
        (lambda: augment.MixUp(0.2), r"MixUp\(alpha=0.2, num_classes=0\): both above 0 are expected"),
        (lambda: augment.MixUp(0.2, 4)(X[0], torch.zeros(3).long()), "MixUp takes a batch of images"),
        (lambda: augment.TokenMasking(50, 50), "mask = 50, a token from 0 to 49 is expected"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        call()

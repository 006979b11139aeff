"""Data of training loops: a Dataset, a DataLoader with padding, drawn and given orders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import vgame
from vgame.errors import DataError
from vgame.execute.executor import Executor
from vgame.program.draws import CELL, alias_table
from vgame.program.lower import lower_task
from vgame.tasks.datasets import collate


class Words(Dataset):
    """Sentences of different lengths."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict:
        return {"ids": torch.arange(1, 2 + i % 4), "label": i % 3}


def padded(samples: list[dict]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence([s["ids"] for s in samples], batch_first=True)
    return {"ids": ids, "labels": torch.tensor([s["label"] for s in samples])}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(6, 3, padding_idx=0), nn.Linear(3, 3))


def cross_entropy(model, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["ids"]), batch["labels"])


def task(data, loss=cross_entropy, model=None, **options) -> vgame.Task:
    model = model or classifier()
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, **options)


def test_a_loader_with_padding_is_trained(tmp_path) -> None:
    made = task(DataLoader(Words(), batch_size=4, shuffle=True, collate_fn=padded))
    assert (made.batch, made.order, made.data["ids"].shape) == (4, "shuffled", (12, 4))
    run = vgame.train(vgame.prepare(vgame.Job(made, epochs=2, interval=3, seed=1)), tmp_path / "run")
    assert run.step == 6 and run.divergence is None


def test_a_loss_gets_batches_as_the_collation_makes_them() -> None:
    x, y = torch.randn(8, 2), torch.arange(8) % 3

    def loss(model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    model = nn.Linear(2, 3)
    by_pairs = task(TensorDataset(x, y), loss, model, batch=4, order="sequential")
    by_names = task(
        {"0": x, "1": y}, lambda m, b: F.cross_entropy(m(b["0"]), b["1"]), model, batch=4, order="sequential"
    )
    assert lower_task(by_pairs, None, 2).program.root == lower_task(by_names, None, 2).program.root
    assert task([{"ids": torch.ones(2).long(), "labels": 1}] * 4, batch=2).data["labels"].tolist() == [1] * 4


class Sometimes(Dataset):
    """Draws for every sample, and rarely changes one."""

    def __init__(self, draw) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), -1.0 if self.draw() < 1e-6 else 1.0)}


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        np.random.rand,
        lambda: torch.rand(()),
        random.Random(1).random,
        lambda g=np.random.default_rng(1): g.random(),
        lambda g=torch.Generator(): torch.rand((), generator=g),
    ],
)
def test_a_data_set_that_draws_random_numbers_is_refused_even_if_samples_look_alike(draw) -> None:
    with pytest.raises(DataError, match=r"gives another sample \d+ each time, but a job reads it once"):
        collate(Sometimes(draw))


def test_a_data_set_that_seeds_each_sample_is_accepted() -> None:
    class Seeded(Sometimes):
        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            torch.manual_seed(i)
            return {"x": torch.randn(3)}

    assert torch.equal(collate(Seeded(None)).tensors["x"][7], Seeded(None)[7]["x"])


class Noisy(Words):
    def __getitem__(self, i: int) -> dict:
        return {"ids": torch.randn(3), "label": 0}


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


def masked(samples: list[dict]) -> dict[str, torch.Tensor]:
    return {"x": torch.rand(len(samples), 3)}


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (DataLoader(Noisy(), batch_size=2), {}, "Noisy gives another sample [0-9]+ each time, .* into the loss"),
        (DataLoader(Words(), batch_size=2, collate_fn=masked), {}, "collate_fn gives another batch each time"),
        (Endless(), {"batch": 2}, "Endless has no length"),
        (DataLoader(Words(), batch_size=4, collate_fn=padded), {"batch": 2}, "batch = 2, but the DataLoader's "
                                                                             "batch_size is 4"),
        (DataLoader(Words(), batch_size=None), {}, "has no batch_size"),
        ([{"text": "a"}] * 3, {"batch": 2}, r"batch\['text'\]\[0\] is of type str; .*tokenise"),
        ((torch.ones(3), torch.ones(3)), {"batch": 2}, "the data is a tuple; a dictionary of tensors, a Dataset"),
        ({"x": [1, 2]}, {"batch": 2}, "the data x is of type list; a tensor is expected"),
        (DataLoader(Words(), 2, sampler=RandomSampler(Words(), num_samples=5)), {}, "RandomSampler takes 5 of 12"),
        ([], {"batch": 2}, "has no sample"),
        ({"x": torch.ones(4)}, {"batch": 2, "order": "random"}, "one of shuffled, sequential, streams, replacement, "
                                                                "or a list"),
        ({"x": torch.ones(4)}, {"batch": 2, "order": [0], "weights": [1]}, "order and weights are both given"),
    ],
)  # fmt: skip
def test_unrepeatable_data_are_refused(data, options, sentence: str) -> None:
    with pytest.raises(vgame.VgameError, match=sentence):
        task(data, **options)


X = torch.arange(24.0).view(12, 2)


@dataclass
class Sample:
    x: torch.Tensor


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Reused(Dataset):
    """Fills one tensor, array or object for every sample."""

    def __init__(self, kind: str) -> None:
        self.x, self.kind = torch.zeros(2), kind
        self.sample, self.slotted = Sample(self.x), Slotted(self.x)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        self.x.copy_(X[i])
        return {"tensor": [self.x], "array": [self.x.numpy()], "object": self.sample, "slots": self.slotted}[self.kind]


def of_objects(samples: list[Any]) -> list[torch.Tensor]:
    return [torch.stack([s.x if isinstance(s, Sample | Slotted) else torch.as_tensor(s[0]) for s in samples])]


@pytest.mark.parametrize("kind", ["tensor", "array", "object", "slots"])
@pytest.mark.parametrize("options", [{}, {"shuffle": False, "drop_last": True}])
def test_a_data_set_that_reuses_its_memory(kind: str, options: dict) -> None:
    """torch's batches of one sample are right; in larger ones the last sample overwrites the others."""
    assert torch.equal(collate(DataLoader(Reused(kind), 1, collate_fn=of_objects, **options)).tensors["0"], X)
    with pytest.raises(DataError, match=r"gives (another sample|other rows of 0).* 0"):
        collate(DataLoader(Reused(kind), 5, collate_fn=of_objects, **options))


class Together(Dataset):
    """Reads a whole batch by one call of `read`."""

    def __init__(self, read: Callable[[list[int]], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return X[i]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.read(indices)


def test_samples_are_read_together_as_a_loader_reads_them() -> None:
    twice = Together(lambda indices: list(2 * X[indices]))
    assert torch.equal(collate(DataLoader(twice, 4)).tensors["samples"], 2 * X)
    assert torch.equal(collate(DataLoader(twice, 5, drop_last=True)).tensors["samples"], 2 * X[:10])
    with pytest.raises(DataError, match=r"Together gives another sample 0 in another batch"):
        collate(DataLoader(Together(lambda indices: list(X[indices] - X[indices].mean(0))), 4))
    with pytest.raises(DataError, match=r"Together.__getitems__ gives a Tensor for 4 samples; a list"):
        collate(DataLoader(Together(lambda indices: X[indices]), 4))
    with pytest.raises(DataError, match=r"Together gives another sample \d+ each time"):
        collate(DataLoader(Together(lambda indices: [X[i] + torch.rand(()) for i in indices]), 4))


def popping(samples: list[dict]) -> torch.Tensor:
    for sample in samples:
        sample.pop("name")
    return F.normalize(torch.stack([s["x"] for s in samples]))


def halving(samples: list[dict]) -> torch.Tensor:
    return torch.stack([s["x"].mul_(0.5) for s in samples])


class New(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict:
        return {"x": X[i].clone(), "name": str(i)}


@pytest.mark.parametrize(("change", "rows"), [(popping, F.normalize(X)), (halving, X / 2)])
def test_a_collation_that_changes_its_samples(change: Callable[[list], torch.Tensor], rows: torch.Tensor) -> None:
    """They may be new each time; those that the data set keeps are others in the second epoch."""
    assert torch.equal(collate(DataLoader(New(), 4, collate_fn=change)).tensors["samples"], rows)
    with pytest.raises(DataError, match=r"collate_fn changes samples of list, so the second epoch gets other batches"):
        collate(DataLoader([New()[i] for i in range(12)], 4, collate_fn=change))


def test_a_collation_that_reuses_its_memory() -> None:
    rows = torch.zeros(12, 2)

    def fill(samples: list[dict]) -> torch.Tensor:
        return torch.stack([s["x"] for s in samples], out=rows[: len(samples)])

    assert torch.equal(collate(DataLoader(New(), 4, collate_fn=fill)).tensors["samples"], X)


class Doubled(torch.Tensor):
    pass


def test_data_of_a_class_of_its_own_are_refused() -> None:
    x = X.as_subclass(Doubled)
    for data in ({"x": x}, DataLoader([{"x": row} for row in x], 4)):
        with pytest.raises(vgame.VgameError, match=r"the data x is of class Doubled, .* x.as_subclass\(torch.Tensor\)"):
            task(data, batch=4)


def test_a_job_has_either_steps_or_epochs() -> None:
    made = task(DataLoader(Words(), batch_size=5, collate_fn=padded))
    assert vgame.prepare(vgame.Job(made, epochs=1, interval=3, seed=1)).steps == 3
    for fields in ({}, {"steps": 2, "epochs": 1}, {"epochs": 0}):
        with pytest.raises(vgame.JobFileError, match="steps or epochs"):
            vgame.prepare(vgame.Job(made, interval=3, seed=1, **fields))


# ---- orders ----


class Seen(nn.Module):
    """Keeps the samples of its last batch in a buffer."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(batch))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(x)
        return (self.a * x).mean()


def read(samples: int, batch: int, steps: int, data=None, **options) -> list[list[int]]:
    """The samples read by each step, by the executor."""
    data = data or {"x": torch.arange(samples, dtype=torch.float32)}
    made = task(data, lambda m, b: m(b["x"]), Seen(batch), batch=batch, **options)
    lowered = lower_task(made, None, steps)
    executor = Executor(lowered.program, lowered.data, lowered.scalars, 3)
    place = [label.name for label in lowered.program.labels.state].index("seen")
    state, found = executor.initial(lowered.state), []
    for step in range(1, steps + 1):
        state = executor.step(step, state).state
        found.append(state[place].int().tolist())
    return found


def test_a_given_order_is_read_and_repeated() -> None:
    assert read(9, 2, 4, order=[5, 5, 0, 8, 2]) == [[5, 5], [0, 8], [2, 5], [5, 0]]
    for order in ([], [9], [-1], [0.5], [[1]]):
        with pytest.raises(vgame.ProgramError, match="a list of sample numbers from 0 to 8"):
            read(9, 2, 1, order=order)


@pytest.mark.filterwarnings("ignore:the model carries")
def test_weights_and_replacement_draw_in_proportion() -> None:
    drawn = Counter(i for step in read(4, 500, 8, weights=[1, 0, 2, 5]) for i in step)
    assert drawn[1] == 0 and all(abs(drawn[i] / 4000 - w / 8) < 0.03 for i, w in enumerate([1, 0, 2, 5]))
    even = Counter(i for step in read(4, 500, 8, order="replacement") for i in step)
    assert all(abs(even[i] / 4000 - 1 / 4) < 0.03 for i in range(4))
    for weights in ([1, 2], [-1, 1, 1, 1], [0, 0, 0, 0], [float("nan")] * 4):
        with pytest.raises(vgame.ProgramError, match="weights: 4 numbers are expected"):
            read(4, 2, 1, weights=weights)


def test_the_alias_table_holds_the_weights_exactly() -> None:
    weights = [0.1, 7, 0, 1e-9, 3.25, 2]
    thresholds, aliases = alias_table(weights, 6)
    mass = [0] * 6
    for i in range(6):
        own = CELL if aliases[i] == i else int(thresholds[i])
        mass[i] += own
        mass[aliases[i]] += CELL - own
    assert sum(mass) == 6 * CELL and mass[2] == 0
    assert all(abs(m / sum(mass) - w / sum(weights)) < 2e-9 for m, w in zip(mass, weights, strict=True))


def test_a_loaders_sampler_determines_the_order() -> None:
    data = TensorDataset(torch.ones(6, 2), torch.zeros(6))
    assert task(DataLoader(data, 2)).order == "sequential"
    assert task(DataLoader(data, 2, sampler=RandomSampler(data, replacement=True))).order == "replacement"
    weights = torch.tensor([1.0, 2, 3, 4, 5, 6])
    made = task(DataLoader(data, 2, sampler=WeightedRandomSampler(weights, 6)))
    assert made.order is None and made.weights.tolist() == weights.tolist()
    assert task(DataLoader(data, 2), order="shuffled").order == "shuffled"

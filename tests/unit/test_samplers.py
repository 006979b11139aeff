"""A DataLoader as a job's data: the samples of its sampler, their order, the number of batches of an epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import vgame
from vgame.errors import DataError
from vgame.tasks.datasets import collate

X = torch.arange(12.0)[:, None]


def task(loader: Any, **options: Any) -> vgame.Task:
    model = nn.Linear(1, 1)
    return vgame.Task(
        model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1), loader, **options
    )


def loader(sampler: Any = None, batch: int = 4, data: Any = X, **options: Any) -> DataLoader:
    return DataLoader(data, batch, sampler=sampler, **options)


def rows(made: vgame.Task) -> list[int]:
    return made.data["samples"].reshape(-1).int().tolist()


@pytest.mark.parametrize(
    ("sampler", "order", "expected"),
    [
        (RandomSampler(range(5)), "shuffled", range(5)),
        (RandomSampler(range(5), replacement=True), "replacement", range(5)),
        (SequentialSampler(range(5)), "sequential", range(5)),
        (SubsetRandomSampler([7, 3, 3, 9]), "shuffled", [7, 3, 3, 9]),
        (WeightedRandomSampler([1.0, 0, 2], 6), None, range(3)),
        (range(12), "sequential", range(12)),
        (range(5), "sequential", range(5)),
        ([7, 3, 3, 9], "sequential", [7, 3, 3, 9]),
    ],
)
def test_the_samples_are_those_of_the_sampler(sampler: Any, order: str | None, expected: Any) -> None:
    made = task(loader(sampler))
    assert (made.order, rows(made)) == (order, list(expected))


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (lambda: loader(), {}),
        (lambda: loader(batch=5), {}),
        (lambda: loader(batch=5, drop_last=True), {}),
        (lambda: loader(batch=4, shuffle=True, drop_last=True), {}),
        (lambda: loader(RandomSampler(X, num_samples=24), 5), {}),
        (lambda: loader(RandomSampler(X, replacement=True, num_samples=7), 2), {}),
        (lambda: loader(RandomSampler(X, replacement=True, num_samples=7), 2, drop_last=True), {}),
        (lambda: loader(WeightedRandomSampler([1.0] * 12, 30)), {}),
        (lambda: loader(WeightedRandomSampler([1.0] * 12, 30), drop_last=True), {"accumulate": 2}),
        (lambda: loader(RandomSampler(range(5)), 2), {}),
        (lambda: loader(batch=20), {}),
        (lambda: loader(RandomSampler(X, replacement=True, num_samples=3), 4), {}),
    ],
)
def test_epochs_have_as_many_steps_as_the_loop(made: Any, options: dict[str, int]) -> None:
    batches = sum(1 for _ in range(2) for _ in made())
    accumulate = options.get("accumulate", 1)
    job = vgame.Job(task(made(), **options), epochs=2, interval=1, seed=1)
    assert job._steps() == -(-batches // accumulate)


def test_a_loader_in_order_drops_its_last_samples() -> None:
    assert rows(task(loader(batch=5, drop_last=True))) == list(range(10))
    assert rows(task(loader(range(7), batch=2, drop_last=True))) == list(range(6))


def test_a_batch_is_no_larger_than_an_epoch() -> None:
    assert task(loader(batch=20)).batch == 12
    assert task(loader(WeightedRandomSampler([1.0] * 12, 3))).batch == 3


class Backwards(SequentialSampler):
    def __iter__(self) -> Any:
        return iter(range(len(self.data_source) - 1, -1, -1))


class Own(Sampler):
    def __iter__(self) -> Any:
        return iter([1, 0])


class Pairs(Sampler):
    def __iter__(self) -> Any:
        return iter([[1, 0], [3, 2]])


class Halved(DataLoader):
    def __iter__(self) -> Any:
        return (x / 2 for x in super().__iter__())


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: loader(RandomSampler(range(20))), "reads 20 samples; its data set has 12"),
        (
            lambda: loader(RandomSampler(X, num_samples=5)),
            "RandomSampler takes 5 of 12 samples, different ones in each epoch",
        ),
        (lambda: loader(RandomSampler(X, num_samples=18)), "takes 18 of 12 samples, different ones in each epoch"),
        (lambda: loader(WeightedRandomSampler([1.0] * 12, 5, replacement=False)), "takes 5 of 12 samples, different"),
        (lambda: loader(batch=5, shuffle=True, drop_last=True), r"drop_last leaves out 2 other samples in each"),
        (lambda: loader(batch=20, drop_last=True), "has no batch: drop_last leaves out all of its 12 samples"),
        (lambda: loader(Backwards(X)), "draws samples by Backwards"),
        (lambda: loader(Own()), "draws samples by Own"),
        (lambda: DataLoader(X, batch_sampler=BatchSampler(Own(), 2, False)), "draws samples by Own"),
        (
            lambda: DataLoader(X, batch_sampler=Pairs()),
            r"Pairs, .*order=\[i for b in batch_sampler for i in b\]",
        ),
        (lambda: loader(DistributedSampler(X, 2, 1)), r"process 1 of 2, .*batch_size=8"),
        (lambda: Halved(X, 4), "Halved creates its batches by an __iter__ of its own"),
    ],
)
def test_unrepeatable_state_is_refused_by_name(made: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        task(made())


def test_an_order_of_the_task_stands_for_the_sampler() -> None:
    made = task(loader(batch=5, shuffle=True, drop_last=True), order="shuffled")
    assert (made.batch, made.order, rows(made)) == (5, "shuffled", list(range(12)))
    assert task(loader(Own()), order=[1, 0]).order == [1, 0]
    assert task(loader(Own()), weights=[1.0] * 12).order is None
    assert vgame.Job(made, epochs=2, interval=1, seed=1)._steps() == 5  # of 24 samples


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (SequentialSampler(X), "sequential"),
        (RandomSampler(X), "shuffled"),
        (DistributedSampler(X, 1, 0, shuffle=False), "sequential"),
        (DistributedSampler(X, 1, 0), "shuffled"),
    ],
)
def test_torchs_batch_sampler_and_one_process_are_as_a_plain_loader(sampler: Any, order: str) -> None:
    made = task(DataLoader(X, batch_sampler=BatchSampler(sampler, 5, order == "sequential")))
    assert (made.batch, made.order, len(rows(made))) == (5, order, 10 if order == "sequential" else 12)
    assert task(loader(sampler)).order == order


def test_an_order_of_the_task_stands_for_a_batch_sampler() -> None:
    made = task(DataLoader(X, batch_sampler=Pairs()), order=[i for b in Pairs() for i in b], batch=2)
    assert (made.batch, made.order, rows(made)) == (2, [1, 0, 3, 2], list(range(12)))
    with pytest.raises(vgame.ProgramError, match="batch = 0"):
        task(DataLoader(X, batch_sampler=Pairs()), order=[1, 0, 3, 2])


def centred(samples: list[torch.Tensor]) -> torch.Tensor:
    x = torch.stack(samples)
    return x - x.mean(0)


def ranked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).sort(0, descending=True).values


def scaled(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) / max(float(s) for s in samples)


def counted(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack(samples), "size": torch.full((len(samples),), float(len(samples)))}


@pytest.mark.parametrize("made", [centred, ranked, scaled, counted])
def test_a_collation_that_computes_over_its_batch_is_refused(made: Any) -> None:
    with pytest.raises(DataError, match=r"collate_fn gives other rows of \w+ for 4 samples than for all of them"):
        collate(loader(collate_fn=made))


@pytest.mark.parametrize("left", [False, True])
def test_a_collation_that_pads_is_accepted(left: bool) -> None:
    def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        side = "left" if left else "right"
        ids = nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_side=side)
        return {"ids": ids, "mask": (ids != 0).float()[:, :, None].expand(-1, -1, 2)}

    ragged = [torch.arange(1, 2 + i % 5) for i in range(12)]
    assert collate(loader(data=ragged, collate_fn=padded)).tensors["ids"].shape == (12, 5)


def test_an_epoch_of_a_list_of_samples_is_one_pass_over_the_list() -> None:
    shorter, longer = task(loader(batch=2), order=[3, 1, 4, 2]), task(loader(batch=2), order=[0, 1, 2] * 10)
    steps = [vgame.Job(made, epochs=2, interval=1, seed=1)._steps() for made in (shorter, longer)]
    assert steps == [4, 30]

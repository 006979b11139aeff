"""A job pads all samples to the longest of all, a loader each batch to its own longest: a loss that the padding changes
is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import vgame

T = torch.Tensor
GROUPED = [(torch.arange(1, 4 + i // 8) % 11 + 1, i % 2) for i in range(32)]  # each batch of 8 has one length


def padded(samples: list[tuple[T, int]]) -> tuple[T, T, T]:
    lengths = torch.tensor([len(x) for x, _ in samples])
    return pad_sequence([x for x, _ in samples], batch_first=True), lengths, torch.tensor([y for _, y in samples])


class Mean(nn.Module):
    """Embeds the words, and classifies their mean: over all positions, or over the words."""

    def __init__(self, masked: bool, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(12, 6), nn.Linear(6, 2)
        self.dropout, self.masked = nn.Dropout(dropout), masked

    def forward(self, x: T, lengths: T) -> T:
        h = self.dropout(self.words(x))
        if not self.masked:
            return self.out(h.mean(1))
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        return self.out((h * inside[..., None]).sum(1) / lengths[:, None])


def loss(model: nn.Module, batch: tuple[T, T, T]) -> T:
    x, lengths, y = batch
    return F.cross_entropy(model(x, lengths), y)


def narrowed(model: nn.Module, batch: tuple[T, T, T]) -> T:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(model, batch)


def warned(model: nn.Module, data: list, loss: Callable = loss, **options: object) -> list[str]:
    """The warnings of a preparation about padding."""
    order = {name: options.pop(name) for name in ("batch_size", "shuffle", "collate_fn") if name in options}
    loader = DataLoader(data, **({"batch_size": 8, "collate_fn": padded} | order))
    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), loader, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vgame.prepare(vgame.Job(task, steps=8, interval=4, seed=1), validate=20)
    return [str(w.message) for w in caught if "pads" in str(w.message)]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"accumulate": 2}])
def test_padding_that_changes_the_loss_is_named(options: dict) -> None:
    (sentence,) = warned(Mean(masked=False), GROUPED, **options)
    assert "each batch to its longest sample, a job pads all to the longest of all (batch[0] of " in sentence
    assert "before training the loss is 0." in sentence and "mask the padding in the loss" in sentence


def test_padding_that_changes_gradients_only_is_named() -> None:
    model = Mean(masked=False)
    nn.init.zeros_(model.out.weight)
    (sentence,) = warned(model, GROUPED)
    assert "the gradients of the loss differ" in sentence


@pytest.mark.parametrize("loss", [loss, narrowed])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_masked_padding_is_not_named(loss: Callable, dropout: float) -> None:
    assert warned(Mean(masked=True, dropout=dropout), GROUPED, loss) == []


def test_a_language_model_with_ignored_padding_is_not_named() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.rnn, self.out = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 12)

        def forward(self, x: T) -> T:
            return self.out(self.rnn(self.words(x))[0])

    def of(ignored: int) -> Callable:
        return lambda model, batch: F.cross_entropy(
            model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten(), ignore_index=ignored
        )

    assert warned(Model(), GROUPED, of(0)) == []
    assert len(warned(Model(), GROUPED, of(-100))) == 1


def test_samples_of_one_length_are_not_compared() -> None:
    assert warned(Mean(masked=False), [(torch.arange(1, 5), i % 2) for i in range(32)]) == []


def test_a_loss_that_cannot_be_compared_is_named() -> None:
    """A positional table for the longest of all samples fits no shorter batch."""

    class Positions(Mean):
        def __init__(self) -> None:
            super().__init__(masked=False)
            self.positions = nn.Parameter(torch.zeros(6, 6))

        def forward(self, x: T, lengths: T) -> T:
            return self.out((self.words(x) + self.positions).mean(1))

    (sentence,) = warned(Positions(), GROUPED)
    assert "could not be compared (your code fails when torch runs it: RuntimeError: " in sentence


def trimmed(samples: list[tuple[T, int]]) -> tuple[T, T, T]:
    """Cut samples that are padded already to the longest of the batch."""
    x, y = torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])
    lengths = (x > 0).sum(1)
    return x[:, : int(lengths.max())], lengths, y


@pytest.mark.parametrize("masked", [False, True])
def test_a_collation_that_trims_its_batch(masked: bool) -> None:
    data = [(F.pad(x, (0, 12 - len(x))), y) for x, y in GROUPED]
    assert len(warned(Mean(masked), data, collate_fn=trimmed)) == (not masked)

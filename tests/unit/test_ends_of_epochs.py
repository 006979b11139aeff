"""`prepare` warns once of a job that reaches a short last batch, or step, of a loop over its loader."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vgame

BATCH = (
    r"the last batch of an epoch has 2 of 8 samples .* from step (3|2) on it trains otherwise; .* that (8|16) divides$"
)
STEP = r"the last step of an epoch has 1 of 2 batches .* from step 2 on it trains otherwise; .* that 16 divides$"
CASES = {
    "a short batch": (18, {}, {"steps": 3}, BATCH),
    "the same in an order of the loader": (18, {"shuffle": True}, {"epochs": 2}, BATCH),
    "a short batch, accumulated": (18, {}, {"steps": 2, "accumulate": 2}, BATCH),
    "an uneven accumulation": (24, {}, {"steps": 2, "accumulate": 2}, STEP),
    "a job that ends before": (18, {}, {"steps": 2}, None),
    "whole batches": (24, {}, {"steps": 9}, None),
    "a loader that drops the rest": (18, {"drop_last": True}, {"steps": 9}, None),
    "an order of the task": (18, {}, {"steps": 9, "order": "sequential"}, None),
}


@pytest.mark.parametrize(("count", "loader", "options", "text"), CASES.values(), ids=CASES)
def test_the_end_of_an_epoch(count: int, loader: dict, options: dict, text: str | None) -> None:
    model = nn.Linear(2, 1)
    given = {key: value for key, value in options.items() if key in ("accumulate", "order")}
    length = {key: value for key, value in options.items() if key not in given}
    task = vgame.Task(
        model, lambda m, b: m(b[0]).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(TensorDataset(torch.ones(count, 2)), batch_size=8, **loader), **given,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        vgame.prepare(vgame.Job(task, **length), validate=0)
    texts = [str(each.message) for each in found if "of an epoch" in str(each.message)]
    assert len(texts) == bool(text)
    assert not text or re.search(text, texts[0])

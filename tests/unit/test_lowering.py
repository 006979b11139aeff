"""Every rule of vgame/program/lowering: a program computes torch's result (see traced.py for the tolerance)."""

from __future__ import annotations

import cases_indexing
import cases_layers
import cases_models
import cases_pointwise
import pytest
import torch
from traced import EXERCISED, Case, compare, lowered, make, on
from wide import of_many

from vgame.errors import DataError, ProgramError
from vgame.program.lower import lower_task
from vgame.program.lowering import HANDLERS, random

pytestmark = pytest.mark.usefixtures("one_thread")
CASES: dict[str, Case] = {
    **cases_pointwise.CASES,
    **cases_indexing.CASES,
    **cases_layers.CASES,
    **cases_models.CASES,
}


#: Layers that differ little from others; `of_many` checks that each is a case.
AGAIN = {
    "attention",
    "attention by hand",
    "attention, causal",
    "conv2d circular",
    "grid sample to the border",
    "grid sample, nearest",
    "gru",
    "lstm",
    "multi-head attention",
    "narrow integers",
    "rnn",
    "transformer decoder layer",
    "upsampling",
    "upsampling of lines",
    "upsampling of volumes",
    "windows, clipped",
}


COMPARED: set[str] = set()


@pytest.mark.parametrize("name", of_many(CASES, *(set(CASES) ^ AGAIN)))
def test_a_lowered_step_is_torchs_step(name: str) -> None:
    compare(CASES[name])
    COMPARED.add(name)


def test_every_rule_has_a_case() -> None:
    """Except those that draw words, and one whose operator is a clone in a captured graph. Cases not compared before
    are lowered here."""
    drawing = {op for op, rule in HANDLERS.items() if rule.__module__ == random.__name__}
    wanted = set(HANDLERS) - drawing - {torch.ops.aten.lift_fresh_copy.default}
    for name in set(CASES) - COMPARED:
        if not wanted - EXERCISED:
            break
        lowered(CASES[name])
    assert sorted(map(str, wanted - EXERCISED)) == []


def test_tensors_of_types_that_no_program_has_are_refused() -> None:
    """Also if they are made inside the model."""
    case = on((6,), lambda x: (x + torch.arange(6, dtype=torch.float64)).to(torch.float32))
    with pytest.raises(ProgramError, match=r"tensors of torch.float64 are not supported; convert to float32"):
        lower_task(make(case), case.schedule, case.steps)


def test_a_token_outside_a_bag_of_embeddings_is_named() -> None:
    case = Case(lambda: torch.nn.EmbeddingBag(7, 3), lambda: {"t": torch.full((8, 4), 9)}, recorded=False)
    with pytest.raises(DataError, match="the data t holds the index 9 in sample 0, but 0 to 6 are valid"):
        lower_task(make(case), case.schedule, case.steps)

"""Every rule that replaces one of torch's core table has its reason, and every reason has its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._decomp import core_aten_decompositions

from vgame.program import capture
from vgame.program.lower import lower_task
from vgame.program.lowering import HANDLERS
from vgame.program.lowering.overrides import OVERRIDES
from vgame.tasks.task import Task


def test_the_table_is_complete() -> None:
    core = core_aten_decompositions()
    assert {str(op).removeprefix("aten.") for op in HANDLERS if op in core} == set(OVERRIDES)
    assert all(0 < len(reason) < 100 for reason in OVERRIDES.values())
    page = (Path(__file__).resolve().parents[2] / "docs/capture.md").read_text()
    assert f"the reason for each of the {len(OVERRIDES)} rules that replace" in " ".join(page.split())


def root() -> bytes:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).bfloat16()

    def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.softmax(module(batch["x"].bfloat16()), -1).float().square().sum()

    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.ones(4, 4)}, 2)
    return lower_task(task, None, 2).program.root


def test_torchs_rule_rounds_otherwise_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = root()
    monkeypatch.delitem(HANDLERS, torch.ops.aten._softmax_backward_data.default)
    capture._table_of.cache_clear()
    try:
        assert root() != ours
    finally:
        monkeypatch.undo()
        capture._table_of.cache_clear()
    assert root() == ours

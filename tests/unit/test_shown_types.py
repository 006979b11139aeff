"""In a model or a loss, `type(x)` is the class that x has in torch's loop, not a class of the tracer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from small_tasks import classify, root_of
from torch import nn

QUESTIONS = {
    "data is": lambda m, x: type(x) is torch.Tensor,
    "data equals": lambda m, x: type(x) == torch.Tensor,  # noqa: E721
    "data in": lambda m, x: type(x) in (torch.Tensor, list),
    "a result": lambda m, x: type(m(x)) is torch.Tensor,
    "a parameter": lambda m, x: all(type(p) is nn.Parameter for p in m.parameters()),
    "a name": lambda m, x: type(x).__name__ == "Tensor",
    "other values": lambda m, x: type(x.dim()) is int and type(m) is nn.Linear and type(type(m)) is type,
    "a class": lambda m, x: isinstance(nn.Linear, type) and not isinstance(x, type) and issubclass(type, object),
    "a new class": lambda m, x: type("New", (nn.Linear,), {"a": 1}).a == 1,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_type_is_that_of_torchs_loop(name: str) -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return classify(model, batch) if QUESTIONS[name](model, batch["x"]) else model(batch["x"]).mean()

    assert QUESTIONS[name](nn.Linear(4, 3), torch.ones(2, 4))
    assert root_of(loss) == root_of(classify) == root_of(partial(loss))
    assert "type" not in globals()


def test_the_builtin_name_is_restored_after_an_error() -> None:
    with pytest.raises(Exception, match="no_such"):
        root_of(lambda m, b: m(b["x"]).no_such)
    assert "type" not in globals()
